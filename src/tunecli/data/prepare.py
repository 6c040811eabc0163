"""From a configuration to rows of tokens, through a cache that is never half there."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config.schema import Config, DatasetEntry
from ..errors import DataError
from ..files import whole_directory
from ..reporter import Reporter
from .encode import Rules, open_format
from .formats.base import Format
from .mixture import Mixture, shares_of
from .report import PrepareReport, SetReport
from .sources import Source, open_source
from .store import RowWriter, TokenRows
from .tokenize import Encoder
from .workers import encode_all

FORMAT_VERSION = 5
"""Part of the cache's key. Raise it with every change that gives other tokens or other files."""

KEYS = (
    "chat_template", "chat_template_jinja", "chat_template_kwargs", "default_system_message",
    "eot_tokens", "train_on_inputs", "sequence_len", "excess_length_strategy", "split_overlap",
    "min_sample_len", "skip_invalid_rows", "dataset_exact_deduplication",
)  # fmt: skip
"""Settings for all sources that change tokens. Not the split: it is drawn when rows are loaded."""


@dataclass(frozen=True)
class Prepared:
    """Data, ready for the loader.

    Attributes:
        train: Rows to train on.
        eval: Rows to evaluate on, if there are any.
        mixture: Which of the training rows each epoch has.
        report: What became of the rows.
        key: Identifies the rows and the split: equal for equal data.
    """

    train: TokenRows
    eval: TokenRows | None
    mixture: Mixture
    report: PrepareReport
    key: str


Opened = list[tuple[Source, Format]]


def prepare(
    config: Config, tokenizer: Any, reporter: Reporter, may_be_empty: bool = False
) -> Prepared:
    """Read, render, tokenize, mask and cache all sources; or take them from the cache.

    Several processes may call this at once: one builds, the others wait and load.

    Args:
        config: The whole configuration.
        tokenizer: A fast tokenizer, its chat template set.
        reporter: Where progress and counts are shown.
        may_be_empty: Do without rows, so that those that were dropped can be looked at.

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
    if not may_be_empty:
        _check(report.train, train, config)
        _check(report.eval, evaluation, config)
    rows = TokenRows(directory / "train")
    held_out = TokenRows(directory / "eval") if report.eval is not None else None
    if config.val_set_size and len(rows):
        rows, held_out = split_rows(rows, config.val_set_size, config.seed)
    mixture = _mixture(config, rows)
    report.paired = rows.paired
    report.train_rows, report.eval_rows = len(rows), len(held_out) if held_out else 0
    report.show(reporter, config.sequence_len, config.min_sample_len)
    draw: list[object] = [key, config.val_set_size, config.seed if config.val_set_size else None]
    if mixture.size != len(rows) or mixture.varies:
        draw += [mixture.shares, list(mixture.repeats)]
    data_key = hashlib.sha256(json.dumps(draw).encode()).hexdigest()[:32]
    return Prepared(rows, held_out, mixture, report, data_key)


def split_rows(
    rows: TokenRows, val_set_size: int | float, seed: int
) -> tuple[TokenRows, TokenRows]:
    """Draw rows for evaluation; return (training rows, evaluation rows), each in their order.

    Args:
        rows: All rows; a pair counts as one.
        val_set_size: A whole number of rows (`int`) or a share of them (`float`), which gives at
            least one row.
        seed: Decides which.

    Raises:
        DataError: No row would be left on one of the sides.
    """
    unit = 2 if rows.paired else 1
    total = len(rows) // unit
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

    def chosen(units: npt.NDArray[np.int64]) -> TokenRows:
        return rows.select((np.sort(units)[:, None] * unit + np.arange(unit)).reshape(-1))

    return chosen(drawn[wanted:]), chosen(drawn[:wanted])


def _open(entries: list[DatasetEntry], config: Config, tokenizer: Any, notes: list[str]) -> Opened:
    opened = []
    for entry in entries:
        row_format = open_format(entry, config, tokenizer, notes.append)
        source = open_source(entry)
        notes.extend(source.notes)
        opened.append((source, row_format))
    return opened


def _mixture(config: Config, rows: TokenRows) -> Mixture:
    """Tell the rows of each entry of `datasets`, and their shares."""
    groups = [np.flatnonzero(rows.entry == index) for index in range(len(config.datasets))]
    sizes = [len(group) for group in groups]
    return Mixture(
        groups,
        shares_of(config.datasets, config.mixture_temperature, sizes),
        [entry.repeat for entry in config.datasets],
        config.seed,
    )


def _build(
    config: Config, encoder: Encoder, train: Opened, evaluation: Opened, directory: Path,
    reporter: Reporter,
) -> None:  # fmt: skip
    seen: set[bytes] = set()
    with whole_directory(directory) as temporary:
        reports: dict[str, Any] = {"train": None, "eval": None}
        for name, sources in (("train", train), ("eval", evaluation)):
            if not sources:
                continue
            reporter.info(f"tokenizing {', '.join(f.entry.path for _, f in sources)}")
            # Evaluation rows that are equal to training rows are duplicates, too.
            report = encode_sources(sources, config, encoder, temporary / name, reporter, seen)
            reports[name] = asdict(report)
        (temporary / "report.json").write_text(json.dumps(reports, indent=2), encoding="utf-8")


def encode_sources(
    sources: Opened, config: Config, encoder: Encoder, directory: Path, reporter: Reporter,
    seen: set[bytes],
) -> SetReport:  # fmt: skip
    """Write the tokenized rows of all sources to `directory`; return the counts.

    Memory stays flat: a few blocks of rows are under way at a time.

    Args:
        sources: Sources and their formats.
        config: The whole configuration.
        encoder: Tokenizes.
        directory: Where to write; must not exist.
        reporter: Where progress is shown.
        seen: Digests of rows that are there already; grows where duplicates are dropped.

    Raises:
        DataError: A row is broken, or too long with `excess_length_strategy: raise`.
    """
    report = SetReport()
    sizes = [source.size for source, _ in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    paired: bool | None = None
    rules = Rules.from_config(config)
    with RowWriter(directory) as writer, reporter.task("tokenizing", total, "rows") as task:
        for block in encode_all(sources, encoder, rules, config.dataset_num_proc):
            block = block.without(seen)
            report.add(block.report)
            if block.rows:
                if paired not in (None, block.paired):
                    raise DataError("datasets: preference pairs and ordinary rows cannot be mixed")
                paired = block.paired
            writer.write(block.rows, block.origins, block.fates)
            task.advance(block.report.read)
        places, entries = zip(
            *((part.place, i) for i, (source, _) in enumerate(sources) for part in source.parts),
            strict=True,
        )
        writer.close(places, entries, bool(paired))
    return report


def _check(report: SetReport | None, sources: Opened, config: Config) -> None:
    if report is None or report.kept:
        return
    names = ", ".join(row_format.entry.path for _, row_format in sources)
    causes = "; ".join(report.causes(config.sequence_len, config.min_sample_len))
    raise DataError(
        f"{names}: no trainable tokens: {report.read} rows read"
        + (f", of which {causes}; tunecli inspect --only-untrained shows them" if causes else "")
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
        # What the mixture does with the rows is no business of the cache.
        row_format.entry.model_dump(exclude={"weight", "repeat"}),
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
