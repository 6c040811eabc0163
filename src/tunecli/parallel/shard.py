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

if TYPE_CHECKING:
    from ..config import FsdpConfig
    from .mesh import Mesh


def apply_sharding(
    model: nn.Module,
    layers: list[nn.Module],
    mesh: Mesh,
    options: FsdpConfig,
    compute: torch.dtype,
) -> None:
    """Shard each of `layers` by itself and the rest of `model` as one more unit, in place.

    With replicas, states are sharded inside a replica and gradients are summed over replicas
    (HSDP). Gradients are always reduced in float32.

    Args:
        model: The model, tensor parallelism already applied.
        layers: Its decoder layers.
        mesh: The mesh; `dp_shard x cp` processes share one copy of the weights.
        options: `fsdp_config`.
        compute: Type of gathered weights.
    """
    assert mesh.weights is not None
    axes = ("dp_replicate", "fsdp") if mesh.layout.dp_replicate > 1 else ("fsdp",)
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute == torch.float32 else compute,
        reduce_dtype=torch.float32,
        # Casting inputs would cut positions and masks as well as activations.
        cast_forward_inputs=False,
    )
    offload = CPUOffloadPolicy() if options.offload_params else OffloadPolicy()
    shard = partial(
        fully_shard,
        mesh=mesh.weights[axes],
        mp_policy=policy,
        offload_policy=offload,
        reshard_after_forward=options.reshard_after_forward,
    )
    if options.auto_wrap_policy != "NO_WRAP":
        for layer in layers:
            shard(layer)
    shard(model)
