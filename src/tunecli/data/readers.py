"""Rows of one file, one at a time, with the line or row where each stands.

Lines of JSON are handed out as they are, and parsed by whoever wants the rows: that may be another
process. A row that is broken comes as a `DataError` in its place, so that the caller may skip it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .formats.base import kind

Numbered = tuple[int, Any]
"""Line (text files) or row (others), from 1, and what stands there (see `parse`)."""

KINDS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv",
    ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
"""Kind of file by the end of its name."""


def read_rows(path: Path, file_kind: str) -> Iterator[Numbered]:
    """Yield the rows of a file, to be parsed by `parse`.

    JSON goes through Python's own reader: Arrow would give all rows the same keys, so that tool
    calls gain null arguments and real nulls are lost among them.

    Raises:
        DataError: The file, or what follows in it, cannot be read at all.
    """
    if file_kind == "json" and _first_character(path) == b"[":
        file_kind = "array"
    reader = {
        "jsonl": _json_lines, "json": _json_lines, "array": _json_array, "csv": _csv,
        "parquet": _parquet, "arrow": _arrow,
    }[file_kind]  # fmt: skip
    try:
        yield from reader(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def place(path: str, file_kind: str) -> str:
    """Return what stands before the number of a row in its origin: `a.jsonl:` or `a.arrow row `."""
    return f"{path}:" if file_kind in ("json", "jsonl", "csv") else f"{path} row "


def _first_character(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def parse(given: Any) -> dict[str, Any] | DataError:
    """Return the row that `read_rows` gave: a line of JSON (bytes), a value, or an error already.

    What is wrong with a row is returned, not raised; the error names no file and no line.
    """
    try:
        value = _json(given) if isinstance(given, bytes) else given
    except DataError as error:
        return error
    if isinstance(value, dict | DataError):
        return value
    return DataError(f"a row must be an object, not {kind(value)}")


def _json_lines(path: Path) -> Iterator[Numbered]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = _without_mark(line, path)
            if line := line.rstrip():
                yield number, line


def _without_mark(data: bytes, path: Path) -> bytes:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}:1: the file is UTF-16; save it as UTF-8")
    return data.removeprefix(b"\xef\xbb\xbf")


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {line[error.start]:#04x} at column {error.start + 1}"
        raise DataError(f"not UTF-8 ({byte})") from None


def _json(line: bytes) -> Any:
    try:
        return json.loads(_text(line))
    except json.JSONDecodeError as error:
        hint = ""
        if line in (b"{", b"["):
            hint = "; such a file holds one object a line, or (.json) one array of objects"
        raise DataError(f"not valid JSON: {error.msg} at column {error.colno}{hint}") from None
    except RecursionError:
        raise DataError("JSON that is nested too deeply") from None


def _json_array(path: Path) -> Iterator[Numbered]:
    data = _without_mark(path.read_bytes(), path)
    try:
        text = _text(data)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    decoder = json.JSONDecoder()
    position, number, counted = text.index("[") + 1, 1, 0

    def skip(at: int, characters: str) -> int:
        while at < len(text) and text[at] in characters:
            at += 1
        return at

    first = True
    while True:
        position = skip(position, " \t\r\n")
        number += text.count("\n", counted, position)
        counted = position
        if text[position : position + 1] == "]":
            break
        if not first:
            if text[position : position + 1] != ",":
                raise DataError(f"{path}:{number}: not valid JSON: expected ',' or ']'")
            position = skip(position + 1, " \t\r\n")
            number += text.count("\n", counted, position)
            counted = position
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}"
            ) from None
        yield number, value
        first = False
    if text[position + 1 :].strip():
        raise DataError(f"{path}:{number}: text after the end of the array")


def _csv(path: Path) -> Iterator[Numbered]:
    # Not through Arrow or pandas either: they would turn "1" into a number and "NA" into null.
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            start = 2
            for row in reader:
                if None in row or None in row.values():
                    count = len(reader.fieldnames or [])
                    raise DataError(f"{path}:{start}: the row does not have {count} columns")
                yield start, row
                start = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}:{reader.line_num + 1}: {error}") from None


def _parquet(path: Path) -> Iterator[Numbered]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield from _batches(file.iter_batches(batch_size=1000))
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _arrow(path: Path) -> Iterator[Numbered]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                yield from _batches(reader)
            except pa.ArrowInvalid:
                file = pa.ipc.open_file(source)
                yield from _batches(file.get_batch(i) for i in range(file.num_record_batches))
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Arrow file: {error}") from error


def _batches(batches: Any) -> Iterator[Numbered]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield number, row
