from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import ranks
from distributed.compare import Outcome, errors, outcome
from distributed.world import Worlds
from runs import run_config
from toys import write_model_dir

from tunecli.config import Config
from tunecli.parallel import Layout
from tunecli.parallel.mesh import KEYS

WORST = pytest.StashKey[dict[str, dict[str, float]]]()


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


class Bench:
    """Runs a configuration on a layout and in one process, and compares.

    One-process runs are kept: every layout is compared with the same.
    """

    def __init__(self, root: Path, worlds: Worlds, worst: dict[str, dict[str, float]]) -> None:
        self._root, self._worlds, self._worst = root, worlds, worst
        self._alone: dict[str, Outcome] = {}
        self._count = 0

    def config(
        self, layout: Layout | None = None, *, tied: bool = True, model: Path | None = None,
        rows: list[Any] | None = None, **values: Any,
    ) -> Config:  # fmt: skip
        """A configuration with a directory of its own for its output."""
        self._count += 1
        sizes = {key: getattr(layout or Layout(), axis) for axis, key in KEYS.items()}
        place = self._root / hashlib.sha256(repr((tied, rows)).encode()).hexdigest()[:8]
        if not (place / "model").exists():
            write_model_dir(place / "model", tied=tied)
        if model is not None:
            values["base_model"] = str(model)
        output = self._root / f"out-{self._count}"
        return run_config(place, rows, **{"output_dir": str(output), **sizes, **values})

    def run(self, layout: Layout, **values: Any) -> Outcome:
        """Train on `layout`; return what was written."""
        config = self.config(layout, **values)
        self.train(config, layout)
        return outcome(config)

    def train(self, config: Config, layout: Layout) -> None:
        """Train on the processes of `layout`, or in this one."""
        if layout.world_size == 1:
            ranks.train(config)
        else:
            self._worlds[layout.world_size].run(ranks.train, config)

    def alone(self, **values: Any) -> Outcome:
        """Train in this process; kept."""
        key = repr(sorted(values.items(), key=lambda item: item[0]))
        if key not in self._alone:
            self._alone[key] = self.run(Layout(), **values)
        return self._alone[key]

    def compare(self, kind: str, layout: Layout, **values: Any) -> dict[str, float]:
        """Train on `layout` and in one process; return the largest relative errors."""
        mesh_only = ("context_parallel_backend", "fsdp_config", "sequence_parallel")
        one = self.alone(**{k: v for k, v in values.items() if k not in mesh_only})
        found = errors(self.run(layout, **values), one)
        worst = self._worst.setdefault(kind, {})
        for name, error in found.items():
            worst[name] = max(worst.get(name, 0.0), error)
        return found


@pytest.fixture(scope="session")
def bench(
    tmp_path_factory: pytest.TempPathFactory, worlds: Worlds, pytestconfig: pytest.Config
) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("bench")
    yield Bench(root, worlds, pytestconfig.stash.setdefault(WORST, {}))
    shutil.rmtree(root, ignore_errors=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not (worst := config.stash.get(WORST, {})):
        return
    terminalreporter.section("largest relative errors against one process")
    for kind, found in worst.items():
        text = ", ".join(f"{name} {error:.1e}" for name, error in found.items())
        terminalreporter.line(f"{kind}: {text}")
