"""Rows and packs as they will be trained, token by token, and their statistics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, UsageError
from .encode import BLOCK, Rules, fit, open_format, texts_of
from .loader import BatchLoader
from .packing import plan_packs
from .prepare import Prepared
from .report import FATES
from .sources import Block, open_source
from .store import TokenRows
from .tokenize import IGNORE, Encoded, Encoder, FloatArray, IntArray

if TYPE_CHECKING:
    from ..config.schema import Config, DatasetEntry

DROPPING = FATES[:-2]
BINS = 12
"""Bars of the histogram of lengths, at most."""

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowView:
    """A row, or one of the two of a pair. Lists have one item for each token.

    Attributes:
        origin: File and line.
        number: Place among the rows, from 1; a pair counts as one; 0 for a dropped row.
        entry: Its entry of `datasets`, from 0.
        answer: `chosen` or `rejected`; empty outside pairs.
        fate: One of `report.FATES`, empty if the row is trained as it stands in the file.
        problem: What is wrong with an invalid row.
        cut: Tokens of a dropped row that would have fitted, if it has more; else 0.
        ids: Token ids.
        texts: Their texts, which add up to the text of the row. A character that several tokens
            share stands with the first of them; bytes that form none are written `\\xNN`.
        special: Whether the token is one of the tokenizer's added ones.
        weights: Weight in the loss, 0 where not trained.
    """

    origin: str
    number: int
    entry: int
    answer: str
    fate: str
    problem: str
    cut: int
    ids: list[int]
    texts: list[str]
    special: list[bool]
    weights: list[float]

    @property
    def trained(self) -> int:
        """Trained tokens."""
        return sum(weight > 0 for weight in self.weights)


@dataclass(frozen=True)
class PackView:
    """Rows that share a pack, in order.

    Attributes:
        number: Place in the first epoch, from 1.
        begins: Place in the pack of the first token of each row: positions restart there.
        padding: Positions behind the last row, up to `sequence_len`.
        rows: The rows.
    """

    number: int
    begins: list[int]
    padding: int
    rows: list[RowView]


@dataclass(frozen=True)
class EntryStats:
    """Counts of an entry of `datasets`.

    Attributes:
        path: As in the configuration.
        read: Rows in the source.
        rows: Kept in this set; pieces of a split row count each, and so do the two of a pair.
        tokens: Tokens of the kept rows.
        trained: Trained tokens of the kept rows.
        epoch_rows: Rows in the first epoch: differs from `rows` with `weight` or `repeat`.
        fates: Rows that were dropped, truncated or split, by cause (`report.FATES`).
    """

    path: str
    read: int
    rows: int
    tokens: int
    trained: int
    epoch_rows: int
    fates: dict[str, int]


@dataclass(frozen=True)
class Stats:
    """Counts of a set.

    Attributes:
        entries: By entry of `datasets` (or `test_datasets`).
        rows: Rows that are kept.
        tokens: Their tokens.
        trained: Those that are trained.
        lengths: `min`, `mean`, `p50`, `p90`, `p99`, `max` of tokens in a row.
        histogram: Shortest and longest length of each bar, and its rows.
        sequence_len: Tokens that fit into a pack.
        packs: Packs in the first epoch (with `sample_packing: false`: if there were any).
        pack_fill: Share of their positions that are tokens.
        batch_fill: The same for padded batches of `micro_batch_size` rows; `None` with packs.
    """

    entries: list[EntryStats]
    rows: int
    tokens: int
    trained: int
    lengths: dict[str, float]
    histogram: list[tuple[int, int, int]]
    sequence_len: int
    packs: int
    pack_fill: float
    batch_fill: float | None


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found: `found` rows (or packs), the first of which are here."""

    stats: Stats
    found: int
    rows: list[RowView]
    packs: list[PackView]


