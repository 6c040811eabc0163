"""Tensor parallelism: each layer's matrices are split, by the model family's own plan.

The plan is transformers' `base_model_tp_plan`, mapped to torch's parallel styles. Differences
from transformers' own implementation: the input of attention and of the MLP is marked once, so
that its gradient is reduced once each in the backward pass (Megatron's two all-reduces, not five),
the vocabulary is split (embedding by rows, head by columns; the loss sums over the parts), and
LoRA matrices are split with the layer that they belong to.
"""

from __future__ import annotations

import re
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
    from transformers import PreTrainedModel

HEAD_DIM = 2
"""Dim of the heads where per-head norms work, in `[batch, sequence, heads, head]`."""

COLWISE = {"colwise", "colwise_gather_output"}
ROWWISE = {"rowwise", "rowwise_split_input"}
NORM = "replicated_with_grad_allreduce"
STYLES = COLWISE | ROWWISE | {NORM}
"""Styles of a plan that are supported."""


class Replicated(ParallelStyle):
    """Weights that every process holds whole; input and output are ordinary tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(
            module, device_mesh, _replicate, _input_as_dtensor, _output_as_local
        )


class HeadNorm(ParallelStyle):
    """A norm of each head: weights that every process holds whole, over the heads that it has.

    Not torch's `SequenceParallel`, which makes every weight a trained one, so that an adapter
    run would train frozen norms.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate, _heads_as_dtensor, _own_heads)


def _heads_as_dtensor(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
    (x,) = inputs
    return (DTensor.from_local(x, mesh, [Shard(HEAD_DIM)]),)


def _own_heads(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.to_local()


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        spread = distribute_tensor(parameter, mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(spread, parameter.requires_grad))


def _input_as_dtensor(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
    (x,) = inputs
    return (x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()]),)


def _output_as_local(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.redistribute(placements=[Replicate()]).to_local()


def plan_problem(model_config: Any) -> str | None:
    """Say why a model family cannot be split, or return `None` if it can."""
    kind = model_config.model_type
    plan = getattr(model_config, "base_model_tp_plan", None)
    if not plan:
        return f"{kind} has no tensor-parallel plan in transformers"
    for pattern, style in plan.items():
        if style not in STYLES:
            return (
                f"the tensor-parallel plan of {kind} has the style {style!r} for {pattern!r}, "
                "which is not supported"
            )
    return None


def apply_tensor_parallel(model: PreTrainedModel, base: Any, mesh: DeviceMesh) -> None:
    """Split the layers of `model` over `mesh` (one axis), in place.

    Args:
        model: The causal language model, or the PEFT model around it.
        base: The decoder inside (`model.model` of a Llama), to which the plan's names refer.
        mesh: The `tp` axis.

    `tunecli.parallel.checks` has refused what cannot be split.
    """
    plan: dict[str, str] = base.config.base_model_tp_plan
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = _weight(embedding) is _weight(head)
    for name, module in list(base.named_modules()):
        style = _style(name, plan)
        if style is not None:
            _split(module, style, mesh)
    for name, module in base.named_modules():
        if name.endswith((".self_attn", ".mlp")):
            _mark_input(name, module, mesh)
    for part in _copies(embedding):
        parallelize_module(
            part, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            src_data_rank=None,
        )  # fmt: skip
    for part in _copies(head):
        # Each process keeps the logits of its part of the vocabulary: the loss needs no more.
        parallelize_module(part, mesh, ColwiseParallel(), src_data_rank=None)
    if tied:
        # Splitting made two parameters of one.
        for ours, theirs in zip(_copies(head), _copies(embedding), strict=True):
            ours.weight = theirs.weight


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


def _split(module: Any, style: str, mesh: DeviceMesh) -> None:
    if style == NORM:
        parallelize_module(module, mesh, HeadNorm(), src_data_rank=None)
        return
    if not hasattr(module, "lora_A"):
        parallelize_module(module, mesh, _linear(style), src_data_rank=None)
        return
    parallelize_module(module.base_layer, mesh, _linear(style), src_data_rank=None)
    whole, split = Replicated(), _linear(style)
    first, second = (split, whole) if style in ROWWISE else (whole, split)
    for adapter in module.lora_A:
        parallelize_module(module.lora_A[adapter], mesh, first, src_data_rank=None)
        parallelize_module(module.lora_B[adapter], mesh, second, src_data_rank=None)


def _linear(style: str) -> ParallelStyle:
    return {
        "colwise": ColwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "rowwise": RowwiseParallel(),
        "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    }[style]


def _mark_input(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Make the input of attention or MLP a replicated DTensor: one reduction of its gradient."""
    style = PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),), use_local_output=False
    )
    if name.endswith(".self_attn"):
        style = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Replicate()},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
            use_local_output=False,
        )
    parallelize_module(module, mesh, style)
