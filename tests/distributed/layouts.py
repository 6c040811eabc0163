"""The layouts that tests run, and how they are called."""

from __future__ import annotations

import itertools

import pytest

from tunecli.parallel import Layout

EVERY = [Layout(*s) for s in itertools.product((1, 2), repeat=4) if s != (1, 1, 1, 1)]
"""Every product of axes of one or two processes."""

AXES = {"dp": "dp_replicate", "fsdp": "dp_shard", "cp": "cp", "tp": "tp"}


def name(layout: Layout) -> str:
    """`dp2-fsdp2`: the axes that have more than one process."""
    sizes = {short: getattr(layout, axis) for short, axis in AXES.items()}
    return "-".join(f"{short}{size}" for short, size in sizes.items() if size > 1)


def params(*layouts: Layout) -> list[pytest.ParameterSet]:
    """Layouts as parameters of a test."""
    return [pytest.param(layout, id=name(layout)) for layout in layouts]


def with_backends(*layouts: Layout) -> list[pytest.ParameterSet]:
    """Layouts as parameters, those with context parallelism once for each backend."""
    return [
        pytest.param(layout, backend, id=name(layout) + (f"-{backend}" if layout.cp > 1 else ""))
        for layout in layouts
        for backend in (("ulysses", "allgather") if layout.cp > 1 else ("auto",))
    ]
