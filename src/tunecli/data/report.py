"""What became of the rows: kept, cut, dropped, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..reporter import Reporter


@dataclass
class SetReport:
    """Counts for the rows of `datasets` or of `test_datasets`.

    Attributes:
        read: Rows in the sources.
        kept: Rows that are there to train (or evaluate) on.
        too_long: Dropped, more tokens than `sequence_len`.
        too_short: Dropped, fewer tokens than `min_sample_len`.
        untrained: Dropped, no trained token (after truncation, if there was one).
        duplicates: Dropped, equal to an earlier row.
        truncated: Kept, but cut to `sequence_len`.
        control: Rows with control tokens typed in their text, read as ordinary text.
        tokens: Tokens of the kept rows.
        trained_tokens: Trained targets of the kept rows.
    """

    read: int = 0
    kept: int = 0
    too_long: int = 0
    too_short: int = 0
    untrained: int = 0
    duplicates: int = 0
    truncated: int = 0
    control: int = 0
    tokens: int = 0
    trained_tokens: int = 0

    @property
    def dropped(self) -> int:
        """Rows that are not used."""
        return self.too_long + self.too_short + self.untrained + self.duplicates

    def causes(self, sequence_len: int, min_sample_len: int) -> Iterator[str]:
        """Yield a sentence for each count that is not zero and that the user should know."""
        for count, text in (
            (self.too_long, f"dropped: longer than sequence_len {sequence_len}"),
            (self.too_short, f"dropped: shorter than min_sample_len {min_sample_len}"),
            (self.untrained, "dropped: no trained token"),
            (self.duplicates, "dropped: equal to an earlier row"),
            (self.truncated, f"truncated to sequence_len {sequence_len}"),
            (self.control, "with control tokens typed in their text, taken as ordinary text"),
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
        cached: Whether the rows came from the prepared cache.
        path: The directory of the prepared cache.
        notes: Remarks on sources and templates.
    """

    train: SetReport = field(default_factory=SetReport)
    eval: SetReport | None = None
    train_rows: int = 0
    eval_rows: int = 0
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
        if self.eval_rows:
            reporter.info(f"{self.train_rows:,} rows to train, {self.eval_rows:,} to evaluate")
