"""Which model and tokenizer, and in which numeric types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr

from .base import Count, Section

AttentionName = Literal[
    "auto", "sdpa", "varlen", "eager", "flex_attention", "flash_attention_2", "flash_attention_3"
]


class SpecialTokens(Section):
    """Special tokens by their role. A token that the vocabulary lacks is added to it."""

    bos_token: str | None = None
    """Token at the start of a text."""
    eos_token: str | None = None
    """Token at the end of a text; generation stops there."""
    pad_token: str | None = None
    """Token that fills short rows. Never trained, never attended to."""
    unk_token: str | None = None
    """Token for what the vocabulary cannot express."""
    additional_special_tokens: list[str] = Field(default_factory=list)
    """More tokens that are never split."""


class ModelConfig(Section):
    """Model, tokenizer and numeric types."""

    base_model: str = Field(min_length=1)
    """Hub id or local directory of the model to fine-tune."""
    revision_of_model: str | None = None
    """Branch, tag or commit of `base_model` on the Hub."""
    model_type: str | None = None
    """Class that the model must have (as in its `architectures`); left out, the right causal
    language model class is found."""
    reinit_weights: bool = False
    """Start from random weights: only the directory's config and tokenizer are used."""
    overrides_of_model_config: dict[str, Any] = Field(default_factory=dict)
    """Values that replace those of the model's own config, such as `rope_scaling`."""
    trust_remote_code: bool | None = None
    """Run Python code that comes with the model. Left out, a model that brings code is refused;
    `false` uses the built-in class of transformers instead. Never extends to data."""
    hub_token: SecretStr | None = None
    """Token for gated models. Better kept out of the file: `hf auth login` or `HF_TOKEN`."""

    tokenizer_config: str | None = None
    """Hub id or local directory of the tokenizer, where it is not `base_model`."""
    special_tokens: SpecialTokens = Field(default_factory=SpecialTokens)
    """Special tokens to set or to replace."""
    tokens: list[str] = Field(default_factory=list)
    """Ordinary tokens to add to the vocabulary."""
    resize_token_embeddings_to_32x: bool = False
    """Round the embedding up to a multiple of 32 rows when it must grow."""

    attn_implementation: AttentionName = "auto"
    """Attention backend. `varlen` works on each document of a pack alone, with torch's own kernels;
    `sdpa` and `eager` need a mask over whole packs. `auto`: `varlen` for packs, else `sdpa`, or
    what the model needs."""
    bf16: bool | Literal["auto"] = "auto"
    """Compute in bfloat16 over float32 master weights. `auto`: where the GPU has it."""
    fp16: bool = False
    """Compute in float16 with loss scaling; for GPUs without bfloat16."""
    tf32: bool | Literal["auto"] = "auto"
    """TensorFloat-32 for float32 matrix products on NVIDIA GPUs. `auto`: on."""

    unfrozen_parameters: list[str] = Field(default_factory=list)
    """Regular expressions: only parameters whose name one of them matches are trained.
    Empty: all (or the adapter's)."""
    sequence_len: Count = 2048
    """Longest row in tokens, and the length of a pack."""
