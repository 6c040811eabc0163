"""From text with trained spans to ids and labels, by the offsets of the tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .control import control_tokens
from .formats.base import Rendered, Span, Tokens

IGNORE = -100
"""Label of a position that is not trained."""

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(slots=True)
class Encoded:
    """One row.

    Attributes:
        ids: int32 [tokens].
        labels: int32 [tokens]; the ids where trained, -100 elsewhere.
        weights: float32 [tokens], 0 where not trained; `None`: 1 for every trained token.
    """

    ids: IntArray
    labels: IntArray
    weights: FloatArray | None = None


class Encoder:
    """Tokenizes rendered rows in batches.

    A token is trained if it lies inside a trained span; white space at its front does not count,
    because many tokenizers glue the space before a word to the word. A token that reaches over
    the edge of a span otherwise is not trained. All tokens of a character that is split over
    several tokens share its place, and so their fate.

    Bos (or whatever the tokenizer puts before a text) comes exactly once: it is added unless the
    text begins with it already.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise DataError(
                f"{type(tokenizer).__name__} has no fast tokenizer, which masks need: convert it "
                "once with AutoTokenizer and save_pretrained"
            )
        # A copy: post-processors trim offsets and add tokens, and settings of the user's
        # tokenizer (truncation, padding) must neither apply nor change.
        self.serialized: str = backend.to_str()
        self._backend = Tokenizer.from_str(self.serialized)
        self._backend.no_truncation()
        self._backend.no_padding()
        probe = self._backend.encode("a")
        inner = probe.special_tokens_mask.index(0) if 0 in probe.special_tokens_mask else 0
        self.prefix: list[int] = probe.ids[:inner]
        self._backend.post_processor = None
        # Does it put white space before every text? Then a later part cannot stand by itself.
        first = self._backend.encode("a", add_special_tokens=False).tokens[:1]
        self._prefixes = first != [] and first[0].startswith(("▁", "Ġ"))
        self.eos: int | None = tokenizer.eos_token_id
        self._control = control_tokens(tokenizer)

    def encode(self, rows: Sequence[Rendered | Tokens]) -> list[Encoded]:
        """Tokenize rows, on all cores unless TOKENIZERS_PARALLELISM is false."""
        plain = [r.text for r in rows if isinstance(r, Rendered) and not self._in_pieces(r)]
        encodings = iter(self._backend.encode_batch(plain, add_special_tokens=False))
        return [
            _given(row)
            if isinstance(row, Tokens)
            else self._finish(row, *self._tokenize(row, encodings))
            for row in rows
        ]

    def _in_pieces(self, row: Rendered) -> bool:
        return bool(row.literal) or (row.apart and not self._prefixes)

    def _tokenize(self, row: Rendered, encodings: Any) -> tuple[list[int], list[Span]]:
        if not self._in_pieces(row):
            encoding = next(encodings)
            return encoding.ids, encoding.offsets
        ids: list[int] = []
        offsets: list[Span] = []
        for start, end, as_text in self._pieces(row):
            self._backend.encode_special_tokens = as_text
            encoding = self._backend.encode(row.text[start:end], add_special_tokens=False)
            ids += encoding.ids
            offsets += [(a + start, b + start) for a, b in encoding.offsets]
        self._backend.encode_special_tokens = False
        return ids, offsets

    def _pieces(self, row: Rendered) -> list[tuple[int, int, bool]]:
        """Cut the text at the real control tokens around those that were typed.

        Tokenizers cut there anyway, so that the rest comes out as it always does. A prompt that
        stays apart ends a piece, too.
        """
        typed = set(row.literal)
        real = [span for span in self._control.find(row.text) if span not in typed]
        pieces: list[tuple[int, int, bool]] = []
        done = 0
        for start, end in row.literal:
            if start < done:
                continue  # In the same piece as the one before.
            left = max((b for _, b in real if b <= start), default=0)
            right = min((a for a, _ in real if a >= end), default=len(row.text))
            pieces += [(done, left, False), (left, right, True)]
            done = right
        pieces.append((done, len(row.text), False))
        if row.apart and row.spans and not self._prefixes:
            cut = row.spans[0][0]
            at = next(i for i, (_, right, _) in enumerate(pieces) if right >= cut)
            left, right, as_text = pieces[at]
            pieces[at : at + 1] = [(left, cut, as_text), (cut, right, as_text)]
        return pieces

    def _finish(self, row: Rendered, ids: list[int], offsets: list[Span]) -> Encoded:
        shift = 0
        if self.prefix and ids[: len(self.prefix)] != self.prefix:
            ids = self.prefix + ids
            shift = len(self.prefix)
        if row.append_eos:
            if self.eos is None:
                raise DataError("the tokenizer has no eos token; set special_tokens.eos_token")
            # An eos that ends the answer is that eos; one that ends the prompt is none.
            answered = not row.spans or (offsets and offsets[-1][0] >= row.spans[-1][0])
            if not answered or ids[-1] != self.eos:
                ids = [*ids, self.eos]
        array = np.array(ids, np.int32)
        labels = np.full(len(ids), IGNORE, np.int32)
        weights = None if row.weights is None else np.zeros(len(ids), np.float32)
        ranges = trained_tokens(row.text, offsets, row.spans, self._control.texts)
        for number, (first, last) in enumerate(ranges):
            labels[first + shift : last + shift] = array[first + shift : last + shift]
            if weights is not None and row.weights is not None:
                weights[first + shift : last + shift] = row.weights[number]
        if row.append_eos:
            labels[-1] = array[-1]
            if weights is not None and row.weights:
                weights[-1] = row.weights[-1]
        return _weighted(array, labels, weights)


def _given(row: Tokens) -> Encoded:
    weights = None if row.weights is None else np.array(row.weights, np.float32)
    return _weighted(np.array(row.input_ids, np.int32), np.array(row.labels, np.int32), weights)


def _weighted(ids: IntArray, labels: IntArray, weights: FloatArray | None) -> Encoded:
    """A token of weight 0 is not trained, and one that is not trained has weight 0."""
    if weights is not None:
        labels = np.where(weights > 0, labels, np.int32(IGNORE))
        weights = np.where(labels == IGNORE, np.float32(0), weights)
    return Encoded(ids, labels, weights)


def trained_tokens(
    text: str, offsets: Sequence[Span], spans: Sequence[Span], control: Collection[str] = ()
) -> list[tuple[int, int]]:
    """Return the ranges of tokens that are trained.

    Args:
        text: The row.
        offsets: Range of characters of each token, in order.
        spans: Trained ranges of characters.
        control: Control tokens. Some tokenizers let them swallow the white space behind them.
    """
    ranges = []
    for start, end in spans:
        first = bisect_left(offsets, (start,))
        while first > 0:
            left, right = offsets[first - 1]
            if not (right > start and text[left:start].isspace()):
                break
            first -= 1
        last = bisect_left(offsets, (end,))
        while last > first and offsets[last - 1][1] > end:
            left, right = offsets[last - 1]
            if text[left:right].strip() in control and text[end:right].isspace():
                break
            last -= 1
        ranges.append((first, last))
    return ranges
