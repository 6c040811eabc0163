"""Every exception that tunecli raises on purpose.

The command line prints these without a traceback and exits with `exit_code`;
anything else that reaches it is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TunecliError(Exception):
    """Something went wrong that the user can act on. The message says what and how to mend it."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: Keys and list indices that lead to the value, as in `("datasets", 0, "path")`.
        message: What is wrong, in one sentence.
        remedy: What to write instead, if that is known.
        file: The YAML file, or what stands for it (`command line`).
        line: Line of the value in the file, counted from 1.
        column: Column of the value in the file, counted from 1.
    """

    path: tuple[str | int, ...]
    message: str
    remedy: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def key(self) -> str:
        """The path as users write it: `datasets.0.path`."""
        return ".".join(str(part) for part in self.path)

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        head = ": ".join(part for part in (place, self.key) if part)
        text = f"{head}: {self.message}" if head else self.message
        return f"{text}\n    -> {self.remedy}" if self.remedy else text


class ConfigError(TunecliError):
    """A configuration that cannot be used. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(TunecliError):
    """A command was called in a way that makes no sense."""

    exit_code = 2


class DataError(TunecliError):
    """A data source, a row or a template that cannot be used. Names file, line and cause."""


class ModelError(TunecliError):
    """A model or tokenizer that cannot be loaded or trained as asked."""


class CheckpointError(TunecliError):
    """A checkpoint that cannot be written or read."""


class TrainingError(TunecliError):
    """Training had to stop: no data to learn from, or a loss that is no number."""


class MissingDependencyError(TunecliError):
    """An optional package is needed for what the configuration asks."""

    def __init__(self, package: str, purpose: str, extra: str | None = None) -> None:
        what = f'pip install "tunecli[{extra}]"' if extra else f"pip install {package}"
        super().__init__(f"{purpose} needs the package {package!r}, which is not installed: {what}")
