"""Blocks of rows: cutting, splitting, skipping, pairs, duplicates; in processes as in one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import IGNORE, Log, chat, make_config, prepared, toy_tokenizer, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecli.data import Encoder, Format, Rendered, TokenRows, open_source, register_format
from tunecli.data.encode import Rules, _pieces, open_format
from tunecli.data.formats.base import Pair
from tunecli.data.tokenize import Encoded
from tunecli.data.workers import encode_all
from tunecli.errors import DataError


def ids(rows: TokenRows) -> list[list[int]]:
    return [rows.row(i)[0].tolist() for i in range(len(rows))]


@given(
    length=st.integers(1, 60), limit=st.integers(1, 20), overlap=st.integers(0, 19),
    masked=st.integers(0, 60),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_pieces_train_each_token_once(length: int, limit: int, overlap: int, masked: int) -> None:
    overlap = min(overlap, limit - 1)
    values = np.arange(length, dtype=np.int32)
    labels = np.where(values < masked, IGNORE, values).astype(np.int32)
    pieces = list(_pieces(Encoded(values, labels), Rules(limit, "split", overlap)))
    assert all(len(piece.ids) <= limit for piece in pieces)
    rebuilt = pieces[0].ids.tolist() + [t for p in pieces[1:] for t in p.ids[overlap:].tolist()]
    assert rebuilt == values.tolist()
    trained = [t for piece in pieces for t in piece.labels.tolist() if t != IGNORE]
    assert trained == [t for t in labels.tolist() if t != IGNORE]


def test_long_rows_are_split(tmp_path: Path) -> None:
    rows = [{"text": " ".join(f"w{i}" for i in range(n))} for n in (3, 11)]
    options: dict[str, Any] = {"sequence_len": 5, "excess_length_strategy": "split"}
    log = Log()
    data = prepared(tmp_path, rows, entry={"type": "completion"}, log=log, **options)
    # Words from id 8 on, eos 2; five tokens at a time.
    assert ids(data.train) == [[8, 9, 10, 2], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17], [18, 2]]
    assert data.train.origin(3) == data.train.origin(1)
    assert data.report.train.split == 1
    assert "1 split into pieces of at most sequence_len 5" in log.text
    data = prepared(tmp_path, rows, entry={"type": "completion"}, split_overlap=2, **options)
    assert ids(data.train)[2] == [11, 12, 13, 14, 15]
    assert data.train.row(2)[1].tolist() == [IGNORE, IGNORE, 13, 14, 15]
    with pytest.raises(DataError, match=r"rows.jsonl:2: 12 tokens, more than sequence_len 5"):
        prepared(tmp_path, rows, entry={"type": "completion"}, sequence_len=5,
                 excess_length_strategy="raise")  # fmt: skip


def test_the_format_decides_on_long_rows_where_the_key_is_left_out(tmp_path: Path) -> None:
    rows = [{"text": "w0 w1 w2 w3", "prompt": "w0 w1 w2", "completion": " w3"}]
    data = prepared(tmp_path, rows, entry={"type": "completion"}, sequence_len=3)
    assert ids(data.train) == [[8, 9, 10], [11, 2]]
    with pytest.raises(DataError, match="no trainable tokens: 1 rows read, of which 1"):
        prepared(tmp_path, rows, entry={"type": "prompt_completion"}, sequence_len=3)


def test_broken_rows_are_an_error_or_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = '{"text": "w0 w1"}\n'
    path.write_text(good + '{"text": [\n' + good + '{"other": 1}\nnull\n' + good + "[1]\n")
    entry = {"path": str(path), "type": "completion"}
    config = make_config(entry, dataset_prepared_path=str(tmp_path / "p"))
    from tunecli.data import prepare

    with pytest.raises(DataError, match=r"rows.jsonl:2: not valid JSON"):
        prepare(config, toy_tokenizer(), Log())
    log = Log()
    config = make_config(entry, dataset_prepared_path=str(tmp_path / "p"), skip_invalid_rows=True)
    data = prepare(config, toy_tokenizer(), log)
    assert (data.report.train.read, data.report.train.kept, data.report.train.invalid) == (7, 3, 4)
    assert "4 skipped: broken" in log.text
    assert "rows.jsonl:2: not valid JSON" in log.text
    assert "rows.jsonl:4: field 'text' is missing" in log.text
    again = Log()
    prepare(config, toy_tokenizer(), again)
    assert "4 skipped: broken" in again.text
    everything = write_jsonl(path, [{"other": 1}])
    assert everything.exists()
    with pytest.raises(DataError, match="no trainable tokens: 1 rows read, of which 1 skipped"):
        prepare(config, toy_tokenizer(), Log())


@register_format("test_pairs")
class Pairs(Format):
    """`chosen` and `rejected`, trained from end to end."""

    def encode(self, row: Any) -> Rendered | Pair:
        """Return a pair, or a text where there is one only."""
        texts = [Rendered(row[k], [(0, len(row[k]))]) for k in ("chosen", "rejected") if k in row]
        return Pair(*texts) if len(texts) == 2 else texts[0]


def test_pairs_stay_together(tmp_path: Path) -> None:
    long = " ".join(["w9"] * 9)
    rows = [{"chosen": f"w{i} w1", "rejected": f"w{i} w2"} for i in range(8)]
    rows += [{"chosen": long, "rejected": "w1 w2"}, rows[0]]
    options: dict[str, Any] = {"sequence_len": 8, "dataset_exact_deduplication": True}
    data = prepared(tmp_path, rows, entry={"type": "test_pairs"}, val_set_size=3, **options)
    assert data.report.paired
    report = data.report.train
    assert (report.read, report.kept, report.too_long, report.duplicates) == (10, 16, 1, 1)
    assert (len(data.train), data.eval and len(data.eval)) == (10, 6)
    for part in (data.train, data.eval):
        assert part is not None
        for chosen, rejected in zip(ids(part)[::2], ids(part)[1::2], strict=True):
            assert (chosen[0], chosen[1], rejected[1]) == (rejected[0], 9, 10)
    with pytest.raises(DataError, match="a preference pair cannot be split"):
        prepared(tmp_path, rows, entry={"type": "test_pairs"}, sequence_len=8,
                 excess_length_strategy="split")  # fmt: skip
    with pytest.raises(DataError, match=r"rows.jsonl:11: preference pairs and ordinary rows"):
        prepared(tmp_path, [*rows, {"chosen": "w1 w2"}], entry={"type": "test_pairs"})


def test_evaluation_rows_that_are_training_rows(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [chat("w0", "w1"), chat("w0", "w2")])
    test = write_jsonl(tmp_path / "test.jsonl", [chat("w0", "w2"), chat("w3", "w4")])
    from tunecli.data import prepare

    config = make_config(
        {"path": str(train)}, test_datasets=[{"path": str(test)}],
        dataset_prepared_path=str(tmp_path / "p"), dataset_exact_deduplication=True,
    )  # fmt: skip
    data = prepare(config, toy_tokenizer(), Log())
    assert data.eval is not None
    assert data.report.eval is not None
    assert (len(data.train), len(data.eval), data.report.eval.duplicates) == (2, 1, 1)


@register_format("test_deadly")
class Deadly(Format):
    """Kills its process, unless that is the one that runs the tests."""

    def encode(self, row: Any) -> Rendered:
        """Die."""
        if os.getpid() != row["parent"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return Rendered("w0 w1", [(0, 5)])


def encoded(path: Path, kind: str, **options: Any) -> Iterator[Any]:
    config = make_config({"path": str(path), "type": kind}, sequence_len=64)
    tokenizer = toy_tokenizer()
    entry = config.datasets[0]
    sources = [(open_source(entry), open_format(entry, config, tokenizer, print))]
    return encode_all(sources, Encoder(tokenizer), Rules.from_config(config), **options)


def test_processes_give_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", [chat(f"w{i % 50}", f"w{i % 49}") for i in range(3000)]
    )
    blocks = [list(encoded(path, "chat_template", processes=n, patience=0.0)) for n in (1, 2)]
    for one, two in zip(*blocks, strict=True):
        assert one.origins == two.origins
        assert one.report == two.report
        for a, b in zip(one.rows, two.rows, strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert a.labels.tolist() == b.labels.tolist()
    with path.open("a") as file:
        file.write("{\n")
    with pytest.raises(DataError, match=r"a.jsonl:3001: not valid JSON"):
        list(encoded(path, "chat_template", processes=2, patience=0.0))


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"parent": os.getpid()}] * 2000)
    with pytest.raises(DataError, match=r"was killed .* set dataset_num_proc below 2"):
        list(encoded(path, "test_deadly", processes=2, patience=0.0))
