"""Formats: from a row of the data to text with trained spans.

Importing this package fills the registry with the formats that come along.
"""

from __future__ import annotations

from . import chat_template, completion, input_output, instruction, preference, tokenized
from .base import Format, FormatContext, Rendered, Tokens, get_format, register_format

__all__ = [
    "Format",
    "FormatContext",
    "Rendered",
    "Tokens",
    "chat_template",
    "completion",
    "get_format",
    "input_output",
    "instruction",
    "preference",
    "register_format",
    "tokenized",
]
