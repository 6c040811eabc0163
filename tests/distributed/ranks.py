"""What ranks run. The server process of `world.py` imports this module before it forks."""

from __future__ import annotations

import importlib
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tunecli.api
from tunecli import data
from tunecli.builder import build, build_vocabulary
from tunecli.config import Config
from tunecli.errors import TunecliError
from tunecli.model.loss import TokenLoss
from tunecli.parallel.processes import join_processes
from tunecli.reporter import Reporter
from tunecli.training.loop import Trainer

# Imported where they are used, in the product: imported here to be there after the fork.
for _name in (
    "bitsandbytes",
    "datasets",
    "peft",
    "torch.distributed.checkpoint",
    "transformers.models.llama.modeling_llama",
):
    with suppress(ImportError):
        importlib.import_module(_name)

Rows = list[tuple[int, ...]]
"""Rows as token ids."""


def train(config: Config) -> None:
    """The command, as a launcher would start it."""
    tunecli.api.train(config, Reporter(quiet=True))


def evaluate(config: Config, model_dir: str | None = None) -> tuple[float, int]:
    """Loss and number of trained tokens of the evaluation rows."""
    result = tunecli.api.evaluate(config, Reporter(quiet=True), model_dir)
    return result.eval_loss, result.eval_trained_tokens


def refusal(config: Config) -> str:
    """What `train` has against `config`."""
    try:
        train(config)
    except TunecliError as error:
        return str(error)
    raise AssertionError("nothing was refused")


class _Stop(Exception):
    pass


class _Dying(Trainer):
    last: int

    def _step(self, batch: Any) -> dict[str, float]:
        if self.state.step == self.last:
            raise _Stop
        return super()._step(batch)


def train_until(config: Config, step: int) -> None:
    """Train, and die right after `step` updates: what is on disk then is all that is left."""
    with join_processes() as processes:
        trainer = _Dying(build(config, processes, Reporter(quiet=True)))
        trainer.last = step
        try:
            trainer.run()
        except _Stop:
            return
    raise AssertionError("training ended first")


@dataclass(frozen=True)
class _Recording(TokenLoss):
    seen: list[Rows] = field(default_factory=list)

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.seen.append([tuple(row) for row in batch.input_ids.tolist()])
        return super().__call__(model, batch)


def rows_read(config: Config) -> list[Rows]:
    """The rows of each micro-batch that this rank trained on."""
    with join_processes() as processes:
        job = build(config, processes, Reporter(quiet=True))
        loss = _Recording(job.loss.tp_group, job.loss.tp_rank, job.loss.context)
        Trainer(replace(job, loss=loss)).run()
    return loss.seen


def prepare(config: Config) -> tuple[bool, list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Whether this rank made the cache; and the ids of all training and evaluation rows."""
    prepared = data.prepare(config, build_vocabulary(config).tokenizer, Reporter(quiet=True))
    parts = (prepared.train, prepared.eval)
    train, held_out = ([tuple(p.row(i)[0].tolist()) for i in range(len(p))] for p in parts)
    return not prepared.report.cached, train, held_out


def die_while_preparing(config: Config) -> None:
    """Be killed when the cache has some of its rows."""
    module = sys.modules["tunecli.data.prepare"]
    encode = module.encode_sources

    def encode_and_die(*args: Any) -> None:
        encode(*args)
        os._exit(9)

    module.encode_sources = encode_and_die
    prepare(config)


def drift(config: Config) -> float:
    """Train; return the largest difference between copies that tensor-parallel peers hold."""
    worst = 0.0
    with join_processes() as processes:
        job = build(config, processes, Reporter(quiet=True))
        Trainer(job).run()
        for parameter in job.model.parameters():
            if not isinstance(parameter, DTensor):
                continue
            names = parameter.device_mesh.mesh_dim_names or ()
            if "tp" not in names or not parameter.placements[names.index("tp")].is_replicate():
                continue
            own = parameter.to_local().detach().clone()
            mean = own.clone()
            torch.distributed.all_reduce(mean, group=job.mesh.tp_group)
            worst = max(worst, (own - mean / job.mesh.layout.tp).abs().max().item())
    return worst


def elements_held(config: Config) -> int:
    """Elements of all parameters that lie on this rank between steps."""
    with join_processes() as processes:
        job = build(config, processes, Reporter(quiet=True))
        Trainer(job).run()
        local = (getattr(p, "to_local", lambda p=p: p)() for p in job.model.parameters())
        return sum(part.numel() for part in local)


def fail(rank: int, how: str) -> int:
    """Return this rank's number, but on `rank` raise, die or hang; others wait for it."""
    me = torch.distributed.get_rank()
    if me == rank:
        if how == "raise":
            raise ValueError("this rank's own error")
        if how == "die":
            os._exit(3)
        time.sleep(600)
    torch.distributed.barrier()
    return me


class AllReduces(TorchDispatchMode):
    """Counts all-reduces.

    Not `CommDebugMode`, which also follows modules and loses its way in some of transformers'.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(arg, DTensor) for arg in tree_leaves((args, kwargs))):
            # DTensor takes it apart, and calls again.
            return NotImplemented
        self.count += "all_reduce" in str(func) or "allreduce" in str(func)
        return func(*args, **(kwargs or {}))


def reductions(config: Config) -> tuple[int, int]:
    """All-reduces over `tp` in the forward and in the backward pass of one micro-batch."""
    with join_processes() as processes:
        job = build(config, processes, Reporter(quiet=True))
        (batch,) = job.train_loader.step(0, 0).micro_batches
        with AllReduces() as forward:
            logits, _ = job.loss.logits(job.model, batch)
        with AllReduces() as backward:
            torch.autograd.backward(logits.sum())
    return forward.count, backward.count
