"""`tunecli preprocess`."""

from __future__ import annotations

from dataclasses import asdict

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
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(preprocess)


def preprocess(
    context: typer.Context, config: ConfigFile, quiet: Quiet = False, json: Json = False
) -> None:
    """Tokenize, mask and cache the data, so that training starts at once."""
    reporter = make_reporter(quiet)
    settings = read_config(config, context, reporter)
    from ..api import preprocess as run

    print_result(asdict(run(settings, reporter)), json)
