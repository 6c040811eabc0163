"""What goes through the model at once, and what a step is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .tokenize import IGNORE

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Documents:
    """Documents of a batch whose rows lie end to end.

    Attributes:
        bounds: Where each begins and where the last one ends, int32 [documents + 1].
        lengths: Tokens of each; on the host, so that nobody waits for the device to tell them.
        longest: The most tokens of one, rounded up to a power of two: few values, few compilations.
    """

    bounds: torch.Tensor
    lengths: list[int]
    longest: int

    @classmethod
    def of(cls, position_ids: torch.Tensor) -> Documents:
        """Find them: one begins where a position does not follow its left neighbour's.

        Args:
            position_ids: `[rows, positions]`; each row begins with a document of its own.
        """
        import torch

        begins = torch.ones_like(position_ids, dtype=torch.bool)
        begins[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
        starts = begins.flatten().nonzero()[:, 0]
        bounds = torch.cat([starts, starts.new_tensor([begins.numel()])])
        lengths = bounds.diff().tolist()
        return cls(bounds.int(), lengths, 1 << (max(lengths) - 1).bit_length())


@dataclass(frozen=True)
class Batch:
    """What goes through the model at once. All tensors are int64 [rows, positions].

    Attributes:
        input_ids: Tokens; `pad_id` after a row's end.
        labels: The token that each position is to predict, -100 where none is trained: shifted
            already, and never across the end of a document.
        position_ids: Position in the document. In packs they restart at 0 with each document,
            and once more where the padding begins.
        weights: Weight of each label's loss, float32; `None`: 1 where there is a label.
        documents: Where documents begin and end, by `position_ids`; found if left out.
        targets: Places of the labels that are trained, int64 [trained], rows end to end; found if
            left out.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    weights: torch.Tensor | None = None
    documents: Documents = None  # type: ignore[assignment]
    targets: torch.Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Find what the positions and labels say, before the batch goes to a device."""
        if self.documents is None:
            object.__setattr__(self, "documents", Documents.of(self.position_ids))
        if self.targets is None:
            targets = (self.labels.flatten() != IGNORE).nonzero()[:, 0]
            object.__setattr__(self, "targets", targets)

    def to(self, device: Any) -> Batch:
        """Return the batch on another device. From pinned memory the copy waits for nobody."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Return the batch in memory from which a GPU can copy by itself."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return Batch(
            change(self.input_ids),
            change(self.labels),
            change(self.position_ids),
            None if self.weights is None else change(self.weights),
            replace(self.documents, bounds=change(self.documents.bounds)),
            change(self.targets),
        )


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step.

    Attributes:
        micro_batches: Those of this data-parallel rank; every rank has equally many.
        trained_tokens: Trained targets of the whole global batch, over all ranks.
        loss_weight: Sum of their weights: what the sum of their losses is divided by.
        tokens: Tokens of the whole global batch, without padding.
    """

    micro_batches: list[Batch]
    trained_tokens: int
    tokens: int
    loss_weight: float
