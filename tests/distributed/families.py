"""Tiny random models of the families that tensor parallelism knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from toys import BOS, EOS, PAD, toy_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}

WINDOW = 6
"""Shorter than the longest rows, so that the window cuts something off."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": True, "attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": WINDOW},
    "gemma": {"head_dim": 16, "num_key_value_heads": 2},
    "gemma2": {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {"sliding_window": None},
}
"""`model_type` and what differs from `SIZES`."""


def write_family(directory: Path, kind: str) -> Path:
    """Save a random model of a family with the toy tokenizer; return where."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = directory / kind
    if not path.exists():
        config = AutoConfig.for_model(kind, **{**SIZES, **FAMILIES[kind]})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config).float()
            # Fresh norms are all ones (Gemma: zeros) and fresh biases zeros: an exchanged or
            # forgotten part would not be seen.
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.data.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(path)
        toy_tokenizer().save_pretrained(path)
    return path
