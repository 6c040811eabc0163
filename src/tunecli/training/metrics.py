"""Metrics: one JSON object a line in the output directory."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..files import write_text

FILE = "metrics.jsonl"


class MetricsLog:
    """Appends to `metrics.jsonl`; every line is on disk before the next step begins."""

    def __init__(self, output_dir: Path, last_step: int) -> None:
        """Continue the file of `output_dir` after `last_step`.

        Lines of later steps are removed: they belong to a run that died after its checkpoint,
        and the steps are about to be made again.
        """
        self._path = output_dir / FILE
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if _step(line) <= last_step]
            if len(kept) < len(lines):
                write_text(self._path, "".join(kept))

    def write(self, values: dict[str, Any]) -> None:
        """Append one line. Floats keep their full precision."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


class Reading:
    """Numbers of a step on their way from the device to the host.

    Asking a GPU for a number makes the host wait until all that was queued before is done, and
    the GPU wait for the host to queue more. A copy that is only looked at one step later stalls
    neither.

    Args:
        step: Number of the step, from 1.
        values: Float tensor of `names`' length, on any device.
        names: What the values are.
    """

    def __init__(self, step: int, values: torch.Tensor, names: Sequence[str]) -> None:
        self.step = step
        self._names = names
        self._host = values.to("cpu", non_blocking=True)
        self._done: torch.cuda.Event | None = None
        if values.is_cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    @property
    def here(self) -> bool:
        """Whether nothing is to be waited for."""
        return self._done is None

    def values(self) -> dict[str, float]:
        """Return the values by name; waits for them."""
        if self._done is not None:
            self._done.synchronize()
        return dict(zip(self._names, self._host.tolist(), strict=True))


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        # A line cut short by a crash belongs to no step that was saved.
        return float("inf")


def peak_memory_gib(device: torch.device) -> float:
    """Return the most memory used so far: of the GPU's allocator, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
