"""Which chat template a source uses: a built-in name, the tokenizer's own, a file or a text."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import DataError

_V3 = "mistral_v3.jinja"

BUILT_IN: dict[str, tuple[str, str]] = {
    "chatml": ("", "chatml.jinja"),
    "command_r": ("", "command_r.jinja"),
    "deepseek_v2": ("", "deepseek_v2.jinja"),
    "gemma": ("", "gemma.jinja"),
    "gemma3": ("", "gemma3.jinja"),
    "granite": ("", "granite.jinja"),
    "llama2": ("", "llama2.jinja"),
    "llama3": ("", "llama3.jinja"),
    "mistral": ("{% set space, v7 = ' ', false %}", _V3),
    "mistral_v1": ("", "mistral_v1.jinja"),
    "mistral_v2v3": ("{% set space, v7 = ' ', false %}", _V3),
    "mistral_v3_tekken": ("{% set space, v7 = '', false %}", _V3),
    "mistral_v7": ("{% set space, v7 = ' ', true %}", _V3),
    "mistral_v7_tekken": ("{% set space, v7 = '', true %}", _V3),
    "phi_3": ("", "phi_3.jinja"),
    "phi_35": ("", "phi_3.jinja"),
    "phi_4": ("", "phi_4.jinja"),
    "qwen_25": ("", "qwen_25.jinja"),
    "qwen3": ("", "qwen3.jinja"),
    "zephyr": ("", "zephyr.jinja"),
}
"""Templates by name: what is put in front, and the file."""

FALLBACK = "tokenizer_default_fallback_"
"""Followed by a built-in name: the tokenizer's own template, or that one if it has none."""


@cache
def built_in(name: str) -> str:
    """Return the text of a built-in template."""
    front, file = BUILT_IN[name]
    return front + (files(__name__) / file).read_text(encoding="utf-8").strip()


def resolve_template(name: str, jinja: str | None, tokenizer: Any) -> str:
    """Return the text of a chat template.

    Args:
        name: `tokenizer_default`, a built-in name, `tokenizer_default_fallback_NAME`, `jinja`, or a
            Jinja text.
        jinja: A Jinja text or the path of a file that holds one; wins over
            `tokenizer_default` and `jinja`.
        tokenizer: Asked for its `chat_template`.

    Raises:
        DataError: The name is unknown, the file is missing, or there is no template.
    """
    if jinja is not None and name in ("jinja", "tokenizer_default"):
        return _text_or_file(jinja)
    if name == "jinja":
        raise DataError("chat_template: jinja needs chat_template_jinja: a Jinja text or a file")
    if name == "tokenizer_default":
        return _own_template(tokenizer)
    if name.startswith(FALLBACK) and name.removeprefix(FALLBACK) in BUILT_IN:
        own = tokenizer.chat_template
        return _own_template(tokenizer) if own else built_in(name.removeprefix(FALLBACK))
    if name in BUILT_IN:
        return built_in(name)
    if _is_jinja(name):
        return name
    known = ["tokenizer_default", "jinja", *BUILT_IN]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise DataError(f"unknown chat_template {name!r}{hint} Known: {', '.join(known)}")


def _own_template(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise DataError(
            "the tokenizer has no chat template: set chat_template to a built-in name "
            f"({', '.join(BUILT_IN)}) or give chat_template_jinja"
        )
    return str(template)


def _text_or_file(value: str) -> str:
    if _is_jinja(value):
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise DataError(f"chat_template_jinja: no file {value!r}, and it is no Jinja text either")
    # Bytes, because text mode would turn CRLF into LF: the template must stay as it was written.
    return path.read_bytes().decode("utf-8-sig")


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text
