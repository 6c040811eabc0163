"""The page that `tunecli inspect --html` writes: one file, no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from .inspect import FATES, TIMES, heading, packing_lines, visible

if TYPE_CHECKING:
    from ..data import Inspection
    from ..data.inspect import PackView, RowView, Stats

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #59636e; --paper: #ffffff; --line: #d1d9e0;
  --box: #f6f8fa; --on: #14532d; --a: #bbf7d0; --b: #86efac; --special: #7e22ce; --warn: #9a6700 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117;
  --line: #3d444d; --box: #151b23; --on: #dcfce7; --a: #14532d; --b: #1a6b3a; --special: #d8b4fe;
  --warn: #e3b341 } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; font-weight: 600 }
h3 span, .note { color: var(--dim); font-weight: 400; overflow-wrap: anywhere }
.warn { color: var(--warn) }
table { border-collapse: collapse } th { text-align: left }
td, th { padding: .15rem 1rem .15rem 0; vertical-align: top } .n { text-align: right }
.bar { background: var(--b); height: .9rem; min-width: 1px; border-radius: 2px }
.wide, .wide table { width: 100% }
pre { margin: 0; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--box); white-space: pre-wrap; overflow-wrap: anywhere; color: var(--dim);
  font: 13px/1.6 ui-monospace, monospace }
.pack { border-left: 3px solid var(--line); padding-left: 1rem }
.strip { display: flex; height: .9rem; border-radius: 3px; overflow: hidden;
  background: var(--line); gap: 2px } .strip span { background: var(--box) }
.t { color: var(--on); background: var(--a) } .t.o { background: var(--b) }
.s { color: var(--special); font-weight: 600 } .o:not(.t) { background: rgb(128 128 128 / .13) }
pre span:hover { outline: 1px solid } sup { color: var(--warn) }
"""


def page(found: Inspection, title: str) -> str:
    """Return the whole page. Every text that is not ours is escaped."""
    shown = len(found.packs) or len({(view.origin, view.number) for view in found.rows})
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>",
        *_statistics(found.stats),
        f"<h2>{'Packs' if found.packs else 'Rows'}: {shown:,} of {found.found:,}</h2>",
        "<p class=note><span class=t>trained</span>, <span class='t s'>special</span>; untrained, "
        "<span class=s>special</span>. Point at a token for its position, id and weight.",
        *(part for view in found.rows for part in _row(view)),
        *(part for pack in found.packs for part in _pack(pack)),
    ]
    return "\n".join(parts) + "\n"


def _statistics(stats: Stats) -> Iterator[str]:
    names = ("read", "kept", "in an epoch", "tokens", "trained")
    yield "<h2>Statistics</h2><table><tr><th>data set"
    yield "".join(f"<th class=n>{name}" for name in names)
    for entry in stats.entries:
        figures = (entry.read, entry.rows, entry.epoch_rows, entry.tokens, entry.trained)
        yield f"<tr><td>{escape(entry.path)}" + "".join(f"<td class=n>{n:,}" for n in figures)
        for fate, count in entry.fates.items():
            yield f"<tr><td class=warn>{count:,} {FATES[fate]}"
    lengths = ", ".join(f"{name} {value:,}" for name, value in stats.lengths.items())
    yield f"</table><p>{stats.trained / stats.tokens:.1%} of {stats.tokens:,} tokens are trained."
    yield "".join(f"<br>{line}" for line in packing_lines(stats))
    yield f"<br>Tokens a row: {lengths}.<table class=wide>"
    most = max(count for _, _, count in stats.histogram)
    for first, last, count in stats.histogram:
        yield f"<tr><td class=n>{first:,} - {last:,}<td class=n>{count:,}<td class=wide>"
        yield f"<div class=bar style='width:{count / most:.2%}'></div>"
    yield "</table>"


def _pack(pack: PackView) -> Iterator[str]:
    used = sum(len(view.ids) for view in pack.rows)
    trained = sum(view.trained for view in pack.rows)
    yield f"<h2>Pack {pack.number:,}</h2><p>{len(pack.rows)} rows, {used:,} of "
    yield f"{used + pack.padding:,} tokens, {trained:,} trained; positions restart with each row."
    yield "<div class=strip>"
    for view in pack.rows:
        # Shades of one bar: the share of the row that is trained.
        mix = f"color-mix(in srgb, var(--b) {view.trained / len(view.ids):.0%}, var(--box))"
        yield f"<span style='flex:{len(view.ids)};background:{mix}'></span>"
    yield f"<i style='flex:{pack.padding}'></i></div><div class=pack>"
    for begin, view in zip(pack.begins, pack.rows, strict=True):
        yield from _row(view, begin)
    yield f"</div><p class=note>{pack.padding:,} padding</p>"


def _row(view: RowView, begin: int = 0) -> Iterator[str]:
    place = f"at {begin:,} · " if begin else ""
    yield f"<h3>{place}{heading(view)} <span>{escape(view.origin)}</span></h3>"
    if view.problem:
        yield f"<p class=warn>{escape(view.problem)}</p>"
    spans = []
    for i, text in enumerate(visible(view)):
        weight = view.weights[i]
        kinds = [name for name, there in (("t", weight > 0), ("s", view.special[i]), ("o", i % 2))
                 if there]  # fmt: skip
        title = f"position {i}, id {view.ids[i]}" + (f", weight {weight:g}" if weight else "")
        mark = "<span class=warn>\N{BLACK SCISSORS} sequence_len ends here</span>\n"
        spans.append(mark if i and i == view.cut else "")
        spans.append(f"<span class='{' '.join(kinds)}' title='{title}'>{escape(text)}</span>")
        ends = i + 1 == len(view.ids) or view.weights[i + 1] != weight
        if ends and weight not in (0, 1):
            spans.append(f"<sup>{TIMES}{weight:g}</sup>")
    if spans:
        yield f"<pre>{''.join(spans)}</pre>"
