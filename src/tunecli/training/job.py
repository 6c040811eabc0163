"""What a run is made of, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from ..config import Config
    from ..data import BatchLoader
    from ..model.loss import TokenLoss
    from ..model.precision import Precision
    from ..model.tokenizer import Vocabulary
    from ..parallel import Mesh
    from ..reporter import Reporter


@dataclass(frozen=True)
class Job:
    """All that a run works with, as the builder made it.

    Attributes:
        config: The effective configuration.
        mesh: Where this process stands.
        precision: Numeric types.
        loss: Sum of token losses of a micro-batch.
        vocabulary: The tokenizer.
        model: With its adapter, on the device, in training mode.
        optimizer: Over the trained parameters.
        train_loader: Global batches by epoch and index.
        eval_loader: Evaluation batches, if there are evaluation rows.
        data_key: Identity of the prepared data.
        reporter: Whom to tell.
    """

    config: Config
    mesh: Mesh
    precision: Precision
    loss: TokenLoss
    vocabulary: Vocabulary
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    train_loader: BatchLoader
    eval_loader: BatchLoader | None
    data_key: str
    reporter: Reporter

    @property
    def output_dir(self) -> Path:
        """Directory of the run."""
        return Path(self.config.output_dir).expanduser()

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        return self.train_loader.steps(self.config.num_epochs)


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        output_dir: Where the final model is.
        steps: Optimizer steps made, earlier parts of a resumed run included.
        loss: Last logged training loss.
        eval_loss: Last evaluation loss.
        best_step: Step of the best evaluation.
        best_checkpoint: Its checkpoint, if it was saved.
        stopped_early: Whether patience ran out.
        tokens: Tokens read.
        trained_tokens: Targets trained.
        seconds: Time in training steps.
    """

    output_dir: str
    steps: int
    loss: float | None
    eval_loss: float | None
    best_step: int | None
    best_checkpoint: str | None
    stopped_early: bool
    tokens: int
    trained_tokens: int
    seconds: float
