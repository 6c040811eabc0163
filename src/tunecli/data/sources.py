"""Data sources: local files, folders and globs, saved `datasets` directories, Hub ids."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..config.schema.data import DatasetEntry
from ..errors import DataError
from .readers import KINDS, Numbered, parse, place, read_rows

OTHER_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
"""Words in a file's name that keep it out of a folder's `train` split."""


@dataclass(frozen=True)
class Part:
    """One file (or data set) of a source.

    Attributes:
        place: Text before the number of a row in its origin.
        read: Yields numbered rows.
        fingerprint: Returns a text that changes with the contents.
        size: Rows, if that is known without reading.
    """

    place: str
    read: Callable[[], Iterator[Numbered]]
    fingerprint: Callable[[], str]
    size: int | None = None

    def origin(self, number: int) -> str:
        """Return the name of a row: `file.jsonl:2` or `file.parquet row 2`."""
        return f"{self.place}{number}"


@dataclass(frozen=True)
class Block:
    """Some consecutive rows of a source, on their way to where they are parsed.

    Attributes:
        items: Index of the part, line or row in it, and what `readers.parse` takes.
    """

    items: list[tuple[int, int, Any]]

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> Iterator[tuple[int, int, dict[str, Any] | DataError]]:
        """Yield index of the part, line or row in it, and the row, or what is wrong with it."""
        for part, number, given in self.items:
            yield part, number, parse(given)


@dataclass(frozen=True)
class Source:
    """The rows of one entry of `datasets`.

    Attributes:
        parts: Files, in the order in which they are read.
        start: Rows that a slice leaves out at the front.
        stop: First row after the slice, `None` for all.
        notes: What the user should know about the choice of files.
    """

    parts: list[Part]
    start: int = 0
    stop: int | None = None
    notes: list[str] = field(default_factory=list)

    def blocks(self, rows: int = 512) -> Iterator[Block]:
        """Yield the rows in blocks of at most so many, in order."""
        taken: list[tuple[int, int, Any]] = []
        for item in self._items():
            taken.append(item)
            if len(taken) == rows:
                yield Block(taken)
                taken = []
        if taken:
            yield Block(taken)

    @property
    def size(self) -> int | None:
        """Rows, if known before reading."""
        sizes = [part.size for part in self.parts]
        if any(size is None for size in sizes):
            return None
        total = sum(size for size in sizes if size is not None)
        return max(0, min(total, total if self.stop is None else self.stop) - self.start)

    def fingerprint(self) -> str:
        """Return a text that changes with the rows (their contents, not the file's dates)."""
        return repr(([part.fingerprint() for part in self.parts], self.start, self.stop))

    def _items(self) -> Iterator[tuple[int, int, Any]]:
        count = 0
        for index, part in enumerate(self.parts):
            for number, given in part.read():
                if self.stop is not None and count >= self.stop:
                    return
                count += 1
                if count > self.start:
                    yield index, number, given


def open_source(entry: DatasetEntry) -> Source:
    """Find what an entry of `datasets` names. Reads no rows; local paths touch no network.

    Raises:
        DataError: Nothing is there, the split is not, or a folder brings a loading script.
    """
    path = Path(entry.path).expanduser()
    if path.is_dir():
        script = path / f"{path.resolve().name}.py"
        if script.exists():
            raise DataError(
                f"{entry.path}: the folder holds a loading script ({script.name}); data sets are "
                "never allowed to run code: convert it to JSONL or Parquet, or name the files "
                "with data_files in a folder of their own"
            )
        if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
            return _saved(entry, path)
        return _local(entry, _in_folder(entry, path), folder=entry.data_files is None)
    if path.is_file():
        return _local(entry, [path])
    if glob.has_magic(entry.path):
        return _local(entry, [Path(name) for name in _matches(str(path))])
    if path.is_absolute() or entry.path.startswith((".", "~")) or path.suffix in KINDS:
        raise DataError(f"{entry.path}: no such file or folder")
    return _hub(entry)


def _matches(pattern: str) -> list[str]:
    # Not Path.glob: it takes no absolute patterns.
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207
    found = sorted(name for name in names if Path(name).is_file())
    if not found:
        raise DataError(f"{pattern}: no file matches")
    return found


def _in_folder(entry: DatasetEntry, folder: Path) -> list[Path]:
    if entry.data_files is not None:
        given = [entry.data_files] if isinstance(entry.data_files, str) else entry.data_files
        names = [name for pattern in given for name in _matches(str(folder / pattern))]
        return [Path(name) for name in dict.fromkeys(names)]
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and (path.suffix in KINDS or entry.ds_type is not None)
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise DataError(f"{entry.path}: no data files ({', '.join(KINDS)}) in the folder")
    return files


def _split(entry: DatasetEntry) -> tuple[str, int, int | None]:
    """Return name, start and stop of `split`, for local data."""
    match = re.fullmatch(r"([\w.-]+)(?:\[(\d*):(\d*)\])?", entry.split)
    if match is None:
        raise DataError(
            f"{entry.path}: split {entry.split!r} is not understood for local data; "
            "name, name[:100], name[100:] and name[100:200] are"
        )
    name, start, stop = match.groups()
    return name, int(start or 0), int(stop) if stop else None


def _local(entry: DatasetEntry, files: list[Path], folder: bool = False) -> Source:
    name, start, stop = _split(entry)
    notes: list[str] = []
    if name != "train":
        chosen = [path for path in files if name in path.stem]
    elif folder:
        words = {path: set(re.split(r"[^a-z]+", path.stem.lower())) for path in files}
        chosen = [path for path in files if "train" in words[path]] or [
            path for path in files if not words[path].intersection(OTHER_SPLITS)
        ]
    else:
        chosen = files
    if not chosen:
        there = ", ".join(path.name for path in files[:10])
        raise DataError(f"{entry.path}: no file of split {name!r}; there are: {there}")
    if folder and len(chosen) < len(files):
        left = ", ".join(path.name for path in files if path not in chosen)
        notes.append(f"{entry.path}: split {name!r} leaves out {left}")
    parts = []
    for path in chosen:
        kind = entry.ds_type or KINDS.get(path.suffix)
        if kind is None:
            raise DataError(
                f"{path}: unknown kind of file {path.suffix!r}; set ds_type, or use "
                f"{', '.join(KINDS)}"
            )
        parts.append(Part(place(str(path), kind), partial(read_rows, path, kind),
                          partial(_digest, path)))  # fmt: skip
    return Source(parts, start, stop, notes)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _saved(entry: DatasetEntry, path: Path) -> Source:
    from datasets import DatasetDict, load_from_disk

    name, start, stop = _split(entry)
    try:
        data = load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"{entry.path}: cannot be loaded: {error}") from error
    if isinstance(data, DatasetDict):
        if name not in data:
            raise DataError(f"{entry.path}: no split {name!r}; there are: {', '.join(data)}")
        data = data[name]
    elif name != "train":
        raise DataError(f"{entry.path}: no split {name!r}; the directory holds a single set")
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return Source([_dataset_part(entry, data, lambda: repr([_digest(p) for p in files]))],
                  start, stop)  # fmt: skip


def _hub(entry: DatasetEntry) -> Source:
    from datasets import load_dataset

    try:
        data = load_dataset(
            entry.path,
            name=entry.name,
            data_files=entry.data_files,
            split=entry.split,
            revision=entry.revision,
        )
    except Exception as error:
        raise DataError(
            f"{entry.path}: neither a local file or folder, nor a data set that the Hub gives: "
            f"{error}"
        ) from error
    return Source([_dataset_part(entry, data, lambda: str(data._fingerprint))])


def _dataset_part(entry: DatasetEntry, data: Any, fingerprint: Callable[[], str]) -> Part:
    def read() -> Iterator[Numbered]:
        number = 0
        for batch in data.with_format(None).iter(batch_size=1000):
            for values in zip(*batch.values(), strict=True):
                number += 1
                yield number, dict(zip(batch, values, strict=True))

    return Part(f"{entry.path} row ", read, fingerprint, len(data))
