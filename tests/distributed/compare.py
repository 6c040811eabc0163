"""What a run left on disk, and how far two runs are apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from runs import metrics
from safetensors.torch import load_file

from tunecli.config import Config

COUNTED = ("step", "epoch", "tokens", "trained_tokens", "eval_trained_tokens", "learning_rate")
"""Values that must be equal to the last bit."""

MEASURED = ("loss", "grad_norm", "eval_loss")


@dataclass(frozen=True)
class Outcome:
    """Metrics and final weights of a run."""

    lines: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]

    def column(self, name: str) -> list[float]:
        """The values of one metric."""
        return [line[name] for line in self.lines if name in line]


def outcome(config: Config) -> Outcome:
    """Read what a run of `config` wrote."""
    directory = Path(config.output_dir)
    name = "adapter_model" if config.adapter else "model"
    return Outcome(metrics(config), load_file(directory / f"{name}.safetensors"))


def weight_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest element.

    LoRA's B begins at zero; after two small steps its rounding is that of the sums it came from.
    """
    difference = (ours.double() - theirs.double()).abs().max().item()
    return difference / max(theirs.abs().max().item(), 1e-4)


def errors(ours: Outcome, theirs: Outcome) -> dict[str, float]:
    """The largest relative error of each metric and of the weights; counters must be equal."""
    assert len(ours.lines) == len(theirs.lines)
    worst = dict.fromkeys((*MEASURED, "weights"), 0.0)
    for mine, other in zip(ours.lines, theirs.lines, strict=True):
        assert mine.keys() == other.keys()
        assert {k: mine[k] for k in COUNTED if k in mine} == {
            k: other[k] for k in COUNTED if k in other
        }
        for name in MEASURED:
            if name in mine:
                error = abs(mine[name] - other[name]) / abs(other[name])
                worst[name] = max(worst[name], error)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, tensor in theirs.weights.items():
        assert ours.weights[name].shape == tensor.shape, name
        worst["weights"] = max(worst["weights"], weight_error(ours.weights[name], tensor))
    return worst
