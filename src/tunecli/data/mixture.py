"""How many rows of each data source an epoch has, and which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..config.schema.data import DatasetEntry
from ..errors import DataError

Indices = npt.NDArray[np.int64]


def shares_of(
    entries: Sequence[DatasetEntry], temperature: float | None, sizes: Sequence[int]
) -> list[float] | None:
    """Return the share of each source, or `None` if every row counts once (times its `repeat`).

    With a temperature T the share of a source of n rows is proportional to `n ** (1 / T)`, as in
    mT5 (arXiv:2010.11934, section 3.1, with 1 / T written as alpha).

    Raises:
        DataError: A source with a share has no rows.
    """
    if temperature is not None:
        weights = [size ** (1 / temperature) if size else 0.0 for size in sizes]
    elif any(entry.weight is not None for entry in entries):
        # The schema holds that either all have one or none, and that one is above zero.
        weights = [entry.weight or 0.0 for entry in entries]
    else:
        return None
    for entry, weight, size in zip(entries, weights, sizes, strict=True):
        if weight and not size:
            raise DataError(f"{entry.path}: weight {weight:g}, but there is no row to train on")
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class Mixture:
    """Rows of an epoch.

    Attributes:
        groups: Rows of each source.
        shares: Share of each source, adding up to 1; `None`: every row once, times its repeats.
        repeats: How often the rows of each source count.
        seed: Decides which rows come in an epoch that has not all of them.
    """

    groups: Sequence[Indices]
    shares: Sequence[float] | None
    repeats: Sequence[int]
    seed: int

    @property
    def size(self) -> int:
        """Rows in an epoch, the same in all epochs."""
        return sum(len(g) * n for g, n in zip(self.groups, self.repeats, strict=True))

    @property
    def varies(self) -> bool:
        """Whether epochs may hold different rows."""
        return self.shares is not None

    def rows(self, epoch: int) -> Indices:
        """Return the rows of an epoch, source after source.

        With shares, each source is a sequence of passes over its rows, each pass in an order of
        its own, and each epoch goes on in it where the one before stopped: no row is used for
        the (n + 1)-th time before all have been used n times.
        """
        if self.shares is None:
            return np.concatenate(
                [np.tile(g, n) for g, n in zip(self.groups, self.repeats, strict=True)]
            )
        begins, ends = self._drawn(epoch), self._drawn(epoch + 1)
        spans = enumerate(zip(begins, ends, strict=True))
        return np.concatenate([self._draws(i, begin, end) for i, (begin, end) in spans])

    def _drawn(self, epochs: int) -> list[int]:
        """Return the rows that each source has given after so many epochs.

        Counts since the start are rounded, not those of an epoch, so that shares are exact in
        the long run; the largest source takes what rounding leaves.
        """
        assert self.shares is not None
        total = epochs * self.size
        counts = [int(total * share + 0.5) for share in self.shares]
        largest = max(range(len(counts)), key=self.shares.__getitem__)
        counts[largest] += total - sum(counts)
        return counts

    def _draws(self, source: int, begin: int, end: int) -> Indices:
        group = self.groups[source]
        parts = [np.zeros(0, np.int64)]
        while begin < end:
            turn, at = divmod(begin, len(group))
            order = np.random.default_rng([self.seed, 2, source, turn]).permutation(len(group))
            taken = order[at : at + end - begin]
            parts.append(group[taken])
            begin += len(taken)
        return np.concatenate(parts)
