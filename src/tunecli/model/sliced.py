"""Loading on a mesh: each process reads only the slices of the weights that it will hold.

The model is made with memory that is reserved but never touched (the system gives pages only
when they are written), laid out over the mesh, and then filled straight from the safetensors
files by torch.distributed.checkpoint. A process so needs memory for its own shards and for the
largest single tensor; files are memory-mapped and shared by the processes of a machine.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ..config import Config


def sliced_source(config: Config, model_config: PreTrainedConfig, vocabulary: int) -> Path | None:
    """Return the directory to read slices from, or `None` where the model must be loaded whole.

    It must be loaded whole where weights are changed on the way in: quantized, with a grown
    vocabulary, with an adapter that starts from the weights (DoRA, PiSSA, ...), or with a
    checkpoint whose tensors have other names than the model's.

    Args:
        config: The configuration.
        model_config: The model's own config.
        vocabulary: Number of tokens of the tokenizer.
    """
    changes = (
        config.reinit_weights
        or config.load_in_4bit
        or config.load_in_8bit
        or config.peft_use_dora
        or isinstance(config.peft_init_lora_weights, str)
        or vocabulary > model_config.vocab_size
    )
    if changes:
        return None
    directory = _directory(config)
    if directory is None:
        return None
    stored = dict(_stored_shapes(directory))
    tied = model_config.tie_word_embeddings
    model = empty_model(model_config, {}, meta=True)
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=tied)}
    return directory if all(stored.get(name) == shape for name, shape in wanted.items()) else None


def _directory(config: Config) -> Path | None:
    """Return the local directory of the base model, downloading it if it is on the Hub."""
    local = Path(config.base_model).expanduser()
    if not local.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        token = config.hub_token.get_secret_value() if config.hub_token else None
        try:
            local = Path(
                snapshot_download(
                    config.base_model,
                    revision=config.revision_of_model,
                    token=token,
                    allow_patterns=["*.safetensors", "*.json"],
                )
            )
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise ModelError(f"{config.base_model} cannot be loaded: {error}") from error
    return local if any(local.glob("*.safetensors")) else None


def _stored_shapes(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    from safetensors import safe_open

    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                yield name, tuple(tensors.get_slice(name).get_shape())


def empty_model(
    model_config: PreTrainedConfig, arguments: dict[str, Any], *, meta: bool = False
) -> PreTrainedModel:
    """Make the model without weights: on torch's meta device, or with untouched memory.

    Buffers (rotary tables) are real: they are computed, not loaded.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(model_config, **arguments)
    if not meta:
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                reserved = torch.empty_like(parameter, device="cpu")
                fresh = nn.Parameter(reserved, requires_grad=parameter.requires_grad)
                module.register_parameter(name, fresh)
        model.tie_weights()
    return model


def fill_weights(model: nn.Module, directory: Path) -> None:
    """Read this process's slices of every base weight of `model` from `directory`.

    Args:
        model: Laid out over the mesh already, with or without adapters.
        directory: As `sliced_source` returned it.

    Raises:
        ModelError: A file cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    stored = dict(_stored_shapes(directory))
    wanted: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        if (source := _source_name(name)) in stored:
            wanted.setdefault(source, []).append(parameter)
    # The frozen and the trained copy of an embedding have one source: a pass for each.
    passes = max(map(len, wanted.values()))
    try:
        for index in range(passes):
            part = {name: copies[index] for name, copies in wanted.items() if index < len(copies)}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
                # Each process plans and reads for itself: there is nothing to agree on.
                reader = HuggingFaceStorageReader(str(directory))
                load(part, storage_reader=reader, no_dist=True)
    except (CheckpointException, OSError) as error:
        cause = str(error).strip().splitlines()[-1]
        raise ModelError(f"the weights in {directory} cannot be read: {cause}") from error


def _source_name(name: str) -> str:
    """Return a parameter's name before PEFT wrapped its module."""
    name = name.removeprefix("base_model.model.")
    return re.sub(r"\.(base_layer|original_module|modules_to_save\.\w+)(?=\.)", "", name)