def inspect_rows(
    config: Config,
    tokenizer: Any,
    data: Prepared,
    row: str | None = None,
    dataset: str | None = None,
    longest: bool = False,
    only_untrained: bool = False,
    packed: bool | None = None,
    evaluation: bool = False,
    limit: int = 10,
) -> Inspection:
    """Choose rows or packs and lay them open; see `tunecli.api.inspect`."""
    rows = data.eval if evaluation else data.train
    if rows is None:
        raise DataError("there are no evaluation rows: set val_set_size or test_datasets")
    own = evaluation and not config.val_set_size
    whole = TokenRows(Path(data.report.path) / ("eval" if own else "train"))
    entries = config.test_datasets if own else config.datasets
    order, begins, packing = _plan(config, data, rows, evaluation)
    stats = _stats(config, entries, rows, whole, order, begins, packing)
    view = _Viewer(config, tokenizer, entries, rows)

    wanted = _entries(entries, dataset)
    chosen = np.isin(rows.entry, wanted)
    dropped = rows.fates[rows.fates["fate"] < len(DROPPING)]
    dropped = np.unique(dropped[np.isin(rows.entries[dropped["part"]], wanted)])
    unit = 2 if rows.paired else 1
    if row is not None and row.isdecimal():
        chosen &= np.arange(len(rows)) // unit == int(row) - 1
        dropped = dropped[:0]
    elif row is not None:
        chosen &= _from(rows.places, rows.part, rows.number, row)
        dropped = dropped[_from(rows.places, dropped["part"], dropped["number"], row)]
    if row is not None and not chosen.any() and not len(dropped):
        raise UsageError(f"there is no row {row}: give 1 to {len(rows) // unit:,}, or file:line")
    if packed is None:
        packed = packing and row is dataset is None and not (longest or only_untrained)
    if packed and (longest or only_untrained or not packing):
        raise UsageError("packs can be shown with sample_packing: all, by row, or by data set")
    if packed and len(rows):
        holding = np.flatnonzero(np.logical_or.reduceat(chosen[order], begins[:-1])).tolist()
        packs = [view.pack(i + 1, order[begins[i] : begins[i + 1]]) for i in holding[:limit]]
        return Inspection(stats, len(holding), [], packs)
    units = np.flatnonzero(chosen[::unit] & (not only_untrained))
    if longest:
        length = rows.lengths.reshape(-1, unit).max(1)
        units = units[np.argsort(-length[units], kind="stable")]
    views = [view.row(i * unit + k) for i in units[:limit].tolist() for k in range(unit)]
    found = len(units)
    if only_untrained or row is not None:
        views += view.dropped(dropped[: max(0, limit - found)].tolist())
        found += len(dropped)
    return Inspection(stats, found, views, [])


class _Viewer:
    """Makes views of rows."""

    def __init__(
        self, config: Config, tokenizer: Any, entries: list[DatasetEntry], rows: TokenRows
    ) -> None:
        self._config, self._tokenizer, self._entries, self._rows = config, tokenizer, entries, rows
        self._added = set(tokenizer.added_tokens_decoder)
        self._bytes = token_bytes(tokenizer)

    def row(self, i: int) -> RowView:
        rows = self._rows
        fates = rows.fates[(rows.fates["part"] == rows.part[i])
                           & (rows.fates["number"] == rows.number[i])]["fate"]  # fmt: skip
        fate = next((FATES[f] for f in fates if f >= len(DROPPING)), "")
        answer = ("chosen", "rejected")[i % 2] if rows.paired else ""
        number = i // (2 if rows.paired else 1) + 1
        ids, labels = rows.row(i)
        return self._view(rows.origin(i), number, int(rows.entry[i]), answer, fate, ids, labels,
                          rows.weights(i))  # fmt: skip

    def pack(self, number: int, members: Indices) -> PackView:
        ends = np.cumsum(self._rows.lengths[members], dtype=np.int64).tolist()
        return PackView(number, [0, *ends[:-1]], self._config.sequence_len - ends[-1],
                        [self.row(i) for i in members.tolist()])  # fmt: skip

    def dropped(self, fates: Sequence[tuple[int, int, int]]) -> list[RowView]:
        """Read and encode dropped rows once more, in the order of the source."""
        views: list[RowView] = []
        rules = Rules.from_config(self._config)
        encoder = Encoder(self._tokenizer)
        for index, entry in enumerate(self._entries):
            first = int(np.searchsorted(self._rows.entries, index))
            wanted = {(part - first, number): FATES[fate] for part, number, fate in fates
                      if self._rows.entries[part] == index}  # fmt: skip
            if not wanted:
                continue
            row_format = open_format(entry, self._config, self._tokenizer, lambda text: None)
            for block in open_source(entry).blocks(BLOCK):
                mine = Block([item for item in block.items if item[:2] in wanted])
                for part, number, row in mine.rows():
                    fate = wanted.pop((part, number))
                    problem, group = "", [Encoded(np.zeros(0, np.int32), np.zeros(0, np.int32))]
                    try:
                        group = encoder.encode(texts_of(row_format, row))
                        fit(group, rules.of(row_format))
                    except DataError as error:
                        problem = str(error)
                    for answer, one in zip(
                        ("chosen", "rejected") if len(group) == 2 else ("",), group, strict=True
                    ):
                        origin = f"{self._rows.places[first + part]}{number}"
                        views.append(self._view(origin, 0, index, answer, fate, one.ids,
                                                one.labels, one.weights, problem))  # fmt: skip
                if not wanted:
                    break
        return views

    def _view(
        self, origin: str, number: int, entry: int, answer: str, fate: str, ids: IntArray,
        labels: IntArray, weights: FloatArray | None, problem: str = "",
    ) -> RowView:  # fmt: skip
        weight = (labels != IGNORE).astype(np.float32) if weights is None else weights.copy()
        weight[:1] = 0  # Nothing predicts the first token.
        numbers = ids.tolist()
        texts = split_text([self._bytes(i, at == 0) for at, i in enumerate(numbers)])
        limit = self._config.sequence_len
        cut = limit if not number and len(numbers) > limit else 0
        special = [i in self._added for i in numbers]
        return RowView(origin, number, entry, answer, fate, problem, cut, numbers, texts, special,
                       [round(w, 6) for w in weight.tolist()])  # fmt: skip


