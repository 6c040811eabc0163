"""Attention backends, and the proof that they keep packed documents apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .precision import Precision

PROBE_LENGTH = 6
"""Tokens in each of the probe's two documents."""


def resolve_attention(name: str) -> str:
    """Return transformers' name for `attn_implementation`.

    Raises:
        MissingDependencyError: The backend's package is not installed.
    """
    if name == "auto":
        return "sdpa"
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
def check_isolation(model: PreTrainedModel, precision: Precision) -> None:
    """Prove on the loaded model that a packed document cannot see the one before it.

    Two packs of two documents each differ in the first token of the first document. If any
    output of the second document differs, attention leaks, and packed training would be wrong
    without a sign. The two packs go through the model in one batch, as in training.

    Raises:
        ModelError: Documents see each other with this model and attention backend.
    """
    device = precision.device
    vocab = model.get_input_embeddings().weight.shape[0]
    document = torch.arange(PROBE_LENGTH, device=device)
    input_ids = (torch.arange(2 * PROBE_LENGTH, device=device) * 7 + 3) % vocab
    input_ids = input_ids.repeat(2, 1)
    input_ids[1, 0] = (input_ids[1, 0] + 1) % vocab
    position_ids = document.repeat(2, 2)
    training = model.training
    model.eval()
    with precision.autocast():
        logits = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    model.train(training)
    first, second = logits.float()
    scale = first.abs().max().clamp_min(1e-6)
    leak = ((first - second)[PROBE_LENGTH:].abs().max() / scale).item()
    # Rows of one batch may be reduced in another order: leave room for rounding, not for leaks.
    tolerance = 1e-5 if precision.compute == torch.float32 else 2e-2
    if not leak <= tolerance:
        raise ModelError(
            f"with {model.config._attn_implementation!r} attention, packed documents of this "
            f"model ({model.config.model_type}) see each other (probe: {leak:.1e}). Set "
            "sample_packing: false, or another attn_implementation (sdpa, eager)"
        )
