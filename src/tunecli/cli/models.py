"""`tunecli merge` and `tunecli chat`."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    silence_libraries,
)

if TYPE_CHECKING:
    from ..chat import ChatSession


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(merge)
    app.command()(chat)


def merge(
    context: typer.Context,
    config: ConfigFile,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="Adapter; that of the run if left out.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to; output_dir/merged if left out.")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Merge a trained adapter into its base model."""
    reporter = make_reporter(quiet)
    settings = read_config(config, context, reporter)
    from ..api import merge as run

    print_result({"merged": str(run(settings, reporter, adapter, output))}, json)


def chat(
    model: Annotated[str, typer.Argument(help="Directory of a model or adapter, or a Hub id.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Ask this and leave; may be given several times."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System prompt.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: the likeliest word each time.")
    ] = 0.0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Talk to a trained model. /new forgets the conversation, /quit (or Ctrl-D) leaves."""
    reporter = make_reporter(quiet)
    silence_libraries(reporter)
    from ..chat import ChatSession

    with reporter.task("loading the model", None):
        session = ChatSession.load(
            model,
            trust_remote_code,
            system=system,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
        )
    if prompt:
        _one_shot(session, prompt, json)
    else:
        _converse(session)


def _one_shot(session: ChatSession, prompts: list[str], as_json: bool) -> None:
    for question in prompts:
        if as_json:
            answer = session.ask(question)
            typer.echo(json_module.dumps({"prompt": question, "answer": answer.strip()}))
        else:
            _print_stream(session, question)


def _print_stream(session: ChatSession, question: str) -> None:
    for piece in session.stream(question):
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo()


def _converse(session: ChatSession) -> None:
    typer.echo("/new forgets the conversation, /quit leaves", err=True)
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        if question in ("/quit", "/exit"):
            return
        if question == "/new":
            session.reset()
        elif question:
            _print_stream(session, question)
