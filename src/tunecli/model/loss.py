"""The loss: a sum over tokens, divided once by the trained tokens of the whole step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data import Batch
    from ..parallel.context import ContextSplit

IGNORE = -100
"""Label of a position that is not trained."""


@dataclass(frozen=True)
class TokenLoss:
    """Sum of the cross entropies of the trained tokens that this process holds, in float32.

    The sum, not the mean: micro-batches and ranks hold different numbers of trained tokens,
    and only a division by the count of the whole step weighs every token alike.

    Attributes:
        tp_group: Processes that share the vocabulary; each has the logits of its part.
        tp_rank: Which part this process has.
        context: How rows are split over processes, if they are.
    """

    tp_group: dist.ProcessGroup | None = None
    tp_rank: int = 0
    context: ContextSplit | None = None

    def __call__(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the sum for one micro-batch (see `tunecli.data.Batch`)."""
        logits, places = self.logits(model, batch.input_ids, batch.position_ids)
        logits_ND = logits.flatten(0, 1).float()
        labels_N = batch.labels[:, places].flatten()
        weights = batch.weights
        weights_N = None if weights is None else weights[:, places].flatten()
        if self.tp_group is not None:
            return vocab_parallel_cross_entropy(
                logits_ND, labels_N, self.tp_group, self.tp_rank, weights_N
            )
        if weights_N is None:
            return F.cross_entropy(logits_ND, labels_N, ignore_index=IGNORE, reduction="sum")
        losses = F.cross_entropy(logits_ND, labels_N, ignore_index=IGNORE, reduction="none")
        return (losses * weights_N).sum()

    def logits(
        self, model: PreTrainedModel, input_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model; return the logits that this process has, and for which positions.

        Args:
            model: A causal language model.
            input_ids: Tokens of whole rows, `[batch, sequence]`.
            position_ids: Position of each token in its document, `[batch, sequence]`. A value
                that does not follow its left neighbour's starts a document of its own.

        Returns:
            `[batch, sequence / c, vocabulary / t]`, and the places in the row, `[sequence / c]`.
        """
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        extra: dict[str, Any] = {}
        if self.context is not None:
            places, extra["context"] = self.context.split(position_ids)
            input_ids, position_ids = input_ids[:, places], position_ids[:, places]
        # No attention mask: padding stands right of all that it could disturb, and transformers
        # looks for document boundaries in the positions only when it is given no mask.
        output = model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **extra)
        return output.logits, places


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        group: dist.ProcessGroup,
        rank: int,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        width = logits.shape[1]
        highest = logits.max(dim=1).values
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - highest[:, None]
        place = labels - rank * width
        mine = (place >= 0) & (place < width)
        place = place.clamp(0, width - 1)
        target = shifted.gather(1, place[:, None])[:, 0] * mine
        exponentials = shifted.exp_()
        # Sum of exponentials and target logit travel together: one message instead of two.
        sums = torch.stack([exponentials.sum(dim=1), target])
        dist.all_reduce(sums, group=group)
        weights = weights * (labels != IGNORE)
        ctx.save_for_backward(exponentials.div_(sums[0][:, None]), place, mine, weights)
        losses = (sums[0].log() - sums[1]) * weights
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        probabilities, place, mine, weights = ctx.saved_tensors
        rows = torch.arange(len(place), device=place.device)
        result = probabilities.clone()
        result[rows, place] -= mine.to(result.dtype)
        return result * (weights * grad)[:, None], None, None, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    group: dist.ProcessGroup,
    rank: int,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the summed cross entropy where each process has the logits of a part of the words.

    As in Megatron-LM (arXiv:1909.08053, section 3): only maxima, sums and target logits are
    exchanged, one number a token each, never logits.

    Args:
        logits: `[tokens, vocabulary / t]`, float32.
        labels: `[tokens]`, ids of the whole vocabulary, -100 where none is trained.
        group: The processes that share the vocabulary.
        rank: Which equal part of it this process has.
        weights: `[tokens]`, float32, weight of each token's loss; 1 if left out.
    """
    if weights is None:
        weights = logits.new_ones(())
    return _VocabParallelCrossEntropy.apply(logits, labels, group, rank, weights)  # type: ignore[no-any-return,no-untyped-call]
