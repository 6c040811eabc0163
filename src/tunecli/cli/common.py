"""What commands share: arguments, reporter, output."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import load_config, redact
from ..reporter import Reporter

if TYPE_CHECKING:
    from ..config import Config

ConfigFile = Annotated[
    Path, typer.Argument(help="YAML file.", metavar="CONFIG.YAML", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Worker:
    """The object of a command's context in a process that `tunecli` has started as one of many."""


OVERRIDES: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
}
"""Context settings of commands that take any value of the YAML as an option."""

EPILOG = "Any value of the YAML can be set here: --learning-rate 1e-4 --datasets.0.path x.jsonl"


def make_reporter(quiet: bool) -> Reporter:
    """Return the reporter of a command: standard error, secrets removed."""
    return Reporter(quiet=quiet, clean=redact)


def silence_libraries(reporter: Reporter) -> None:
    """Keep the bars of other libraries out of ours, all bars out of logs, and known noise out."""
    import datasets
    import transformers
    from huggingface_hub.utils.tqdm import disable_progress_bars

    # Nothing here works in place on what a sharded model returns.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    # Weights on a mesh of several axes are gathered in as many messages: true, and all right.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    # bitsandbytes, where it is installed, tells every run about a kernel that few of them want.
    for name in ("bitsandbytes", "kernels"):
        logging.getLogger(name).setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    if not reporter.interactive:
        # On a terminal downloads show their own bars: nothing else runs meanwhile.
        disable_progress_bars()


def read_config(path: Path, context: typer.Context, reporter: Reporter) -> Config:
    """Load the file and the overrides that stand behind it on the command line."""
    config = load_config(path, overrides=context.args, note=reporter.info)
    silence_libraries(reporter)
    return config


def print_result(values: dict[str, Any], as_json: bool) -> None:
    """Print figures to standard output: JSON, or one `name: value` a line."""
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in _flat(values):
        typer.echo(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, [], {}):
            yield prefix + name, value
