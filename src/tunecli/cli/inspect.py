"""`tunecli inspect`: rows as they will be trained, on the terminal, as JSON or as a page."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import EPILOG, OVERRIDES, ConfigFile, Json, Quiet, make_reporter, read_config

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..data import Inspection
    from ..data.inspect import PackView, RowView, Stats

FATES = {
    "invalid": "broken",
    "too_long": "longer than sequence_len",
    "too_short": "shorter than min_sample_len",
    "untrained": "no trained token",
    "duplicates": "equal to an earlier row",
    "truncated": "truncated to sequence_len",
    "split": "split into pieces",
}
"""What became of a row, in words."""

TRAINED = ("#ffffff on #166534", "#ffffff on #15803d")
SPECIAL = ("bold #fde047 on #166534", "bold #fde047 on #15803d")
"""Styles of trained tokens, ordinary and special, in turn so that their edges are seen."""

TIMES = "\N{MULTIPLICATION SIGN}"
REST = "\N{WHITE BULLET}"
"""Stands for a token that only continues a character."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(context_settings=OVERRIDES, epilog=EPILOG)(inspect)


def inspect(
    context: typer.Context,
    config: ConfigFile,
    row: Annotated[
        str | None,
        typer.Option(help="Only this row: its number, or file:line (dropped rows, too)."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only this entry of datasets: its index, or its path.")
    ] = None,
    longest: Annotated[bool, typer.Option("--longest", help="The longest rows first.")] = False,
    only_untrained: Annotated[
        bool, typer.Option("--only-untrained", help="Rows that were dropped, and why.")
    ] = False,
    packed: Annotated[
        bool | None,
        typer.Option(
            "--packed/--rows", help="Packs or rows; packs with sample_packing.", show_default=False
        ),
    ] = None,
    evaluation: Annotated[
        bool, typer.Option("--eval", help="The rows to evaluate on, not those to train on.")
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="One token a line, with position and id.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, help="Rows or packs to show: 3, or 50 with --html.", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens to show of a row or pack; 0: all.")
    ] = 400,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Show rows as they will be trained, token by token, and count tokens."""
    reporter = make_reporter(quiet)
    settings = read_config(config, context, reporter)
    from ..api import inspect as run

    if limit is None:
        limit = 50 if html else 3
    found = run(
        settings, reporter, row=row, dataset=dataset, longest=longest,
        only_untrained=only_untrained, packed=packed, evaluation=evaluation, limit=limit,
    )  # fmt: skip
    if html:
        from ..files import write_text
        from .inspect_page import page

        write_text(html, page(found, str(config)))
    if json:
        typer.echo(json_module.dumps(asdict(found)))
    elif html:
        typer.echo(str(html))
    else:
        from rich.console import Console

        printer = _Printer(Console(highlight=False, emoji=False), tokens, max_tokens)
        printer.show(found, statistics=row is None)


def heading(view: RowView) -> str:
    """Return number, fate and size of a row; its origin stands beside it."""
    number = f"row {view.number:,}" if view.number else f"dropped: {FATES[view.fate]}"
    parts = [number, view.answer, FATES[view.fate] if view.fate and view.number else ""]
    if view.ids:
        parts.append(f"{len(view.ids):,} tokens, {view.trained:,} trained")
    return " · ".join(filter(None, parts))


def visible(view: RowView) -> list[str]:
    """Return the texts of a row's tokens with white space that matters, and what cannot print.

    Spaces show at the edges of lines, of trained parts and of special tokens, and where there are
    several; newlines show and break the line. Nothing is left that could steer a terminal.
    """
    texts: list[str] = []
    kinds = [(w > 0, s or None) for w, s in zip(view.weights, view.special, strict=True)]
    for _, run in groupby(range(len(kinds)), kinds.__getitem__):
        members = list(run)
        whole = "".join(view.texts[i] for i in members)
        # One sign for one space, so that the tokens still lie where they lay.
        whole = re.sub(r"^ +| +$| +(?=\n)|(?<=\n) +| {2,}", lambda m: "·" * len(m[0]), whole)
        at = 0
        for i in members:
            end = at + len(view.texts[i])
            texts.append("".join(map(_letter, whole[at:end])) or REST)
            at = end
    return texts


def _letter(letter: str) -> str:
    if letter in "\n\t":
        return {"\n": "↵\n", "\t": "→"}[letter]
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


class _Printer:
    """Prints to a terminal, or in plain text with marks around what is trained."""

    def __init__(self, console: Console, tokens: bool, max_tokens: int) -> None:
        self._console = console
        self._tokens, self._most = tokens, max_tokens
        self._plain = console.no_color or console.color_system is None
        if not console.encoding.startswith("utf"):
            console.file.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]

    def show(self, found: Inspection, statistics: bool) -> None:
        if found.rows or found.packs:
            self._legend(bool(found.packs))
        for view in found.rows:
            self._line(f"\n{heading(view)}", "bold", view.origin)
            self._body(view, self._most)
        for pack in found.packs:
            self._pack(pack)
        left = found.found - (len(found.packs) or len({(v.origin, v.number) for v in found.rows}))
        if left > 0 and (found.rows or found.packs):
            self._line(f"\n{left:,} more; --limit shows them", "dim")
        if not found.found:
            self._line("no such row: none was dropped", "bold")
        if statistics:
            self._statistics(found.stats)

    def _line(self, text: str, style: str = "", origin: str = "") -> None:
        line = self._text(text, style)
        if origin:
            line.append(f"  {''.join(map(_letter, origin))}", "cyan")
        self._console.print(line)

    def _text(self, text: str = "", style: str = "") -> Text:
        from rich.text import Text

        return Text(text, style, overflow="fold")

    def _legend(self, packs: bool) -> None:
        line = self._text()
        if self._plain:
            line.append("⟦trained⟧ untrained ")
        else:
            line.append("trained", TRAINED[0]).append("<special>", SPECIAL[0])
            line.append(" untrained", "dim").append("<special> ", "magenta")
        line.append(f" ↵ newline  · space  {REST} rest of a character", "dim")
        self._console.print(line)
        if packs:
            self._line("├─ seam: a row ends, positions restart at 0", "dim")

    def _pack(self, pack: PackView) -> None:
        used = sum(len(view.ids) for view in pack.rows)
        size = used + pack.padding
        trained = sum(view.trained for view in pack.rows)
        self._line(
            f"\npack {pack.number:,} · {len(pack.rows)} rows · {used:,} of {size:,} tokens "
            f"({used / size:.1%}) · {trained:,} trained", "bold",
        )  # fmt: skip
        self._strip(pack, size)
        left = self._most or size
        for at, (begin, view) in enumerate(zip(pack.begins, pack.rows, strict=True)):
            if left <= 0:
                self._line(f"├─ {len(pack.rows) - at} more rows; --max-tokens 0 shows them", "dim")
                break
            self._line(f"├─ {begin:,} · {heading(view)}", "bold", view.origin)
            self._body(view, left)
            left -= len(view.ids)
        if pack.padding:
            self._line(f"├─ {used:,} · {pack.padding:,} padding", "dim")

    def _strip(self, pack: PackView, size: int) -> None:
        """Draw the pack as one line: seams, trained parts, padding."""
        trained = [weight > 0 for view in pack.rows for weight in view.weights]
        width = min(self._console.width, size)
        edges = [column * size // width for column in range(width + 1)]
        line = self._text()
        for begin, end in pairwise(edges):
            part = trained[begin:end]
            if any(begin <= seam < end for seam in pack.begins):
                line.append("│", "cyan")
            elif not part:
                line.append("·", "dim")
            elif sum(part) * 2 >= len(part):
                line.append("█", "green")
            else:
                line.append("░", "dim")
        self._console.print(line)

    def _body(self, view: RowView, most: int) -> None:
        from rich.padding import Padding

        if view.problem:
            self._line(f"  {''.join(map(_letter, view.problem))}", "yellow")
        texts = visible(view)
        total = len(texts)
        head, tail = (total, total) if not most or total <= most else (most * 2 // 3, 0)
        if not tail:
            tail = total - (most - head)
        left_out = sum(weight > 0 for weight in view.weights[head:tail])
        gap = f"… {tail - head:,} tokens, {left_out:,} trained; --max-tokens 0 shows them …"
        if self._tokens:
            for i in [*range(head), *range(tail, total)]:
                if i == tail:
                    self._line(f"  {gap}", "dim")
                self._console.print(self._token_line(view, i))
            return
        line = self._text()
        for i in [*range(head), *range(tail, total)]:
            if i == tail < total and head < tail:
                line.append(f"\n{gap}\n", "dim")
            if i and i == view.cut:
                line.append(f"\n✂ sequence_len {view.cut:,} ends here\n", "yellow")
            for text, style in self._pieces(view, i, texts[i]):
                line.append(text, style)
        line.rstrip()
        self._console.print(Padding(line, (0, 0, 0, 2)))

    def _pieces(self, view: RowView, i: int, text: str) -> Iterator[tuple[str, str]]:
        """Yield the texts and styles that show a token."""
        weights = view.weights
        weight, before = weights[i], weights[i - 1] if i else 0.0
        after = weights[i + 1] if i + 1 < len(weights) else 0.0
        if self._plain and weight > 0 and weight != before:
            yield "⟦", ""
        # A styled line end would colour the rest of the terminal's line.
        body, newline, rest = text.partition("\n")
        style = _style(weight, view.special[i], i)
        while True:
            yield body, style
            if not newline:
                break
            yield newline, ""
            body, newline, rest = rest.partition("\n")
        if weight > 0 and weight != after:
            if weight != 1:
                yield f"{TIMES}{weight:g}", "yellow"
            if self._plain:
                yield "⟧", ""

    def _token_line(self, view: RowView, i: int) -> Text:
        weight = view.weights[i]
        line = self._text(f"{i:>7,} {view.ids[i]:>7}  ", "dim")
        line.append(f"{weight:<4g} " if weight else "     ")
        shown = "".join(map(_letter, view.texts[i])).replace("\n", "") or REST
        shown = re.sub(r"^ +| +$| {2,}", lambda m: "·" * len(m[0]), shown)
        line.append(shown, _style(weight, view.special[i], i))
        return line

    def _statistics(self, stats: Stats) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("data set", overflow="fold", ratio=1)
        mixed = any(entry.epoch_rows != entry.rows for entry in stats.entries)
        for name in ("read", "kept", *(["an epoch"] if mixed else []), "tokens", "trained"):
            table.add_column(name, justify="right", no_wrap=True)
        for entry in stats.entries:
            trained = f"{entry.trained:,}" + (
                f" ({entry.trained / entry.tokens:.1%})" if entry.tokens else ""
            )
            figures = [entry.read, entry.rows, *([entry.epoch_rows] if mixed else []), entry.tokens]
            table.add_row(self._text(entry.path), *(f"{n:,}" for n in figures), trained)
            for fate, count in entry.fates.items():
                table.add_row(self._text(f"  {count:,} {FATES[fate]}", "yellow"))
        self._console.print()
        self._console.print(table)
        self._line(
            f"\n{stats.rows:,} rows, {stats.tokens:,} tokens, {stats.trained:,} trained "
            f"({stats.trained / stats.tokens:.1%})"
            if len(stats.entries) > 1
            else ""
        )
        n = stats.lengths
        self._line(
            f"\n{stats.rows:,} rows, {stats.tokens:,} tokens, {stats.trained:,} trained "
            f"({stats.trained / stats.tokens:.1%})"
        )
        self._line(
            f"tokens a row: {n['min']:,} to {n['max']:,}, mean {n['mean']:,}, median {n['p50']:,}, "
            f"90% up to {n['p90']:,}, 99% up to {n['p99']:,}"
        )
        most = max(count for _, _, count in stats.histogram)
        high = len(f"{stats.histogram[-1][1]:,}")
        room = max(8, min(self._console.width, 100) - 2 * high - len(f"{most:,}") - 8)
        for first, last, count in stats.histogram:
            bar = _bar(count / most * room)
            line = self._text(f"  {first:>{high},} - {last:>{high},}  ").append(bar, "green")
            self._console.print(line.append(f" {count:,}", "dim"))
        for text in packing_lines(stats):
            self._line(text)


def packing_lines(stats: Stats) -> Iterator[str]:
    """Yield what there is to say about packs and padding."""
    packs = f"{stats.packs:,} packs of {stats.sequence_len:,} tokens, {stats.pack_fill:.2%} full"
    if stats.batch_fill is None:
        yield packs
    else:
        yield f"padded batches: {stats.batch_fill:.1%} of the positions are tokens"
        yield f"with sample_packing: {packs}"


def _style(weight: float, special: bool, i: int) -> str:
    if weight > 0:
        return (SPECIAL if special else TRAINED)[i % 2]
    return "magenta" if special else "dim"


def _bar(length: float) -> str:
    """Draw a bar in eighths of a letter."""
    eighths = round(length * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
