"""From source rows to tokens: render, tokenize, cut, filter, count."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .formats.base import Format, FormatContext, Pair, Rendered, Row, Tokens, get_format
from .report import EXAMPLES, FATES, SetReport
from .store import Fate, Origin, targets
from .tokenize import IGNORE, Encoded, Encoder

if TYPE_CHECKING:
    from ..config.schema import Config, DatasetEntry
    from .sources import Block

BLOCK = 256
"""Rows that are read, rendered and tokenized at once."""


@dataclass(frozen=True)
class Rules:
    """Which rows are kept, and how long they may be; see the keys of the same names."""

    sequence_len: int
    excess: Literal["drop", "truncate", "raise", "split"] | None = "drop"
    overlap: int = 0
    min_sample_len: int = 0
    skip_invalid: bool = False
    deduplicate: bool = False

    @classmethod
    def from_config(cls, config: Config) -> Rules:
        """Read the keys."""
        return cls(
            config.sequence_len,
            config.excess_length_strategy,
            config.split_overlap,
            config.min_sample_len,
            config.skip_invalid_rows,
            config.dataset_exact_deduplication,
        )

    def of(self, row_format: Format) -> Rules:
        """Return the rules for a format, which decides on long rows where `excess` does not."""
        return replace(self, excess=self.excess or row_format.excess)


@dataclass(slots=True)
class EncodedBlock:
    """The kept rows of a block.

    Attributes:
        rows: Tokens; where `paired`, chosen and rejected in turn.
        origins: Where each row comes from.
        digests: 16 bytes of each row (of each pair), if duplicates are looked for.
        paired: Whether the rows are preference pairs.
        report: What became of the rows of the block, counted.
        fates: The same, by row, where something did.
    """

    rows: list[Encoded] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    paired: bool = False
    report: SetReport = field(default_factory=SetReport)
    fates: list[Fate] = field(default_factory=list)

    def note(self, origin: Origin, fate: str) -> None:
        """Count one of `FATES` and remember whose it was."""
        setattr(self.report, fate, getattr(self.report, fate) + 1)
        self.fates.append((*origin, FATES.index(fate)))

    def without(self, seen: set[bytes]) -> EncodedBlock:
        """Return the block without rows whose digest is in `seen`, to which it adds its own."""
        if not self.digests:
            return self
        size = 2 if self.paired else 1
        fresh = EncodedBlock(paired=self.paired, report=self.report, fates=self.fates)
        for index, digest in enumerate(self.digests):
            part = slice(index * size, (index + 1) * size)
            if digest in seen:
                fresh.note(self.origins[part.start], "duplicates")
                self.report.forget(self.rows[part])
                continue
            seen.add(digest)
            fresh.rows += self.rows[part]
            fresh.origins += self.origins[part]
        return fresh


def open_format(
    entry: DatasetEntry, config: Config, tokenizer: object, warn: Callable[[str], None]
) -> Format:
    """Return the format of a source.

    Raises:
        DataError: The format or its template is unknown or cannot be used.
    """
    try:
        return get_format(entry.format_name)(FormatContext(entry, config, tokenizer, warn))
    except DataError as error:
        raise DataError(f"{entry.path}: {error}") from None


def encode_block(
    block: Block,
    row_format: Format,
    encoder: Encoder,
    rules: Rules,
    places: Sequence[str],
    first_part: int = 0,
) -> EncodedBlock:
    """Read, render, tokenize and filter the rows of a block.

    Args:
        block: Rows of one source.
        row_format: The source's format.
        encoder: Tokenizes.
        rules: What is kept.
        places: What stands before a row's number in its origin, by part of the source.
        first_part: Number of the source's first file among those of all sources.

    Raises:
        DataError: A row is broken (unless invalid rows are skipped), or too long where that is
            an error. The message names file and line.
    """
    rules = rules.of(row_format)
    result = EncodedBlock()
    rendered: list[Rendered | Tokens] = []
    done: list[tuple[int, int, int]] = []  # Part, number, and how many texts the row became.
    for part, number, row in block.rows():
        result.report.read += 1
        try:
            texts = texts_of(row_format, row)
        except DataError as error:
            _invalid(result, (first_part + part, number), f"{places[part]}{number}: {error}", rules)
            continue
        rendered += texts
        done.append((part, number, len(texts)))
    tokens = iter(zip(rendered, encoder.encode(rendered), strict=True))
    for part, number, size in done:
        pairs = [next(tokens) for _ in range(size)]
        result.report.control += any(isinstance(g, Rendered) and g.literal for g, _ in pairs)
        group = [row for _, row in pairs]
        try:
            kept, fate = fit(group, rules)
        except DataError as error:
            _invalid(result, (first_part + part, number), f"{places[part]}{number}: {error}", rules)
            continue
        if fate:
            result.note((first_part + part, number), fate)
        if not kept:
            continue
        if result.rows and result.paired != (size == 2):
            raise DataError(_MIXED.format(place=f"{places[part]}{number}"))
        result.paired = size == 2
        result.rows += kept
        result.origins += [(first_part + part, number)] * len(kept)
        result.report.remember(kept)
        if rules.deduplicate:
            result.digests += _digests(kept, size)
    return result


_MIXED = "{place}: preference pairs and ordinary rows cannot be in the same set"


def _invalid(block: EncodedBlock, origin: Origin, problem: str, rules: Rules) -> None:
    if not rules.skip_invalid:
        raise DataError(problem) from None
    block.note(origin, "invalid")
    if len(block.report.invalid_examples) < EXAMPLES:
        block.report.invalid_examples.append(problem)


def texts_of(row_format: Format, row: Row | DataError) -> list[Rendered | Tokens]:
    """Return the text or tokens of a row, or both of a pair."""
    if isinstance(row, DataError):
        raise row
    encoded = row_format.encode(row)
    return [encoded.chosen, encoded.rejected] if isinstance(encoded, Pair) else [encoded]


def _check_prompts(pair: list[Encoded]) -> None:
    """Raise a `DataError` if the tokens before the answers of a preference pair differ."""
    trained = [row.labels != IGNORE for row in pair]
    one, two = (row.ids[: mask.argmax()] for row, mask in zip(pair, trained, strict=True))
    if all(mask.any() for mask in trained) and not np.array_equal(one, two):
        raise DataError(
            "the tokens of the prompt are not the same for both answers: one of them grows into "
            "the last token of the prompt; strip the answers, or end the prompt with a line break"
        )


def fit(group: list[Encoded], rules: Rules) -> tuple[list[Encoded], str]:
    """Return what is kept of a row (of both rows of a pair), or nothing; and its fate, if any."""
    if len(group) == 2:
        _check_prompts(group)
    lengths = [len(row.ids) for row in group]
    if min(lengths) < rules.min_sample_len:
        return [], "too_short"
    cut = max(lengths) > rules.sequence_len
    if cut and rules.excess == "raise":
        raise DataError(f"{max(lengths)} tokens, more than sequence_len {rules.sequence_len}")
    if cut and rules.excess == "drop":
        return [], "too_long"
    if cut and rules.excess == "split":
        if len(group) > 1:
            raise DataError("a preference pair cannot be split; set excess_length_strategy to "
                            "drop or truncate")  # fmt: skip
        pieces = [piece for piece in _pieces(group[0], rules) if targets(piece.labels)]
        return pieces, "split" if pieces else "untrained"
    if cut:
        group = [cut_row(row, 0, rules.sequence_len) for row in group]
    if not all(targets(row.labels) for row in group):
        return [], "untrained"
    return group, "truncated" if cut else ""


def cut_row(row: Encoded, start: int, stop: int) -> Encoded:
    """Return the tokens of a row from `start` up to `stop`."""
    weights = None if row.weights is None else row.weights[start:stop]
    return Encoded(row.ids[start:stop], row.labels[start:stop], weights)


def _pieces(row: Encoded, rules: Rules) -> Iterator[Encoded]:
    """Cut a long row; what a piece repeats of the one before is context and not trained again."""
    begin = 0
    while True:
        piece = cut_row(row, begin, begin + rules.sequence_len)
        if begin and rules.overlap:
            piece.labels = piece.labels.copy()
            piece.labels[: rules.overlap] = IGNORE
            if piece.weights is not None:
                piece.weights = np.where(piece.labels == IGNORE, np.float32(0), piece.weights)
        yield piece
        if begin + rules.sequence_len >= len(row.ids):
            return
        begin += rules.sequence_len - rules.overlap


def _digests(rows: Iterable[Encoded], size: int) -> Iterator[bytes]:
    contents: list[bytes] = []
    for row in rows:
        arrays: tuple[npt.NDArray[np.generic], ...] = (row.ids, row.labels)
        if row.weights is not None:
            arrays += (row.weights,)
        # The number of tokens parts the arrays, and the two rows of a pair.
        contents.append(b"".join([len(row.ids).to_bytes(8), *(a.tobytes() for a in arrays)]))
        if len(contents) == size:
            yield hashlib.blake2b(b"".join(contents), digest_size=16).digest()
            contents = []
