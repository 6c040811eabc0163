"""Control tokens: texts that the tokenizer turns into one special token wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Control:
    """The control tokens of a tokenizer and where a text holds them."""

    texts: frozenset[str]
    pattern: re.Pattern[str]

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of `text` that the tokenizer would take for control tokens."""
        return [match.span() for match in self.pattern.finditer(text)]


def control_tokens(tokenizer: Any) -> Control:
    """Return the special tokens of a tokenizer's added vocabulary."""
    added = tokenizer.added_tokens_decoder.values()
    texts = {token.content for token in added if token.special}
    return Control(frozenset(texts), any_of(texts))


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the texts, the longest first; none: nothing."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
