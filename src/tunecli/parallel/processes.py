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
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device


def launched() -> bool:
    """Tell whether a launcher (torchrun, accelerate, ours) started this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the processes that a launcher started, for as long as the block runs.

    Reads what every launcher of torch sets (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
    `LOCAL_WORLD_SIZE`). Without a launcher there is one process. Groups that exist already are
    used and left alone.

    Raises:
        TunecliError: There are fewer GPUs than processes on this machine, but more than none.
    """
    if not launched():
        yield Processes(0, 1, 0, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    device = _device(local, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    ours = not dist.is_initialized()
    if ours:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes(rank, world, local, device)
    finally:
        if ours and dist.is_initialized():
            dist.destroy_process_group()


def _device(local_rank: int, local_size: int) -> torch.device:
    count = torch.cuda.device_count()
    if count == 0:
        return torch.device("cpu")
    if count < local_size:
        raise TunecliError(
            f"{local_size} processes on this machine, but {count} GPU{'s' * (count > 1)}: start "
            f"{count} processes on it, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to train on CPU"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
