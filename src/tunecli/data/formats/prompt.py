"""Texts put together from the words of a prompt and parts of a row."""

from __future__ import annotations

from collections.abc import Mapping

from ...config.schema.data import parse_format
from ..control import Control
from .base import Span

Pieces = list[tuple[str, str | None]]
"""A parsed format string: words, each with the name that follows them."""


class Text:
    """A text that remembers which of its characters come from the row.

    Control tokens in the words of a prompt are control tokens; in parts of a row they are text.
    """

    def __init__(self) -> None:
        self.text = ""
        self._typed: list[Span] = []

    def add(self, pieces: Pieces, values: Mapping[str, str]) -> None:
        """Append a format, each name replaced by its value, which is not looked into."""
        for words, name in pieces:
            self.text += words
            if name is not None:
                start = len(self.text)
                self.text += values[name]
                self._typed.append((start, len(self.text)))

    def literal(self, control: Control) -> list[Span]:
        """Return the ranges that look like control tokens and come from the row, if in part."""
        found = control.find(self.text)
        return [(a, b) for a, b in found if any(s < b and a < e for s, e in self._typed)]


def names(pieces: Pieces) -> set[str]:
    """Return the names in a format."""
    return {name for _, name in pieces if name is not None}


def turn_pieces(system_format: str, turn: str, system: str | None) -> Pieces:
    """Return a prompt with a system prompt, which stands in front unless the prompt names it.

    Args:
        system_format: What stands in front.
        turn: Format of the prompt.
        system: System prompt, part of the words; `""`: none; `None`: the row has one.
    """
    pieces = parse_format(turn)
    if "system" not in names(pieces) and system != "":
        pieces = parse_format(system_format) + pieces
    if system is None:
        return pieces
    return [(words + system, None) if n == "system" else (words, n) for words, n in pieces]
