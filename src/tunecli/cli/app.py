"""The Typer application and the one place where errors become exit codes.

Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 128 + signal when interrupted.
Results go to standard output; progress and messages go to standard error.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .._version import __version__
from ..config import redact
from ..errors import TunecliError
from ..launch.failures import record_failure
from . import data, inspect, models, samples, training, validation

app = typer.Typer(
    name="tunecli",
    help="Fine-tune language models from one YAML file.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for module in (training, data, inspect, models, validation, samples):
    module.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tunecli {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Fine-tune language models from one YAML file."""


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except TunecliError as error:
        record_failure(error)  # where torchrun, if it has started this process, looks for it
        typer.echo(f"error: {redact(str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
