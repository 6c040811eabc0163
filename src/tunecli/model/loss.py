"""The loss: a sum over tokens, divided once by the trained tokens of the whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORE = -100
"""Label of a position that is not trained."""


def token_loss_sum(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor:
    """Return the sum of the cross entropies of all trained tokens, in float32.

    The sum, not the mean: micro-batches and ranks hold different numbers of trained tokens,
    and only a division by the count of the whole step weighs every token alike.

    Args:
        model: A causal language model.
        input_ids: Tokens, `[batch, sequence]`.
        position_ids: Position of each token in its document, `[batch, sequence]`. A value that
            does not follow its left neighbour's starts a document of its own, which attention
            does not leave.
        labels: The target of each position, already shifted, `[batch, sequence]`; -100 where
            there is none.
    """
    # No attention mask: padding stands right of all that it could disturb, and transformers
    # looks for document boundaries in the positions only when it is given no mask.
    logits = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
