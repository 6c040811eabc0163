"""The model: its config, its weights, the size of its vocabulary, what of it is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ConfigError, ModelError, Problem
from .attention import resolve_attention, settle_attention
from .sliced import empty_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ..config import Config
    from .precision import Precision
    from .tokenizer import Vocabulary


def hub_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments that every `from_pretrained` call on `base_model` needs."""
    arguments: dict[str, Any] = {"trust_remote_code": bool(config.trust_remote_code)}
    if config.revision_of_model:
        arguments["revision"] = config.revision_of_model
    if config.hub_token is not None:
        arguments["token"] = config.hub_token.get_secret_value()
    return arguments


def load_model_config(config: Config) -> PreTrainedConfig:
    """Load the model's own config and apply `overrides_of_model_config`.

    Raises:
        ModelError: It cannot be loaded.
        ConfigError: An override names a value that the model's config does not have, or
            `model_type` names another class.
    """
    from transformers import AutoConfig

    try:
        model_config = AutoConfig.from_pretrained(config.base_model, **hub_arguments(config))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"the config of {config.base_model} cannot be loaded: {error}\n"
            "    -> if the model brings its own code, trust_remote_code: true allows it to run"
        ) from error
    problems = [
        Problem(
            ("overrides_of_model_config", name),
            f"{type(model_config).__name__} has no value {name!r}",
        )
        for name in config.overrides_of_model_config
        if not hasattr(model_config, name)
    ]
    architectures = [*(model_config.architectures or []), "AutoModelForCausalLM"]
    if config.model_type is not None and config.model_type not in architectures:
        problems.append(
            Problem(
                ("model_type",),
                f"{config.base_model} is a {architectures[0]}, not a {config.model_type}",
                "remove the key, or name that class",
            )
        )
    if problems:
        raise ConfigError(problems)
    for name, value in config.overrides_of_model_config.items():
        setattr(model_config, name, value)
    model_config.use_cache = False
    return model_config


def load_model(
    config: Config,
    vocabulary: Vocabulary,
    precision: Precision,
    dtype: torch.dtype | None = None,
    empty: bool = False,
    device: torch.device | None = None,
) -> PreTrainedModel:
    """Load (or initialise) the base model.

    Args:
        config: The configuration.
        vocabulary: The tokenizer; the embedding grows to hold it.
        precision: Numeric types: weights that will be trained are float32, others have the
            compute type.
        dtype: Overrides both types.
        empty: Read no weights: see `tunecli.model.sliced`.
        device: Read stored weights straight to this device; else to the CPU.

    Raises:
        ModelError: It cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    model_config = load_model_config(config)
    if dtype is None:
        dtype = precision.frozen if config.adapter else torch.float32
    arguments: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": resolve_attention(config.attn_implementation),
    }
    remote = {"trust_remote_code": bool(config.trust_remote_code)}
    if empty:
        model = empty_model(model_config, arguments | remote)
    elif config.reinit_weights:
        torch.manual_seed(config.seed)
        model = AutoModelForCausalLM.from_config(model_config, **arguments, **remote)
    else:
        if quantization := _quantization(config, precision):
            arguments["quantization_config"] = quantization
        if device is not None:
            arguments["device_map"] = {"": device}
        try:
            model = AutoModelForCausalLM.from_pretrained(
                config.base_model, config=model_config, **arguments, **hub_arguments(config)
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(f"{config.base_model} cannot be loaded: {error}") from error
    for module in model.modules() if config.load_in_4bit else ():
        # On some CPUs evaluation would bring the weights into a form that knows no backward.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    # A padding index would keep that row of the embedding from learning, which is wrong where
    # the pad token is a real one, too. Padding itself gets no gradient anyhow.
    model.get_input_embeddings().padding_idx = None
    fit_vocabulary(model, vocabulary, config)
    settle_attention(model, config)
    return model


def _quantization(config: Config, precision: Precision) -> Any:
    if not (config.load_in_4bit or config.load_in_8bit):
        return None
    from importlib.util import find_spec

    from transformers import BitsAndBytesConfig

    from ..errors import MissingDependencyError

    if find_spec("bitsandbytes") is None:
        raise MissingDependencyError("bitsandbytes", "a quantized base model", extra="quant")
    if config.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True, **config.bnb_config_kwargs)
    arguments = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": precision.compute,
        # A float type, so that sharding can treat the packed bytes as ordinary weights.
        "bnb_4bit_quant_storage": precision.compute,
    }
    return BitsAndBytesConfig(load_in_4bit=True, **(arguments | config.bnb_config_kwargs))


def fit_vocabulary(model: PreTrainedModel, vocabulary: Vocabulary, config: Config) -> None:
    """Grow the embedding until every id of the tokenizer has a row; never shrink it.

    Models often have more rows than tokens (padded to a round number): those stay.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    needed = len(vocabulary.tokenizer)
    if needed <= rows:
        return
    multiple = 32 if config.resize_token_embeddings_to_32x else None
    # New rows are drawn around the mean of the old ones; seeded, so that every process and
    # every later load of the same configuration draws the same.
    torch.manual_seed(config.seed)
    model.resize_token_embeddings(needed, pad_to_multiple_of=multiple, mean_resizing=True)


def select_trained(model: PreTrainedModel, patterns: list[str]) -> None:
    """Freeze every parameter whose name none of `patterns` (regular expressions) matches.

    Raises:
        ConfigError: A pattern is no regular expression, or matches nothing.
    """
    if not patterns:
        return
    problems, compiled = [], []
    names = [name for name, _ in model.named_parameters()]
    for index, pattern in enumerate(patterns):
        try:
            expression = re.compile(pattern)
        except re.error as error:
            message = f"{pattern!r} is no regular expression: {error}"
            problems.append(Problem(("unfrozen_parameters", index), message))
            continue
        compiled.append(expression)
        if not any(expression.search(name) for name in names):
            problems.append(
                Problem(
                    ("unfrozen_parameters", index),
                    f"{pattern!r} matches no parameter",
                    f"names look like {names[0]}, {names[-1]}",
                )
            )
    if problems:
        raise ConfigError(problems)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(expression.search(name) for expression in compiled))


def is_adapter_dir(path: str | Path) -> bool:
    """Tell whether `path` holds a PEFT adapter."""
    return (Path(path) / "adapter_config.json").is_file()
