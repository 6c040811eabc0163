"""Which chat template a source uses: a built-in name, the tokenizer's own, a file or a text."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from ..errors import DataError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

BUILT_IN = {"chatml": CHATML}
"""Templates by name."""


def resolve_template(name: str, jinja: str | None, tokenizer: Any) -> str:
    """Return the text of a chat template.

    Args:
        name: `tokenizer_default`, a built-in name, `jinja`, or a Jinja text.
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
    if name in BUILT_IN:
        return BUILT_IN[name]
    if _is_jinja(name):
        return name
    known = ["tokenizer_default", "jinja", *BUILT_IN]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
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
