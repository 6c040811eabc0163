"""What the user sees while work goes on: messages and progress, on standard error.

Results go to standard output and are none of this module's business. One `Reporter` is made
by the command (or by the caller of the Python API) and handed down; nothing here is global.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PLAIN_INTERVAL = 10.0
"""Seconds between two progress lines where the output is no terminal."""


class Task(Protocol):
    """A piece of work whose progress is shown."""

    def advance(self, count: float = 1, status: str = "") -> None:
        """Count `count` more units as done; `status` replaces the text behind the bar."""


class Reporter:
    """Prints messages and progress: bars on a terminal, plain lines elsewhere.

    Args:
        quiet: Show warnings only.
        console: Where to print; standard error if left out. `NO_COLOR` is honoured by rich.
        clean: Applied to every text before it is printed (redaction of secrets).
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clean: Callable[[str], str] = lambda text: text,
    ) -> None:
        if console is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.console = console
        self.quiet = quiet
        self._clean = clean
        self._progress: Progress | None = None

    @property
    def interactive(self) -> bool:
        """Whether bars can be drawn."""
        return self.console.is_terminal and not self.quiet

    def info(self, text: str) -> None:
        """Print a message, unless quiet."""
        if not self.quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, quiet or not."""
        self._print(f"warning: {text}", style="yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        # No markup: brackets in users' data and paths must come out as they are.
        self.console.print(self._clean(text), style=style, markup=False)

    @contextmanager
    def task(self, description: str, total: float | None, unit: str = "") -> Iterator[Task]:
        """Show progress of `total` units (`None`: unknown) while the block runs."""
        if self.quiet:
            yield _SilentTask()
        elif not self.interactive:
            plain = _PlainTask(self, description, total, unit)
            yield plain
            plain.close()
        else:
            # Nested tasks share one live display: rich allows no second one.
            owner = self._progress is None
            progress = self._progress or self._start_progress()
            task_id = progress.add_task(description, total=total, status="", unit=unit)
            try:
                yield _BarTask(progress, task_id)
            finally:
                if owner:
                    progress.stop()
                    self._progress = None
                else:
                    progress.remove_task(task_id)

    def _start_progress(self) -> Progress:
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
        from rich.text import Text

        class Figures(ProgressColumn):
            """Done of total, time passed, time left: what is known of them."""

            def render(self, task: Any) -> Text:
                passed = f"{_clock(task.elapsed)}"
                if task.total is None:
                    return Text(passed if not task.completed else f"{task.completed:g}  {passed}")
                left = f", {_clock(task.time_remaining)} left" if not task.finished else ""
                return Text(
                    f"{task.completed:g}/{task.total:g} {task.fields['unit']}  {passed}{left}"
                )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            Figures(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
        )
        self._progress.start()
        return self._progress


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _SilentTask:
    def advance(self, count: float = 1, status: str = "") -> None:
        return


class _BarTask:
    def __init__(self, progress: Progress, task_id: TaskID) -> None:
        self._progress, self._id = progress, task_id

    def advance(self, count: float = 1, status: str = "") -> None:
        if status:
            self._progress.update(self._id, advance=count, status=status)
        else:
            self._progress.update(self._id, advance=count)


class _PlainTask:
    """A line now and then: what a log file or a CI page can show."""

    def __init__(
        self, reporter: Reporter, description: str, total: float | None, unit: str
    ) -> None:
        self._reporter, self._description, self._total, self._unit = (
            reporter,
            description,
            total,
            unit,
        )
        self._done = 0.0
        self._start = self._last = time.monotonic()
        self._status = ""

    def advance(self, count: float = 1, status: str = "") -> None:
        self._done += count
        self._status = status or self._status
        now = time.monotonic()
        if now - self._last >= PLAIN_INTERVAL:
            self._last = now
            self._line()

    def close(self) -> None:
        self._line()

    def _line(self) -> None:
        of = f"/{self._total:g}" if self._total is not None else ""
        unit = f" {self._unit}" if self._unit else ""
        elapsed = time.monotonic() - self._start
        left = ""
        if self._total and 0 < self._done < self._total:
            left = f", {elapsed * (self._total / self._done - 1):.0f} s left"
        status = f", {self._status}" if self._status else ""
        self._reporter.info(
            f"{self._description}: {self._done:g}{of}{unit} in {elapsed:.1f} s{left}{status}"
        )
