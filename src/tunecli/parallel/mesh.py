"""The mesh: sizes of its axes, and where this process stands in it.

Every other module asks this one who reads which rows and who sums with whom. Axis names are
Accelerate's: `dp_replicate`, `dp_shard`, `cp`, `tp`, in this order from the outside in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from accelerate import ParallelismConfig

    from ..config import ParallelConfig

KEYS = {
    "dp_replicate": "dp_replicate_size",
    "dp_shard": "dp_shard_size",
    "cp": "context_parallel_size",
    "tp": "tensor_parallel_size",
}
"""The configuration's key for each axis."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the four axes; their product is the number of processes."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @classmethod
    def from_config(cls, config: ParallelConfig, world_size: int) -> Self:
        """Fill in the sizes that `config` leaves out, for `world_size` processes.

        `dp_replicate`, `cp` and `tp` are 1 unless they are set. `dp_shard`, if left out, takes
        the processes that remain.

        Raises:
            ConfigError: The product of the sizes is not `world_size`.
        """
        given = {axis: getattr(config, key) for axis, key in KEYS.items()}
        sizes = {axis: size or 1 for axis, size in given.items()}
        if given["dp_shard"] is None:
            others = sizes["dp_replicate"] * sizes["cp"] * sizes["tp"]
            sizes["dp_shard"] = max(world_size // others, 1)
        layout = cls(**sizes)
        if layout.world_size != world_size:
            raise ConfigError([layout._mismatch(world_size)])
        return layout

    def _mismatch(self, world_size: int) -> Problem:
        factors = " x ".join(f"{key} {getattr(self, axis)}" for axis, key in KEYS.items())
        noun = "process is" if world_size == 1 else "processes are"
        return Problem(
            ("dp_shard_size",),
            f"{factors} = {self.world_size}, but {world_size} {noun} there",
            f"start {self.world_size} processes, or choose sizes whose product is {world_size}",
        )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return math.prod((self.dp_replicate, self.dp_shard, self.cp, self.tp))

    @property
    def data_ranks(self) -> int:
        """Number of groups of processes that read different rows."""
        return self.dp_replicate * self.dp_shard

    def parallelism_config(self) -> ParallelismConfig:
        """Return the same sizes as Accelerate's object."""
        from accelerate import ParallelismConfig

        return ParallelismConfig(
            dp_replicate_size=self.dp_replicate,
            dp_shard_size=self.dp_shard,
            cp_size=self.cp,
            tp_size=self.tp,
        )

    def __str__(self) -> str:
        return "x".join(str(size) for size in (self.dp_replicate, self.dp_shard, self.cp, self.tp))


@dataclass(frozen=True)
class Mesh:
    """A layout, and this process's place in it.

    Attributes:
        layout: Sizes of the axes.
        rank: Number of this process among all, from 0.
        device: Device of this process.
    """

    layout: Layout
    rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which of the `layout.data_ranks` groups this process reads rows for."""
        return self.rank // (self.layout.cp * self.layout.tp)
