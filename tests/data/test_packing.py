"""Packing: every row once, no pack over capacity, and nearly full."""

from __future__ import annotations

from collections.abc import Callable
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


def lognormal(rng: np.random.Generator) -> np.ndarray:
    return np.clip(rng.lognormal(5.5, 1.0, 1_000_000).astype(np.int64), 1, 4096)


def bimodal(rng: np.random.Generator) -> np.ndarray:
    short, long = rng.integers(50, 200, 1_000_000), rng.integers(1500, 2500, 1_000_000)
    return np.where(rng.random(1_000_000) < 0.5, short, long)


def near_maximum(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(3900, 4097, 1_000_000)


@pytest.mark.parametrize("capacity", [4096, 70_000])
@pytest.mark.parametrize("draw", [lognormal, bimodal, near_maximum])
def test_a_million_rows(draw: Callable[[np.random.Generator], np.ndarray], capacity: int) -> None:
    rng = np.random.default_rng(0)
    lengths = draw(rng)
    rows, offsets = plan_packs(lengths, capacity, rng)
    sums = np.add.reduceat(lengths[rows], offsets[:-1])
    assert sums.max() <= capacity
    assert np.array_equal(np.sort(rows), np.arange(len(lengths)))
    # No plan can do with fewer packs: not by their space, nor by how many rows one can hold.
    bound = max(lengths.sum() / capacity, len(lengths) / (capacity // lengths.min()))
    assert bound / len(sums) > 0.999
