"""How the work is split over devices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Count, Section


class FsdpConfig(Section):
    """Options of fully sharded data parallelism (FSDP2)."""

    reshard_after_forward: bool | Count = True
    """Free gathered weights after the forward pass. A number: reshard to groups of that size."""
    offload_params: bool = False
    """Keep weights, gradients and optimizer state in host memory."""
    auto_wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "NO_WRAP"] = "TRANSFORMER_BASED_WRAP"
    """Shard each decoder layer by itself, or the model as a whole."""
    transformer_layer_cls_to_wrap: list[str] = Field(default_factory=list)
    """Classes sharded by themselves. Left out: the model's decoder layers."""


class ParallelConfig(Section):
    """Sizes of the mesh's axes. Their product is the number of processes."""

    dp_replicate_size: Count | None = None
    """Replicas of the model that read different rows."""
    dp_shard_size: Count | None = None
    """Devices over which weights, gradients and optimizer state are sharded."""
    context_parallel_size: Count | None = None
    """Devices over which each row is split."""
    context_parallel_backend: Literal["auto", "ulysses", "allgather"] = "auto"
    """How attention brings rows together: all-to-all (`ulysses`, needs heads that divide) or
    `allgather` (any heads, zigzag balance). `auto` takes the first where it can."""
    tensor_parallel_size: Count | None = None
    """Devices over which each layer's matrices are split."""
    fsdp_config: FsdpConfig = Field(default_factory=FsdpConfig)
    """Options of sharding."""
    fsdp_version: Literal[2] = 2
    """Only FSDP2 exists here."""
