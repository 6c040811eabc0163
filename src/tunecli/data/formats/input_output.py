"""`input_output`: segments of text, each trained or not, for prompts of one's own making."""

from __future__ import annotations

from ...errors import DataError
from .base import Format, Rendered, Row, Span, kind, register_format, text_field


@register_format("input_output")
class InputOutput(Format):
    """Trains the segments with `label: true`.

    The segments are the final text: control tokens written in them are control tokens, and no
    eos is added. The tokenizer's bos is, unless the text starts with it.
    """

    def encode(self, row: Row) -> Rendered:
        """Return the segments as one text."""
        segments = row.get("segments")
        if not isinstance(segments, list) or not segments:
            raise DataError(f"field 'segments' must be a list of segments, not {kind(segments)}")
        text = ""
        spans: list[Span] = []
        for number, segment in enumerate(segments, 1):
            if not isinstance(segment, dict):
                raise DataError(f"segment {number} must be an object, not {kind(segment)}")
            if not isinstance(segment.get("label"), bool):
                raise DataError(f"segment {number}: 'label' must be true or false")
            try:
                piece = text_field(segment, "text")
            except DataError as error:
                raise DataError(f"segment {number}: {error}") from None
            if segment["label"] and piece:
                start = len(text)
                if spans and spans[-1][1] == start:
                    # One span, so that a token across two trained segments is trained.
                    start = spans.pop()[0]
                spans.append((start, len(text) + len(piece)))
            text += piece
        return Rendered(text, spans)
