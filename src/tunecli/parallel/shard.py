"""Sharding (FSDP2) and replication of weights, gradients and optimizer state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from ..config import FsdpConfig
    from .mesh import Mesh


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def apply_sharding(
    model: nn.Module,
    layers: list[nn.Module],
    mesh: Mesh,
    options: FsdpConfig,
    compute: torch.dtype,
) -> None:
    """Shard units of `model` by themselves and the rest of it as one more unit, in place.

    With replicas, states are sharded inside a replica and gradients are summed over replicas
    (HSDP).

    Args:
        model: The model, tensor parallelism already applied.
        layers: Its decoder layers.
        mesh: The mesh; `dp_shard x cp` processes share one copy of the weights.
        options: `fsdp_config`.
        compute: Type of the computation.

    Raises:
        ConfigError: A class in `transformer_layer_cls_to_wrap` is not in the model, or
            `reshard_after_forward` is a number that does not divide the processes.
    """
    assert mesh.weights is not None
    _check_groups(options, mesh)
    axes = ("dp_replicate", "fsdp") if mesh.layout.dp_replicate > 1 else ("fsdp",)
    types = options.mixed_precision_policy
    gathered = DTYPES[types.param_dtype] if types.param_dtype else compute
    policy = MixedPrecisionPolicy(
        param_dtype=None if gathered == torch.float32 else gathered,
        reduce_dtype=DTYPES[types.reduce_dtype],
        # Casting inputs would cut positions and masks as well as activations.
        cast_forward_inputs=False,
    )
    # Pinned memory is for copies to a device; without one there is nothing to pin for.
    pin = mesh.device.type != "cpu"
    offload = CPUOffloadPolicy(pin_memory=pin) if options.offload_params else OffloadPolicy()
    shard = partial(
        fully_shard,
        mesh=mesh.weights[axes],
        mp_policy=policy,
        offload_policy=offload,
        reshard_after_forward=options.reshard_after_forward,
    )
    for unit in _units(model, layers, options):
        shard(unit)
    shard(model)


def _units(
    model: nn.Module, layers: list[nn.Module], options: FsdpConfig
) -> list[nn.Module | list[nn.Module]]:
    if options.auto_wrap_policy == "NO_WRAP":
        return []
    if not options.transformer_layer_cls_to_wrap:
        size = options.layers_per_unit
        if size == 1:
            return [*layers]
        return [layers[first : first + size] for first in range(0, len(layers), size)]
    names = set(options.transformer_layer_cls_to_wrap)
    found = [module for module in model.modules() if type(module).__name__ in names]
    missing = names - {type(module).__name__ for module in found}
    if missing:
        raise ConfigError(
            [
                Problem(
                    ("fsdp_config", "transformer_layer_cls_to_wrap"),
                    f"the model has no {name}",
                    f"its decoder layers are {type(layers[0]).__name__}",
                )
                for name in sorted(missing)
            ]
        )
    # Inner units first: a unit takes only what no unit inside it has taken.
    return [*reversed(found)]


def _check_groups(options: FsdpConfig, mesh: Mesh) -> None:
    group, size = options.reshard_after_forward, mesh.layout.dp_shard * mesh.layout.cp
    if isinstance(group, bool):
        return
    if mesh.layout.tp > 1 and 1 < group < size:
        # torch makes the groups on the ranks of one tensor-parallel index, each index its own,
        # while making a group waits for every process: they would wait for each other for ever.
        raise ConfigError(
            [
                Problem(
                    ("fsdp_config", "reshard_after_forward"),
                    f"groups of {group} do not go together with tensor_parallel_size "
                    f"{mesh.layout.tp}",
                    "use true or false",
                )
            ]
        )
    if group > size or size % group:
        divisors = [n for n in range(2, size + 1) if size % n == 0]
        raise ConfigError(
            [
                Problem(
                    ("fsdp_config", "reshard_after_forward"),
                    f"{group} does not divide dp_shard_size x context_parallel_size = {size}",
                    f"use true, false or one of {divisors}",
                )
            ]
        )
