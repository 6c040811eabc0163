"""Global batches: order, counts, shifts and seams, whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import IGNORE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunecli.data import Batch, BatchLoader, TokenRows
from tunecli.data.store import RowWriter
from tunecli.data.tokenize import Encoded


def store(path: Path, rows: list[tuple[list[int], list[int]]]) -> TokenRows:
    with RowWriter(path) as writer:
        for number, (ids, labels) in enumerate(rows):
            writer.write(
                [Encoded(np.array(ids, np.int32), np.array(labels, np.int32))], [(0, number + 1)]
            )
        writer.close(["rows.jsonl:"], [0])
    return TokenRows(path)


def rows_of(path: Path, lengths: list[int]) -> TokenRows:
    """Rows whose tokens are all equal: the number of the row, from 1; all trained."""
    return store(path, [([i] * n, [i] * n) for i, n in enumerate(lengths, 1)])


def loader(rows: TokenRows, **options: Any) -> BatchLoader:
    return BatchLoader(rows, **{"micro_batch_size": 1, "sequence_len": 8, **options})


def seen(batch: Batch) -> list[list[int]]:
    """Rows (by number) in each line of a batch."""
    return [list(dict.fromkeys(line[line > 0].tolist())) for line in batch.input_ids]


def test_padding_keeps_a_real_eos(tmp_path: Path) -> None:
    rows = store(tmp_path / "a", [([8, 9, 2],) * 2, ([8, 9, 10, 11, 2],) * 2])
    batch = loader(rows, micro_batch_size=2, pad_id=2, shuffle=False).step(0, 0).micro_batches[0]
    assert batch.input_ids.tolist() == [[8, 9, 2, 2, 2], [8, 9, 10, 11, 2]]
    assert batch.labels.tolist() == [[9, 2, -100, -100, -100], [9, 10, 11, 2, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert batch.to("cpu").labels.dtype == batch.input_ids.dtype


def test_pad_to_and_multiple(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "a", [3, 5])
    options = {"micro_batch_size": 2, "shuffle": False}
    for more, width in (({}, 5), ({"multiple": 4}, 8), ({"pad_to": 8}, 8), ({"pad_to": 9}, 9)):
        batch = loader(rows, **options, **more).step(0, 0).micro_batches[0]
        assert batch.labels.shape == (2, width)
    packed = loader(rows, packing=True, multiple=16).step(0, 0).micro_batches[0]
    assert packed.labels.shape == (1, 16)


def test_packs_do_not_predict_across_seams(tmp_path: Path) -> None:
    lengths = [7, 5, 4, 3, 3, 2]
    packs = loader(rows_of(tmp_path / "a", lengths), packing=True, accumulation=2)
    assert packs.steps_per_epoch == 2
    steps = [packs.step(0, i) for i in range(2)]
    assert sum(step.trained_tokens for step in steps) == 18
    assert sum(step.tokens for step in steps) == 24
    used: list[int] = []
    for step in steps:
        assert len(step.micro_batches) == 2
        for batch in step.micro_batches:
            assert batch.input_ids.shape == (1, 8)
            ids, labels = batch.input_ids[0].tolist(), batch.labels[0].tolist()
            positions = batch.position_ids[0].tolist()
            at = 0
            for row in seen(batch)[0]:
                n = lengths[row - 1]
                used.append(row)
                assert ids[at : at + n] == [row] * n
                assert labels[at : at + n] == [row] * (n - 1) + [IGNORE]
                assert positions[at : at + n] == list(range(n))
                at += n
            assert positions[at:] == list(range(8 - at))
            assert set(labels[at:]) <= {IGNORE}
    assert sorted(used) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(IndexError):
        packs.step(0, 2)


@pytest.mark.parametrize("packing", [True, False])
def test_what_cannot_be_loaded(tmp_path: Path, packing: bool) -> None:
    rows = rows_of(tmp_path / "a", [9])
    with pytest.raises(ValueError, match="a row has 9 tokens, above 8"):
        loader(rows, packing=packing)
    with pytest.raises(ValueError, match="pad_to 8 is below"):
        loader(rows, sequence_len=9, pad_to=8)
    with pytest.raises(ValueError, match="no rows"):
        loader(rows.select(np.zeros(0, np.int64)))


def test_resume_goes_on_exactly(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "a", [3] * 10)
    for options in (
        {"micro_batch_size": 2},
        {"micro_batch_size": 1, "accumulation": 2},
        {"micro_batch_size": 2, "packing": True, "sequence_len": 4},
    ):
        whole = loader(rows, seed=5, **options)
        assert whole.steps_per_epoch == 5
        every = [[seen(b) for b in s.micro_batches] for s in whole.iterate(0, 15)]
        assert len(every) == 15
        again = loader(rows, seed=5, **options)
        assert [[seen(b) for b in s.micro_batches] for s in again.iterate(7, 15)] == every[7:]
        epochs = [every[i : i + 5] for i in (0, 5, 10)]
        flat = [[r for s in e for b in s for line in b for r in line] for e in epochs]
        assert all(sorted(e) == list(range(1, 11)) for e in flat)
        assert flat[0] != flat[1] != flat[2] != flat[0]
        other = loader(rows, seed=6, **options)
        assert [[seen(b) for b in s.micro_batches] for s in other.iterate(0, 15)] != every


def test_no_shuffle_keeps_the_order(tmp_path: Path) -> None:
    steps = loader(rows_of(tmp_path / "a", [2] * 5), shuffle=False, micro_batch_size=2)
    assert [seen(s.micro_batches[0]) for s in steps.iterate(0, 6)] == [
        [[1], [2]], [[3], [4]], [[5]],
    ] * 2  # fmt: skip


def test_short_last_window(tmp_path: Path) -> None:
    steps = loader(rows_of(tmp_path / "a", [4, 3, 2]), accumulation=2, shuffle=False)
    assert [len(s.micro_batches) for s in steps.iterate(0, 2)] == [2, 1]
    assert [s.trained_tokens for s in steps.iterate(0, 2)] == [5, 1]


def test_steps_and_epochs(tmp_path: Path) -> None:
    steps = loader(rows_of(tmp_path / "a", [2] * 10), micro_batch_size=1)
    assert [steps.steps(n) for n in (1, 3, 0.25, 1.1, 1.11)] == [10, 30, 3, 11, 12]
    assert [steps.locate(n) for n in (0, 9, 10, 25)] == [(0, 0), (0, 9), (1, 0), (2, 5)]
    assert steps.epochs_at(25) == 2.5


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_similar_length_share_a_batch(tmp_path: Path, shuffle: bool) -> None:
    lengths = np.random.default_rng(0).integers(2, 60, 403).tolist()
    rows = rows_of(tmp_path / "a", lengths)
    options = {"micro_batch_size": 8, "sequence_len": 60, "shuffle": shuffle}

    def padding(steps: BatchLoader) -> int:
        batches = [b for s in steps.iterate(0, steps.steps_per_epoch) for b in s.micro_batches]
        assert sorted(r for b in batches for line in seen(b) for r in line) == list(range(1, 404))
        return sum(b.input_ids.numel() for b in batches) - sum(lengths)

    grouped = loader(rows, group_by_length=True, **options)
    assert padding(grouped) < padding(loader(rows, **options)) / 10
    widths = [s.micro_batches[0].input_ids.shape[1] for s in grouped.iterate(0, 50)]
    assert (widths == sorted(widths)) is not shuffle
    halves = [loader(rows, group_by_length=True, dp_rank=r, dp_size=2,
                     **{**options, "micro_batch_size": 4}) for r in range(2)]  # fmt: skip
    for index in range(grouped.steps_per_epoch):
        whole = seen(grouped.step(0, index).micro_batches[0])
        assert whole == [x for h in halves for x in seen(h.step(0, index).micro_batches[0]) if x]
    if shuffle:
        assert grouped.order(0)[0].tolist() != grouped.order(1)[0].tolist()


def test_waiting_is_measured(tmp_path: Path) -> None:
    steps = loader(rows_of(tmp_path / "a", [2] * 5))
    for _ in steps.iterate(0, 5):
        pass
    assert 0 < steps.waited < 5


def test_iterating_can_be_given_up(tmp_path: Path) -> None:
    steps = loader(rows_of(tmp_path / "a", [2] * 5)).iterate(0, 100)
    next(steps)
    steps.close()


@pytest.mark.parametrize(("lengths", "steps"), [([8, 8, 8], 2), ([5], 1)])
def test_ranks_take_equally_many_steps(tmp_path: Path, lengths: list[int], steps: int) -> None:
    rows = rows_of(tmp_path / "a", lengths)
    ranks = [loader(rows, packing=True, dp_rank=r, dp_size=2) for r in range(2)]
    assert [r.steps_per_epoch for r in ranks] == [steps, steps]
    used: list[int] = []
    for index in range(steps):
        parts = [r.step(0, index) for r in ranks]
        assert parts[0].trained_tokens == parts[1].trained_tokens
        assert [len(p.micro_batches) for p in parts] == [1, 1]
        counted = sum(int((b.labels != IGNORE).sum()) for p in parts for b in p.micro_batches)
        assert counted == parts[0].trained_tokens
        used += [row for p in parts for b in p.micro_batches for line in seen(b) for row in line]
    assert sorted(used) == list(range(1, len(lengths) + 1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(2, 8), min_size=1, max_size=30),
    packing=st.booleans(),
    layout=st.sampled_from([(1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4)]),
    epoch=st.integers(0, 2),
)
def test_global_batches_do_not_depend_on_the_layout(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    packing: bool,
    layout: tuple[int, int, int],
    epoch: int,
) -> None:
    rows = rows_of(tmp_path_factory.mktemp("rows") / "a", lengths)
    micro, accumulation, size = layout
    one = loader(rows, packing=packing, micro_batch_size=4)
    many = [
        loader(rows, packing=packing, micro_batch_size=micro, accumulation=accumulation,
               dp_rank=rank, dp_size=size)
        for rank in range(size)
    ]  # fmt: skip
    for index in range(one.steps_per_epoch):
        whole = one.step(epoch, index)
        parts = [m.step(epoch, index) for m in many]
        assert {p.trained_tokens for p in parts} == {whole.trained_tokens}
        assert {p.tokens for p in parts} == {whole.tokens}
        assert len({len(p.micro_batches) for p in parts}) == 1
        expected = sorted(tuple(line) for b in whole.micro_batches for line in seen(b))
        got = [tuple(x) for p in parts for b in p.micro_batches for x in seen(b)]
        assert sorted(line for line in got if line) == expected
        trained = sum(int((b.labels != IGNORE).sum()) for p in parts for b in p.micro_batches)
        assert trained == whole.trained_tokens
