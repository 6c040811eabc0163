"""`tunecli train` and `tunecli evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .common import (
    EPILOG,
    OVERRIDES,
    ConfigFile,
    Json,
    Quiet,
    make_reporter,
    print_result,
    read_config,
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(train)
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(evaluate)


def train(
    context: typer.Context, config: ConfigFile, quiet: Quiet = False, json: Json = False
) -> None:
    """Train a model, and write it to output_dir."""
    reporter = make_reporter(quiet)
    settings = read_config(config, context, reporter)
    from ..api import train as run

    print_result(asdict(run(settings, reporter)), json)


def evaluate(
    context: typer.Context,
    config: ConfigFile,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Model, adapter or checkpoint; output_dir if left out."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measure the loss of a trained model on the evaluation rows."""
    reporter = make_reporter(quiet)
    settings = read_config(config, context, reporter)
    from ..api import evaluate as run

    print_result(asdict(run(settings, reporter, model)), json)
