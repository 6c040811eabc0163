"""Tokenized rows on disk: flat arrays, memory-mapped.

Flat arrays instead of Arrow tables, because each access is a slice: no decoding, no Python
object for rows that nobody asked for, and appending while the rows stream by needs no memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from .tokenize import IGNORE, Encoded, FloatArray, IntArray

Indices = npt.NDArray[np.int64]

Origin = tuple[int, int]
"""Index of the file, and line or row in it."""

COLUMNS = {"ids": np.int32, "labels": np.int32, "length": np.int32, "trained": np.int32,
           "weight": np.float64, "part": np.int32, "number": np.int64}  # fmt: skip
Fate = tuple[int, int, int]
"""Origin of a row that was dropped, cut or split, and the index of what it was in `FATES`."""

FATE = np.dtype([("part", np.int32), ("number", np.int64), ("fate", np.int8)])
WEIGHTS = "weights"
"""Column of float32, there only if some row has weights."""


class RowWriter:
    """Appends rows to the files of a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._files = {name: (directory / f"{name}.bin").open("wb") for name in (*COLUMNS, "fates")}
        self._max_id = -1
        self._tokens = 0

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for file in self._files.values():
            file.close()

    def write(
        self, rows: Sequence[Encoded], origins: Sequence[Origin], fates: Sequence[Fate] = ()
    ) -> None:
        """Append rows; `origins` says where each comes from, `fates` what became of some."""
        self._files["fates"].write(np.array(list(fates), FATE).tobytes())
        if not rows:
            return
        ids = np.concatenate([row.ids for row in rows])
        labels = np.concatenate([row.labels for row in rows])
        values: dict[str, npt.ArrayLike] = {
            "ids": ids,
            "labels": labels,
            "length": [len(row.ids) for row in rows],
            "trained": [targets(row.labels) for row in rows],
            "weight": [_weight(row) for row in rows],
            "part": [part for part, _ in origins],
            "number": [number for _, number in origins],
        }
        for name, value in values.items():
            self._files[name].write(np.asarray(value, COLUMNS[name]).tobytes())
        if WEIGHTS in self._files or any(row.weights is not None for row in rows):
            self._write_weights(rows)
        self._tokens += len(ids)
        self._max_id = max(self._max_id, int(ids.max()), int(labels.max()))

    def _write_weights(self, rows: Sequence[Encoded]) -> None:
        if WEIGHTS not in self._files:
            # The rows before the first one with weights: 1 where trained.
            self._files["labels"].flush()
            earlier = _mapped(self._directory / "labels.bin", np.int32)[: self._tokens]
            self._files[WEIGHTS] = (self._directory / f"{WEIGHTS}.bin").open("wb")
            (earlier != IGNORE).astype(np.float32).tofile(self._files[WEIGHTS])
        for row in rows:
            weights = row.labels != IGNORE if row.weights is None else row.weights
            self._files[WEIGHTS].write(np.asarray(weights, np.float32).tobytes())

    def close(self, places: Sequence[str], entries: Sequence[int], paired: bool = False) -> None:
        """Finish.

        Args:
            places: Texts before a row's number in its origin, by part.
            entries: Index of the entry of `datasets` that each part belongs to.
            paired: Rows are preference pairs: chosen and rejected in turn.
        """
        for file in self._files.values():
            file.close()
        meta = {"max_id": self._max_id, "places": list(places), "entries": list(entries),
                "paired": paired}  # fmt: skip
        (self._directory / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def targets(labels: IntArray) -> int:
    """Return how many positions of a row have a trained successor."""
    return int(np.count_nonzero(labels[1:] != IGNORE))


def _weight(row: Encoded) -> float:
    if row.weights is None:
        return targets(row.labels)
    return float(row.weights[1:].sum(dtype=np.float64))


class TokenRows:
    """Rows of tokens, or some of them; memory-mapped, nothing is copied until asked for.

    Attributes:
        lengths: Tokens of each row, int32 [rows].
        trained: Trained targets of each row, int32 [rows]: labels from the second position on
            that are not -100. The first token of a row is never a target.
        part: Index of the file that each row comes from, int32 [rows].
        number: Line or row in that file, int64 [rows].
        entry: Index of the entry of `datasets` that each row comes from, int64 [rows].
        entries: The same, by file, int64 [files].
        places: Text before the number of a row in its origin, by file.
        fates: What became of rows that were dropped, cut or split, `FATE` [such rows]; of the
            whole store.
        weight: Sum of the weights of each row's trained targets, float64 [rows].
        weighted: Whether any row has weights other than 1.
        max_id: Highest token id or label of the whole store, -1 if there is none.
        paired: Whether rows are preference pairs: chosen and rejected in turn.
    """

    def __init__(self, directory: Path, index: npt.NDArray[np.int64] | None = None) -> None:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        self._directory = directory
        self._columns = {name: _mapped(directory / f"{name}.bin", kind)
                         for name, kind in COLUMNS.items()}  # fmt: skip
        lengths = self._columns["length"]
        file = directory / f"{WEIGHTS}.bin"
        self._weights = _mapped(file, np.float32) if file.exists() else None
        self._offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._index = np.arange(len(lengths)) if index is None else index
        self.places: list[str] = meta["places"]
        self.entries = np.array(meta["entries"], np.int64)
        self.max_id: int = meta["max_id"]
        self.paired: bool = meta["paired"]
        self.lengths: IntArray = np.asarray(lengths)[self._index]
        self.trained: IntArray = np.asarray(self._columns["trained"])[self._index]
        self.part: IntArray = np.asarray(self._columns["part"])[self._index]
        self.number: Indices = np.asarray(self._columns["number"])[self._index]
        self.entry: Indices = self.entries[self.part]
        self.fates = _mapped(directory / "fates.bin", FATE)
        self.weight: npt.NDArray[np.float64] = np.asarray(self._columns["weight"])[self._index]
        self.weighted = self._weights is not None

    def __len__(self) -> int:
        return len(self._index)

    def select(self, index: npt.NDArray[np.int64]) -> TokenRows:
        """Return some of the rows, in the order of `index`."""
        return TokenRows(self._directory, self._index[index])

    def row(self, i: int) -> tuple[IntArray, IntArray]:
        """Return ids and labels of row `i`, int32 [tokens] each; labels are not shifted."""
        stored = self._index[i]
        part = slice(self._offsets[stored], self._offsets[stored + 1])
        return self._columns["ids"][part], self._columns["labels"][part]

    def weights(self, i: int) -> FloatArray | None:
        """Return the weights of the tokens of row `i`, float32 [tokens]; `None`: all alike."""
        if self._weights is None:
            return None
        stored = self._index[i]
        return self._weights[self._offsets[stored] : self._offsets[stored + 1]]

    def origin(self, i: int) -> str:
        """Return file and line (or row) where row `i` comes from."""
        return f"{self.places[self.part[i]]}{self.number[i]}"


def _mapped(path: Path, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    if path.stat().st_size == 0:
        return np.zeros(0, kind)
    return np.memmap(path, kind, mode="r")
