"""Which rows an epoch has: shares, temperatures, repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import Log, make_config, toy_tokenizer, write_jsonl
from data.test_loader import loader, rows_of, seen
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tunecli.data import prepare
from tunecli.data.mixture import Mixture
from tunecli.errors import DataError


def groups(*sizes: int) -> list[np.ndarray]:
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 20), min_size=4, max_size=4),
    seed=st.integers(0, 3),
)
def test_shares_are_exact_in_the_long_run_and_rows_take_turns(
    sizes: list[int], weights: list[int], seed: int
) -> None:
    used = weights[: len(sizes)]
    shares = [w / sum(used) for w in used]
    mixture = Mixture(groups(*sizes), shares, [1] * len(sizes), seed)
    drawn: list[int] = []
    for epoch in range(7):
        rows = mixture.rows(epoch)
        assert len(rows) == sum(sizes)
        drawn += rows.tolist()
        for group, share in zip(mixture.groups, shares, strict=True):
            counts = [drawn.count(row) for row in group.tolist()]
            assert max(counts) - min(counts) <= 1
            assert abs(sum(counts) - share * len(drawn)) <= len(sizes) / 2
    again = Mixture(groups(*sizes), shares, [1] * len(sizes), seed)
    assert [r for e in range(7) for r in again.rows(e).tolist()] == drawn


def test_repeats() -> None:
    mixture = Mixture(groups(2, 3), None, [3, 1], 0)
    assert mixture.rows(0).tolist() == mixture.rows(5).tolist() == [0, 1, 0, 1, 0, 1, 2, 3, 4]
    assert mixture.size == 9


def sources(path: Path, values: list[dict[str, Any]], **more: Any) -> Any:
    """Sources of 8 rows each, the i-th of them of words `wi`."""
    entries = []
    for index, value in enumerate(values):
        file = path / f"{index}.jsonl"
        write_jsonl(file, [{"text": f"w{index} w{20 + n}"} for n in range(value.pop("rows", 8))])
        entries.append({"path": str(file), "type": "completion", **value})
    config = make_config(entries, dataset_prepared_path=str(path / "prepared"), **more)
    return prepare(config, toy_tokenizer(), Log())


def first_words(data: Any, epochs: int) -> list[int]:
    rows = [row for epoch in range(epochs) for row in data.mixture.rows(epoch).tolist()]
    return [int(data.train.row(row)[0][0]) - 8 for row in rows]


def test_weights_of_entries(tmp_path: Path) -> None:
    words = first_words(sources(tmp_path, [{"weight": 0.75}, {"weight": 0.25}]), 25)
    assert len(words) == 400
    assert words.count(0) == 300
    only = sources(tmp_path, [{"weight": 1}, {"weight": 0}])
    assert set(first_words(only, 2)) == {0}


def test_temperature(tmp_path: Path) -> None:
    values = [{"rows": 16}, {"rows": 4}]
    data = sources(tmp_path, [dict(v) for v in values], mixture_temperature=2)
    words = first_words(data, 30)
    # 16^(1/2) : 4^(1/2) = 2 : 1
    assert words.count(0) == 2 * words.count(1) == 400
    assert first_words(sources(tmp_path, values, mixture_temperature=1), 3).count(0) == 48


def test_repeat_of_an_entry_leaves_the_cache_alone(tmp_path: Path) -> None:
    one = sources(tmp_path, [{"rows": 3}, {"rows": 2}])
    two = sources(tmp_path, [{"rows": 3, "repeat": 2}, {"rows": 2}])
    assert two.report.cached
    assert first_words(two, 1) == [0] * 6 + [1] * 2
    assert one.key != two.key


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ([{"weight": 1}, {}], {}, "other entries of datasets have a weight"),
        ([{"weight": 0}, {"weight": 0}], {}, "all weights are 0"),
        ([{"weight": -1}, {"weight": 1}], {}, "greater than or equal to 0"),
        ([{"weight": 1, "repeat": 2}], {}, "repeat has no effect"),
        ([{"weight": 1}], {"mixture_temperature": 2.0}, "both say how to mix"),
        ([{}], {"mixture_temperature": 0.5}, "greater than or equal to 1"),
        ([{}], {"test_datasets": [{"path": "x", "weight": 1}]}, "every evaluation row counts once"),
        ([{}], {"group_by_length": True, "sample_packing": True}, "no padding"),
    ],
)
def test_mixtures_that_make_no_sense(
    values: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make_config([{"path": "x", **value} for value in values], **more)


def test_a_share_of_nothing(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "w0 w1"}])
    none = write_jsonl(tmp_path / "b.jsonl", [{"text": "w0 w1 w2 w3 w4"}])
    entries = [{"path": str(p), "type": "completion", "weight": 1} for p in (file, none)]
    config = make_config(
        entries, sequence_len=4, excess_length_strategy="drop",
        dataset_prepared_path=str(tmp_path / "p"),
    )  # fmt: skip
    with pytest.raises(DataError, match=r"b.jsonl: weight 1, but there is no row"):
        prepare(config, toy_tokenizer(), Log())


def test_packed_shares_have_epochs_of_different_lengths(tmp_path: Path) -> None:
    lengths = [8, 8, 8, 8, 3, 4, 3, 1, 5, 2]
    rows = rows_of(tmp_path / "a", lengths)
    mixture = Mixture(groups(4, 6), [0.5, 0.5], [1, 1], 3)
    packs = loader(rows, packing=True, mixture=mixture)
    counts = [len(packs.order(epoch)[1]) - 1 for epoch in range(4)]
    assert len(set(counts)) > 1
    assert [packs.steps(n) for n in range(5)] == [sum(counts[:n]) for n in range(5)]
    assert packs.steps(1.5) == counts[0] + -(-counts[1] // 2)
    assert packs.epochs_at(counts[0]) == 1
    assert packs.epochs_at(counts[0] + 1) == 1 + 1 / counts[1]
    every = [[seen(b) for b in s.micro_batches] for s in packs.iterate(0, sum(counts))]
    at = 0
    for epoch, count in enumerate(counts):
        flat = [row - 1 for step in every[at : at + count] for b in step for x in b for row in x]
        # A row that comes twice in one pack is listed once by `seen`.
        assert set(flat) == set(mixture.rows(epoch).tolist())
        at += count
    again = loader(rows, packing=True, mixture=mixture)
    late = counts[0] + 1
    assert [[seen(b) for b in s.micro_batches] for s in again.iterate(late, sum(counts))] == every[
        late:
    ]
