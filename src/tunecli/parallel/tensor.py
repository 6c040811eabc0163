"""Tensor parallelism: each layer's matrices are split, by the model family's own plan.

The plan is transformers' `base_model_tp_plan`, mapped to torch's parallel styles. Differences
from transformers' own implementation: the input of attention and of the MLP is marked once, so
that its gradient is reduced once each in the backward pass (Megatron's two all-reduces, not five),
the vocabulary is split (embedding by rows, head by columns; the loss sums over the parts), and
LoRA matrices are split with the layer that they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement
    from transformers import PreTrainedModel

SEQUENCE_DIM = 1
"""Dim of the tokens in hidden states, `[batch, sequence, width]`."""

HEAD_DIM = 2
"""Dim of the heads where per-head norms work, in `[batch, sequence, heads, head]`."""

COLWISE = {"colwise", "colwise_gather_output"}
ROWWISE = {"rowwise", "rowwise_split_input"}
NORM = "replicated_with_grad_allreduce"
STYLES = COLWISE | ROWWISE | {NORM}
"""Styles of a plan that are supported."""


class Replicated(ParallelStyle):
    """Weights that every process holds whole, and an input that all share.

    Args:
        output: How the output lies; each process gets its part of it as an ordinary tensor.
    """

    def __init__(self, output: Placement) -> None:
        super().__init__()
        self._output = output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module, device_mesh, _replicate, _input_as(Replicate()), _output_as(self._output)
        )


class SplitNorm(ParallelStyle):
    """A norm whose weights every process holds whole, over the heads or tokens that it has.

    Not torch's `SequenceParallel`, which makes every weight a trained one, so that an adapter
    run would train frozen norms.

    Args:
        dim: Dim of the input along which processes hold different parts.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._place = Shard(dim)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module, device_mesh, _replicate, _input_as(self._place), _output_as(self._place)
        )


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        spread = distribute_tensor(parameter, mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(spread, parameter.requires_grad))


def _input_as(place: Placement) -> Callable[[nn.Module, tuple[Any, ...], DeviceMesh], Any]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        (x,) = inputs
        return (x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [place]),)

    return hook


def _output_as(place: Placement) -> Callable[[nn.Module, DTensor, DeviceMesh], Any]:
    def hook(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        return output.redistribute(placements=[place]).to_local()

    return hook


def plan_problem(model_config: Any) -> str | None:
    """Say why a model family cannot be split, or return `None` if it can."""
    kind = model_config.model_type
    plan = getattr(model_config, "base_model_tp_plan", None)
    if not plan:
        return f"{kind} has no tensor-parallel plan in transformers"
    # transformers 5.25 moved experts from this plan to one of their own (expert parallelism):
    # what is left names attention alone and says nothing of the rest.
    if getattr(model_config, "num_experts_per_tok", None):
        return f"tensor parallelism of experts ({kind}) is not supported; use dp_shard_size"
    for pattern, style in plan.items():
        if style not in STYLES:
            return (
                f"the tensor-parallel plan of {kind} has the style {style!r} for {pattern!r}, "
                "which is not supported"
            )
    return None


def apply_tensor_parallel(
    model: PreTrainedModel, base: Any, mesh: DeviceMesh, sequence: bool
) -> None:
    """Split the layers of `model` over `mesh` (one axis), in place.

    Args:
        model: The causal language model, or the PEFT model around it.
        base: The decoder inside (`model.model` of a Llama), to which the plan's names refer.
        mesh: The `tp` axis.
        sequence: Between attention and MLP (norms, residuals) each process keeps a part of the
            tokens instead of all of them (arXiv:2205.05198).

    `tunecli.parallel.checks` has refused what cannot be split.
    """
    plan: dict[str, str] = base.config.base_model_tp_plan
    between = Shard(SEQUENCE_DIM) if sequence else Replicate()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = _weight(embedding) is _weight(head)
    for name, module in list(base.named_modules()):
        style = _style(name, plan)
        if style is not None:
            _split(module, style, mesh, between)
    for name, module in base.named_modules():
        if name.endswith((".self_attn", ".mlp")):
            _mark_input(name, module, mesh, between)
    if sequence:
        for norm in (base.norm, *(norm for layer in base.layers for norm in _norms(layer))):
            parallelize_module(norm, mesh, SplitNorm(SEQUENCE_DIM), src_data_rank=None)
    for part in _copies(embedding):
        parallelize_module(
            part, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            src_data_rank=None,
        )  # fmt: skip
    for part in _copies(head):
        # Each process keeps the logits of its part of the vocabulary: the loss needs no more.
        parallelize_module(part, mesh, ColwiseParallel(input_layouts=between), src_data_rank=None)
    if tied:
        # Splitting made two parameters of one.
        for ours, theirs in zip(_copies(head), _copies(embedding), strict=True):
            ours.weight = theirs.weight


def _norms(layer: nn.Module) -> list[nn.Module]:
    """Return what a decoder layer applies between its attention and its MLP."""
    return [
        child
        for name, child in layer.named_children()
        if name not in ("self_attn", "mlp") and any(True for _ in child.parameters())
    ]


def _style(name: str, plan: dict[str, str]) -> str | None:
    generic = re.sub(r"\.\d+\.", ".*.", name)
    return plan.get(generic)


def _copies(module: Any) -> list[nn.Module]:
    """Return the module itself, or the frozen and trained copies that PEFT keeps of it."""
    if hasattr(module, "modules_to_save"):
        return [module.original_module, *module.modules_to_save.values()]
    return [module]


def _weight(module: nn.Module) -> Any:
    return _copies(module)[-1].weight


def _split(module: Any, style: str, mesh: DeviceMesh, between: Placement) -> None:
    if style == NORM:
        parallelize_module(module, mesh, SplitNorm(HEAD_DIM), src_data_rank=None)
        return
    if not hasattr(module, "lora_A"):
        parallelize_module(module, mesh, _linear(style, between), src_data_rank=None)
        return
    parallelize_module(module.base_layer, mesh, _linear(style, between), src_data_rank=None)
    first: ParallelStyle
    second: ParallelStyle
    if style in ROWWISE:
        # The rank-wide middle is summed whole; what leaves the layer lies as the base's output.
        first, second = _linear(style, Replicate()), Replicated(between)
    else:
        first, second = Replicated(Replicate()), _linear(style, between)
    for adapter in module.lora_A:
        parallelize_module(module.lora_A[adapter], mesh, first, src_data_rank=None)
        parallelize_module(module.lora_B[adapter], mesh, second, src_data_rank=None)


def _linear(style: str, between: Placement) -> ParallelStyle:
    return {
        "colwise": ColwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel(output_layouts=between),
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
    }[style]


def _mark_input(name: str, module: nn.Module, mesh: DeviceMesh, between: Placement) -> None:
    """Make the input of attention or MLP a replicated DTensor: one reduction of its gradient."""
    style = PrepareModuleInput(
        input_layouts=(between,), desired_input_layouts=(Replicate(),), use_local_output=False
    )
    if name.endswith(".self_attn"):
        style = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
            use_local_output=False,
        )
    parallelize_module(module, mesh, style)
