"""Global batches by epoch and index, the same whatever the number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .packing import plan_packs
from .store import TokenRows
from .tokenize import IGNORE

if TYPE_CHECKING:
    import torch

AHEAD = 2
"""Steps that are put together before they are asked for."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What goes through the model at once. All tensors are int64 [rows, positions].

    Attributes:
        input_ids: Tokens; `pad_id` after a row's end.
        labels: The token that each position is to predict, -100 where none is trained: shifted
            already, and never across the end of a document.
        position_ids: Position in the document. In packs they restart at 0 with each document,
            and once more where the padding begins.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor

    def to(self, device: Any) -> Batch:
        """Return the batch on another device."""
        parts = (self.input_ids, self.labels, self.position_ids)
        return Batch(*(part.to(device, non_blocking=True) for part in parts))


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step.

    Attributes:
        micro_batches: Those of this data-parallel rank; every rank has equally many.
        trained_tokens: Trained targets of the whole global batch, over all ranks.
        tokens: Tokens of the whole global batch, without padding.
    """

    micro_batches: list[Batch]
    trained_tokens: int
    tokens: int


class BatchLoader:
    """Puts the rows of an epoch in order and cuts them into global batches.

    A sample is a row, or a pack of rows. Global batch `k` of an epoch is `global_batch`
    consecutive samples of the epoch's order, and fewer at its end: no batch mixes epochs. The
    order depends on `seed`, the epoch and the rows alone. Each step can be had directly, so that
    a resumed run goes on exactly and at once.

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
        self._packing = packing
        self._pad_to = sequence_len if packing and pad_to is None else pad_to
        self._pad_id = pad_id
        self._seed, self._shuffle = seed, shuffle
        self._multiple = multiple
        self._plan: tuple[int, Indices, Indices] | None = None
        self.global_batch = micro_batch_size * accumulation * dp_size
        """Samples in one step over all ranks."""
        self.samples = len(self.order(0)[1]) - 1
        """Samples in an epoch."""
        self.steps_per_epoch = -(-self.samples // self.global_batch)
        """Optimizer steps in an epoch."""

    def order(self, epoch: int) -> tuple[Indices, Indices]:
        """Return the rows of an epoch in order, [rows], and where samples begin, [samples + 1]."""
        plan = self._plan
        if plan is None or plan[0] != epoch:
            count = len(self.rows)
            rng = np.random.default_rng([self._seed, epoch]) if self._shuffle else None
            if self._packing:
                plan = (epoch, *plan_packs(self.rows.lengths, self._capacity, rng))
            else:
                order = np.arange(count) if rng is None else rng.permutation(count)
                plan = (epoch, order, np.arange(count + 1))
            self._plan = plan
        return plan[1], plan[2]

    def step(self, epoch: int, index: int) -> StepBatch:
        """Return step `index` of an epoch, both counted from 0.

        Raises:
            IndexError: The epoch has no such step.
        """
        if not 0 <= index < self.steps_per_epoch:
            raise IndexError(f"step {index} of {self.steps_per_epoch}")
        order, offsets = self.order(epoch)
        start = index * self.global_batch
        stop = min(start + self.global_batch, self.samples)
        every = order[offsets[start] : offsets[stop]]
        # A short last window has fewer micro-batches, never fewer for some ranks than for others.
        per_pass = self._micro * self._ranks
        batches = []
        for first in range(start + self._rank * self._micro, start + _up(stop - start, per_pass),
                           per_pass):  # fmt: skip
            last = min(first + self._micro, stop)
            samples = [order[offsets[i] : offsets[i + 1]] for i in range(first, last)]
            batches.append(self._collate(samples))
        return StepBatch(
            batches, int(self.rows.trained[every].sum()), int(self.rows.lengths[every].sum())
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
                        ahead.append(pool.submit(self.step, *divmod(number, self.steps_per_epoch)))
                    if number - start_step >= AHEAD and ahead:
                        yield ahead.pop(0).result()
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
        for line, sample in enumerate(samples):
            at = 0
            for row in sample:
                row_ids, row_labels = self.rows.row(int(row))
                end = at + len(row_ids)
                ids[line, at:end] = row_ids
                labels[line, at : end - 1] = row_labels[1:]
                if self._packing:
                    # What follows restarts here: the next document, or the padding.
                    positions[line, end:] = np.arange(width - end)
                at = end
        return Batch(torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(positions))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
