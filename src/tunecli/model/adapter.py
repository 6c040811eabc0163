"""LoRA adapters through PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import ConfigError, ModelError, Problem

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from ..config import Config
    from .tokenizer import Vocabulary


def add_adapter(model: PreTrainedModel, config: Config, vocabulary: Vocabulary) -> PeftModel:
    """Wrap `model` in the adapter that `config` asks for; only the adapter is trained.

    Raises:
        ConfigError: A target does not exist, or tokens were added that nothing would train.
        ModelError: `lora_model_dir` cannot be loaded.
    """
    from peft import LoraConfig, PeftModel, get_peft_model

    _check_added_tokens(model, config, vocabulary)
    if config.load_in_4bit or config.load_in_8bit:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
    # Peft draws the adapter's weights from torch's generator: seeded here, so that they depend
    # on the configuration alone and not on what was drawn before.
    torch.manual_seed(config.seed)
    if config.lora_model_dir is not None:
        directory = Path(config.lora_model_dir).expanduser()
        try:
            wrapped = PeftModel.from_pretrained(model, str(directory), is_trainable=True)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            message = f"lora_model_dir {directory} cannot be loaded: {error}"
            raise ModelError(message) from error
    else:
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.lora_r or 8,
            lora_alpha=config.lora_alpha or 16,
            lora_dropout=config.lora_dropout,
            target_modules=config.lora_target_modules or "all-linear",
            modules_to_save=config.lora_modules_to_save or None,
            use_dora=config.peft_use_dora,
            use_rslora=config.peft_use_rslora,
            init_lora_weights=config.peft_init_lora_weights,
            ensure_weight_tying=bool(
                config.lora_modules_to_save and model.config.tie_word_embeddings
            ),
        )
        try:
            wrapped = get_peft_model(model, lora)
        except ValueError as error:
            raise ConfigError([Problem(("lora_target_modules",), str(error))]) from error
    # Masters in float32, whatever the frozen base is stored in.
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return wrapped


def _check_added_tokens(model: PreTrainedModel, config: Config, vocabulary: Vocabulary) -> None:
    """Refuse tokens whose embeddings an adapter would leave at their random start."""
    saved = set(config.lora_modules_to_save)
    if not vocabulary.added or config.lora_model_dir is not None:
        return
    parts = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    wanted = [name.rpartition(".")[2] for name, part in model.named_modules() if id(part) in parts]
    if model.config.tie_word_embeddings:
        wanted = wanted[:1]
    if saved >= set(wanted):
        return
    names = ", ".join(vocabulary.added[:5]) + (", ..." if len(vocabulary.added) > 5 else "")
    raise ConfigError(
        [
            Problem(
                ("lora_modules_to_save",),
                f"tokens were added to the vocabulary ({names}), but an adapter alone does not "
                "train their embeddings",
                f"lora_modules_to_save: [{', '.join(wanted)}]",
            )
        ]
    )
