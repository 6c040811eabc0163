"""Tiny runs for the tests: a toy model, a few rows, and a configuration around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from toys import write_model_dir

from tunecli.builder import build
from tunecli.config import Config
from tunecli.parallel import Layout, Mesh
from tunecli.parallel.processes import Processes
from tunecli.reporter import Reporter
from tunecli.training.job import Job

CPU = torch.device("cpu")
ALONE = Mesh(Layout(), 0, CPU)


def build_job(config: Config) -> Job:
    """The parts of a run in one process."""
    return build(config, Processes(0, 1, 0, CPU), Reporter(quiet=True))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat_row(question: str, answer: str) -> dict[str, Any]:
    """One question, one answer."""
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def words(start: int, count: int) -> str:
    """`count` words of the toy vocabulary from `w{start}` on."""
    return " ".join(f"w{(start + i) % 50}" for i in range(count))


def chat_rows(count: int) -> list[dict[str, Any]]:
    """Rows of different lengths: questions of 1 to 4 words, answers of 1 to 6."""
    return [chat_row(words(i, 1 + i % 4), words(3 * i + 1, 1 + (i * 5) % 6)) for i in range(count)]


def run_config(tmp_path: Path, rows: list[dict[str, Any]] | None = None, **values: Any) -> Config:
    """A configuration for the toy model in `tmp_path`; `values` are added or replace."""
    model = tmp_path / "model"
    if not model.exists():
        write_model_dir(model, tied=values.pop("tied", True))
    data = write_rows(tmp_path / "rows.jsonl", chat_rows(10) if rows is None else rows)
    defaults: dict[str, Any] = {
        "base_model": str(model),
        "datasets": [{"path": str(data)}],
        "sequence_len": 32,
        "learning_rate": 1e-3,
        "optimizer": "sgd",
        "lr_scheduler": "constant",
        "save_strategy": "no",
        "output_dir": str(tmp_path / "out"),
        "dataset_prepared_path": str(tmp_path / "prepared"),
    }
    merged = {**defaults, **values}
    return Config.model_validate({k: v for k, v in merged.items() if v is not None})


def metrics(config: Config) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    path = Path(config.output_dir) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def train_lines(config: Config) -> list[dict[str, Any]]:
    """The lines of training steps."""
    return [line for line in metrics(config) if "loss" in line]
