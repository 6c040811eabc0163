"""Where the strategies meet, in the order in which they must be applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .context import ATTENTION, register_attention
from .shard import apply_sharding
from .tensor import apply_tensor_parallel

if TYPE_CHECKING:
    from ..config import ParallelConfig
    from .mesh import Mesh


def parallelize(model: Any, mesh: Mesh, config: ParallelConfig, compute: torch.dtype) -> None:
    """Lay `model` out over `mesh`, in place. Adapters must be in it already.

    1. Context parallelism changes no weight: attention is exchanged for one that brings rows
       together. Sequence-parallel norms need it, too: transformers would take the length of a
       part for that of the row when it makes masks.
    2. Tensor parallelism splits matrices.
    3. Sharding and replication take what tensor parallelism left on each process.

    Args:
        model: A causal language model, or a PEFT model around one, whole on each process.
        mesh: The mesh.
        config: `fsdp_config` and `sequence_parallel`.
        compute: Type of the computation.
    """
    layout = mesh.layout
    if layout.world_size == 1:
        return
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base = inner.base_model
    sequence = config.sequence_parallel and layout.tp > 1
    if layout.cp > 1 or sequence:
        register_attention()
        inner.set_attn_implementation(ATTENTION)
    if layout.tp > 1:
        assert mesh.weights is not None
        apply_tensor_parallel(inner, base, mesh.weights["tp"], sequence)
    if layout.token_ranks > 1:
        apply_sharding(model, list(base.layers), mesh, config.fsdp_config, compute)
