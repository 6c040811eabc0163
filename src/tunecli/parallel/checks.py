"""What a layout asks of a model: checked before any weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from ..config import Config
    from .mesh import Layout

TP_KEY = ("tensor_parallel_size",)


def check_layout(config: Config, model_config: Any, layout: Layout) -> None:
    """Raise a `ConfigError` with everything about `layout` that this model cannot do.

    Args:
        config: The configuration.
        model_config: The model's own config.
        layout: Sizes of the mesh's axes, filled in.

    Raises:
        ConfigError: TP does not divide heads, widths or vocabulary, or the family has no
            supported plan; CP does not divide heads as asked; DoRA with TP.
    """
    problems = [*_tensor(config, model_config, layout), *_context(config, model_config, layout)]
    if problems:
        raise ConfigError(problems)


def _tensor(config: Config, model_config: Any, layout: Layout) -> Iterator[Problem]:
    if layout.tp == 1:
        return
    from .tensor import plan_problem

    if message := plan_problem(model_config):
        yield Problem(TP_KEY, message, "use tensor_parallel_size: 1")
        return
    sizes = {
        "attention heads": model_config.num_attention_heads,
        "kv heads": model_config.num_key_value_heads,
        "MLP width": model_config.intermediate_size,
        "vocabulary": model_config.vocab_size,
    }
    if any(size % layout.tp for size in sizes.values()):
        smallest = min(sizes.values())
        allowed = [t for t in range(1, smallest + 1) if all(s % t == 0 for s in sizes.values())]
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield Problem(
            TP_KEY,
            f"tensor_parallel_size {layout.tp} does not divide all of: {shown}",
            f"allowed here: {{{', '.join(map(str, allowed))}}}",
        )
    if config.peft_use_dora:
        yield Problem(
            ("peft_use_dora",),
            "DoRA needs the norm of whole weight rows, which tensor parallelism splits",
            "set peft_use_dora: false, or tensor_parallel_size: 1",
        )
    if config.load_in_4bit or config.load_in_8bit:
        key = "load_in_4bit" if config.load_in_4bit else "load_in_8bit"
        yield Problem(
            (key,),
            "quantized weights are packed and cannot be split by tensor parallelism",
            "use dp_shard_size or context_parallel_size instead of tensor_parallel_size",
        )


def _context(config: Config, model_config: Any, layout: Layout) -> Iterator[Problem]:
    if layout.cp == 1:
        return
    from .context import choose_backend

    try:
        choose_backend(
            config.context_parallel_backend,
            model_config.num_attention_heads,
            model_config.num_key_value_heads,
            layout.cp,
            layout.tp,
        )
    except ValueError as error:
        yield Problem(
            ("context_parallel_backend",), str(error), "use context_parallel_backend: allgather"
        )
    # Zigzag parts are the finer ones: this holds for both backends.
    if config.sequence_len < 2 * layout.cp:
        yield Problem(
            ("sequence_len",),
            f"sequence_len {config.sequence_len} cannot be split into 2 x "
            f"context_parallel_size = {2 * layout.cp} parts",
            f"use at least {2 * layout.cp}, or a smaller context_parallel_size",
        )
