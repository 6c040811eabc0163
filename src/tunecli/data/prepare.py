"""From a configuration to rows of tokens, through a cache that is never half there."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config.schema import Config, DatasetEntry
from ..errors import DataError
from ..files import whole_directory
from ..reporter import Reporter
from .encode import encode_sources, open_format
from .formats.base import Format
from .report import PrepareReport, SetReport
from .sources import Source, open_source
from .store import TokenRows
from .tokenize import Encoder

FORMAT_VERSION = 1
"""Part of the cache's key. Raise it with every change that gives other tokens or other files."""

KEYS = (
    "chat_template", "chat_template_jinja", "default_system_message", "eot_tokens",
    "train_on_inputs", "sequence_len", "excess_length_strategy", "min_sample_len",
    "dataset_exact_deduplication",
)  # fmt: skip
"""Settings for all sources that change tokens. Not the split: it is drawn when rows are loaded."""


@dataclass(frozen=True)
class Prepared:
    """Data, ready for the loader.

    Attributes:
        train: Rows to train on.
        eval: Rows to evaluate on, if there are any.
        report: What became of the rows.
        key: Identifies the rows and the split: equal for equal data.
    """

    train: TokenRows
    eval: TokenRows | None
    report: PrepareReport
    key: str


Opened = list[tuple[Source, Format]]


def prepare(config: Config, tokenizer: Any, reporter: Reporter) -> Prepared:
    """Read, render, tokenize, mask and cache all sources; or take them from the cache.

    Several processes may call this at once: one builds, the others wait and load.

    Args:
        config: The whole configuration.
        tokenizer: A fast tokenizer, its chat template set.
        reporter: Where progress and counts are shown.

    Raises:
        DataError: A source, row, template or split cannot be used, or nothing can be trained.
    """
    from filelock import FileLock

    notes: list[str] = []
    train = _open(config.datasets, config, tokenizer, notes)
    evaluation = _open(config.test_datasets, config, tokenizer, notes)
    encoder = Encoder(tokenizer)
    key = _key(config, encoder, tokenizer, train, evaluation)
    root = Path(config.dataset_prepared_path)
    directory = root / key
    root.mkdir(parents=True, exist_ok=True)
    # The lock's file stays: removing it would let two processes hold "the" lock.
    with FileLock(root / f"{key}.lock"):
        cached = directory.is_dir()
        if not cached:
            _build(config, encoder, train, evaluation, directory, reporter)
    saved = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    report = PrepareReport(
        train=SetReport(**saved["train"]),
        eval=saved["eval"] and SetReport(**saved["eval"]),
        cached=cached,
        path=str(directory),
        notes=notes,
    )
    rows = TokenRows(directory / "train")
    held_out = TokenRows(directory / "eval") if report.eval is not None else None
    if config.val_set_size:
        rows, held_out = split_rows(rows, config.val_set_size, config.seed)
    report.train_rows, report.eval_rows = len(rows), len(held_out) if held_out else 0
    report.show(reporter, config.sequence_len, config.min_sample_len)
    draw = json.dumps([key, config.val_set_size, config.seed if config.val_set_size else None])
    return Prepared(rows, held_out, report, hashlib.sha256(draw.encode()).hexdigest()[:32])


def split_rows(
    rows: TokenRows, val_set_size: int | float, seed: int
) -> tuple[TokenRows, TokenRows]:
    """Draw rows for evaluation; return (training rows, evaluation rows), each in their order.

    Args:
        rows: All rows.
        val_set_size: A whole number of rows (`int`) or a share of them (`float`), which gives at
            least one row.
        seed: Decides which.

    Raises:
        DataError: No row would be left on one of the sides.
    """
    total = len(rows)
    if isinstance(val_set_size, float):
        wanted = max(1, int(total * val_set_size + 0.5))
    else:
        wanted = val_set_size
    if wanted < 1 or wanted >= total:
        raise DataError(
            f"val_set_size {val_set_size} takes {wanted} of {total} rows: "
            f"{max(0, total - wanted)} rows are left to train on"
        )
    drawn = np.random.default_rng([seed, 1]).permutation(total)
    return rows.select(np.sort(drawn[wanted:])), rows.select(np.sort(drawn[:wanted]))


def _open(entries: list[DatasetEntry], config: Config, tokenizer: Any, notes: list[str]) -> Opened:
    opened = []
    for entry in entries:
        row_format = open_format(entry, config, tokenizer, notes.append)
        source = open_source(entry)
        notes.extend(source.notes)
        opened.append((source, row_format))
    return opened


def _build(
    config: Config, encoder: Encoder, train: Opened, evaluation: Opened, directory: Path,
    reporter: Reporter,
) -> None:  # fmt: skip
    with whole_directory(directory) as temporary:
        reports: dict[str, Any] = {"train": None, "eval": None}
        for name, sources in (("train", train), ("eval", evaluation)):
            if not sources:
                continue
            reporter.info(f"tokenizing {', '.join(f.entry.path for _, f in sources)}")
            report = encode_sources(sources, config, encoder, temporary / name, reporter)
            _check(report, sources, config)
            reports[name] = asdict(report)
        (temporary / "report.json").write_text(json.dumps(reports, indent=2), encoding="utf-8")


def _check(report: SetReport, sources: Opened, config: Config) -> None:
    if report.kept:
        return
    names = ", ".join(row_format.entry.path for _, row_format in sources)
    causes = "; ".join(report.causes(config.sequence_len, config.min_sample_len))
    raise DataError(
        f"{names}: no trainable tokens: {report.read} rows read"
        + (f", of which {causes}" if causes else "")
    )


def _key(
    config: Config, encoder: Encoder, tokenizer: Any, train: Opened, evaluation: Opened
) -> str:
    """Return a name for everything that the tokens depend on, and nothing else."""
    template = tokenizer.chat_template
    parts = {
        "version": FORMAT_VERSION,
        "config": {name: getattr(config, name) for name in KEYS},
        "tokenizer": [encoder.serialized, dict(tokenizer.special_tokens_map), template],
        "sources": [[_identity(*pair) for pair in opened] for opened in (train, evaluation)],
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _identity(source: Source, row_format: Format) -> list[Any]:
    # Formats say what else they depend on (a template that is read from a file).
    return [
        row_format.entry.model_dump(),
        source.fingerprint(),
        row_format.fingerprint(),
        _code(type(row_format)),
    ]


def _code(cls: type) -> str:
    """Return the text of a user's format; our own are covered by `FORMAT_VERSION`."""
    if cls.__module__.startswith("tunecli."):
        return cls.__name__
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return f"{cls.__module__}.{cls.__qualname__}"
