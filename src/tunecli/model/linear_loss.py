"""Cross entropy from hidden states, without ever holding the logits of a whole batch.

At a vocabulary of 128k words the logits of 16k tokens take 8 GiB in float32, their gradient as
much again: more than the model. A part of the tokens at a time needs a few hundred MiB. Gradients
are made in the same pass, while the logits are there, as in Liger (arXiv:2410.10989, section 3.2).
"""

from __future__ import annotations

from typing import Any

import torch

ELEMENTS = 2**27
"""Logits that are held at a time: 512 MiB in float32."""


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        elements: int,
    ) -> torch.Tensor:
        matrix = weight.to(hidden.dtype)
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if to_hidden else None
        # Sums over the parts are made in the weight's own type.
        grad_weight = torch.zeros_like(weight) if to_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        size = max(1, elements // len(weight))
        for at in range(0, len(hidden), size):
            part = slice(at, at + size)
            label = labels[part, None]
            logits = (hidden[part] @ matrix.T).float()
            scale = logits.logsumexp(dim=1, keepdim=True)
            losses = scale - logits.gather(1, label)
            if weights is not None:
                losses = losses * weights[part, None]
            total += losses.sum()
            if not (to_hidden or to_weight):
                continue
            grad = logits.sub_(scale).exp_()
            grad.scatter_add_(1, label, grad.new_full((), -1.0).expand_as(label))
            if weights is not None:
                grad *= weights[part, None]
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ matrix
            if grad_weight is not None:
                grad_weight += grad.T @ hidden[part]
        ctx.grads = (grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # In place: a copy of the second would be as large as the embedding.
        grads = [g if g is None else g.mul_(grad.to(g.dtype)) for g in ctx.grads]
        del ctx.grads
        return (*grads, None, None, None)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None = None,
    elements: int = ELEMENTS,
) -> torch.Tensor:
    """Return the summed cross entropy of `hidden @ weight.T`, in float32.

    Can be differentiated once.

    Args:
        hidden: `[tokens, width]`; its type is that of the products.
        weight: `[vocabulary, width]`, the output embedding.
        labels: `[tokens]`, ids; all of them count.
        weights: `[tokens]`, float32, weight of each token's loss; 1 if left out.
        elements: Logits that are held at a time.
    """
    return _LinearCrossEntropy.apply(hidden, weight, labels, weights, elements)  # type: ignore[no-any-return,no-untyped-call]
