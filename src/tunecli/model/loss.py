"""The loss: a sum over tokens, divided once by the trained tokens of the whole step."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

from ..data import Batch
from .attention import document_arguments
from .linear_loss import linear_cross_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..parallel.context import ContextSplit
    from .precision import Precision

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
        head: How logits are made: for all tokens; for trained ones (`kept`), most of a conversation
            being none; or for these, some at a time (`parts`, see `linear_loss`).
    """

    tp_group: dist.ProcessGroup | None = None
    tp_rank: int = 0
    context: ContextSplit | None = None
    head: Literal["all", "kept", "parts"] = "all"

    def __call__(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the sum for one micro-batch (see `tunecli.data.Batch`)."""
        if self.head == "parts":
            places_N = batch.targets
            hidden_ND = _hidden(model, batch)[places_N]
        else:
            logits_ND, places_N = self.logits(model, batch)
        labels_N = batch.labels.flatten()[places_N]
        weights_N = None if batch.weights is None else batch.weights.flatten()[places_N]
        if self.head == "parts":
            weight_VD = model.get_output_embeddings().weight
            return linear_cross_entropy(hidden_ND, weight_VD, labels_N, weights_N)
        logits_ND = logits_ND.float()
        if self.tp_group is not None:
            return vocab_parallel_cross_entropy(
                logits_ND, labels_N, self.tp_group, self.tp_rank, weights_N
            )
        if weights_N is None:
            return F.cross_entropy(logits_ND, labels_N, ignore_index=IGNORE, reduction="sum")
        losses = F.cross_entropy(logits_ND, labels_N, ignore_index=IGNORE, reduction="none")
        return (losses * weights_N).sum()

    def logits(self, model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model; return the logits that this process has, and for which tokens.

        Returns:
            `[tokens, vocabulary / t]`, and the places of these tokens in the batch, its rows laid
            end to end, `[tokens]`.
        """
        rows, length = batch.input_ids.shape
        input_ids, position_ids = batch.input_ids, batch.position_ids
        places_N = torch.arange(rows * length, device=input_ids.device)
        extra = document_arguments(model, batch.documents)
        if self.context is not None:
            places, extra["context"] = self.context.split(position_ids)
            input_ids, position_ids = input_ids[:, places], position_ids[:, places]
            places_N = places_N.view(rows, length)[:, places].flatten()
        elif self.head == "kept" and rows == 1:
            extra["logits_to_keep"] = places_N = batch.targets
        # No attention mask: padding stands right of all that it could disturb, and transformers
        # looks for document boundaries in the positions only when it is given no mask.
        output = model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **extra)
        logits_ND = output.logits.flatten(0, 1)
        if self.context is None and self.head == "kept" and rows > 1:
            places_N = batch.targets
            logits_ND = logits_ND[places_N]
        return logits_ND, places_N


def _hidden(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return what the output embedding gets, `[rows * positions, width]`, in its compute type."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    output = inner.base_model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
        **document_arguments(model, batch.documents),
    )
    hidden: torch.Tensor = output.last_hidden_state.flatten(0, 1)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    return hidden


@torch.no_grad()
def fit_loss(
    loss: TokenLoss, model: PreTrainedModel, precision: Precision, alone: bool
) -> TokenLoss:
    """Choose how logits are made for this model, the way that needs least memory.

    Args:
        loss: The loss for the mesh.
        model: The model as it is trained.
        precision: Numeric types.
        alone: There is no other process: weights are whole.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "logits_to_keep" not in inspect.signature(inner.forward).parameters:
        return loss
    head = model.get_output_embeddings()
    # In float16 the gradients of single logits vanish unless they are scaled before they are made.
    if not alone or type(head) is not nn.Linear or precision.compute == torch.float16:
        return replace(loss, head="kept")
    # Some families scale or squash what the output embedding gives: then it alone is not enough.
    ids = torch.arange(8, device=precision.device)[None] % model.config.vocab_size
    batch = Batch(ids, ids, ids)
    training = model.training
    model.eval()
    with precision.autocast():
        logits, _ = loss.logits(model, batch)
        plain = torch.equal(logits, head(_hidden(model, batch)))
    model.train(training)
    return replace(loss, head="parts" if plain else "kept")


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
