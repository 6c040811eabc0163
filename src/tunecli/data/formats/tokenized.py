"""`tokenized`: rows that come as token ids."""

from __future__ import annotations

from itertools import compress

from ...errors import DataError
from .base import Format, Row, Tokens, kind, register_format

IGNORE = -100


@register_format("tokenized")
class Tokenized(Format):
    """Takes `input_ids` as they are: no bos, no eos. Without `labels` every token is trained.

    `weights` are those of the tokens in the loss. Positions whose `attention_mask` is 0 (padding)
    are removed.
    """

    def encode(self, row: Row) -> Tokens:
        """Return ids, labels and weights."""
        ids = _integers(row, "input_ids")
        if any(i < 0 for i in ids):
            raise DataError("'input_ids' holds a negative id")
        labels = ids if row.get("labels") is None else _integers(row, "labels")
        if len(labels) != len(ids):
            raise DataError(f"{len(labels)} labels for {len(ids)} input_ids")
        if any(i < 0 and i != IGNORE for i in labels):
            raise DataError("'labels' may hold ids and -100 (not trained) only")
        weights = row.get("weights")
        if weights is not None:
            if not isinstance(weights, list) or len(weights) != len(ids):
                raise DataError("'weights' must hold a number for each of input_ids")
            if not all(type(w) in (int, float) and 0 <= w < 1e9 for w in weights):
                raise DataError("'weights' must hold numbers of at least 0 only")
        if row.get("attention_mask") is not None:
            mask = _integers(row, "attention_mask")
            if len(mask) != len(ids) or set(mask) - {0, 1}:
                raise DataError("'attention_mask' must hold 0 or 1 for each of input_ids")
            ids = list(compress(ids, mask))
            labels = list(compress(labels, mask))
            weights = list(compress(weights, mask)) if weights is not None else None
        return Tokens(ids, labels, weights)


def _integers(row: Row, name: str) -> list[int]:
    value = row.get(name)
    if not isinstance(value, list):
        raise DataError(f"field {name!r} must be a list of token ids, not {kind(value)}")
    if any(type(item) is not int for item in value):
        raise DataError(f"field {name!r} must hold whole numbers only")
    return value
