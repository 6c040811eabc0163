"""`tunecli validate` and `tunecli schema`: fast, without torch."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import json_schema, load_config, local_problems, redact
from ..errors import ConfigError
from ..reporter import Reporter
from .common import Json, Quiet


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(validate)
    app.command()(schema)


def validate(
    configs: Annotated[
        list[Path], typer.Argument(help="YAML files.", metavar="CONFIG.YAML...", show_default=False)
    ],
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Check configurations, and the local files that they name, without loading a model."""
    reporter = Reporter(quiet=quiet, clean=redact)
    results: list[dict[str, Any]] = []
    for path in configs:
        try:
            config = load_config(path, note=reporter.info)
            if problems := local_problems(config, file=str(path)):
                raise ConfigError(problems)
        except ConfigError as error:
            results.append({"file": str(path), "ok": False, "problems": _rows(error)})
            if not json:
                typer.echo(redact(str(error)), err=True)
        else:
            results.append({"file": str(path), "ok": True, "problems": []})
        if not json and not quiet:
            typer.echo(f"{path}: {'ok' if results[-1]['ok'] else 'wrong'}")
    if json:
        typer.echo(redact(json_module.dumps(results)))
    if not all(result["ok"] for result in results):
        raise typer.Exit(2)


def _rows(error: ConfigError) -> list[dict[str, Any]]:
    return [
        {
            "key": problem.key,
            "line": problem.line,
            "column": problem.column,
            "message": problem.message,
            "remedy": problem.remedy,
        }
        for problem in error.problems
    ]


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    typer.echo(json_module.dumps(json_schema(), indent=2))
