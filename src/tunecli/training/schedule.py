"""Learning rate and calendar: pure functions of the step, so that a resumed run needs no state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True)
class Schedule:
    """The learning rate's factor at each step.

    Attributes:
        kind: Shape by name, as in the configuration's `lr_scheduler`.
        total: Optimizer steps of the run.
        warmup: Steps of linear warm-up.
        minimum: `cosine` ends here (share of the peak).
        decay: `warmup_stable_decay`: length of the final decay in steps.
    """

    kind: str
    total: int
    warmup: int = 0
    minimum: float = 0.0
    decay: int = 0

    @classmethod
    def from_config(cls, config: Config, total: int) -> Self:
        """Turn ratios into steps of a run of `total` steps."""
        warmup: float = 0
        if config.warmup_ratio is not None:
            warmup = config.warmup_ratio * total
        elif config.warmup_steps is not None:
            warmup = config.warmup_steps * (total if config.warmup_steps < 1 else 1)
        return cls(
            kind=config.lr_scheduler,
            total=total,
            warmup=math.ceil(warmup),
            minimum=config.cosine_min_lr_ratio,
            decay=math.ceil(config.lr_decay_ratio * total),
        )

    def factor(self, step: int) -> float:
        """Return the factor for the `step`-th update, counted from 0.

        Warm-up rises from `1 / (warmup + 1)`, so that no update is spent at rate zero. What
        follows starts at exactly 1 in the first update after the warm-up and reaches its end
        in the (unmade) update `total`, as transformers' schedules do.
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        progress = (step - self.warmup) / max(1, self.total - self.warmup)
        if self.kind == "linear":
            return 1.0 - progress
        if self.kind == "cosine":
            half = 0.5 * (1.0 + math.cos(math.pi * progress))
            return self.minimum + (1.0 - self.minimum) * half
        if self.kind == "warmup_stable_decay":
            left = self.total - step
            return min(1.0, left / self.decay) if self.decay else 1.0
        return 1.0


@dataclass(frozen=True)
class Calendar:
    """At which steps something is due, besides the last one.

    Attributes:
        total: Optimizer steps of the run.
        every: Due every so many steps, or never if `None`.
        epoch: Steps of an epoch, for what is due a number of times in each.
        per_epoch: How many times in each epoch, evenly spread; the last at its end.
        last: Due at the last step of the run, too.
    """

    total: int
    every: int | None = None
    epoch: int = 1
    per_epoch: int | None = None
    last: bool = False

    @classmethod
    def from_keys(
        cls,
        strategy: str | None,
        steps: float | None,
        per_epoch: int | None,
        *,
        total: int,
        epoch: int,
    ) -> Self:
        """Read the keys `X_strategy`, `X_steps` and `Xs_per_epoch` for one of eval and save."""
        if strategy in ("no", "best"):
            return cls(total)
        if steps is not None:
            every = max(1, round(steps * total)) if steps < 1 else int(steps)
            return cls(total, every=every, last=True)
        return cls(total, epoch=epoch, per_epoch=per_epoch or 1, last=True)

    def due(self, step: int) -> bool:
        """Tell whether it is due after `step` updates."""
        if self.last and step == self.total:
            return True
        if self.every is not None:
            return step % self.every == 0
        if self.per_epoch is None:
            return False
        # The k-th of n times in an epoch of s steps falls on step ceil(k * s / n).
        within = (step - 1) % self.epoch + 1
        n = min(self.per_epoch, self.epoch)
        return within * n // self.epoch > (within - 1) * n // self.epoch
