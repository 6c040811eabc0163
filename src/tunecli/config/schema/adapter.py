"""LoRA and its relatives."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .base import Count, OpenShare, Section


class AdapterConfig(Section):
    """What is trained: all weights, or an adapter."""

    adapter: Literal["lora", "qlora"] | None = None
    """Left out: full fine-tuning. `qlora` needs `load_in_4bit: true`."""
    lora_r: Count | None = None
    """Rank of the update."""
    lora_alpha: Count | None = None
    """Scale: the update is multiplied by `lora_alpha / lora_r` (or its root, for rsLoRA)."""
    lora_dropout: OpenShare = 0.0
    """Dropout on the adapter's input."""
    lora_target_modules: str | list[str] | None = None
    """Modules that get an adapter: names, or one regular expression."""
    lora_target_linear: bool | None = None
    """Every linear layer but the head. The default where `lora_target_modules` is left out."""
    lora_modules_to_save: list[str] = Field(default_factory=list)
    """Modules trained in full beside the adapter, such as `embed_tokens` and `lm_head`."""
    peft_use_dora: bool = False
    """Weight-decomposed LoRA (arXiv:2402.09353)."""
    peft_use_rslora: bool = False
    """Rank-stabilised scale `alpha / sqrt(r)` (arXiv:2312.03732)."""
    peft_init_lora_weights: bool | Literal["gaussian", "olora", "pissa", "orthogonal"] = True
    """How the adapter's matrices start; `true` leaves the model unchanged at first."""
    lora_model_dir: str | None = None
    """An adapter to continue from (or to merge), instead of a fresh one."""
    load_in_4bit: bool = False
    """Hold the frozen base in 4 bits (bitsandbytes NF4)."""
    load_in_8bit: bool = False
    """Hold the frozen base in 8 bits (bitsandbytes)."""
    bnb_config_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More arguments for `transformers.BitsAndBytesConfig`."""
