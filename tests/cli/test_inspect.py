"""`tunecli inspect` as a user meets it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console
from runs import chat_row, chat_rows, run_config

import tunecli
from tunecli.cli.app import main
from tunecli.cli.inspect import REST, _Printer, printable, visible
from tunecli.data.inspect import RowView


@pytest.fixture
def call(tmp_path: Path, capsys: Any, monkeypatch: Any) -> Any:
    """Write a configuration around `rows`, inspect it; return exit code, output and messages."""

    def run(*arguments: str, rows: Any = None, **values: Any) -> tuple[int, str, str]:
        config = run_config(tmp_path, rows, **values)
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
        monkeypatch.setattr(sys, "argv", ["tunecli", "inspect", str(path), *arguments])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def view(texts: list[str], weights: list[float], special: list[bool] | None = None) -> RowView:
    count = len(texts)
    return RowView("f.jsonl:1", 1, 0, "", "", "", 0, [7] * count, texts,
                   special or [False] * count, weights)  # fmt: skip


def printed(row: RowView, color: bool = False, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=60, force_terminal=color,
                      color_system="truecolor" if color else None, no_color=not color)  # fmt: skip
    printer = _Printer(console, options.get("tokens", False), options.get("most", 0))
    printer._body(row, options.get("most", len(row.ids)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_rows_and_statistics(call: Any, tmp_path: Path) -> None:
    code, out, err = call(rows=[chat_row("w0", "w1 w2"), chat_row("w3", "")])
    assert code == 0
    assert "2 rows read, 2 kept" in err
    assert f"row 1 · 8 tokens, 3 trained  {tmp_path}/rows.jsonl:1" in out.replace("\n", "")
    assert "<bos> <|u|>·w0·<|end|> <|a|>⟦·w1 w2·<|end|>⟧" in out
    assert "2 rows, 14 tokens, 4 trained (28.6%)" in out
    assert "tokens a row: 6 to 8, mean 7.0, median 6" in out
    assert re.search(r"^ +8 - 8 +█+ 1$", out, re.M)
    assert "with sample_packing, packs of 32 tokens: 1, 43.75% full" in out


def test_packs(call: Any) -> None:
    code, out, _ = call("--limit", "1", rows=chat_rows(10), sample_packing=True)
    assert code == 0
    assert re.search(r"pack 1 · \d rows · \d+ of 32 tokens", out)
    assert len(re.findall(r"^├─ \d+ · row ", out, re.M)) == int(re.search(r"(\d) rows", out)[1])  # type: ignore[index]
    assert re.search(r"^│[█░│·]{31}$", out, re.M)
    assert re.search(r"\d more packs \(--limit N\)", out)


def test_filters(call: Any) -> None:
    rows = [chat_row("w0", "w1"), {"messages": [{"role": "user", "content": "w9"}]}]
    _, out, _ = call("--only-untrained", rows=rows)
    assert "dropped · no trained token · 4 tokens, 0 trained" in out
    assert "⟦trained⟧" in out
    assert out.count("⟦") == 1  # that of the legend
    code, out, _ = call(rows=rows[1:])
    assert code == 0
    assert "no row is left: --only-untrained shows why" in out
    code, out, _ = call("--row", "1", rows=rows)
    assert "row 1" in out
    assert "data set" not in out
    assert call("--only-untrained", rows=rows[:1])[1].startswith("no row was dropped")
    code, _, err = call("--row", "5", rows=rows)
    assert code == 2
    assert "error: there is no row 5: give 1 to 1, or file:line" in err
    _, out, _ = call("--longest", "--limit", "1", rows=[*rows, chat_row("w0 w1 w2", "w1")])
    assert "row 2" in out
    assert "row 1" not in out


def test_json_is_what_the_function_returns(call: Any, tmp_path: Path) -> None:
    code, out, _ = call("--json", "--limit", "2", val_set_size=3)
    assert code == 0
    result = json.loads(out)
    config = tunecli.load_config(tmp_path / "config.yaml")
    found = tunecli.inspect(config, limit=2)
    assert result["found"] == found.found == 7
    assert [row["texts"] for row in result["rows"]] == [view.texts for view in found.rows]
    assert result["stats"]["entries"][0]["read"] == 10
    assert tunecli.inspect(config, row=1, dataset=0).rows == found.rows[:1]
    assert json.loads(call("--json", "--eval", val_set_size=3)[1])["found"] == 3


def test_a_stream_has_no_prepared_rows() -> None:
    with pytest.raises(tunecli.TunecliError, match="a stream has no prepared rows"):
        tunecli.inspect(SimpleNamespace(streaming=True))  # type: ignore[arg-type]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_escaped(call: Any, tmp_path: Path) -> None:
    rows = [{"input_ids": [8, 9], "labels": [8, 9]}]
    target = tmp_path / "pages" / "a.html"
    code, out, _ = call("--html", str(target), rows=rows, datasets=[{
        "path": str(tmp_path / "rows.jsonl"), "type": "tokenized"}])  # fmt: skip
    assert (code, out) == (0, f"{target}\n")
    source = target.read_text()
    page = _Page()
    page.feed(source)
    assert page.tags == {"html", "meta", "title", "style", "h1", "pre", "span"}
    assert page.links == []
    assert "url(" not in source
    assert "prefers-color-scheme: dark" in source
    assert "row 1 · 2 tokens, 1 trained" in page.text
    assert "trained<special>" in page.text  # its brackets are escaped


def test_white_space_that_matters() -> None:
    texts = ["<b>", " a  b", " \n", "  c ", "<e>", " d"]
    row = view(texts, [0] * 6, [True, False, False, False, True, False])
    assert visible(row) == ["<b>", "·a··b", "·↵\n", "··c·", "<e>", "·d"]
    # Inside a line a space is a space; at the edge of what is trained it is marked.
    assert visible(view(["a", " b", " c"], [0, 0, 0])) == ["a", " b", " c"]
    assert visible(view(["a", " b", " c"], [0, 1, 1])) == ["a", "·b", " c"]
    assert visible(view(["\N{EURO SIGN}", "", ""], [0, 0, 0])) == ["\N{EURO SIGN}", REST, REST]


def test_nothing_steers_the_terminal() -> None:
    hostile = "\x1b[31m\r\x07\u202e\u200b\x9b\ud800"
    assert printable(hostile) == "\\x1b[31m\\r\\x07\\u202e\\u200b\\x9b\\ud800"
    assert printable("a\tb\nc") == "a→b↵\nc"
    row = view(["[bold]x[/bold]", "\x1b[2J"], [0, 1])
    assert printed(row) == "  [bold]x[/bold]⟦\\x1b[2J⟧\n"


def test_marks_and_weights() -> None:
    row = view(list("abcdef"), [0, 1, 1, 0.5, 2, 0])
    assert printed(row) == "  a⟦bc⟧⟦d×0.5⟧⟦e×2⟧f\n"  # noqa: RUF001
    colored = printed(row, color=True)
    assert "⟦" not in colored
    assert colored.count("\x1b[38;2;255;255;255;48;2;") == 4
    lines = printed(row, tokens=True).splitlines()
    assert lines[1].split() == ["1", "7", "1", "⟦b⟧"]
    assert lines[3].split() == ["3", "7", "0.5", "⟦d×0.5⟧"]  # noqa: RUF001
    assert len(lines) == 6


def test_long_rows_are_shortened_in_the_middle() -> None:
    row = view([str(i % 10) for i in range(20)], [0.0] * 10 + [1.0] * 10)
    assert printed(row, most=9).splitlines() == [
        "  012345", "  … 11 tokens, 7 trained (--max-tokens 0 shows all) …", "  ⟦789⟧",
    ]  # fmt: skip
    assert printed(row, most=20) == "  0123456789⟦0123456789⟧\n"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, tunecli.cli.app as a\nsys.argv = ['tunecli', 'inspect', '--help']\n"
        "try: a.main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--only-untrained" in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
