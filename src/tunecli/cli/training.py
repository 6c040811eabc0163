"""`tunecli train` and `tunecli evaluate`: in this process, or in several that it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import load_config, local_problems
from ..errors import ConfigError, UsageError
from ..launch import LOGS
from ..reporter import Reporter
from .common import (
    EPILOG,
    OVERRIDES,
    ConfigFile,
    Json,
    Quiet,
    Worker,
    make_reporter,
    print_result,
    silence_libraries,
)

if TYPE_CHECKING:
    from ..config import Config
    from ..launch.plan import Machines
    from ..parallel.environment import Place

PANEL = "Several machines"
Nodes = Annotated[
    int | None,
    typer.Option("--nnodes", help="Number of machines.", rich_help_panel=PANEL),
]
NodeRank = Annotated[
    int,
    typer.Option("--node-rank", help="Number of this machine, from 0.", rich_help_panel=PANEL),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="Address of machine 0, and a free port on it.",
        rich_help_panel=PANEL,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(train)
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(evaluate)


def train(
    context: typer.Context,
    config: ConfigFile,
    quiet: Quiet = False,
    json: Json = False,
    nnodes: Nodes = None,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = None,
) -> None:
    """Train a model, and write it to output_dir."""
    options = ["--quiet"] * quiet + ["--json"] * json
    machines = _MachineOptions(nnodes, node_rank, rdzv_endpoint)
    part = _begin(context, config, quiet, machines, ["train", str(config), *options])
    if part is None:
        return
    from ..api import train as run

    result = run(part.config, part.reporter)
    if part.is_main:
        print_result(asdict(result), json)


def evaluate(
    context: typer.Context,
    config: ConfigFile,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Model, adapter or checkpoint; output_dir if left out."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    nnodes: Nodes = None,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = None,
) -> None:
    """Measure the loss of a trained model on the evaluation rows."""
    options = ["--quiet"] * quiet + ["--json"] * json
    options += ["--model", str(model)] if model else []
    machines = _MachineOptions(nnodes, node_rank, rdzv_endpoint)
    part = _begin(context, config, quiet, machines, ["evaluate", str(config), *options])
    if part is None:
        return
    from ..api import evaluate as run

    result = run(part.config, part.reporter, model)
    if part.is_main:
        print_result(asdict(result), json)


@dataclass(frozen=True)
class _MachineOptions:
    """What the command line says about machines."""

    count: int | None
    rank: int
    endpoint: str | None

    def resolve(self, place: Place | None) -> Machines:
        """Return the machines of the run; what the options leave out, `srun` may know."""
        from ..launch.plan import Machines

        if self.count is None and place is not None:
            return Machines(place.world_size, place.rank, self.endpoint or place.endpoint)
        return Machines(self.count or 1, self.rank, self.endpoint)


@dataclass(frozen=True)
class _Part:
    """What this process is to do."""

    config: Config
    reporter: Reporter
    is_main: bool


def _begin(
    context: typer.Context,
    path: Path,
    quiet: bool,
    options: _MachineOptions,
    arguments: Sequence[str],
) -> _Part | None:
    """Return this process's part of the run; or start its processes, and return when all is done.

    Raises:
        ConfigError: The configuration cannot be used, or does not fit the processes.
        RankFailed: A process that was started failed.
    """
    reporter = make_reporter(quiet)
    config, notes = _read(path, context.args, reporter)
    # From here on torch is needed.
    from ..parallel.environment import find_place

    place = find_place(os.environ)
    is_main = place is None or place.rank == 0
    reporter = make_reporter(quiet or not is_main)
    if not isinstance(context.obj, Worker):
        for note in notes:
            reporter.info(note)
    if place is None or place.one_per_machine:
        if _start(config, options, place, [*arguments, *context.args], reporter):
            return None
    else:
        _check_started(config, options, place)
    silence_libraries(reporter)
    return _Part(config, reporter, is_main)


def _check_started(config: Config, options: _MachineOptions, place: Place) -> None:
    """Refuse what each process can refuse by itself, before it waits for the others."""
    from ..parallel.mesh import Layout

    if options.count is not None:
        raise UsageError("--nnodes is for starting processes, but a launcher has started this one")
    Layout.from_config(config, place.world_size)


def _read(path: Path, overrides: list[str], reporter: Reporter) -> tuple[Config, list[str]]:
    """Read the configuration; return it and what there is to say about it."""
    notes: list[str] = []
    try:
        return load_config(path, overrides=overrides, note=notes.append), notes
    except ConfigError:
        for note in notes:
            reporter.info(note)
        raise


def _start(
    config: Config,
    options: _MachineOptions,
    place: Place | None,
    arguments: list[str],
    reporter: Reporter,
) -> bool:
    """Run the command in as many processes as it needs; `False` if this one is enough."""
    import torch

    from ..launch.plan import plan_processes

    machines = options.resolve(place)
    plan = plan_processes(config, torch.cuda.device_count(), machines.count)
    if plan.note:
        reporter.info(plan.note)
    if plan.per_machine == 1 and (machines.count == 1 or place is not None):
        return False
    if problems := local_problems(config):
        raise ConfigError(problems)
    log_dir = Path(config.output_dir).expanduser() / LOGS
    here = f"starting {plan.per_machine} process{'es' * (plan.per_machine > 1)}"
    if machines.count > 1:
        here += f" as machine {machines.rank} of {machines.count}, met at {machines.endpoint}"
    reporter.info(f"{here}; the terminal shows rank 0, others log to {log_dir}")
    from ..launch.local import launch

    try:
        launch(plan, machines, "tunecli.cli.worker", arguments, log_dir)
    finally:
        if reporter.interactive:
            # Rank 0 may have been ended while a bar hid it.
            reporter.console.show_cursor(True)
    return True