def token_bytes(tokenizer: Any) -> Callable[[int, bool], bytes]:
    """Return a function that gives the bytes of a token, by id and whether it begins the text.

    Byte-level vocabularies spell bytes in letters of their own, and those with byte fallback as
    `<0xNN>`. Other tokens are what they add to the text when they are decoded behind another one.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    backend = tokenizer.backend_tokenizer
    added = {i: token.content.encode() for i, token in tokenizer.added_tokens_decoder.items()}
    # Bytes that are letters stand for themselves, the others for the letters from 256 on.
    letters = set(ByteLevel.alphabet())
    spelt = {chr(byte): byte for byte in range(256) if chr(byte) in letters}
    others = (byte for byte in range(256) if chr(byte) not in letters)
    spelt |= {chr(256 + n): byte for n, byte in enumerate(others)}
    byte_level = "ByteLevel" in repr(backend.decoder)
    anchor = next((i for token, i in sorted(backend.get_vocab(with_added_tokens=False).items())
                   if token.isalnum() and backend.decode([i]) == token), None)  # fmt: skip

    @cache
    def find(number: int, first: bool) -> bytes:
        token = backend.id_to_token(number)
        if token is None:
            return f"<unknown id {number}>".encode()
        if byte_level:
            if number in added or not all(letter in spelt for letter in token):
                return token.encode()
            return bytes(spelt[letter] for letter in token)
        if match := re.fullmatch("<0x([0-9A-F]{2})>", token):
            return bytes.fromhex(match[1])
        if first or anchor is None:
            return backend.decode([number], skip_special_tokens=False).encode()
        before = backend.decode([anchor])
        return backend.decode([anchor, number], skip_special_tokens=False)[len(before) :].encode()

    return find


def split_text(parts: Sequence[bytes]) -> list[str]:
    """Decode UTF-8 bytes and deal the characters out, each to the part that has its first byte.

    Bytes that form no character become `\\xNN`.
    """
    texts = [""] * len(parts)
    ends = np.cumsum([len(part) for part in parts])
    at = index = 0
    for letter in b"".join(parts).decode("utf-8", "surrogateescape"):
        size = len(letter.encode("utf-8", "surrogateescape"))
        while at >= ends[index]:
            index += 1
        stray = 0xDC80 <= ord(letter) <= 0xDCFF
        texts[index] += f"\\x{ord(letter) - 0xDC00:02x}" if stray else letter
        at += size
    return texts


def _plan(
    config: Config, data: Prepared, rows: TokenRows, evaluation: bool
) -> tuple[Indices, Indices, bool]:
    """Return order and begins of samples in the first epoch, and whether they are packs.

    The plan of one rank: packs are the same for all layouts.
    """
    packing = config.sample_packing
    if evaluation and config.eval_sample_packing is not None:
        packing = config.eval_sample_packing
    packing = packing and not rows.paired
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(1, np.int64), packing
    loader = BatchLoader(
        rows,
        micro_batch_size=config.micro_batch_size,
        sequence_len=config.sequence_len,
        packing=packing,
        seed=config.seed,
        shuffle=config.shuffle_merged_datasets and not evaluation,
        mixture=None if evaluation else data.mixture,
        group_by_length=config.group_by_length and not evaluation,
    )
    return *loader.order(0), packing


def _stats(
    config: Config, entries: list[DatasetEntry], rows: TokenRows, whole: TokenRows,
    order: Indices, begins: Indices, packing: bool,
) -> Stats:  # fmt: skip
    def count(entry: Indices, values: npt.ArrayLike | None = None) -> list[int]:
        return np.bincount(entry, values, len(entries)).astype(np.int64).tolist()

    fates, fate_entry = rows.fates, rows.entries[rows.fates["part"]]
    origins = np.unique(np.concatenate([(part.astype(np.int64) << 40) + number for part, number in
                                        ((whole.part, whole.number),
                                         (fates["part"], fates["number"]))]))  # fmt: skip
    read, kept = count(rows.entries[origins >> 40]), count(rows.entry)
    tokens, trained = count(rows.entry, rows.lengths), count(rows.entry, rows.trained)
    drawn = count(rows.entry[order])
    by_fate = {name: count(fate_entry[fates["fate"] == i]) for i, name in enumerate(FATES)}
    table = [
        EntryStats(entry.path, read[i], kept[i], tokens[i], trained[i], drawn[i],
                   {name: counts[i] for name, counts in by_fate.items() if counts[i]})
        for i, entry in enumerate(entries)
    ]  # fmt: skip
    lengths = rows.lengths[order].astype(np.int64)
    figures: dict[str, float] = {}
    batch_fill = None
    if not packing:
        starts = np.arange(0, len(lengths), config.micro_batch_size)
        width = np.maximum.reduceat(lengths, starts) if len(lengths) else lengths
        if config.pad_to_sequence_len:
            width[:] = config.sequence_len
        size = np.diff(np.append(starts, len(lengths)))
        batch_fill = float(lengths.sum() / max(1, (width * size).sum()))
        begins = plan_packs(lengths, config.sequence_len)[1]
    if len(rows):
        shares = np.percentile(rows.lengths, [0, 50, 90, 99, 100], method="inverted_cdf").tolist()
        figures = dict(zip(("min", "p50", "p90", "p99", "max"), map(int, shares), strict=True))
        figures["mean"] = round(float(rows.lengths.mean()), 1)
    packs = len(begins) - 1
    return Stats(
        entries=table,
        rows=len(rows),
        tokens=int(rows.lengths.sum(dtype=np.int64)),
        trained=int(rows.trained.sum(dtype=np.int64)),
        lengths=figures,
        histogram=histogram(rows.lengths) if len(rows) else [],
        sequence_len=config.sequence_len,
        packs=packs,
        pack_fill=float(lengths.sum() / max(1, packs * config.sequence_len)),
        batch_fill=batch_fill,
    )


def histogram(lengths: npt.NDArray[np.integer]) -> list[tuple[int, int, int]]:
    """Return at most `BINS` bars of one round width: shortest and longest length, and rows."""
    low, high = int(lengths.min()), int(lengths.max())
    rounds = (m * 10**e for e in range(12) for m in (1, 2, 5))
    width = next(w for w in rounds if high // w - low // w < BINS)
    counts = np.bincount(lengths // width)[low // width :].tolist()
    first = low // width * width
    return [(first + i * width, first + (i + 1) * width - 1, n) for i, n in enumerate(counts)]


def _entries(entries: Iterable[DatasetEntry], wanted: str | None) -> list[int]:
    paths = [entry.path for entry in entries]
    found = [i for i, path in enumerate(paths)
             if wanted in (None, path, str(i), Path(path).name)]  # fmt: skip
    if not found:
        known = ", ".join(f"{i} ({path})" for i, path in enumerate(paths))
        raise UsageError(f"there is no data set {wanted}; there are: {known}")
    return found


def _from(places: list[str], part: IntArray, number: Indices, origin: str) -> Mask:
    """Tell which rows have this origin; folders may be left out of it."""
    match = re.fullmatch(r"(.*\D)(\d+)", origin)
    if match is None:
        return np.zeros(len(part), np.bool_)
    files = [i for i, place in enumerate(places) if f"/{place}".endswith(f"/{match[1]}")]
    return np.isin(part, files) & (number == int(match[2]))
