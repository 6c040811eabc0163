"""Which rows share a pack: best-fit decreasing on the histogram of lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Packs:
    """`count` packs of the same contents: `(length, how many)` for each length."""

    count: int
    contents: tuple[tuple[int, int], ...]


def plan_packs(
    lengths: npt.NDArray[np.integer], capacity: int, rng: np.random.Generator | None = None
) -> tuple[Indices, Indices]:
    """Distribute rows over packs of `capacity` tokens.

    Every row is in exactly one pack. The number of packs depends on the lengths only; which rows
    of the same length go where, and the order of the packs, come from `rng`.

    Args:
        lengths: Tokens of each row, [rows].
        capacity: Tokens that fit into a pack.
        rng: Source of the shuffle; `None` keeps a fixed order.

    Returns:
        Indices of rows, [rows], pack after pack, and where each pack begins in them,
        [packs + 1].

    Raises:
        ValueError: A row is longer than `capacity`, or has no token.
    """
    lengths = np.asarray(lengths)
    rows = len(lengths)
    if rows == 0:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    if lengths.max() > capacity:
        raise ValueError(f"a row of {lengths.max()} tokens fits no pack of {capacity}")
    if lengths.min() < 1:
        raise ValueError("a row without tokens cannot be packed")
    groups = _best_fit(np.bincount(lengths), capacity)

    order = np.arange(rows) if rng is None else rng.permutation(rows)
    # Rows by length; a small type makes the stable sort a radix sort.
    small = np.uint16 if capacity < 2**16 else np.int64
    order = order[np.argsort(lengths[order].astype(small), kind="stable")]
    taken = np.concatenate(([0], np.cumsum(np.bincount(lengths))))  # Next unused row by length.
    flat, sizes = [], []
    for group in groups:
        columns = []
        for length, times in group.contents:
            begin = int(taken[length])
            taken[length] += group.count * times
            columns.append(order[begin : int(taken[length])].reshape(group.count, times))
        packs = np.hstack(columns)
        flat.append(packs.reshape(-1))
        sizes.append(np.full(group.count, packs.shape[1]))
    members, size = np.concatenate(flat), np.concatenate(sizes)
    begins = np.concatenate(([0], np.cumsum(size)))[:-1]
    sequence = np.arange(len(size)) if rng is None else rng.permutation(len(size))
    offsets = np.concatenate(([0], np.cumsum(size[sequence])))
    # Pack after pack in the shuffled order, without a loop over packs.
    shift = np.repeat(begins[sequence] - offsets[:-1], size[sequence])
    return members[np.arange(rows) + shift], offsets


def _best_fit(histogram: npt.NDArray[np.int64], capacity: int) -> list[_Packs]:
    """Pack all rows of a length at once, the longest first, into the fullest pack they fit.

    Packs with equal contents are one group, so that the work grows with the number of distinct
    lengths and not with the rows.
    """
    open_packs: dict[int, list[_Packs]] = {}
    spaces = 0  # Bit s is set: there are packs with s tokens free.
    done: list[_Packs] = []

    def put(packs: _Packs, space: int) -> None:
        nonlocal spaces
        if space == 0:
            done.append(packs)
        else:
            open_packs.setdefault(space, []).append(packs)
            spaces |= 1 << space

    for length in range(len(histogram) - 1, 0, -1):
        left = int(histogram[length])
        while left:
            fitting = spaces >> length
            if fitting:
                space = length + (fitting & -fitting).bit_length() - 1
                packs = open_packs[space].pop()
                if not open_packs[space]:
                    spaces &= ~(1 << space)
            else:
                space = capacity
                packs = _Packs(-(-left // (capacity // length)), ())
            # The fullest pack that fits stays the fullest: it takes rows until it is full.
            each = space // length
            full = min(packs.count, left // each)
            if full:
                put(_Packs(full, (*packs.contents, (length, each))), space - each * length)
                left -= full * each
            rest = packs.count - full
            if rest and left and left < each:
                put(_Packs(1, (*packs.contents, (length, left))), space - left * length)
                left, rest = 0, rest - 1
            if rest:
                put(_Packs(rest, packs.contents), space)
    return done + [packs for group in open_packs.values() for packs in group]
