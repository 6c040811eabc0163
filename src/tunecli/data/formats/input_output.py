"""Final texts that say themselves what is trained: `input_output` and `text_spans`.

Control tokens written in them are control tokens, and no eos is added. The tokenizer's bos is,
unless the text starts with it.
"""

from __future__ import annotations

from typing import Any

from ...errors import DataError
from .base import Format, Rendered, Row, Span, kind, register_format, text_field


class Marked:
    """Trained spans and their weights, built up in order."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.weights: list[float] = []

    def add(self, start: int, end: int, weight: float) -> None:
        """Add a span, unless it is empty."""
        if start == end:
            return
        if self.spans and self.spans[-1][1] == start and self.weights[-1] == weight:
            # One span, so that a token across two trained parts is trained.
            self.spans[-1] = (self.spans[-1][0], end)
            return
        self.spans.append((start, end))
        self.weights.append(weight)

    def rendered(self, text: str) -> Rendered:
        """Return the row; weights only where one is not 1."""
        weighted = any(weight != 1 for weight in self.weights)
        return Rendered(text, self.spans, weights=self.weights if weighted else None)


def _weight(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise DataError(f"the weight must be a number of at least 0, not {value!r}")
    return float(value)


@register_format("input_output")
class InputOutput(Format):
    """Trains the segments with `label: true`; with `train_on_inputs` all.

    A segment may have a `weight`, that of its tokens in the loss.
    """

    def encode(self, row: Row) -> Rendered:
        """Return the segments as one text."""
        segments = row.get("segments")
        if not isinstance(segments, list) or not segments:
            raise DataError(f"field 'segments' must be a list of segments, not {kind(segments)}")
        text = ""
        marked = Marked()
        for number, segment in enumerate(segments, 1):
            if not isinstance(segment, dict):
                raise DataError(f"segment {number} must be an object, not {kind(segment)}")
            if not isinstance(segment.get("label"), bool):
                raise DataError(f"segment {number}: 'label' must be true or false")
            try:
                piece = text_field(segment, "text")
                weight = _weight(segment.get("weight"))
            except DataError as error:
                raise DataError(f"segment {number}: {error}") from None
            if segment["label"] or self.context.config.train_on_inputs:
                marked.add(len(text), len(text) + len(piece), weight)
            text += piece
        return marked.rendered(text)


@register_format("text_spans")
class TextSpans(Format):
    """Trains the ranges of characters in `spans`: `[start, end]` or `[start, end, weight]`.

    With `train_on_inputs` the rest is trained, too, with weight 1.
    """

    def encode(self, row: Row) -> Rendered:
        """Return the text with its spans."""
        text = text_field(row, self.entry.field, key="field")
        spans = row.get("spans")
        if not isinstance(spans, list):
            raise DataError(f"field 'spans' must be a list of [start, end], not {kind(spans)}")
        marked = Marked()
        whole = self.context.config.train_on_inputs
        done = 0
        for number, span in enumerate(spans, 1):
            if not isinstance(span, list) or len(span) not in (2, 3):
                raise DataError(f"span {number} must be [start, end] or [start, end, weight]")
            start, end = span[:2]
            if type(start) is not int or type(end) is not int or not done <= start <= end:
                raise DataError(
                    f"span {number} must be two whole numbers, start before end, behind the span "
                    f"before it; it is {span[:2]}"
                )
            if end > len(text):
                raise DataError(f"span {number} ends at {end}; the text has {len(text)} characters")
            try:
                weight = _weight(span[2] if len(span) == 3 else None)
            except DataError as error:
                raise DataError(f"span {number}: {error}") from None
            if whole:
                marked.add(done, start, 1.0)
            marked.add(start, end, weight)
            done = end
        if whole:
            marked.add(done, len(text), 1.0)
        return marked.rendered(text)
