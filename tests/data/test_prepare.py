"""From rows to the cache: what is dropped, split, found again, and never half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import (
    IGNORE,
    Log,
    byte_tokenizer,
    chat,
    make_config,
    prepared,
    toy_tokenizer,
    write_jsonl,
)
from toys import ROW2, toy_template
from transformers import PreTrainedTokenizerFast

from tunecli.config.schema import Config
from tunecli.data import BatchLoader, Prepared, prepare, split_rows
from tunecli.errors import DataError

LONG = chat(" ".join(f"w{i}" for i in range(10)), "w1")
SHORT = chat("w0", "w1")  # 7 tokens.


def ids(data: Prepared) -> list[list[int]]:
    return [data.train.row(i)[0].tolist() for i in range(len(data.train))]


def test_only_rows_without_a_trained_token(tmp_path: Path) -> None:
    for _ in range(2):  # Built, then from the cache.
        with pytest.raises(DataError, match=r"no trainable tokens: 1 rows read, of which 1 drop"):
            prepared(tmp_path, [ROW2], sequence_len=5, excess_length_strategy="truncate")


def test_a_row_that_loses_its_answer_is_dropped_and_counted(tmp_path: Path) -> None:
    log = Log()
    data = prepared(tmp_path, [LONG, SHORT], log=log, sequence_len=7,
                    excess_length_strategy="truncate")  # fmt: skip
    assert ids(data) == [[1, 4, 8, 6, 5, 9, 6]]
    assert data.report.train.untrained == 1
    assert data.report.train.truncated == 0
    assert "1 dropped: no trained token" in log.text
    assert data.train.origin(0).endswith("rows.jsonl:2")


@pytest.mark.parametrize("packing", [True, False])
def test_long_rows(tmp_path: Path, packing: bool) -> None:
    rows = [chat("", "w1"), ROW2]  # 6 and 15 tokens.
    options = {"sequence_len": 8, "sample_packing": packing}
    log = Log()
    data = prepared(tmp_path, rows, log=log, **options)
    assert data.train.lengths.tolist() == [6]
    assert "1 dropped: longer than sequence_len 8" in log.text
    log = Log()
    data = prepared(tmp_path, rows, log=log, excess_length_strategy="truncate", **options)
    assert data.train.lengths.tolist() == [6, 8]
    assert "1 truncated to sequence_len 8" in log.text
    assert ids(data)[1] == [1, 4, 8, 9, 6, 5, 10, 11]
    with pytest.raises(DataError, match=r"rows.jsonl:2: 15 tokens, more than sequence_len 8"):
        prepared(tmp_path, rows, excess_length_strategy="raise", **options)
    assert len(prepared(tmp_path, rows, sequence_len=15).train) == 2


def test_short_rows_and_duplicates(tmp_path: Path) -> None:
    log = Log()
    data = prepared(tmp_path, [SHORT, ROW2, ROW2], log=log, min_sample_len=8,
                    dataset_exact_deduplication=True)  # fmt: skip
    assert len(data.train) == 1
    assert "1 dropped: shorter than min_sample_len 8" in log.text
    assert "1 dropped: equal to an earlier row" in log.text
    assert data.report.train.dropped == 2


def test_padding_is_not_confused_with_eos(tmp_path: Path) -> None:
    data = prepared(tmp_path, [{"text": "w0 w1"}, {"text": "w0 w1 w2 w3"}],
                    toy_tokenizer(pad_token="<eos>"), entry={"type": "completion"})  # fmt: skip
    loader = BatchLoader(data.train, micro_batch_size=2, sequence_len=8, pad_id=2, shuffle=False)
    batch = loader.step(0, 0).micro_batches[0]
    assert batch.input_ids[0].tolist() == [8, 9, 2, 2, 2]
    assert batch.labels[0].tolist() == [9, 2, IGNORE, IGNORE, IGNORE]


def test_highest_id(tmp_path: Path) -> None:
    row = {"input_ids": [5, 70, 6]}
    assert prepared(tmp_path, [row], entry={"type": "tokenized"}).train.max_id == 70


def test_several_sources_and_test_datasets(tmp_path: Path) -> None:
    a = write_jsonl(tmp_path / "a.jsonl", [SHORT])
    b = write_jsonl(tmp_path / "b.jsonl", [{"text": "w5"}, {"text": "w6"}])
    config = make_config(
        [{"path": str(a)}, {"path": str(b), "type": "completion"}],
        test_datasets=[{"path": str(b), "type": "completion"}],
        dataset_prepared_path=str(tmp_path / "p"),
    )
    data = prepare(config, toy_tokenizer(), Log())
    assert ids(data) == [[1, 4, 8, 6, 5, 9, 6], [13, 2], [14, 2]]
    assert [data.train.origin(i)[-9:] for i in range(3)] == [
        "a.jsonl:1", "b.jsonl:1", "b.jsonl:2",
    ]  # fmt: skip
    assert data.eval is not None
    assert len(data.eval) == data.report.eval_rows == 2
    assert data.train.trained.tolist() == [2, 1, 1]


def rows_of(count: int) -> list[Any]:
    return [chat(f"w{i % 50}", f"w{i // 50 % 50}") for i in range(count)]


@pytest.mark.parametrize(
    ("size", "evaluated"), [(0, 0), (None, 0), (1, 1), (0.1, 1), (0.0001, 1), (0.25, 3), (9, 9)]
)
def test_validation_split(tmp_path: Path, size: float | None, evaluated: int) -> None:
    options = {} if size is None else {"val_set_size": size}
    data = prepared(tmp_path, rows_of(10), **options)
    assert (data.eval is None) == (evaluated == 0)
    assert data.report.eval_rows == evaluated
    assert data.report.train_rows == len(data.train) == 10 - evaluated
    if data.eval is not None:
        parts = [[rows.origin(i) for i in range(len(rows))] for rows in (data.train, data.eval)]
        assert len({*parts[0], *parts[1]}) == 10
        again = prepared(tmp_path, rows_of(10), **options)
        assert ids(again) == ids(data)
        assert again.key == data.key


@pytest.mark.parametrize("size", [10, 11])
def test_validation_split_that_leaves_nothing(tmp_path: Path, size: float) -> None:
    cause = rf"val_set_size {size} takes 1\d of 10 rows: 0 rows are left to train on"
    with pytest.raises(DataError, match=cause):
        prepared(tmp_path, rows_of(10), val_set_size=size)
    # A share of 1.0 is refused by the schema already; here for those who call this directly.
    with pytest.raises(DataError, match="takes 10 of 10 rows: 0 rows are left"):
        split_rows(prepared(tmp_path, rows_of(10)).train, 1.0, seed=0)


def test_negative_split_is_no_configuration() -> None:
    with pytest.raises(ValueError, match="val_set_size"):
        make_config({"path": "x"}, val_set_size=-0.1)


def test_split_depends_on_the_seed(tmp_path: Path) -> None:
    one, two = (prepared(tmp_path, rows_of(40), val_set_size=5, seed=s) for s in (1, 2))
    assert ids(one) != ids(two)
    assert one.key != two.key


class Cache:
    """Runs with one cache directory; says whether a run found it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = rows_of(10)
        self.template = toy_template

    def run(
        self,
        tokenizer: PreTrainedTokenizerFast | None = None,
        entry: dict[str, Any] | None = None,
        **values: Any,
    ) -> Prepared:
        template = self.path / "t.jinja"
        template.write_text(self.template)
        entry = {"chat_template_jinja": str(template), **(entry or {})}
        return prepared(self.path, self.rows, tokenizer, entry, **values)


