"""`completion`: plain text, trained from end to end."""

from __future__ import annotations

from .base import Format, Rendered, Row, register_format, text_field


@register_format("completion")
class Completion(Format):
    """Trains the whole text and the eos after it.

    The row is the final text: control tokens written in it are control tokens. Long rows are
    split: of a document that is dropped nothing would be learnt.
    """

    excess = "split"

    def encode(self, row: Row) -> Rendered:
        """Return the text."""
        text = text_field(row, self.entry.field, key="field")
        return Rendered(text, [(0, len(text))], append_eos=True)
