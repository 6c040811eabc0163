"""Gradient norm and clipping on any mesh."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a total norm of `max_norm` (0: leave them); return the norm.

    The norm is the 2-norm over all gradients before clipping, each element counted once however
    it is laid out. torch's `get_total_norm` is wrong where placements are mixed, so squares are
    added up by the group over which they must be summed.
    """
    gradients = [_settled(p) for p in parameters if p.grad is not None]
    sums: dict[tuple[dist.ProcessGroup, ...], torch.Tensor] = {}
    for gradient in gradients:
        local = gradient
        groups: tuple[dist.ProcessGroup, ...] = ()
        if isinstance(gradient, DTensor):
            local = gradient.to_local()
            groups = tuple(
                gradient.device_mesh.get_group(dim)
                for dim, placement in enumerate(gradient.placements)
                if not placement.is_replicate() and gradient.device_mesh.size(dim) > 1
            )
        square = local.float().square().sum()
        sums[groups] = sums[groups] + square if groups in sums else square
    total = None
    for groups, value in sums.items():
        for group in groups:
            dist.all_reduce(value, group=group)
        total = value if total is None else total + value
    norm = torch.zeros(()) if total is None else total.sqrt()
    if max_norm > 0:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.mul_(factor.to(local.device))
    return norm


def _settled(parameter: nn.Parameter) -> torch.Tensor:
    """Return the gradient, sums that are still pending made, laid out like its parameter."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor) and any(isinstance(p, Partial) for p in gradient.placements):
        assert isinstance(parameter, DTensor)
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient
