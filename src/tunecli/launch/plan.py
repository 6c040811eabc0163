"""How many processes a configuration asks for. Pure: nothing is started, nothing is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError, Problem, UsageError
from ..parallel.mesh import KEYS, Layout

if TYPE_CHECKING:
    from ..config import ParallelConfig


@dataclass(frozen=True)
class Machines:
    """The machines of a run, and which of them this one is.

    Attributes:
        count: How many machines take part.
        rank: Number of this one, from 0. Number 0 has rank 0, which writes the files.
        endpoint: `host:port` of number 0; needed if there are several.
    """

    count: int = 1
    rank: int = 0
    endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.rank < self.count:
            raise UsageError(
                f"--node-rank {self.rank} with --nnodes {self.count}: machines are counted from 0 "
                "to --nnodes minus 1"
            )
        if self.count > 1 and not self.endpoint:
            raise UsageError(
                f"--nnodes {self.count} needs --rdzv-endpoint HOST:PORT, the same on each machine: "
                "the address of the machine with --node-rank 0, and a free port on it"
            )
        if self.endpoint and not self.endpoint.rpartition(":")[2].isdecimal():
            raise UsageError(f"--rdzv-endpoint {self.endpoint} is no HOST:PORT")


@dataclass(frozen=True)
class Plan:
    """The processes to start.

    Attributes:
        layout: Sizes of the axes, filled in.
        per_machine: Processes on each machine.
        note: What was decided without being asked for, in words.
    """

    layout: Layout
    per_machine: int
    note: str | None = None


def plan_processes(config: ParallelConfig, gpus: int, machines: int = 1) -> Plan:
    """Decide how many processes a run needs.

    It is the product of the four sizes, where one left out counts 1: with one exception. Where
    there are GPUs and `dp_shard_size` is left out, all GPUs are used, and `dp_shard` takes what
    the other sizes leave. Without GPUs the processes share the CPU, and a `dp_shard_size` left out
    grows only until every machine has an equal number of processes.

    Args:
        config: Sizes of the axes.
        gpus: GPUs that this process sees; other machines are taken to have as many.
        machines: Number of machines.

    Raises:
        ConfigError: The sizes do not fit the GPUs, or are no multiple of the machines.
    """
    sizes = {axis: getattr(config, key) or 1 for axis, key in KEYS.items()}
    others = math.prod(sizes.values())
    note = None
    if config.dp_shard_size is None:
        available = gpus * machines or math.lcm(others, machines)
        if available % others:
            raise ConfigError([_mismatch(sizes, f"{_gpus(available)} there")])
        sizes["dp_shard"] = available // others
        if gpus and available > 1:
            note = f"dp_shard_size left out: {sizes['dp_shard']}, to use {_gpus(available, False)}"
    layout = Layout(**sizes)
    if layout.world_size % machines:
        raise ConfigError([_mismatch(sizes, f"that is no multiple of {machines} machines")])
    per_machine = layout.world_size // machines
    if 0 < gpus < per_machine:
        raise ConfigError([_mismatch(sizes, f"{_gpus(gpus * machines)} there")])
    return Plan(layout, per_machine, note)


def _gpus(count: int, verb: bool = True) -> str:
    return f"{count} GPU{'s' * (count > 1)}" + (" is" if count == 1 else " are") * verb


def _mismatch(sizes: dict[str, int], trouble: str) -> Problem:
    factors = " x ".join(f"{key} {sizes[axis]}" for axis, key in KEYS.items())
    return Problem(
        ("dp_shard_size",),
        f"{factors} = {math.prod(sizes.values())}, but {trouble}",
        "choose sizes whose product fits, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on CPU"
        if "GPU" in trouble
        else "choose sizes whose product each machine gets an equal part of",
    )
