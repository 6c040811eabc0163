"""Sources: what is read, in which order, and what is said when it cannot be."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data.helpers import chat, make_config, prepared, write_jsonl
from pyarrow import parquet

from tunecli.config.schema import DatasetEntry
from tunecli.data import Source, open_source
from tunecli.errors import DataError

GOOD = json.dumps(chat("w0", "w1"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def source(path: Path | str, **values: Any) -> Source:
    return open_source(DatasetEntry(path=str(path), **values))


def read(found: Source, size: int = 2) -> list[tuple[str, Any]]:
    """Every row with its origin; what is broken is raised, as encoding does."""
    result = []
    for block in found.blocks(size):
        assert 1 <= len(block) <= size
        for part, number, row in block.rows():
            origin = found.parts[part].origin(number)
            if isinstance(row, DataError):
                raise DataError(f"{origin}: {row}")
            result.append((origin, row))
    return result


def names(found: Source) -> list[str]:
    return [origin.rsplit("/", 1)[-1] for origin, _ in read(found)]


def rows(found: Source) -> list[Any]:
    return [row for _, row in read(found)]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"messages": [', r"rows.jsonl:2: not valid JSON: Expecting value at column 15"),
        ("null", r"rows.jsonl:2: a row must be an object, not null"),
        ("[1]", r"rows.jsonl:2: a row must be an object, not a list"),
        ("3", r"rows.jsonl:2: a row must be an object, not a number"),
        ('{"x": 1}', r"rows.jsonl:2: field 'messages' is missing; the row has 'x'"),
        ('{"messages": [{"role": "user", "content": 3}]}', r"rows.jsonl:2: message 1: 'content'"),
        ("[" * 100_000, r"rows.jsonl:2: "),
    ],
)
def test_broken_rows_name_file_and_line(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    config = make_config({"path": str(path)}, dataset_prepared_path=str(tmp_path / "p"))
    from data.helpers import Log, toy_tokenizer

    from tunecli.data import prepare

    with pytest.raises(DataError, match=cause):
        prepare(config, toy_tokenizer(), Log())
    assert [p.suffix for p in (tmp_path / "p").iterdir()] == [".lock"]


def test_empty_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl: no trainable tokens: 0 rows read"):
        prepared(tmp_path, [])


def test_marks_line_ends_and_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": "\xc3\xa9"}\r\n\r\n{"a": 2}\r\n\n')
    assert names(source(path)) == ["a.jsonl:1", "a.jsonl:3"]
    assert rows(source(path)) == [{"a": "é"}, {"a": 2}]
    path.write_bytes('{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(DataError, match=r"a.jsonl:1: the file is UTF-16"):
        rows(source(path))
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(DataError, match=r"a.jsonl:2: not UTF-8 \(byte 0xff at column 8\)"):
        rows(source(path))


def test_json_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[\n {"a": 1},\n\n {"a": null}\n]\n')
    assert names(source(path)) == ["a.json:2", "a.json:4"]
    assert rows(source(path)) == [{"a": 1}, {"a": None}]
    path.write_text("[]")
    assert rows(source(path)) == []
    for text, cause in (
        ('[{"a": 1}\n{"a": 2}]', "a.json:2: not valid JSON: expected ',' or ']'"),
        ('[{"a": 1},\n{"a": }]', "a.json:2: not valid JSON: Expecting value"),
        ('[{"a": 1},\n3]', "a.json:2: a row must be an object, not a number"),
        ('[{"a": 1}] x', "a.json:1: text after the end of the array"),
        ('{\n"a": 1}', "such a file holds one object a line"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=cause):
            rows(source(path))
    path.write_text('{"a": 1}\n{"a": 2}')
    assert rows(source(path)) == [{"a": 1}, {"a": 2}]


def test_csv_fields_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('q,a\n1,NA\n"x\ny",\n1.0,z\n')
    assert rows(source(path)) == [
        {"q": "1", "a": "NA"}, {"q": "x\ny", "a": ""}, {"q": "1.0", "a": "z"},
    ]  # fmt: skip
    assert names(source(path)) == ["a.csv:2", "a.csv:3", "a.csv:5"]
    path.write_text("q,a\n1,2\n1\n")
    with pytest.raises(DataError, match=r"a.csv:3: the row does not have 2 columns"):
        rows(source(path))
    path.write_text('q,a\n1,"2" x\n')
    with pytest.raises(DataError, match=r"a.csv:2: "):
        rows(source(path))


def test_parquet_and_arrow(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, None]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with (
        pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write(table)
    with (
        pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write(table)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        assert rows(source(tmp_path / name)) == [{"a": 1}, {"a": 2}, {"a": None}]
        assert names(source(tmp_path / name))[1] == f"{name} row 2"
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        rows(source(tmp_path / "a.parquet"))
    (tmp_path / "b.arrow").write_bytes(b"xxxxxxxxxxxx")
    with pytest.raises(DataError, match="not a readable Arrow file"):
        rows(source(tmp_path / "b.arrow"))


def test_folders_globs_and_data_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "sub/c.json", "notes.txt", ".hidden/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_jsonl(tmp_path / name, [{"n": name}])
    assert names(source(tmp_path)) == ["a.jsonl:1", "b.jsonl:1", "c.json:1"]
    assert names(source(tmp_path / "*.jsonl")) == ["a.jsonl:1", "b.jsonl:1"]
    assert names(source(tmp_path, data_files="b.jsonl")) == ["b.jsonl:1"]
    assert names(source(tmp_path, data_files=["sub/*", "b.jsonl"])) == ["c.json:1", "b.jsonl:1"]
    assert names(source(tmp_path / "notes.txt", ds_type="jsonl")) == ["notes.txt:1"]
    with pytest.raises(DataError, match=r"unknown kind of file '.txt'; set ds_type"):
        source(tmp_path / "notes.txt")
    with pytest.raises(DataError, match=r"x\*: no file matches"):
        source(tmp_path / "x*")
    with pytest.raises(DataError, match="no such file or folder"):
        source(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match="no such file or folder"):
        source("missing.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data files"):
        source(tmp_path / "empty")


def test_splits_of_local_files(tmp_path: Path) -> None:
    for name in ("train.jsonl", "train-2.jsonl", "test.jsonl"):
        write_jsonl(tmp_path / name, [{"n": i} for i in range(3)])
    found = source(tmp_path)
    assert [Path(p.place).name for p in found.parts] == ["train-2.jsonl:", "train.jsonl:"]
    assert found.notes == [f"{tmp_path}: split 'train' leaves out test.jsonl"]
    assert names(source(tmp_path, split="test[1:]")) == ["test.jsonl:2", "test.jsonl:3"]
    assert names(source(tmp_path, split="train[2:4]")) == ["train-2.jsonl:3", "train.jsonl:1"]
    assert names(source(tmp_path / "test.jsonl", split="train[:1]")) == ["test.jsonl:1"]
    with pytest.raises(DataError, match=r"no file of split 'dev'; there are: test.jsonl, train"):
        source(tmp_path, split="dev")
    with pytest.raises(DataError, match="is not understood for local data"):
        source(tmp_path, split="train[:1%]")


def test_saved_directories(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list([{"a": i} for i in range(5)]).select([4, 2, 0])
    data.save_to_disk(str(tmp_path / "one"))
    DatasetDict(train=data, test=data.select([1])).save_to_disk(str(tmp_path / "two"))
    assert rows(source(tmp_path / "one")) == [{"a": 4}, {"a": 2}, {"a": 0}]
    assert source(tmp_path / "one").size == 3
    assert source(tmp_path / "one", split="train[1:]").size == 2
    assert rows(source(tmp_path / "two", split="test")) == [{"a": 2}]
    assert names(source(tmp_path / "two")) == ["two row 1", "two row 2", "two row 3"]
    with pytest.raises(DataError, match="no split 'dev'; there are: train, test"):
        source(tmp_path / "two", split="dev")
    with pytest.raises(DataError, match="the directory holds a single set"):
        source(tmp_path / "one", split="test")
    fingerprint = source(tmp_path / "one").fingerprint()
    Dataset.from_list([{"a": 9}]).save_to_disk(str(tmp_path / "other"))
    assert source(tmp_path / "other").fingerprint() != fingerprint
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(DataError, match="cannot be loaded"):
        source(tmp_path / "one")


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load(path: str, **options: Any) -> Any:
        asked.append((path, options))
        if path == "org/missing":
            raise FileNotFoundError("nothing there")
        return datasets.Dataset.from_list([{"a": 1}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = source("org/name", split="train[:1%]", revision="abc", name="en")
    assert read(found) == [("org/name row 1", {"a": 1})]
    assert found.fingerprint()
    assert asked[0][1] == {
        "name": "en", "data_files": None, "split": "train[:1%]", "revision": "abc",
    }  # fmt: skip
    with pytest.raises(DataError, match="org/missing: neither a local file or folder"):
        source("org/missing")


def test_loading_scripts_are_refused(tmp_path: Path) -> None:
    folder, marker = tmp_path / "set", tmp_path / "marker"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", [{"a": 1}])
    (folder / "set.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(DataError, match=r"loading script \(set.py\)"):
        source(folder)
    assert not marker.exists()


def test_unreadable_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"a": 1}])
    found = source(path)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        rows(found)
