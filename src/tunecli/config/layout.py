"""What the sizes of a mesh ask of a model: plain arithmetic, so that `validate` can do it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..errors import Problem

if TYPE_CHECKING:
    from .schema import Config

WIDTHS = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "kv heads",
    "intermediate_size": "MLP width",
    "vocab_size": "vocabulary",
}
"""What tensor parallelism divides, by its name in a model's config."""


def layout_problems(
    config: Config, model: Mapping[str, Any], *, cp: int, tp: int
) -> Iterator[Problem]:
    """Yield everything about a layout that a model cannot do.

    Args:
        config: The configuration.
        model: The model's own config, as a mapping. What it does not say is not checked.
        cp: Size of the `cp` axis.
        tp: Size of the `tp` axis.
    """
    heads = model.get("num_attention_heads")
    model = {"num_key_value_heads": heads, **{k: v for k, v in model.items() if v is not None}}
    if tp > 1:
        yield from _tensor(config, model, tp)
    if cp > 1:
        yield from _context(config, model, cp, tp)


def _tensor(config: Config, model: Mapping[str, Any], tp: int) -> Iterator[Problem]:
    sizes = {name: model[key] for key, name in WIDTHS.items() if isinstance(model.get(key), int)}
    if any(size % tp for size in sizes.values()):
        smallest = min(sizes.values())
        allowed = [t for t in range(1, smallest + 1) if all(s % t == 0 for s in sizes.values())]
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield Problem(
            ("tensor_parallel_size",),
            f"tensor_parallel_size {tp} does not divide all of: {shown}",
            f"allowed here: {{{', '.join(map(str, allowed))}}}",
        )
    if config.peft_use_dora:
        yield Problem(
            ("peft_use_dora",),
            "DoRA needs the norm of whole weight rows, which tensor parallelism splits",
            "set peft_use_dora: false, or tensor_parallel_size: 1",
        )
    if config.load_in_4bit or config.load_in_8bit:
        yield Problem(
            ("load_in_4bit" if config.load_in_4bit else "load_in_8bit",),
            "quantized weights are packed and cannot be split by tensor parallelism",
            "use dp_shard_size or context_parallel_size instead of tensor_parallel_size",
        )


def _context(config: Config, model: Mapping[str, Any], cp: int, tp: int) -> Iterator[Problem]:
    heads, kv_heads = model.get("num_attention_heads"), model.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int):
        try:
            choose_backend(config.context_parallel_backend, heads, kv_heads, cp, tp)
        except ValueError as error:
            yield Problem(
                ("context_parallel_backend",),
                str(error),
                "use context_parallel_backend: allgather",
            )
    if config.context_parallel_backend == "ring":
        yield from _ring(config, model)
    # Zigzag parts are the finer ones: this holds for both backends.
    if config.sequence_len < 2 * cp:
        yield Problem(
            ("sequence_len",),
            f"sequence_len {config.sequence_len} cannot be split into 2 x "
            f"context_parallel_size = {2 * cp} parts",
            f"use at least {2 * cp}, or a smaller context_parallel_size",
        )


def _ring(config: Config, model: Mapping[str, Any]) -> Iterator[Problem]:
    windows = model.get("sliding_window") and model.get("use_sliding_window", True)
    reasons = {
        "sample_packing": config.sample_packing or config.eval_sample_packing,
        "sliding windows": windows,
        "capped scores": model.get("attn_logit_softcapping"),
        "dropout of attention": model.get("attention_dropout"),
    }
    for reason, present in reasons.items():
        if present:
            yield Problem(
                ("context_parallel_backend",),
                f"ring attention knows no {reason}",
                "use context_parallel_backend: auto",
            )


def choose_backend(
    wanted: str, heads: int, kv_heads: int, cp: int, tp: int
) -> Literal["ulysses", "allgather", "ring"]:
    """Return the backend for `context_parallel_backend`; `auto` takes Ulysses where heads divide.

    Args:
        wanted: `auto`, `ulysses`, `allgather` or `ring`.
        heads: Query heads of the model.
        kv_heads: Key and value heads of the model.
        cp: Size of the `cp` axis.
        tp: Size of the `tp` axis, which takes its share of heads first.

    Raises:
        ValueError: `ulysses` was asked for, and the heads do not divide.
    """
    queries, keys = heads // tp, max(1, kv_heads // tp)
    # Fewer key heads than processes are repeated until there is one for each.
    divides = queries % cp == 0 and (keys % cp == 0 or cp % keys == 0)
    if wanted == "ulysses" and not divides:
        raise ValueError(
            f"{queries} query heads and {keys} key heads of a tensor-parallel rank cannot be "
            f"dealt to {cp} processes"
        )
    if wanted in ("ulysses", "allgather", "ring"):
        return wanted  # type: ignore[return-value]
    return "ulysses" if divides else "allgather"
