import io

from rich.console import Console

from tunecli import reporter as module
from tunecli.reporter import Reporter


def _console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200, soft_wrap=True)


def test_plain_lines_where_there_is_no_terminal(monkeypatch):
    console = _console(False)
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.0)
    reporter = Reporter(console=console, clean=lambda text: text.replace("secret", "***"))
    reporter.info("a [bracket] and a secret")
    with reporter.task("packing", 4, "rows") as task:
        task.advance(2, "half")
        task.advance(2)
    with reporter.task("reading", None):
        pass
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "a [bracket] and a ***"
    assert lines[1].startswith("packing: 2/4 rows in ")
    assert "s left, half" in lines[1]
    assert lines[3].startswith("packing: 4/4 rows in ")
    assert lines[-1].startswith("reading: 0 in ")


def test_quiet_shows_warnings_only():
    console = _console(True)
    reporter = Reporter(quiet=True, console=console)
    reporter.info("nothing")
    with reporter.task("work", 2) as task:
        task.advance()
    reporter.warn("look")
    assert "nothing" not in console.file.getvalue()
    assert "warning: look" in console.file.getvalue()


def test_bars_nest_on_a_terminal():
    console = _console(True)
    reporter = Reporter(console=console)
    assert reporter.interactive
    with reporter.task("training", 2) as outer:
        outer.advance(1, "loss 1.0")
        with reporter.task("evaluating", 1) as inner:
            inner.advance()
        outer.advance()
    text = console.file.getvalue()
    assert "training" in text
    assert "evaluating" in text
    assert "loss 1.0" in text
