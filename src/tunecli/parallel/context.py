"""Context parallelism: each row is split over processes, and attention brings it together.

Three ways, all exact; the first two keep packed documents apart:

- *Ulysses* (arXiv:2309.14509): an all-to-all turns "all heads of a part of the row" into "some
  heads of the whole row" around attention, and back. Needs query heads that divide.
- *All-gather* (as in arXiv:2407.21783, section 3.3.2): each process keeps its queries and gathers
  all keys and values. Rows are dealt in zigzag, part i with part 2c-1-i, since under a causal mask
  late queries cost more than early ones. Works with any number of heads.
- *Ring* (`ring.py`): keys and values travel instead of being gathered. Least memory for the longest
  rows; no packing, no windows.

Labels are shifted before the split (when the batch is made), so no target is lost at a seam.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed as dist
from torch.nn import functional as F

from .collectives import all_gather, all_to_all
from .ring import ring_attention

if TYPE_CHECKING:
    from .mesh import Mesh

ATTENTION = "tunecli_context"
"""Name under which transformers knows `context_attention`."""

Backend = Literal["ulysses", "allgather", "ring", "whole"]


@dataclass
class ContextBatch:
    """What attention must know of a row that is split; made once for each micro-batch.

    Attributes:
        group: Processes that share the row; `None` where each has it whole.
        backend: How attention brings the row together; `whole` if it is not split.
        documents: Number of the document of each token of the whole row, `[batch, sequence]`.
        queries: Place in the whole row of each token that this process holds, `[sequence / c]`.
        keys: Place in the whole row of each key after gathering, `[sequence]`.
    """

    group: dist.ProcessGroup | None
    backend: Backend
    documents: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return which keys each query sees: causal, same document, within the window.

        `[batch, 1, queries, keys]`, true where it sees. Made once for each window size and kept:
        every layer of a micro-batch uses the same.
        """
        if window not in self._masks:
            everything = torch.arange(self.documents.shape[1], device=self.documents.device)
            q = self.queries if self.backend == "allgather" else everything
            k = self.keys if self.backend == "allgather" else everything
            seen = k[None, :] <= q[:, None]
            if window is not None:
                seen = seen & (q[:, None] - k[None, :] < window)
            same = self.documents[:, q][:, :, None] == self.documents[:, k][:, None, :]
            self._masks[window] = (seen[None] & same)[:, None]
        return self._masks[window]


@dataclass(frozen=True)
class ContextSplit:
    """Splits batches over the `cp` axis of a mesh."""

    mesh: Mesh
    backend: Backend
    sequence_parallel: bool = False

    @property
    def zigzag(self) -> bool:
        """Whether each process holds one early and one late part of a row."""
        return self.backend in ("allgather", "ring")

    @property
    def multiple(self) -> int:
        """Sequence lengths must be a multiple of this."""
        parts = self.mesh.layout.cp * (2 if self.zigzag else 1)
        # What a process holds of a row is split once more between attention and MLP.
        return parts * (self.mesh.layout.tp if self.sequence_parallel else 1)

    def places(self, length: int, rank: int) -> torch.Tensor:
        """Return the places in a row of `length` tokens that process `rank` of the group holds."""
        size = self.mesh.layout.cp
        if not self.zigzag:
            part = length // size
            return torch.arange(rank * part, (rank + 1) * part)
        part = length // (2 * size)
        mirrored = 2 * size - 1 - rank
        return torch.cat(
            [
                torch.arange(rank * part, (rank + 1) * part),
                torch.arange(mirrored * part, (mirrored + 1) * part),
            ]
        )

    def split(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, ContextBatch]:
        """Return the places in each row that this process holds, and what attention must know.

        Args:
            position_ids: Positions of whole rows, `[batch, sequence]`; the sequence must be a
                multiple of `multiple`.
        """
        length, size = position_ids.shape[1], self.mesh.layout.cp
        device = position_ids.device
        own = self.places(length, self.mesh.cp_rank).to(device)
        keys = torch.cat([self.places(length, rank) for rank in range(size)]).to(device)
        # A document begins where a position does not follow its left neighbour's.
        begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
        documents = F.pad(begins.long().cumsum(1), (1, 0))
        return own, ContextBatch(self.mesh.cp_group, self.backend, documents, own, keys)


def context_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    context: ContextBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a row that is split over processes; an attention function of transformers.

    Args:
        module: The model's attention layer (unused).
        query: `[batch, heads, sequence / c, head]`.
        key: `[batch, kv_heads, sequence / c, head]`.
        value: Like `key`.
        attention_mask: Must be `None`: the documents are in `context`.
        scaling: Factor of the scores.
        dropout: Dropout of the probabilities.
        sliding_window: Keys that a query sees at most, itself counted.
        softcap: Scores are squashed to this range (Gemma 2).
        context: Facts of the micro-batch, handed through the model as a keyword.
        kwargs: What else transformers hands down.

    Returns:
        `[batch, sequence / c, heads, head]`, and no weights.
    """
    assert attention_mask is None
    assert context is not None
    group = context.group
    if context.backend == "ring":
        # `tunecli.config.layout` has refused what needs more than a causal mask.
        assert group is not None
        assert sliding_window is None
        assert softcap is None
        assert not dropout
        return ring_attention(query, key, value, group, scaling).transpose(1, 2).contiguous(), None
    mask = context.mask(sliding_window)
    if group is None:
        out = _attend(query, key, value, mask, scaling, dropout, softcap)
    elif context.backend == "ulysses":
        size = dist.get_world_size(group)
        if key.shape[1] % size:
            repeats = size // key.shape[1]
            key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        query, key, value = (all_to_all(x, group, scatter=1, gather=2) for x in (query, key, value))
        out = _attend(query, key, value, mask, scaling, dropout, softcap)
        out = all_to_all(out, group, scatter=2, gather=1)
    else:
        key, value = (all_gather(x, group, dim=2) for x in (key, value))
        out = _attend(query, key, value, mask, scaling, dropout, softcap)
    return out.transpose(1, 2).contiguous(), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    dropout: float,
    softcap: float | None,
) -> torch.Tensor:
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return F.dropout(weights, dropout) @ value


def register_attention() -> None:
    """Make `context_attention` known to transformers by its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, context_attention)
