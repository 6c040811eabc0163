"""Attention backends, and the proof that they keep packed documents apart."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from ..data import Batch, Documents
from ..errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..config import Config
    from .loss import TokenLoss
    from .precision import Precision

VARLEN = "tunecli_varlen"
"""Name under which transformers knows `varlen_attention`."""

GROUPED = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether torch's kernel takes fewer key heads than query heads."""

PROBE_LENGTH = 6
"""Tokens in each of the probe's two documents, at least."""


def resolve_attention(name: str) -> str | None:
    """Return transformers' name for `attn_implementation`; `None` lets the model class choose.

    Its choice is `sdpa`, or `eager` for families that need more than `sdpa` can (Gemma 2).
    `settle_attention` looks at it again.

    Raises:
        MissingDependencyError: The backend's package is not installed.
    """
    if name in ("auto", "varlen"):
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


def settle_attention(model: PreTrainedModel, config: Config) -> None:
    """Give the loaded model `varlen` attention where that is wanted, or where it is the fastest.

    A mask over a whole pack costs the square of the pack's length, most of it for pairs of tokens
    that may not see each other, and no fast kernel takes it.

    Raises:
        ModelError: `attn_implementation: varlen`, which this model cannot have.
    """
    from transformers import AttentionInterface

    asked = config.attn_implementation == "varlen"
    if not asked and not (config.attn_implementation == "auto" and config.sample_packing):
        return
    if why := _no_varlen(model, config.sequence_len):
        if asked:
            raise ModelError(
                f"attn_implementation: varlen is not for {config.base_model}: {why}. Use auto"
            )
        return

    AttentionInterface.register(VARLEN, varlen_attention)
    model.set_attn_implementation(VARLEN)


def _no_varlen(model: PreTrainedModel, longest: int) -> str | None:
    """Return why a model cannot have `varlen` attention, if so."""
    config = model.config.get_text_config()
    if model.config._attn_implementation != "sdpa" or not model._supports_attention_backend:
        return "its attention is of a kind of its own"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and window < longest:
        return f"it has windows of {window} tokens"
    if getattr(config, "attention_chunk_size", None):
        return "it has chunked attention"
    if (getattr(config, "v_head_dim", None) or 0) > 0:
        return "its values have another size than its keys"
    return None


def document_arguments(model: PreTrainedModel, documents: Documents) -> dict[str, Any]:
    """Return what the model's attention wants to be told of a batch's documents.

    Told once, no layer has to find out for itself, which would make each wait for the device.
    """
    name = str(model.config._attn_implementation)
    if name == VARLEN:
        return {"documents": documents}
    if name.startswith("flash_attention"):
        bounds, longest = documents.bounds, documents.longest
        return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds,
                "max_length_q": longest, "max_length_k": longest}  # fmt: skip
    return {}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    documents: Documents | None = None,
    position_ids: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each document; an attention function of transformers.

    On NVIDIA GPUs torch's own kernel for sequences of different lengths, elsewhere one document
    after the other. Never compiled: its documents differ from batch to batch, and the layers
    around it would be compiled again for each new number of them.

    Args:
        module: Unused.
        query: `[rows, heads, positions, head]`.
        key: `[rows, kv_heads, positions, head]`.
        value: As `key`.
        attention_mask: `None`.
        scaling: Factor of the scores.
        dropout: Of the weights.
        documents: Documents of the batch; left out, they are found in `position_ids`.
        position_ids: `[rows, positions]`.
        kwargs: What else transformers hands down.

    Returns:
        `[rows, positions, heads, head]`, and no weights.
    """
    assert attention_mask is None
    rows, heads, positions, _ = query.shape
    if documents is None:
        if position_ids is None:
            position_ids = torch.arange(positions, device=query.device)[None]
        documents = Documents.of(position_ids.expand(rows, -1))
    # [tokens, heads, head]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if query.is_cuda and query.dtype != torch.float32 and not dropout:
        out = _varlen_kernel(q, k, v, documents, scaling)
    else:
        parts = [torch.split(x.transpose(0, 1), documents.lengths, dim=1) for x in (q, k, v)]
        grouped = heads != key.shape[1]
        out = torch.cat(
            [
                F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=grouped
                )
                for q, k, v in zip(*parts, strict=True)
            ],
            dim=1,
        ).transpose(0, 1)
    return out.reshape(rows, positions, heads, -1), None


def _varlen_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, scaling: float | None
) -> torch.Tensor:
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0)}
    if q.shape[1] != k.shape[1]:
        if GROUPED:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    bounds, longest = documents.bounds, documents.longest
    return varlen_attn(q, k, v, bounds, bounds, longest, longest, **options)  # type: ignore[return-value]


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
    batch = Batch(ids, ids, document.repeat(2, 2))
    ids[1, 0] = (ids[1, 0] + 1) % model.config.vocab_size
    training = model.training
    model.eval()
    with precision.autocast():
        logits, places = loss.logits(model, batch)
    model.train(training)
    first, second = logits.float().chunk(2)
    places = places[: len(first)]
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
