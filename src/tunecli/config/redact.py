"""Keep secrets out of everything that is printed or written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import SecretStr

HIDDEN = "***"

_SECRET_WORDS = {"secret", "password", "passwd", "passphrase", "apikey", "credential",
                 "credentials", "authorization"}  # fmt: skip
_SECRET_PAIRS = {("api", "key"), ("access", "key"), ("private", "key"), ("account", "key")}
_TOKEN_OF_TEXT = {"bos", "eos", "pad", "unk", "eot", "sep", "cls", "mask", "image", "video",
                  "audio", "start", "end", "special", "added", "memory", "per", "each", "next",
                  "last", "first", "new", "max", "min", "num"}  # fmt: skip
"""In front of `token`, these mean a piece of text."""

_URL = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#'\"<>]*@")
_QUERY = re.compile(r"([?&])([\w-]+)=([^\s&#'\"]+)")
_ASSIGNMENT = re.compile(
    r"""(?P<name>[A-Za-z][\w-]*)(?P<sep>["']?\s*(?P<sign>[=:])\s*)"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,;&)}\]]+)"""
)
_KNOWN_SHAPE = re.compile(r"\b(hf_|gh[pousr]_|sk-)[A-Za-z0-9]{20,}")
_BEARER = re.compile(r"\b([Bb]earer\s+)[\w.~+/=-]{8,}")


def is_secret_key(name: str) -> bool:
    """Tell whether a key or variable of this name holds a secret.

    `hub_token` and `WANDB_API_KEY` do; `eos_token`, `max_tokens` and `num_memory_tokens` do not.
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # hubToken
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    if _SECRET_WORDS.intersection(words) or _SECRET_PAIRS.intersection(pairwise(words)):
        return True
    return words[-1:] == ["token"] and not _TOKEN_OF_TEXT.intersection(words[-2:-1])


def redact(text: str) -> str:
    """Return a text without the secrets that can be recognised in it.

    Those are passwords in URLs, values that are assigned to a secret's name (`HF_TOKEN=...`),
    tokens of a well-known shape, and the values of such variables of the environment.
    """
    for name, value in os.environ.items():
        if len(value) >= 8 and value in text and is_secret_key(name):
            text = text.replace(value, HIDDEN)
    text = _redact_urls(text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN_SHAPE.sub(HIDDEN, text)
    return _ASSIGNMENT.sub(_hide_assigned, text)


def redact_tree(value: Any) -> Any:
    """Return a copy of nested mappings and lists without secrets.

    Texts are changed only where they hold a URL with a secret, so that templates stay intact.
    """
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if item and is_secret_key(str(key)) else redact_tree(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_tree(item) for item in value]
    return _redact_urls(value) if isinstance(value, str) else value


def _redact_urls(text: str) -> str:
    if "://" not in text:
        return text
    text = _URL.sub(rf"\1{HIDDEN}@", text)
    return _QUERY.sub(lambda m: f"{m[1]}{m[2]}={HIDDEN if is_secret_key(m[2]) else m[3]}", text)


def _hide_assigned(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    bare = value.strip(quote) if quote else value
    if not is_secret_key(match["name"]) or not bare or bare[0] in "<[|":
        return match[0]
    # A colon also ends words of prose ("hub_token: must be text"): hide what looks like a secret.
    mixed = len(bare) >= 6 and re.search(r"\d", bare) and re.search(r"[A-Za-z]", bare)
    if match["sign"] == ":" and not (quote or mixed):
        return match[0]
    return f"{match['name']}{match['sep']}{quote}{HIDDEN}{quote}"
