"""How the work is split over devices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Count, Section


class MixedPrecision(Section):
    """Types under sharding."""

    param_dtype: Literal["bf16", "fp16", "fp32"] | None = None
    """Type of gathered weights. Left out: the type of the computation (`bf16`, `fp16`)."""
    reduce_dtype: Literal["bf16", "fp32"] = "fp32"
    """Type in which gradients are summed. `bf16` halves the traffic and loses small terms."""


class FsdpConfig(Section):
    """Options of fully sharded data parallelism (FSDP2)."""

    reshard_after_forward: bool | Count = True
    """Free gathered weights after the forward pass. A number: keep them sharded over groups of
    that many processes."""
    auto_wrap_policy: Literal["TRANSFORMER_BASED_WRAP", "NO_WRAP"] = "TRANSFORMER_BASED_WRAP"
    """Shard each decoder layer by itself, or the model as a whole."""
    layers_per_unit: Count = 1
    """Decoder layers that are gathered together; more means fewer, larger messages."""
    transformer_layer_cls_to_wrap: list[str] = Field(default_factory=list)
    """Classes sharded by themselves. Left out: the model's decoder layers."""
    offload_params: bool = False
    """Keep weights, gradients and optimizer state in host memory."""
    mixed_precision_policy: MixedPrecision = Field(default_factory=MixedPrecision)
    """Types of gathered weights and of summed gradients."""
    state_dict_type: Literal["SHARDED_STATE_DICT", "FULL_STATE_DICT"] = "SHARDED_STATE_DICT"
    """`FULL_STATE_DICT`: checkpoints hold the model as a plain Hugging Face directory (or PEFT
    adapter), too. The final model is one in any case."""


class ParallelConfig(Section):
    """Sizes of the mesh's axes. Their product is the number of processes."""

    dp_replicate_size: Count | None = None
    """Replicas of the model that read different rows."""
    dp_shard_size: Count | None = None
    """Devices over which weights, gradients and optimizer state are sharded."""
    context_parallel_size: Count | None = None
    """Devices over which each row is split."""
    context_parallel_backend: Literal["auto", "ulysses", "allgather", "ring"] = "auto"
    """How attention brings rows together: all-to-all (`ulysses`, needs heads that divide),
    `allgather` (any heads, zigzag balance), or `ring` (the least memory; no packing, no sliding
    windows). `auto` takes the first that can be."""
    tensor_parallel_size: Count | None = None
    """Devices over which each layer's matrices are split."""
    sequence_parallel: bool = False
    """With `tensor_parallel_size`: between attention and MLP each device keeps a part of the
    tokens, which saves memory for norms and residuals at the same traffic."""
    fsdp_config: FsdpConfig = Field(default_factory=FsdpConfig)
    """Options of sharding."""
    fsdp_version: Literal[2] = 2
    """Only FSDP2 exists here."""
