"""Where the strategies meet, in the order in which they must be applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .context import ATTENTION, register_attention
from .shard import apply_sharding
from .tensor import apply_tensor_parallel

if TYPE_CHECKING:
    from ..config import Config
    from .mesh import Mesh


def parallelize(model: Any, mesh: Mesh, config: Config, compute: torch.dtype) -> None:
    """Lay `model` out over `mesh`, in place. Adapters must be in it already.

    1. Context parallelism changes no weight: attention is exchanged for one that brings rows
       together. Sequence-parallel norms need it, too: transformers would take the length of a
       part for that of the row when it makes masks.
    2. Tensor parallelism splits matrices.
    3. Each layer is compiled by itself: layers are alike, so one compilation serves all, and a
       layer that is recomputed or gathered is so as a whole, outside of what is compiled.
    4. Sharding and replication take what tensor parallelism left on each process.

    Args:
        model: A causal language model, or a PEFT model around one, whole on each process.
        mesh: The mesh.
        config: `fsdp_config`, `sequence_parallel` and `torch_compile`.
        compute: Type of the computation.
    """
    layout = mesh.layout
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base = inner.base_model
    sequence = config.sequence_parallel and layout.tp > 1
    if layout.cp > 1 or sequence:
        register_attention()
        inner.set_attn_implementation(ATTENTION)
    if layout.tp > 1:
        assert mesh.weights is not None
        apply_tensor_parallel(inner, base, mesh.weights["tp"], sequence)
    if config.torch_compile:
        for layer in base.layers:
            layer.compile(backend=config.torch_compile_backend, **_compile_options(config))
    if layout.token_ranks > 1:
        apply_sharding(model, list(base.layers), mesh, config.fsdp_config, compute)


def _compile_options(config: Config) -> dict[str, Any]:
    if config.torch_compile_backend != "inductor":
        return {}
    return {"mode": config.torch_compile_mode}
