"""Packing: every row once, no pack over capacity, and nearly full."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecli.data import plan_packs


def packs(lengths: list[int], capacity: int, seed: int | None = 0) -> list[list[int]]:
    rng = None if seed is None else np.random.default_rng(seed)
    rows, offsets = plan_packs(np.array(lengths, np.int64), capacity, rng)
    return [rows[a:b].tolist() for a, b in pairwise(offsets)]


def best_fit(lengths: list[int], capacity: int) -> int:
    """Best-fit decreasing, one row at a time."""
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [s for s in spaces if s >= length]
        if fitting:
            spaces.remove(min(fitting))
            spaces.append(min(fitting) - length)
        else:
            spaces.append(capacity - length)
    return len(spaces)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 70), seed=st.integers(0, 5))
def test_every_row_once_and_as_many_packs_as_best_fit(
    data: st.DataObject, capacity: int, seed: int
) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    plan = packs(lengths, capacity, seed)
    assert sorted(i for pack in plan for i in pack) == list(range(len(lengths)))
    assert all(pack and sum(lengths[i] for i in pack) <= capacity for pack in plan)
    assert len(plan) == best_fit(lengths, capacity)
    assert len(packs(lengths, capacity, seed + 1)) == len(plan)
    assert packs(lengths, capacity, seed) == plan


def test_known_example() -> None:
    assert len(packs([7, 5, 4, 3, 3, 2], 8)) == 4


def test_seed_changes_company_and_order() -> None:
    lengths = [4] * 50
    assert packs(lengths, 8, 0) != packs(lengths, 8, 1)
    together = [{frozenset(p) for p in packs(lengths, 8, seed)} for seed in (0, 1)]
    assert together[0] != together[1]
    assert packs(lengths, 8, None) == packs(lengths, 8, None)


def test_rows_that_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="a row of 9 tokens fits no pack of 8"):
        packs([3, 9], 8)
    with pytest.raises(ValueError, match="without tokens"):
        packs([0], 8)
    assert packs([], 8) == []


@pytest.mark.parametrize("capacity", [4096, 70_000])
def test_a_million_rows(capacity: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.5, 1.0, 1_000_000).astype(np.int64), 1, 4096)
    rows, offsets = plan_packs(lengths, capacity, rng)
    sums = np.add.reduceat(lengths[rows], offsets[:-1])
    assert sums.max() <= capacity
    assert np.array_equal(np.sort(rows), np.arange(len(lengths)))
    assert lengths.sum() / capacity / len(sums) > 0.999