def test_cache_is_found_again_and_never_stale(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = cache.run()
    assert not first.report.cached
    for values in ({}, {"output_dir": "x"}, {"learning_rate": 1e-5}, {"wandb_name": "n"}):
        again = cache.run(**values)
        assert again.report.cached
        assert again.key == first.key
        assert ids(again) == ids(first)
        assert again.report.train == first.report.train

    cache.rows = [*rows_of(9), chat("w7", "w7")]
    changed = cache.run()
    assert not changed.report.cached
    assert ids(changed)[9] == [1, 4, 15, 6, 5, 15, 6]
    cache.rows = rows_of(10)
    assert cache.run().report.cached

    cache.template = toy_template.replace(" <|end|>", " w9 <|end|>")
    changed = cache.run()
    assert not changed.report.cached
    assert ids(changed)[0] == [1, 4, 8, 17, 6, 5, 8, 17, 6]
    cache.template = toy_template

    changed = cache.run(sequence_len=6, excess_length_strategy="truncate")
    assert not changed.report.cached
    assert set(changed.train.lengths) == {6}

    changed = cache.run(entry={"train_on_eos": "none"})
    assert not changed.report.cached
    assert set(changed.train.trained) == {1}

    tokenizer = toy_tokenizer()
    tokenizer.bos_token = "<pad>"
    changed = cache.run(tokenizer)
    assert not changed.report.cached
    assert ids(changed)[0][0] == 0

    for values in ({"val_set_size": 3}, {"val_set_size": 3, "seed": 7}):
        changed = cache.run(**values)
        assert len(changed.train) == 7
        assert changed.key != first.key


def test_counts_are_shown_again_from_the_cache(tmp_path: Path) -> None:
    prepared(tmp_path, [ROW2, SHORT], sequence_len=8)
    log = Log()
    prepared(tmp_path, [ROW2, SHORT], sequence_len=8, log=log)
    assert "prepared data from" in log.text
    assert "datasets: 1 dropped: longer than sequence_len 8" in log.text
    assert "tokenizing" not in log.text


def test_many_batches_keep_their_order(tmp_path: Path) -> None:
    rows = [{"text": f"w{i % 50} w{i // 50}"} for i in range(1500)]
    data = prepared(tmp_path, rows, entry={"type": "completion"})
    assert ids(data) == [[8 + i % 50, 8 + i // 50, 2] for i in range(1500)]
    assert data.train.origin(1499).endswith(":1500")


def test_slow_tokenizers_are_refused(tmp_path: Path) -> None:
    class Slow:
        chat_template = toy_template
        special_tokens_map: dict[str, str] = {}  # noqa: RUF012
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012
        eos_token = "<eos>"

    with pytest.raises(DataError, match="Slow has no fast tokenizer"):
        prepared(tmp_path, [SHORT], Slow())  # type: ignore[arg-type]


PROCESS = """
import sys, hashlib
sys.path.insert(0, {tests!r})
from data.helpers import make_config, toy_tokenizer
from tunecli.data import prepare
from tunecli.reporter import Reporter
import tunecli.data.encode as encode
if {slow}:
    # Takes its time, so that the process can be killed half-way.
    import time
    plain = encode.Encoder.encode
    encode.Encoder.encode = lambda self, rows: time.sleep(60) or plain(self, rows)
config = make_config({{"path": {path!r}}}, test_datasets=[{{"path": {path!r}}}],
                     dataset_prepared_path={cache!r})
data = prepare(config, toy_tokenizer(), Reporter())
digest = hashlib.sha256()
for rows in (data.train, data.eval):
    for i in range(len(rows)):
        digest.update(rows.row(i)[0].tobytes() + rows.row(i)[1].tobytes())
print(len(data.train), len(data.eval), digest.hexdigest())
"""


def start(tmp_path: Path, slow: bool = False) -> subprocess.Popen[str]:
    script = PROCESS.format(
        tests=str(Path(__file__).parents[1]), path=str(tmp_path / "rows.jsonl"),
        cache=str(tmp_path / "cache"), slow=int(slow),
    )  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", script], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_two_processes_build_once_and_a_killed_build_leaves_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", rows_of(200))
    cache = tmp_path / "cache"
    killed = start(tmp_path, slow=True)
    both: list[subprocess.Popen[str]] = []
    try:
        deadline = time.monotonic() + 60
        while not list(cache.glob(".*.tmp/train/ids.bin")):
            assert killed.poll() is None, killed.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        both += [start(tmp_path) for _ in range(2)]
        time.sleep(0.2)
        half = [p.name for p in cache.iterdir() if not p.name.endswith(".lock")]
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        outputs = [process.communicate(timeout=60) for process in both]
    assert [name[0] for name in half] == ["."]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].startswith("200 200 ")
    # Train and eval rows: two lines from the one that builds, none from the other.
    assert sum(err.count("tokenizing /") for _, err in outputs) == 2
    assert sorted(p.name[-5:] == ".lock" for p in cache.iterdir()) == [False, True]


def test_key_of_a_template_that_only_the_entry_names(tmp_path: Path) -> None:
    one = prepared(tmp_path, [SHORT], byte_tokenizer())
    two = prepared(tmp_path, [SHORT], byte_tokenizer(), {"chat_template": "chatml"})
    assert one.key != two.key
    assert isinstance(make_config({"path": "x"}), Config)
    assert np.array_equal(one.train.lengths, [len(one.train.row(0)[0])])
