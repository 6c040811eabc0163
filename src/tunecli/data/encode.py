"""The stream from source rows to stored rows: render, tokenize, filter, count, write."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.schema import Config, DatasetEntry
from ..errors import DataError
from ..reporter import Reporter
from .formats.base import Format, FormatContext, Rendered, Tokens, get_format, kind
from .report import SetReport
from .sources import Source
from .store import Origin, RowWriter, targets
from .tokenize import Encoded, Encoder

BATCH = 512
"""Rows that are tokenized at once."""


@dataclass
class Work:
    """A batch on its way: places, and the rows as text or tokens."""

    origins: list[tuple[Origin, str]]
    rows: list[Rendered | Tokens]


def open_format(
    entry: DatasetEntry, config: Config, tokenizer: Any, warn: Callable[[str], None]
) -> Format:
    """Return the format of a source.

    Raises:
        DataError: The format or its template is unknown or cannot be used.
    """
    try:
        return get_format(entry.type)(FormatContext(entry, config, tokenizer, warn))
    except DataError as error:
        raise DataError(f"{entry.path}: {error}") from None


def encode_sources(
    sources: list[tuple[Source, Format]],
    config: Config,
    encoder: Encoder,
    directory: Path,
    reporter: Reporter,
) -> SetReport:
    """Write the tokenized rows of all sources to `directory`; return the counts.

    Memory stays flat: rows are read, rendered and tokenized batch by batch, and while one batch
    is being tokenized (without the GIL) the next one is rendered.

    Raises:
        DataError: A row is broken, or too long with `excess_length_strategy: raise`.
    """
    keep = _Filter(config)
    sizes = [source.size for source, _ in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with (
        RowWriter(directory) as writer,
        reporter.task("tokenizing", total, "rows") as task,
        ThreadPoolExecutor(1) as pool,
    ):
        pending: tuple[Work, Future[list[Encoded]]] | None = None

        def finish(work: Work, future: Future[list[Encoded]]) -> None:
            kept = keep(work, future.result())
            writer.write([row for row, _ in kept], [origin for _, origin in kept])
            task.advance(len(work.rows))

        for work in _batches(sources):
            future = pool.submit(encoder.encode, work.rows)
            if pending:
                finish(*pending)
            pending = (work, future)
        if pending:
            finish(*pending)
        writer.close([part.place for source, _ in sources for part in source.parts])
    return keep.report


def _batches(sources: list[tuple[Source, Format]]) -> Iterator[Work]:
    work = Work([], [])
    first_part = 0
    for source, row_format in sources:
        for index, number, row in source.rows():
            part = source.parts[index]
            try:
                if not isinstance(row, dict):
                    raise DataError(f"a row must be an object, not {kind(row)}")
                work.rows.append(row_format.encode(row))
            except DataError as error:
                raise DataError(f"{part.origin(number)}: {error}") from None
            work.origins.append(((first_part + index, number), part.place))
            if len(work.rows) == BATCH:
                yield work
                work = Work([], [])
        first_part += len(source.parts)
    if work.rows:
        yield work


class _Filter:
    """Cuts and drops rows as the configuration asks, and counts what it does."""

    def __init__(self, config: Config) -> None:
        self.report = SetReport()
        self._config = config
        self._seen: set[bytes] | None = set() if config.dataset_exact_deduplication else None

    def __call__(self, work: Work, encoded: list[Encoded]) -> list[tuple[Encoded, Origin]]:
        kept = []
        for row, given, (origin, place) in zip(encoded, work.rows, work.origins, strict=True):
            self.report.read += 1
            self.report.control += isinstance(given, Rendered) and bool(given.literal)
            whole = self._fit(row, f"{place}{origin[1]}")
            if whole is not None and not self._duplicate(whole):
                self.report.kept += 1
                self.report.tokens += len(whole.ids)
                self.report.trained_tokens += targets(whole.labels)
                kept.append((whole, origin))
        return kept

    def _fit(self, row: Encoded, origin: str) -> Encoded | None:
        config, report = self._config, self.report
        length, limit = len(row.ids), config.sequence_len
        if length < config.min_sample_len:
            report.too_short += 1
            return None
        cut = length > limit
        if cut:
            if config.excess_length_strategy == "raise":
                raise DataError(f"{origin}: {length} tokens, more than sequence_len {limit}")
            if config.excess_length_strategy == "drop":
                report.too_long += 1
                return None
            row = Encoded(row.ids[:limit], row.labels[:limit])
        if not targets(row.labels):
            report.untrained += 1
            return None
        report.truncated += cut
        return row

    def _duplicate(self, row: Encoded) -> bool:
        if self._seen is None:
            return False
        content = row.ids.tobytes() + row.labels.tobytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest in self._seen:
            self.report.duplicates += 1
            return True
        self._seen.add(digest)
        return False
