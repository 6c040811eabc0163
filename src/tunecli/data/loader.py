"""Global batches by epoch and index, the same whatever the number of devices."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from .batch import Batch, StepBatch
from .mixture import Mixture
from .packing import plan_packs
from .store import TokenRows
from .tokenize import IGNORE

AHEAD = 2
"""Steps that are put together before they are asked for."""

SIMILAR = 64
"""Steps whose rows are sorted together where rows are grouped by length."""

Indices = npt.NDArray[np.int64]


class BatchLoader:
    """Puts the rows of an epoch in order and cuts them into global batches.

    A sample is a row, or a pack of rows. Global batch `k` of an epoch is `global_batch`
    consecutive samples of the epoch's order, and fewer at its end: no batch mixes epochs. The
    order depends on `seed`, the epoch and the rows alone (and on `global_batch` if rows are
    grouped by length). Each step can be had directly, so that a resumed run goes on exactly and
    at once.

    Args:
        rows: What to train or evaluate on.
        micro_batch_size: Samples in one forward pass of one rank.
        accumulation: Forward passes of one rank in a step.
        dp_rank: Which data-parallel rank this is.
        dp_size: Data-parallel ranks.
        sequence_len: Tokens in a pack, and the most that a row may have.
        packing: Make packs.
        pad_to: Positions of every batch; `None`: those of the longest row of the micro-batch
            (`sequence_len` for packs).
        pad_id: Token after a row's end.
        seed: Seed of the order.
        shuffle: Another order each epoch; else the order of the rows.
        multiple: Positions are rounded up to a multiple of this.
        mixture: Which rows each epoch has; all of them, once, if left out.
        group_by_length: Without packing: rows of similar length share a global batch.
        pin_memory: Put batches where a GPU can copy them from by itself.

    Raises:
        ValueError: A row is longer than `sequence_len`, `pad_to` is below it, or there are no rows.
    """

    def __init__(
        self,
        rows: TokenRows,
        *,
        micro_batch_size: int,
        accumulation: int = 1,
        dp_rank: int = 0,
        dp_size: int = 1,
        sequence_len: int,
        packing: bool = False,
        pad_to: int | None = None,
        pad_id: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        multiple: int = 1,
        mixture: Mixture | None = None,
        group_by_length: bool = False,
        pin_memory: bool = False,
    ) -> None:
        if not len(rows):
            raise ValueError("there are no rows")
        if int(rows.lengths.max()) > sequence_len:
            raise ValueError(f"a row has {rows.lengths.max()} tokens, above {sequence_len}")
        if pad_to is not None and pad_to < sequence_len:
            raise ValueError(f"pad_to {pad_to} is below sequence_len {sequence_len}")
        self.rows = rows
        self._micro = micro_batch_size
        self._rank, self._ranks = dp_rank, dp_size
        self._capacity = sequence_len
        self.packing = packing
        self._pad_to = sequence_len if packing and pad_to is None else pad_to
        self._pad_id = pad_id
        self._seed, self._shuffle = seed, shuffle
        self._multiple = multiple
        self._mixture = mixture
        self._group = group_by_length
        self._pin = pin_memory
        self._plan: tuple[int, Indices, Indices] | None = None
        self.global_batch = micro_batch_size * accumulation * dp_size
        """Samples in one step over all ranks."""
        self.steps_per_epoch = self._steps_in(0)
        """Optimizer steps in the first epoch; with shares of sources, others may differ."""
        self._begins = [0, self.steps_per_epoch]
        self.waited = 0.0
        """Seconds for which `iterate` has kept its caller waiting."""

    def order(self, epoch: int) -> tuple[Indices, Indices]:
        """Return the rows of an epoch in order, [rows], and where samples begin, [samples + 1]."""
        plan = self._plan
        if plan is None or plan[0] != epoch:
            count = len(self.rows)
            chosen = np.arange(count) if self._mixture is None else self._mixture.rows(epoch)
            lengths = self.rows.lengths[chosen].astype(np.int64)
            rng = np.random.default_rng([self._seed, epoch]) if self._shuffle else None
            if self.packing:
                order, offsets = plan_packs(lengths, self._capacity, rng)
            else:
                offsets = np.arange(len(chosen) + 1)
                order = offsets[:-1] if rng is None else rng.permutation(len(chosen))
                if self._group:
                    order = _grouped(order, lengths, self.global_batch, rng)
            self._plan = plan = (epoch, chosen[order], offsets)
        return plan[1], plan[2]

    def _steps_in(self, epoch: int) -> int:
        return -(-(len(self.order(epoch)[1]) - 1) // self.global_batch)

    def _begin(self, epoch: int) -> int:
        """Return how many steps come before an epoch."""
        if not (self.packing and self._mixture is not None and self._mixture.varies):
            return epoch * self.steps_per_epoch
        while len(self._begins) <= epoch:
            self._begins.append(self._begins[-1] + self._steps_in(len(self._begins) - 1))
        return self._begins[epoch]

    def steps(self, epochs: float) -> int:
        """Return the optimizer steps of so many epochs; of a part of one, rounded up."""
        whole = int(epochs)
        begin = self._begin(whole)
        part = (epochs - whole) * (self._begin(whole + 1) - begin) if epochs > whole else 0
        # 1.1 - 1 is a little more than 0.1.
        return begin + math.ceil(part - 1e-9)

    def locate(self, number: int) -> tuple[int, int]:
        """Return epoch and index in it of a step, by its number since the start of training."""
        epoch = number // self.steps_per_epoch
        while self._begin(epoch) > number:
            epoch -= 1
        while self._begin(epoch + 1) <= number:
            epoch += 1
        return epoch, number - self._begin(epoch)

    def epochs_at(self, number: int) -> float:
        """Return how many epochs are over after so many steps, with a fraction."""
        epoch, index = self.locate(number)
        return epoch + index / (self._begin(epoch + 1) - self._begin(epoch))

    def step(self, epoch: int, index: int) -> StepBatch:
        """Return step `index` of an epoch, both counted from 0.

        Raises:
            IndexError: The epoch has no such step.
        """
        order, offsets = self.order(epoch)
        samples = len(offsets) - 1
        start = index * self.global_batch
        stop = min(start + self.global_batch, samples)
        if not 0 <= start < samples:
            raise IndexError(f"step {index} of {self._steps_in(epoch)}")
        every = order[offsets[start] : offsets[stop]]
        # A short last window has fewer micro-batches, never fewer for some ranks than for others.
        per_pass = self._micro * self._ranks
        batches = []
        for first in range(start + self._rank * self._micro, start + _up(stop - start, per_pass),
                           per_pass):  # fmt: skip
            last = min(first + self._micro, stop)
            batches.append(
                self._collate([order[offsets[i] : offsets[i + 1]] for i in range(first, last)])
            )
        return StepBatch(
            batches,
            int(self.rows.trained[every].sum()),
            int(self.rows.lengths[every].sum()),
            float(self.rows.weight[every].sum()),
        )

    def iterate(self, start_step: int, stop_step: int) -> Iterator[StepBatch]:
        """Yield steps by their number since the start of training, over the epochs.

        A thread puts the next steps together meanwhile.
        """
        with ThreadPoolExecutor(1) as pool:
            ahead: list[Future[StepBatch]] = []
            try:
                for number in range(start_step, stop_step + AHEAD):
                    if number < stop_step:
                        ahead.append(pool.submit(self.step, *self.locate(number)))
                    if number - start_step >= AHEAD and ahead:
                        asked = time.perf_counter()
                        batch = ahead.pop(0).result()
                        self.waited += time.perf_counter() - asked
                        yield batch
            finally:
                for future in ahead:
                    future.cancel()

    def _collate(self, samples: list[Indices]) -> Batch:
        import torch

        # A rank without samples takes part with a row that trains nothing.
        longest = max((int(self.rows.lengths[s].sum()) for s in samples), default=1)
        width = _up(max(longest, self._pad_to or 0), self._multiple)
        shape = (max(1, len(samples)), width)
        ids = np.full(shape, self._pad_id, np.int64)
        labels = np.full(shape, IGNORE, np.int64)
        positions = np.empty(shape, np.int64)
        positions[:] = np.arange(width)
        weights = np.zeros(shape, np.float32) if self.rows.weighted else None
        for line, sample in enumerate(samples):
            at = 0
            for row in sample:
                row_ids, row_labels = self.rows.row(int(row))
                end = at + len(row_ids)
                ids[line, at:end] = row_ids
                labels[line, at : end - 1] = row_labels[1:]
                if weights is not None:
                    weights[line, at : end - 1] = self.rows.weights(int(row))[1:]  # type: ignore[index]
                if self.packing:
                    # What follows restarts here: the next document, or the padding.
                    positions[line, end:] = np.arange(width - end)
                at = end
        arrays = (ids, labels, positions, weights)
        batch = Batch(*(a if a is None else torch.from_numpy(a) for a in arrays))  # type: ignore[arg-type]
        return batch.pinned() if self._pin else batch


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _grouped(
    order: Indices, lengths: Indices, global_batch: int, rng: np.random.Generator | None
) -> Indices:
    """Sort stretches of the order by length, and shuffle the global batches that come of it.

    The last, shorter one stays the last.
    """
    stretch = SIMILAR * global_batch
    parts = [order[at : at + stretch] for at in range(0, len(order), stretch)]
    order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    whole = len(order) // global_batch
    batches = order[: whole * global_batch].reshape(whole, global_batch)
    if rng is not None:
        batches = batches[rng.permutation(whole)]
    return np.concatenate([batches.reshape(-1), order[whole * global_batch :]])
