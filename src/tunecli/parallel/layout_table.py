"""The layout in words, for the start of a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mesh import Layout

WHOLE = 16
"""Up to so many ranks each has its line; of more, the first and the last few are shown."""
ENDS = 4

MEANING = {
    "dp_replicate": "replicas of the model read different rows and average their gradients",
    "dp_shard": "weights, gradients and optimizer state are sharded; each rank reads its own rows",
    "cp": "each row is split along its length; weights are sharded over these ranks, too",
    "tp": "each layer's matrices and the vocabulary are split; peers read the same rows",
}


def describe_layout(
    layout: Layout, device_of: Callable[[int], str], backend: str, timeout: timedelta
) -> str:
    """Say which rank stands where, what each axis splits, and how ranks talk to each other."""
    sizes = {axis: getattr(layout, axis) for axis in MEANING}
    product = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    lines = [f"layout: {product} = {layout.world_size} processes"]
    lines += [f"  {'rank':>4}  " + "  ".join(sizes) + "  device"]
    for rank in _shown(layout.world_size):
        lines.append("   ..." if rank is None else _line(rank, sizes, device_of(rank)))
    lines += [f"  {axis} {size}: {MEANING[axis]}" for axis, size in sizes.items() if size > 1]
    minutes = timeout.total_seconds() / 60
    lines.append(f"  backend {backend}; a collective may take {minutes:g} minutes")
    return "\n".join(lines)


def coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return where a rank stands on each axis; the last axis runs fastest."""
    found = {}
    for axis, size in reversed(sizes.items()):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in sizes}


def _line(rank: int, sizes: dict[str, int], device: str) -> str:
    places = coordinates(rank, sizes)
    cells = "  ".join(f"{places[axis]:>{len(axis)}}" for axis in sizes)
    return f"  {rank:>4}  {cells}  {device}"


def _shown(count: int) -> list[int | None]:
    """Return the ranks to show; `None` stands for those left out."""
    ranks = list(range(count))
    return [*ranks] if count <= WHOLE else [*ranks[:ENDS], None, *ranks[-ENDS:]]
