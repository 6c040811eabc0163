"""`tunecli inspect`: rows as they will be trained, on the terminal, as JSON or as a page."""

from __future__ import annotations

import json as json_module
import re
from dataclasses import asdict
from html import escape
from io import StringIO
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..files import write_text
from .common import EPILOG, OVERRIDES, ConfigFile, Json, Quiet, make_reporter, read_config

if TYPE_CHECKING:
    from rich.console import Console

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
TRAINED_SPECIAL = ("bold #fde047 on #166534", "bold #fde047 on #15803d")
"""Styles of trained tokens, in turn so that their edges are seen."""

DIM, SPECIAL, PLACE, WARNING, BAR = "dim", "magenta", "cyan", "yellow", "green"

ALL = "(--max-tokens 0 shows all)"
CUT = "── sequence_len {:,} ends here ──\n"
TIMES = "\N{MULTIPLICATION SIGN}"
REST = "\N{WHITE BULLET}"
"""Stands for a token that only continues a character."""

PAGE_WIDTH = 110
PAGE_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>TITLE</title><style>
{stylesheet}
:root {{ color-scheme: light dark }}
body {{ margin: 2rem; color: #1f2328; background: #fff }}
pre {{ font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }}
@media (prefers-color-scheme: dark) {{ body {{ color: #e6edf3; background: #0d1117 }} }}
</style><h1>TITLE</h1>
"""
PAGE_BODY = "<pre>{code}</pre>\n</html>\n"
"""Rich fills in the styles and escapes the text; `TITLE` is ours to fill in."""

PAGE_COLORS = [(0, 0, 0), (207, 34, 46), (34, 163, 82), (178, 118, 20), (59, 130, 246),
               (168, 85, 247), (14, 147, 173), (128, 128, 128)]  # fmt: skip
"""The terminal's eight colours in shades that can be read on white and on black."""


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
    from rich.console import Console

    if html:
        from rich.terminal_theme import TerminalTheme

        console = Console(file=StringIO(), record=True, width=PAGE_WIDTH, force_terminal=True,
                          color_system="truecolor", no_color=False, highlight=False)  # fmt: skip
        printer = _Printer(console, tokens, max_tokens)
        printer.statistics(found.stats)
        printer.rows(found)
        head = PAGE_HEAD.replace("TITLE", escape(printable(str(config))))
        theme = TerminalTheme((255, 255, 255), (0, 0, 0), PAGE_COLORS)
        write_text(html, console.export_html(theme=theme, code_format=head + PAGE_BODY))
        typer.echo(str(html), err=json)
    if json:
        typer.echo(json_module.dumps(asdict(found)))
    elif not html:
        printer = _Printer(Console(highlight=False), tokens, max_tokens)
        printer.rows(found)
        if row is None:
            printer.statistics(found.stats)


def printable(text: str) -> str:
    """Return a text in which nothing is left that could steer a terminal; newlines show."""
    signs = {"\n": "↵\n", "\t": "→"}
    return "".join(
        signs.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode())
        for c in text
    )


def visible(view: RowView) -> list[str]:
    """Return what to print for each token of a row.

    Spaces show at the edges of lines, of trained parts and of special tokens, and where there are
    several.
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
            texts.append(printable(whole[at:end]) or REST)
            at = end
    return texts


class _Printer:
    """Prints with colours, or where there are none with marks around what is trained."""

    def __init__(self, console: Console, tokens: bool, max_tokens: int) -> None:
        self._console = console
        self._tokens, self._most = tokens, max_tokens
        # Sixteen colours have no two that would tell what is trained.
        self._marks = console.no_color or console.color_system in (None, "standard")
        if not console.encoding.startswith("utf"):
            console.file.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]

    def rows(self, found: Inspection) -> None:
        """Print rows or packs, token by token."""
        if not found.found and found.stats.rows:
            self._print(("no row was dropped", "bold"))
        if not found.rows and not found.packs:
            return
        self._print(
            ("\n", ""),
            *([("⟦trained⟧", "")] if self._marks else
              [("trained", TRAINED[0]), ("<special>", TRAINED_SPECIAL[0])]),
            (" untrained", DIM), ("<special>", SPECIAL),
            (f"  ↵ newline  · space  {REST} rest of a character", DIM),
            ("\n├─ place of a seam: positions restart at 0" if found.packs else "", DIM),
        )  # fmt: skip
        for view in found.rows:
            self._print(("\n", ""), *self._heading(view))
            self._body(view, self._most or len(view.ids))
        for pack in found.packs:
            self._pack(pack)
        shown = len(found.packs) or len({(view.origin, view.number) for view in found.rows})
        if found.found > shown:
            what = "packs" if found.packs else "rows"
            self._print((f"\n{found.found - shown:,} more {what} (--limit N)", DIM))

    def _print(self, *parts: tuple[str, str]) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(*parts, overflow="fold"))

    def _heading(self, view: RowView) -> list[tuple[str, str]]:
        size = f"{len(view.ids):,} tokens, {view.trained:,} trained" if view.ids else ""
        number = f"row {view.number:,}" if view.number else "dropped"
        parts = [number, view.answer, FATES.get(view.fate, ""), size]
        return [(" · ".join(filter(None, parts)), "bold"), (f"  {printable(view.origin)}", PLACE)]

    def _pack(self, pack: PackView) -> None:
        used = sum(len(view.ids) for view in pack.rows)
        size = used + pack.padding
        self._print((
            f"\npack {pack.number:,} · {len(pack.rows)} rows · {used:,} of {size:,} tokens "
            f"({used / size:.1%}), {sum(view.trained for view in pack.rows):,} trained", "bold"
        ))  # fmt: skip
        # The pack as one line: seams, trained parts, padding.
        trained = [weight > 0 for view in pack.rows for weight in view.weights]
        width = min(self._console.width, size)
        line = []
        for begin, end in pairwise(column * size // width for column in range(width + 1)):
            part = trained[begin:end]
            if any(begin <= seam < end for seam in pack.begins):
                line.append(("│", PLACE))
            elif not part:
                line.append(("·", DIM))
            else:
                line.append(("█", BAR) if sum(part) * 2 >= len(part) else ("░", DIM))
        self._print(*line)
        left = self._most or size
        for at, (begin, view) in enumerate(zip(pack.begins, pack.rows, strict=True)):
            if left <= 0:
                self._print((f"├─ {len(pack.rows) - at} more rows {ALL}", DIM))
                break
            self._print((f"├─ {begin:,} · ", PLACE), *self._heading(view))
            self._body(view, left)
            left -= len(view.ids)
        if pack.padding:
            self._print((f"├─ {pack.padding:,} padding from {used:,} on", DIM))

    def _body(self, view: RowView, most: int) -> None:
        from rich.text import Text

        line = Text(overflow="fold")
        if view.problem:
            line.append(f"{printable(view.problem)}\n", WARNING)
        total = len(view.ids)
        head = most * 2 // 3 if total > most else total
        tail = total - most + head if total > most else total
        for i, text in enumerate(visible(view)):
            if head <= i < tail:
                if i == head:
                    trained = sum(weight > 0 for weight in view.weights[head:tail])
                    gap = f"… {tail - head:,} tokens, {trained:,} trained {ALL} …"
                    line.append(f"\n{gap}\n", DIM)
                    if head <= view.cut < tail:
                        line.append(CUT.format(view.cut), WARNING)
                continue
            if i and i == view.cut:
                line.append(f"\n{CUT.format(view.cut)}", WARNING)
            weight = view.weights[i]
            if self._tokens:
                line.append(f"{i:>6,} {view.ids[i]:>7} {f'{weight:g}' if weight else '':<4} ", DIM)
                text = text.replace("\n", "")
            alone = self._tokens
            starts = weight > 0 and (alone or i in (0, tail) or view.weights[i - 1] != weight)
            ends = weight > 0 and (alone or i + 1 in (head, total) or view.weights[i + 1] != weight)
            if weight > 0:
                style = (TRAINED_SPECIAL if view.special[i] else TRAINED)[i % 2]
            else:
                style = SPECIAL if view.special[i] else DIM
            line.append("⟦" if starts and self._marks else "").append(text, style)
            line.append(f"{TIMES}{weight:g}" if ends and weight != 1 else "", WARNING)
            line.append(("⟧" if ends and self._marks else "") + "\n" * alone)
        line.rstrip()
        for part in line.wrap(self._console, self._console.width - 2):
            self._console.print(Text("  ") + part)

    def statistics(self, stats: Stats) -> None:
        """Print counts, and the lengths of rows as bars."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("data set", overflow="fold")
        for name in ("read", "kept", "an epoch", "tokens", "trained", "share"):
            table.add_column(name, justify="right", no_wrap=True)
        for entry in stats.entries:
            figures = (entry.read, entry.rows, entry.epoch_rows, entry.tokens, entry.trained)
            share = f"{entry.trained / max(1, entry.tokens):.1%}"
            table.add_row(printable(entry.path), *(f"{n:,}" for n in figures), share)
        self._console.print()
        self._console.print(table, markup=False)
        for entry in stats.entries:
            if entry.fates:
                causes = " · ".join(f"{n:,} {FATES[fate]}" for fate, n in entry.fates.items())
                self._print((f"{printable(entry.path)}: ", PLACE), (causes, WARNING))
        if not stats.rows:
            self._print(("\nno row is left: --only-untrained shows why", "bold"))
            return
        n = stats.lengths
        text = (
            f"\n{stats.rows:,} rows, {stats.tokens:,} tokens, {stats.trained:,} trained "
            f"({stats.trained / stats.tokens:.1%})\ntokens a row: {n['min']:,} to {n['max']:,}, "
            f"mean {n['mean']:,}, median {n['p50']:,}, 90% to {n['p90']:,}, 99% to {n['p99']:,}"
        )
        self._print((text, ""))
        most = max(count for _, _, count in stats.histogram)
        high = len(f"{stats.histogram[-1][1]:,}")
        room = max(8, min(self._console.width, 100) - 2 * high - len(f"{most:,}") - 8)
        for first, last, count in stats.histogram:
            eighths = round(count / most * room * 8)
            bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
            self._print(
                (f"  {first:>{high},} - {last:>{high},}  ", ""), (bar, BAR), (f" {count:,}", DIM)
            )
        packs = (
            f"packs of {stats.sequence_len:,} tokens: {stats.packs:,}, {stats.pack_fill:.2%} full"
        )
        if stats.batch_fill is not None:
            self._print((f"padded batches: {stats.batch_fill:.1%} of the positions are tokens", ""))
            packs = f"with sample_packing, {packs}"
        self._print((packs, ""))
