"""Which chat template a source uses: a built-in name, the tokenizer's own, a file or a text."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import DataError

_CHATML = "<|im_start|> <|im_end|>"
_COMMAND = (
    "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> "
    "<|SYSTEM_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|>"
)
_GEMMA = "<start_of_turn> <end_of_turn>"
_PHI = "<|system|> <|user|> <|assistant|> <|end|>"
_V3 = "mistral_v3.jinja"

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "chatml": ("", "chatml.jinja", _CHATML),
    "command_r": ("", "command_r.jinja", _COMMAND),
    "deepseek_v2": ("", "deepseek_v2.jinja", ""),
    "gemma": ("", "gemma.jinja", _GEMMA),
    "gemma3": ("", "gemma3.jinja", _GEMMA),
    "granite": ("", "granite.jinja", "<|start_of_role|> <|end_of_role|> <|end_of_text|>"),
    "llama2": ("", "llama2.jinja", ""),
    "llama3": ("", "llama3.jinja", "<|start_header_id|> <|end_header_id|> <|eot_id|>"),
    "llama4": ("", "llama4.jinja", "<|header_start|> <|header_end|> <|eot|>"),
    "mistral": ("{% set space, v7 = ' ', false %}", _V3, "[INST] [/INST]"),
    "mistral_v1": ("", "mistral_v1.jinja", ""),
    "mistral_v2v3": ("{% set space, v7 = ' ', false %}", _V3, "[INST] [/INST]"),
    "mistral_v3_tekken": ("{% set space, v7 = '', false %}", _V3, "[INST] [/INST]"),
    "mistral_v7": ("{% set space, v7 = ' ', true %}", _V3, "[SYSTEM_PROMPT] [INST] [/INST]"),
    "mistral_v7_tekken": ("{% set space, v7 = '', true %}", _V3, "[SYSTEM_PROMPT] [INST] [/INST]"),
    "phi_3": ("", "phi_3.jinja", _PHI),
    "phi_35": ("", "phi_3.jinja", _PHI),
    "phi_4": ("", "phi_4.jinja", "<|im_start|> <|im_sep|> <|im_end|>"),
    "qwen_25": ("", "qwen_25.jinja", _CHATML),
    "qwen3": ("", "qwen3.jinja", _CHATML),
    "qwen3_5": ("", "qwen3_5.jinja", _CHATML),
    "zephyr": ("", "zephyr.jinja", ""),
}
"""Templates by name: what is put in front, the file, and the control tokens that it needs."""

FALLBACK = "tokenizer_default_fallback_"
"""Followed by a built-in name: the tokenizer's own template, or that one if it has none."""


@cache
def built_in(name: str) -> str:
    """Return the text of a built-in template."""
    front, file, _ = BUILT_IN[name]
    return front + (files(__name__) / file).read_text(encoding="utf-8").strip()


def missing_tokens(text: str, tokenizer: Any) -> list[str]:
    """Return the control tokens of a template that the tokenizer would cut into pieces.

    Only what the built-in templates need is known.
    """
    name = next((name for name in BUILT_IN if built_in(name) == text), None)
    tokens = BUILT_IN[name][2].split() if name else []
    return [t for t in tokens if tokenizer.backend_tokenizer.token_to_id(t) is None]


def resolve_template(name: str, jinja: str | None, tokenizer: Any) -> str:
    """Return the text of a chat template.

    Args:
        name: `tokenizer_default`, a built-in name, `tokenizer_default_fallback_NAME`, `jinja`, or a
            Jinja text.
        jinja: A Jinja text or the path of a file that holds one; wins over
            `tokenizer_default` and `jinja`.
        tokenizer: Asked for the `chat_template` that it was loaded with.

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
        own = _loaded_template(tokenizer)
        return _own_template(tokenizer) if own else built_in(name.removeprefix(FALLBACK))
    if name in BUILT_IN:
        return built_in(name)
    if _is_jinja(name):
        return name
    known = ["tokenizer_default", "jinja", *BUILT_IN]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise DataError(f"unknown chat_template {name!r}{hint} Known: {', '.join(known)}")


def _loaded_template(tokenizer: Any) -> Any:
    # The one it was loaded with, also after the configuration's has been put in its place.
    return tokenizer.init_kwargs.get("chat_template") or tokenizer.chat_template


def _own_template(tokenizer: Any) -> str:
    template = _loaded_template(tokenizer)
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
