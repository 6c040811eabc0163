"""The product as functions: what the commands call, and what Python programs may call."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .builder import (
    build,
    build_eval_loader,
    build_loss,
    build_mesh,
    build_model,
    build_vocabulary,
    check_ids,
    check_local,
)
from .config import dump_config, redact
from .data import Inspection, PrepareReport, inspect_rows, prepare
from .errors import ConfigError, ModelError, Problem
from .export.merge import base_dtype, merge_adapter
from .files import write_text
from .launch import LOGS
from .model.loading import is_adapter_dir, load_model_config
from .model.loss import fit_loss
from .model.precision import Precision
from .model.saving import save_model
from .parallel.checks import check_layout
from .parallel.processes import join_processes
from .reporter import Reporter
from .training.checkpoint import MANIFEST, load_weights, read_checkpoint
from .training.evaluate import Evaluation
from .training.evaluate import evaluate as evaluate_rows
from .training.job import TrainResult
from .training.loop import RESULT, Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .config import Config
    from .model.tokenizer import Vocabulary
    from .parallel import Mesh

MERGED = "merged"


def preprocess(config: Config, reporter: Reporter | None = None) -> PrepareReport:
    """Read, tokenize, mask and cache the data; training then starts from the cache.

    Raises:
        ConfigError, DataError, ModelError: See `tunecli.errors`.
    """
    check_local(config)
    reporter = reporter or _reporter()
    return prepare(config, build_vocabulary(config).tokenizer, reporter).report


def inspect(
    config: Config,
    reporter: Reporter | None = None,
    *,
    row: int | str | None = None,
    dataset: int | str | None = None,
    longest: bool = False,
    only_untrained: bool = False,
    packed: bool | None = None,
    evaluation: bool = False,
    limit: int = 10,
) -> Inspection:
    """Show rows (or packs) as they will be trained, and count tokens; no model is loaded.

    Args:
        config: The configuration; its data are prepared first if they are not yet.
        reporter: Whom to tell.
        row: Only this one: its number from 1, or `file:line`, dropped ones included.
        dataset: Only rows of this entry of `datasets`: its index from 0, or its path.
        longest: The longest rows first.
        only_untrained: Rows of which nothing is trained: those that were dropped, and why.
        packed: Packs of the first epoch instead of rows; if left out, with `sample_packing` and
            without a filter.
        evaluation: The rows to evaluate on instead of those to train on.
        limit: Rows (or packs) to return; statistics are always those of all.

    Raises:
        ConfigError, DataError, ModelError: See `tunecli.errors`.
        UsageError: There is no such row or data set, or there are no packs.
    """
    if getattr(config, "streaming", False):
        message = "a stream has no prepared rows that could be shown"
        remedy = "look at its first rows: --streaming false, with max_rows or split: train[:1000]"
        raise ConfigError([Problem(("streaming",), message, remedy)])
    check_local(config)
    reporter = reporter or _reporter()
    tokenizer = build_vocabulary(config).tokenizer
    data = prepare(config, tokenizer, reporter, may_be_empty=True)
    name = None if row is None else str(row)
    entry = None if dataset is None else str(dataset)
    return inspect_rows(config, tokenizer, data, name, entry, longest, only_untrained, packed,
                        evaluation, limit)  # fmt: skip


def train(config: Config, reporter: Reporter | None = None) -> TrainResult:
    """Train, and write the final model (or adapter) to `output_dir`.

    Under a launcher (torchrun) every process must call this.

    Raises:
        TunecliError: See `tunecli.errors` for what can go wrong.
    """
    reporter = reporter or _reporter()
    with join_processes() as processes:
        job = build(config, processes, reporter)
        if job.mesh.is_main:
            _set_aside(config, reporter)
        result = Trainer(job).run()
        with reporter.task("writing the final model", None):
            save_model(
                job.model,
                job.vocabulary.tokenizer,
                job.output_dir,
                dtype=None if config.adapter else _final_dtype(config),
            )
        reporter.info(f"done: {job.output_dir}")
        return result


def _final_dtype(config: Config) -> torch.dtype:
    """Full weights are written in the type that the base model came in."""
    return torch.float32 if config.reinit_weights else base_dtype(config)


def _set_aside(config: Config, reporter: Reporter) -> None:
    """Move an earlier run's directory away, unless this run goes on from it.

    Mixed with new ones, its checkpoints would be resumed from or pruned as if they belonged to
    this run; removing them is not ours to do.
    """
    directory = Path(config.output_dir).expanduser()
    resumes = config.resume_from_checkpoint or config.auto_resume_from_checkpoints
    is_run = (directory / RESULT).exists() or any(directory.glob("checkpoint-*"))
    here = Path.cwd().resolve()
    if resumes or not is_run or directory.resolve() in (here, *here.parents):
        return
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    aside = directory.with_name(f"{directory.name}.{stamp}")
    aside.mkdir()
    for entry in directory.iterdir():
        # Other ranks are writing their logs already, and append to what is there.
        if entry.name != LOGS:
            shutil.move(entry, aside / entry.name)
    reporter.info(f"{directory} holds an earlier run: moved to {aside}")


def merge(
    config: Config,
    reporter: Reporter | None = None,
    adapter: str | Path | None = None,
    output: str | Path | None = None,
) -> Path:
    """Merge a trained adapter into its base model; return the directory that holds the result.

    Args:
        config: The configuration that the adapter was trained with.
        reporter: Whom to tell.
        adapter: Directory of the adapter: `lora_model_dir`, else `output_dir`, if left out.
        output: Where to write: `merged` in `output_dir` if left out.

    Raises:
        ConfigError: The configuration has no adapter.
        ModelError: See `tunecli.export.merge.merge_adapter`.
    """
    if config.adapter is None:
        message = "there is no adapter to merge: full fine-tuning writes a whole model already"
        raise ConfigError([Problem(("adapter",), message)])
    check_local(config)
    reporter = reporter or _reporter()
    run = Path(config.output_dir).expanduser()
    source = Path(adapter or _trained_adapter(config)).expanduser()
    target = Path(output).expanduser() if output else run / MERGED
    precision = Precision(torch.float32, torch.device("cpu"))
    vocabulary = build_vocabulary(config)
    merge_adapter(config, vocabulary, precision, source, target, reporter)
    write_text(target / "config.yaml", dump_config(config))
    return target


def _trained_adapter(config: Config) -> Path:
    run = Path(config.output_dir).expanduser()
    if is_adapter_dir(run) or config.lora_model_dir is None:
        return run
    return Path(config.lora_model_dir)


@dataclass(frozen=True)
class EvaluationResult:
    """What `evaluate` measured, and of which model."""

    model: str
    eval_loss: float
    perplexity: float
    eval_trained_tokens: int


def evaluate(
    config: Config, reporter: Reporter | None = None, model_dir: str | Path | None = None
) -> EvaluationResult:
    """Measure the loss of a trained model over the evaluation rows of `config`.

    Args:
        config: The configuration that the model was trained with.
        reporter: Whom to tell.
        model_dir: A model, an adapter or a checkpoint: `output_dir` if left out.

    Raises:
        ConfigError: The configuration has no evaluation rows.
        ModelError: There is no such model.
    """
    if not (config.val_set_size or config.test_datasets):
        message = "there are no evaluation rows"
        remedy = "set val_set_size or test_datasets"
        raise ConfigError([Problem(("val_set_size",), message, remedy)])
    check_local(config)
    reporter = reporter or _reporter()
    with join_processes() as processes:
        mesh = build_mesh(config, processes)
        precision = Precision.from_config(config, mesh.device)
        model_config = load_model_config(config)
        check_layout(config, model_config, mesh.layout)
        loss = build_loss(config, mesh, model_config)
        multiple = loss.context.multiple if loss.context else 1
        vocabulary = build_vocabulary(config)
        data = prepare(config, vocabulary.tokenizer, reporter)
        assert data.eval is not None
        path = Path(model_dir or config.output_dir).expanduser()
        model = load_trained(config, vocabulary, precision, mesh, path)
        check_ids(model, data.eval)
        loss = fit_loss(loss, model, precision, mesh.layout.world_size == 1)
        pad_id = vocabulary.tokenizer.pad_token_id
        loader = build_eval_loader(config, data.eval, mesh, pad_id, multiple)
        result: Evaluation = evaluate_rows(model, loader, loss, mesh, precision, reporter)
    perplexity = torch.tensor(result.loss, dtype=torch.float64).exp().item()
    return EvaluationResult(str(path), result.loss, perplexity, result.trained_tokens)


def load_trained(
    config: Config, vocabulary: Vocabulary, precision: Precision, mesh: Mesh, path: Path
) -> PreTrainedModel:
    """Load a final model, an adapter on its base, or the weights of a checkpoint folder.

    Raises:
        ModelError: `path` holds none of these.
    """
    if (path / MANIFEST).is_file():
        read_checkpoint(path)
        model = build_model(config, vocabulary, precision, mesh)
        load_weights(path, model, adapter=config.adapter is not None)
        return model.eval()
    if is_adapter_dir(path):
        changes: dict[str, Any] = {"lora_model_dir": str(path)}
    elif (path / "config.json").is_file():
        changes = {
            "base_model": str(path),
            "adapter": None,
            "reinit_weights": False,
            "revision_of_model": None,
        }
    else:
        raise ModelError(f"{path} holds no model, adapter or checkpoint: train first")
    return build_model(config.model_copy(update=changes), vocabulary, precision, mesh).eval()


def _reporter() -> Reporter:
    """Python callers who pass no reporter see warnings only, and never a secret."""
    return Reporter(quiet=True, clean=redact)
