"""Attention backends, and the proof that they keep packed documents apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .loss import TokenLoss
    from .precision import Precision

PROBE_LENGTH = 6
"""Tokens in each of the probe's two documents, at least."""


def resolve_attention(name: str) -> str | None:
    """Return transformers' name for `attn_implementation`; `None` lets the model class choose.

    Its choice is `sdpa`, or `eager` for families that need more than `sdpa` can (Gemma 2).

    Raises:
        MissingDependencyError: The backend's package is not installed.
    """
    if name == "auto":
        return None
    if name.startswith("flash_attention"):
        from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

        available = {
            "flash_attention_2": is_flash_attn_2_available,
            "flash_attention_3": is_flash_attn_3_available,
        }[name]
        if not available():
            raise MissingDependencyError("flash-attn", f"attn_implementation: {name}")
    return name


@torch.no_grad()
def check_isolation(model: PreTrainedModel, precision: Precision, loss: TokenLoss) -> None:
    """Prove on the loaded model that a packed document cannot see the one before it.

    Two packs of two documents each differ in the first token of the first document. If any
    output of the second document differs, attention leaks, and packed training would be wrong
    without a sign. The two packs go through the model in one batch, as in training.

    Raises:
        ModelError: Documents see each other with this model and attention backend.
    """
    device = precision.device
    multiple = loss.context.multiple if loss.context else 1
    length = -(-PROBE_LENGTH // multiple) * multiple
    document = torch.arange(length, device=device)
    ids = (torch.arange(2 * length, device=device) * 7 + 3) % model.config.vocab_size
    ids = ids.repeat(2, 1)
    ids[1, 0] = (ids[1, 0] + 1) % model.config.vocab_size
    training = model.training
    model.eval()
    with precision.autocast():
        logits, places = loss.logits(model, ids, document.repeat(2, 2))
    model.train(training)
    first, second = logits.float()
    scale = first.abs().max().clamp_min(1e-6)
    later = places >= length
    leak = ((first - second)[later].abs().max() / scale).item() if later.any() else 0.0
    # Rows of one batch may be reduced in another order: leave room for rounding, not for leaks.
    tolerance = 1e-5 if precision.compute == torch.float32 else 2e-2
    if not leak <= tolerance:
        raise ModelError(
            f"with {model.config._attn_implementation!r} attention, packed documents of this "
            f"model ({model.config.model_type}) see each other (probe: {leak:.1e}). Set "
            "sample_packing: false, or another attn_implementation (sdpa, eager)"
        )
