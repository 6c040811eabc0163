"""What became of the rows: kept, cut, dropped, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..reporter import Reporter
from .store import targets
from .tokenize import Encoded

EXAMPLES = 3
"""Invalid rows that are named, besides being counted."""

FATES = ("invalid", "too_long", "too_short", "untrained", "duplicates", "truncated", "split")
"""What may become of a row, as counted by `SetReport`; all but the last two drop it."""


@dataclass
class SetReport:
    """Counts for the rows of `datasets` or of `test_datasets`.

    Attributes:
        read: Rows in the sources.
        kept: Rows that are there to train (or evaluate) on; pieces of long rows count each.
        invalid: Skipped, broken (`skip_invalid_rows: true`).
        too_long: Dropped, more tokens than `sequence_len`.
        too_short: Dropped, fewer tokens than `min_sample_len`.
        untrained: Dropped, no trained token (after truncation, if there was one).
        duplicates: Dropped, equal to an earlier row.
        truncated: Kept, but cut to `sequence_len`.
        split: Kept, but cut into pieces of `sequence_len`.
        control: Rows with control tokens typed in their text, read as ordinary text.
        tokens: Tokens of the kept rows.
        trained_tokens: Trained targets of the kept rows.
        invalid_examples: What is wrong with the first invalid rows, and where they stand.
    """

    read: int = 0
    kept: int = 0
    invalid: int = 0
    too_long: int = 0
    too_short: int = 0
    untrained: int = 0
    duplicates: int = 0
    truncated: int = 0
    split: int = 0
    control: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    invalid_examples: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        """Rows that are not used."""
        return self.invalid + self.too_long + self.too_short + self.untrained + self.duplicates

    def remember(self, rows: Sequence[Encoded], sign: int = 1) -> None:
        """Count rows as kept; both rows of a pair count."""
        self.kept += sign * len(rows)
        self.tokens += sign * sum(len(row.ids) for row in rows)
        self.trained_tokens += sign * sum(targets(row.labels) for row in rows)

    def forget(self, rows: Sequence[Encoded]) -> None:
        """Take back what `remember` counted."""
        self.remember(rows, -1)

    def add(self, other: SetReport) -> None:
        """Add the counts of another part of the set."""
        for item in dataclasses.fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        del self.invalid_examples[EXAMPLES:]

    def causes(self, sequence_len: int, min_sample_len: int) -> Iterator[str]:
        """Yield a sentence for each count that is not zero and that the user should know."""
        for count, text in (
            (self.invalid, "skipped: broken"),
            (self.too_long, f"dropped: longer than sequence_len {sequence_len}"),
            (self.too_short, f"dropped: shorter than min_sample_len {min_sample_len}"),
            (self.untrained, "dropped: no trained token"),
            (self.duplicates, "dropped: equal to an earlier row"),
            (self.truncated, f"truncated to sequence_len {sequence_len}"),
            (self.split, f"split into pieces of at most sequence_len {sequence_len}"),
            (
                self.control,
                "with control tokens typed in their text, taken as ordinary text (where they are "
                "meant to act, use type: input_output, or completion)",
            ),
        ):
            if count:
                yield f"{count:,} {text}"


@dataclass
class PrepareReport:
    """What became of the rows of all sources.

    Attributes:
        train: The rows of `datasets`, before a share of them is set aside for evaluation.
        eval: The rows of `test_datasets`, if there are any.
        train_rows: Rows to train on.
        eval_rows: Rows to evaluate on.
        paired: Whether the rows are preference pairs: chosen and rejected in turn.
        cached: Whether the rows came from the prepared cache.
        path: The directory of the prepared cache.
        notes: Remarks on sources and templates.
    """

    train: SetReport = field(default_factory=SetReport)
    eval: SetReport | None = None
    train_rows: int = 0
    eval_rows: int = 0
    paired: bool = False
    cached: bool = False
    path: str = ""
    notes: list[str] = field(default_factory=list)

    def show(self, reporter: Reporter, sequence_len: int, min_sample_len: int) -> None:
        """Print everything that is not zero."""
        if self.cached:
            reporter.info(f"prepared data from {self.path}")
        for note in self.notes:
            reporter.warn(note)
        for name, part in (("datasets", self.train), ("test_datasets", self.eval)):
            if part is None:
                continue
            reporter.info(
                f"{name}: {part.read:,} rows read, {part.kept:,} kept, {part.tokens:,} tokens, "
                f"{part.trained_tokens:,} of them trained"
            )
            for cause in part.causes(sequence_len, min_sample_len):
                reporter.info(f"{name}: {cause}")
            for example in part.invalid_examples:
                reporter.warn(f"skipped {example}")
        if self.eval_rows:
            reporter.info(f"{self.train_rows:,} rows to train, {self.eval_rows:,} to evaluate")
