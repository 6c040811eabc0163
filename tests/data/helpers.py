"""Short ways to a configuration, a data file and its rows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from tokenizers import AddedToken
from toys import byte_tokenizer, toy_tokenizer
from transformers import PreTrainedTokenizerFast

from tunecli.config.schema import Config
from tunecli.data import Encoder, Prepared, Rendered, prepare
from tunecli.data.encode import open_format
from tunecli.reporter import Reporter

IGNORE = -100


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_config(entries: list[dict[str, Any]] | dict[str, Any], **values: Any) -> Config:
    entries = [entries] if isinstance(entries, dict) else entries
    base = {"base_model": "toy", "learning_rate": 1e-3, "datasets": entries}
    return Config.model_validate({**base, **values})


class Log(Reporter):
    """A reporter that keeps what it prints."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        super().__init__(console=Console(file=self.file, width=500))

    @property
    def text(self) -> str:
        return self.file.getvalue()


def prepared(
    tmp_path: Path,
    rows: list[Any],
    tokenizer: PreTrainedTokenizerFast | None = None,
    entry: dict[str, Any] | None = None,
    log: Log | None = None,
    **values: Any,
) -> Prepared:
    """Prepare `rows` from a file of their own."""
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = make_config(
        {"path": str(path), **(entry or {})},
        **{"dataset_prepared_path": str(tmp_path / "prepared"), **values},
    )
    return prepare(config, tokenizer or toy_tokenizer(), log or Log())


def encode(
    row: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast | None = None,
    entry: dict[str, Any] | None = None,
    **values: Any,
) -> tuple[list[int], list[int]]:
    """Return ids and labels of one row."""
    tokenizer = tokenizer or toy_tokenizer()
    encoded = Encoder(tokenizer).encode([render(row, tokenizer, entry, **values)])[0]
    return encoded.ids.tolist(), encoded.labels.tolist()


def render(
    row: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast | None = None,
    entry: dict[str, Any] | None = None,
    **values: Any,
) -> Any:
    config = make_config({"path": "x.jsonl", **(entry or {})}, **values)
    tokenizer = tokenizer or toy_tokenizer()
    return open_format(config.datasets[0], config, tokenizer, lambda text: None).encode(row)


def spans(rendered: Rendered) -> list[str]:
    return [rendered.text[a:b] for a, b in rendered.spans]


def with_control(
    tokenizer: PreTrainedTokenizerFast, template: str, control: tuple[str, ...],
    ordinary: tuple[str, ...] = (),
) -> PreTrainedTokenizerFast:  # fmt: skip
    tokenizer.add_tokens(
        [AddedToken(t, special=True, normalized=False) for t in control], special_tokens=True
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ordinary])
    tokenizer.chat_template = template
    return tokenizer


def chat(*texts: str, system: str | None = None) -> dict[str, Any]:
    """A conversation, user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages}


__all__ = [
    "IGNORE", "Log", "byte_tokenizer", "chat", "encode", "make_config", "prepared", "render",
    "spans", "toy_tokenizer", "with_control", "write_jsonl",
]  # fmt: skip
