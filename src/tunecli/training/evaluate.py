"""Evaluation: the same token-weighted loss as in training, over rows that are never trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data import BatchLoader
    from ..model.loss import TokenLoss
    from ..model.precision import Precision
    from ..parallel import Mesh
    from ..reporter import Reporter


@dataclass(frozen=True)
class Evaluation:
    """Mean loss of all trained tokens of the evaluation rows, by their weights."""

    loss: float
    trained_tokens: int


@torch.no_grad()
def evaluate(
    model: PreTrainedModel,
    loader: BatchLoader,
    token_loss: TokenLoss,
    mesh: Mesh,
    precision: Precision,
    reporter: Reporter,
) -> Evaluation:
    """Run `model` over every batch of `loader`, without dropout; all processes get the result."""
    was_training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=precision.device)
    trained, weight = 0, 0.0
    with reporter.task("evaluating", loader.steps_per_epoch, "batches") as task:
        for step in loader.iterate(0, loader.steps_per_epoch):
            for batch in step.micro_batches:
                batch = batch.to(precision.device)
                with precision.autocast():
                    total += token_loss(model, batch).double()
            trained += step.trained_tokens
            weight += step.loss_weight
            task.advance()
    model.train(was_training)
    return Evaluation((mesh.sum_over_tokens(total) / weight).item(), trained)
