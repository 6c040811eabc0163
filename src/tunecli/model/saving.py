"""The final model: a plain Hugging Face directory or PEFT adapter that needs no tunecli."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from ..errors import ModelError
from ..files import sync_tree

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

_PROBE = "\ue000answer\ue001"
"""Private-use characters: no template contains them, none touches them."""


def turn_end_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids at which generation must stop: the template's end of turn, then eos.

    The end of a turn is the first special token behind an assistant's message. Where it is not
    the eos token, a model that is told to stop at eos alone talks on, asking itself questions.
    """
    ids = []
    if tokenizer.chat_template:
        text = _render_probe(tokenizer)
        tail = text.rpartition(_PROBE)[2] if _PROBE in text else ""
        special = set(tokenizer.all_special_ids) | {
            id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        tail_ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if tail else []
        ids = [id_ for id_ in tail_ids if id_ in special][:1]
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return ids


def _render_probe(tokenizer: PreTrainedTokenizerFast) -> str:
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": _PROBE},
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception as error:
        # A template is a program of its own and may raise anything.
        raise ModelError(f"the chat template cannot render a plain question: {error}") from error


def generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> GenerationConfig:
    """Return the model's generation settings, stopping at the end of the turn."""
    from transformers import GenerationConfig

    base = getattr(model, "generation_config", None)
    config = GenerationConfig() if base is None else GenerationConfig(**base.to_diff_dict())
    stops = turn_end_ids(tokenizer)
    if stops:
        config.eos_token_id = stops if len(stops) > 1 else stops[0]
    config.pad_token_id = tokenizer.pad_token_id
    if tokenizer.bos_token_id is not None:
        config.bos_token_id = tokenizer.bos_token_id
    config.use_cache = True
    return config


def save_tokenizer(
    tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, directory: Path
) -> None:
    """Write tokenizer, template, generation settings and the model's config."""
    tokenizer.save_pretrained(str(directory))
    generation_config(model, tokenizer).save_pretrained(str(directory))
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    inner.config.save_pretrained(str(directory))


def whole_state(model: torch.nn.Module, *, trained_only: bool) -> dict[str, torch.Tensor]:
    """Return the full tensors of a model's parameters and buffers, by name, on the CPU.

    Every process of a mesh must call this; tensors are gathered one at a time and only the
    first process keeps them, so that no device ever holds the model whole.
    """
    keep = not dist.is_initialized() or dist.get_rank() == 0
    state = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if trained_only and not tensor.requires_grad:
            continue
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        if keep:
            state[name] = tensor.detach().cpu()
    return state


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerFast,
    directory: Path,
    dtype: torch.dtype | None = None,
) -> None:
    """Write weights (or adapter), config, tokenizer, template and generation settings.

    On a mesh every process must call this; the first one writes.

    Args:
        model: The trained model.
        tokenizer: Its tokenizer, template included.
        directory: Where to; created if missing. Present files of the same names are replaced.
        dtype: Type in which full weights are written; as they are if left out.
    """
    from peft import PeftModel

    adapter = isinstance(model, PeftModel)
    state = whole_state(model, trained_only=adapter)
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(directory))
    inner = model
    if isinstance(model, PeftModel):
        inner = model.get_base_model()
        # False: trained embeddings are in modules_to_save, and "auto" would ask the Hub.
        model.save_pretrained(str(directory), state_dict=state, save_embedding_layers=False)
    else:
        _save_full(model, state, directory, dtype)
    generation_config(inner, tokenizer).save_pretrained(str(directory))
    sync_tree(directory)


def _save_full(
    model: PreTrainedModel,
    state: dict[str, torch.Tensor],
    directory: Path,
    dtype: torch.dtype | None,
) -> None:
    if dtype is not None:
        state = {n: t.to(dtype) if t.is_floating_point() else t for n, t in state.items()}
    # Copies of tied weights must be one tensor, or they would be written twice.
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if name in state and source in state:
            state[name] = state[source]
    model.save_pretrained(str(directory), state_dict=state)
    # save_pretrained notes the live model's type and our use_cache: false; neither is meant.
    config = copy.deepcopy(model.config)
    config.use_cache = True
    if dtype is not None:
        config.dtype = dtype
    config.save_pretrained(str(directory))
