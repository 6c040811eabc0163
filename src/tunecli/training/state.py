"""What a run knows about itself besides weights: saved as JSON in each checkpoint."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class TrainState:
    """Progress of a run.

    Attributes:
        step: Optimizer steps made.
        epoch: Passes over the data made, as a fraction.
        tokens: Tokens read since the start, padding not counted.
        trained_tokens: Targets trained since the start.
        seconds: Time spent in training steps since the start, evaluation and saving not counted.
        best_loss: Lowest evaluation loss.
        best_step: Step of that evaluation.
        stale_evaluations: Evaluations since then.
        high_losses: Logged losses in a row above the watchdog's threshold.
        scaler: State of the fp16 loss scaler.
        interval: Sums since the last line of metrics, so that a resumed run logs the same line.
    """

    step: int = 0
    epoch: float = 0.0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    stale_evaluations: int = 0
    high_losses: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)
    interval: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(**values)
