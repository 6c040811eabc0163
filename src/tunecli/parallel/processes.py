"""The processes of a run: how this one joins the others, and which device it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed as dist

from ..errors import TunecliError
from .environment import Place, find_place

TIMEOUT = timedelta(minutes=30)
"""How long a collective may take before the run is given up: a checkpoint or a first compilation
on one rank must fit in."""


@dataclass(frozen=True)
class Processes:
    """This process among all.

    Attributes:
        rank: Its number, from 0.
        world_size: How many there are.
        local_rank: Its number on this machine.
        device: Its device.
        local_world_size: How many there are on this machine.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    local_world_size: int = 1

    @property
    def backend(self) -> str:
        """What carries the collectives."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def device_of(self, rank: int) -> str:
        """Name the device of any rank, if machines are filled one after the other."""
        if self.device.type != "cuda" or self.local_rank != self.device.index:
            return str(self.device)
        return f"cuda:{rank % self.local_world_size}"


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the processes that a launcher started, for as long as the block runs.

    The launcher is `torchrun`, `accelerate launch`, `srun` or our own; without one there is one
    process. Groups that exist already are used and left alone.

    Raises:
        UsageError: The launcher's variables make no sense.
        TunecliError: There are fewer GPUs than processes on this machine, but more than none; or
            the processes do not find each other.
    """
    place = find_place(os.environ)
    if place is None or place.world_size == 1:
        yield Processes(0, 1, 0, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    device = _device(place)
    ours = not dist.is_initialized()
    if ours:
        _connect(place, device)
    try:
        yield Processes(
            place.rank, place.world_size, place.local_rank, device, place.local_world_size
        )
    except BaseException:
        # Leaving NCCL in good order takes every rank, and the others may be waiting for this
        # one: the end of the process does it, and quickly. Gloo just closes its connections.
        ours = ours and device.type != "cuda"
        raise
    finally:
        if ours and dist.is_initialized():
            dist.destroy_process_group()


def _connect(place: Place, device: torch.device) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        if place.endpoint is None:
            dist.init_process_group(backend, timeout=TIMEOUT)
        else:
            dist.init_process_group(
                backend,
                init_method=f"tcp://{place.endpoint}",
                rank=place.rank,
                world_size=place.world_size,
                timeout=TIMEOUT,
            )
    except dist.DistNetworkError as error:
        where = place.endpoint or ":".join(
            os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT")
        )
        raise TunecliError(
            f"rank {place.rank} of {place.world_size} cannot meet the others at {where} (rank 0 "
            f"listens there; MASTER_ADDR and MASTER_PORT set another place): {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _device(place: Place) -> torch.device:
    count, needed = torch.cuda.device_count(), place.local_world_size
    if count == 0:
        return torch.device("cpu")
    if count < needed and not place.own_gpus:
        raise TunecliError(
            f"{needed} processes on this machine, but {count} GPU{'s' * (count > 1)}: start "
            f"{count} processes on it, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on CPU"
        )
    device = torch.device("cuda", place.local_rank if count >= needed else 0)
    torch.cuda.set_device(device)
    return device
