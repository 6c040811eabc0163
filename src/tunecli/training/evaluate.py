"""Evaluation: the same token-weighted loss as in training, over rows that are never trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..model.loss import token_loss_sum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data import BatchLoader
    from ..model.precision import Precision
    from ..reporter import Reporter


@dataclass(frozen=True)
class Evaluation:
    """Mean loss of all trained tokens of the evaluation rows."""

    loss: float
    trained_tokens: int


@torch.no_grad()
def evaluate(
    model: PreTrainedModel, loader: BatchLoader, precision: Precision, reporter: Reporter
) -> Evaluation:
    """Run `model` over every batch of `loader`, without dropout."""
    was_training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64)
    trained = 0
    with reporter.task("evaluating", loader.steps_per_epoch, "batches") as task:
        for step in loader.iterate(0, loader.steps_per_epoch):
            for batch in step.micro_batches:
                batch = batch.to(precision.device)
                with precision.autocast():
                    loss = token_loss_sum(model, batch.input_ids, batch.position_ids, batch.labels)
                total += loss.double().cpu()
            trained += step.trained_tokens
            task.advance()
    model.train(was_training)
    return Evaluation((total / trained).item(), trained)
