"""Where the strategies meet, in the order in which they must be applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .context import ATTENTION, register_attention
from .shard import apply_sharding
from .tensor import apply_tensor_parallel

if TYPE_CHECKING:
    from ..config import FsdpConfig
    from .mesh import Mesh


def parallelize(model: Any, mesh: Mesh, options: FsdpConfig, compute: torch.dtype) -> None:
    """Lay `model` out over `mesh`, in place. Adapters must be in it already.

    1. Context parallelism changes no weight: attention is exchanged for one that brings rows
       together.
    2. Tensor parallelism splits matrices.
    3. Sharding and replication take what tensor parallelism left on each process.

    Args:
        model: A causal language model, or a PEFT model around one, whole on each process.
        mesh: The mesh.
        options: `fsdp_config`.
        compute: Type of the computation.
    """
    layout = mesh.layout
    if layout.world_size == 1:
        return
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base = inner.base_model
    if layout.cp > 1:
        register_attention()
        inner.set_attn_implementation(ATTENTION)
    if layout.tp > 1:
        assert mesh.weights is not None
        apply_tensor_parallel(inner, base, mesh.weights["tp"])
    if layout.token_ranks > 1:
        apply_sharding(model, list(base.layers), mesh, options, compute)
