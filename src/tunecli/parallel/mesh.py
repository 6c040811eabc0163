"""The mesh: sizes of its axes, and where this process stands in it.

Every other module asks this one who reads which rows and who sums with whom. Axis names are
Accelerate's: `dp_replicate`, `dp_shard`, `cp`, `tp`, in this order from the outside in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import distributed as dist

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from accelerate import ParallelismConfig
    from torch.distributed.device_mesh import DeviceMesh

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

    @property
    def token_ranks(self) -> int:
        """Number of groups of processes that hold different tokens: rows, or parts of rows."""
        return self.data_ranks * self.cp

    def parallelism_config(self) -> ParallelismConfig | None:
        """Return the same sizes as Accelerate's object.

        `None` for the products that Accelerate 1.15 refuses to write down (replicas with CP or
        TP, but without sharding), although they train like any other here.
        """
        from accelerate import ParallelismConfig

        if self.dp_replicate > 1 and self.dp_shard == 1 and self.cp * self.tp > 1:
            return None
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
    """A layout, this process's place in it, and the groups that it talks to.

    Ranks run with `tp` innermost, as in Accelerate's `build_device_mesh`. Several views of the
    same ranks are kept side by side, since torch deprecates slicing flattened axes.

    Attributes:
        layout: Sizes of the axes.
        rank: Number of this process among all, from 0.
        device: Device of this process.
        weights: `[dp_replicate, fsdp, tp]`, where `fsdp` is `dp_shard x cp`: how weights lie.
            `None` in a single process.
        tokens: `[token, tp]`: `token` runs over all that hold different tokens.
        rows: `[data, cp, tp]`: `data` runs over all that read different rows.
    """

    layout: Layout
    rank: int
    device: torch.device
    weights: DeviceMesh | None = None
    tokens: DeviceMesh | None = None
    rows: DeviceMesh | None = None

    @classmethod
    def start(cls, layout: Layout, device: torch.device) -> Self:
        """Make the groups of `layout`; every process of it must call this.

        Raises:
            ConfigError: The number of processes is not the layout's.
        """
        if layout.world_size == 1:
            return cls(layout, 0, device)
        from torch.distributed.device_mesh import init_device_mesh

        r, s, c, t = layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp
        kind = device.type
        return cls(
            layout,
            dist.get_rank(),
            device,
            weights=init_device_mesh(
                kind, (r, s * c, t), mesh_dim_names=("dp_replicate", "fsdp", "tp")
            ),
            tokens=init_device_mesh(kind, (r * s * c, t), mesh_dim_names=("token", "tp")),
            rows=init_device_mesh(kind, (r * s, c, t), mesh_dim_names=("data", "cp", "tp")),
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which of the `layout.data_ranks` groups this process reads rows for."""
        return self.rank // (self.layout.cp * self.layout.tp)

    @property
    def cp_rank(self) -> int:
        """Which part of each row this process holds."""
        return self.rank // self.layout.tp % self.layout.cp

    @property
    def tp_rank(self) -> int:
        """Which part of each matrix this process holds."""
        return self.rank % self.layout.tp

    @property
    def tp_group(self) -> dist.ProcessGroup | None:
        """Processes that share each layer's matrices; `None` without TP."""
        if self.weights is None or self.layout.tp == 1:
            return None
        return self.weights.get_group("tp")

    @property
    def cp_group(self) -> dist.ProcessGroup | None:
        """Processes that share each row; `None` without CP."""
        if self.rows is None or self.layout.cp == 1:
            return None
        return self.rows.get_group("cp")

    def sum_over_tokens(self, value: torch.Tensor) -> torch.Tensor:
        """Add up a value over all processes that hold different tokens, in place."""
        if self.tokens is not None and self.layout.token_ranks > 1:
            dist.all_reduce(value, group=self.tokens.get_group("token"))
        return value
