"""Collectives that gradients flow through. Shapes are `[batch, heads, sequence, head]`."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

# torch.autograd.Function is untyped; each class here is used through its function only.


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, scatter: int, gather: int
    ) -> torch.Tensor:
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        size = dist.get_world_size(group)
        sent = [part.contiguous() for part in x.chunk(size, dim=scatter)]
        packed = torch.stack(sent)
        received = torch.empty_like(packed)
        dist.all_to_all_single(received, packed, group=group)
        return torch.cat(received.unbind(0), dim=gather)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back = _AllToAll.apply(grad, ctx.group, ctx.gather, ctx.scatter)  # type: ignore[no-untyped-call]
        return back, None, None, None


def all_to_all(
    x: torch.Tensor, group: dist.ProcessGroup, *, scatter: int, gather: int
) -> torch.Tensor:
    """Split `x` along dim `scatter` over the group and join what arrives along dim `gather`."""
    return _AllToAll.apply(x, group, scatter, gather)  # type: ignore[no-untyped-call]


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        size = dist.get_world_size(group)
        flat = x.contiguous().view(-1)
        gathered = torch.empty(size * flat.numel(), dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(gathered, flat, group=group)
        return torch.cat([part.view(x.shape) for part in gathered.chunk(size)], dim=dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        size = dist.get_world_size(ctx.group)
        parts = torch.stack([part.contiguous() for part in grad.chunk(size, dim=ctx.dim)])
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(own.view(-1), parts.view(-1), group=ctx.group)
        return own, None, None


def all_gather(x: torch.Tensor, group: dist.ProcessGroup, *, dim: int) -> torch.Tensor:
    """Join the `x` of every process along `dim`; gradients are added up and split again."""
    return _AllGather.apply(x, group, dim)  # type: ignore[no-untyped-call]
