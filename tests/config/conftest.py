"""Fixtures of the configuration's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tunecli.config import Config, load_config
from tunecli.errors import ConfigError, Problem

BASE = "base_model: m\ndatasets:\n  - path: d\nlearning_rate: 1e-4\n"
"""Four lines: what a test adds starts at line 5."""

Load = Callable[..., Config]
Problems = Callable[..., dict[str, Problem]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def call(text: str = "", overrides: Sequence[str] = (), base: str = BASE, **kwargs) -> Config:
        path = tmp_path / "c.yaml"
        path.write_text(base + text, encoding="utf-8")
        return load_config(path, overrides, **kwargs)

    return call


@pytest.fixture
def problems(load: Load) -> Problems:
    """Return the problems of a text by key; by flag where there is no key."""

    def call(*args, **kwargs) -> dict[str, Problem]:
        with pytest.raises(ConfigError) as caught:
            load(*args, **kwargs)
        return {problem.key or str(problem.file): problem for problem in caught.value.problems}

    return call
