"""Checks of the local files that a configuration names. Nothing heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from ..errors import Problem
from .fields import value_in_words
from .layout import layout_problems
from .schema import Config, DatasetEntry
from .yaml import KeyPath

DATA_SUFFIXES = (".json", ".jsonl", ".parquet", ".csv", ".arrow", ".gz", ".zst")
LEARNED_POSITIONS = frozenset(
    ("gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt", "bert", "roberta", "xlm-roberta",
     "bart", "mbart", "biogpt", "camembert", "electra", "distilbert", "bert-generation")
)  # fmt: skip
"""Model types with one learned row for each position: there is nothing beyond the last."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
ROPE_KEYS = ("rope_scaling", "rope_parameters")


def local_problems(config: Config, file: str | None = None) -> list[Problem]:
    """Return what is wrong with the local files that the configuration names.

    Reads no more than `config.json` and `tokenizer_config.json`, and runs nothing.

    Args:
        config: The configuration.
        file: Put into the problems as the file that they are in.
    """
    found = [*_models(config), *_template((), config.chat_template_jinja)]
    for name, entries in (("datasets", config.datasets), ("test_datasets", config.test_datasets)):
        for index, entry in enumerate(entries):
            where: KeyPath = (name, index)
            found += [*_data(where, entry), *_template(where, entry.chat_template_jinja)]
    return [replace(problem, file=file) for problem in found]


def _looks_local(value: str) -> bool:
    return value.startswith((".", "/", "~")) and "://" not in value


def _exists(value: str) -> bool:
    try:
        return Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return False


def _matches(pattern: Path) -> bool:
    # Not Path.glob, which takes no absolute patterns.
    return bool(glob(str(pattern.expanduser()), recursive=True))  # noqa: PTH207


def _data(where: KeyPath, entry: DatasetEntry) -> Iterator[Problem]:
    value, path = entry.path, Path(entry.path).expanduser() if _exists(entry.path) else None
    shown = value_in_words(value)
    if path is None:
        is_glob = any(sign in value for sign in "*?[") and "://" not in value
        if is_glob:
            if not _matches(Path(value)):
                yield Problem((*where, "path"), f"no file matches {shown}")
        elif _looks_local(value) or ("://" not in value and value.endswith(DATA_SUFFIXES)):
            yield Problem((*where, "path"), f"there is no file or folder {shown}")
        return
    script = path if path.suffix == ".py" else path / f"{path.resolve().name}.py"
    if script.is_file():
        yield Problem(
            (*where, "path"),
            f"{shown} holds a loading script ({script.name}), and code that comes with data is "
            "never run: trust_remote_code does not extend to it",
            "name the data files instead, or remove the script",
        )
    files = [entry.data_files] if isinstance(entry.data_files, str) else entry.data_files or []
    for index, name in enumerate(files):
        if "://" not in name and not _matches(path / name):
            inner: KeyPath = () if isinstance(entry.data_files, str) else (index,)
            text = f"no file in {shown} matches {value_in_words(name)}"
            yield Problem((*where, "data_files", *inner), text)


def _template(where: KeyPath, value: str | None) -> Iterator[Problem]:
    if value is not None and "{{" not in value and "{%" not in value and not _exists(value):
        message = f"there is no file {value_in_words(value)}, and it is no Jinja text either"
        yield Problem((*where, "chat_template_jinja"), message)


def _models(config: Config) -> Iterator[Problem]:
    for name in ("base_model", "tokenizer_config", "lora_model_dir"):
        value = getattr(config, name)
        if value is not None and _looks_local(value) and not _exists(value):
            yield Problem((name,), f"there is no directory {value_in_words(value)}")
    model = Path(config.base_model).expanduser() if _exists(config.base_model) else None
    if model is not None:
        if not (model / "config.json").is_file():
            hint = "name the base model; an adapter goes into lora_model_dir"
            is_adapter = (model / "adapter_config.json").is_file()
            message = f"{value_in_words(config.base_model)} holds no config.json"
            yield Problem(("base_model",), message, hint if is_adapter else None)
        else:
            yield from _read(model / "config.json", "base_model")
            own = _json(model / "config.json")
            own = own | own["text_config"] if isinstance(own.get("text_config"), dict) else own
            yield from _positions(config, own)
            # Sizes that are left out are filled in with 1, or from processes not known here.
            cp, tp = config.context_parallel_size or 1, config.tensor_parallel_size or 1
            yield from layout_problems(config, own, cp=cp, tp=tp)
    if config.trust_remote_code is None:
        yield from _remote_code(config, model)


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is none to read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read(path: Path, key: str) -> Iterator[Problem]:
    if not _json(path):
        yield Problem((key,), f"{path} is not a JSON object, or cannot be read")


def _remote_code(config: Config, model: Path | None) -> Iterator[Problem]:
    files = [] if model is None else [("base_model", model / "config.json")]
    tokenizer = config.tokenizer_config or config.base_model
    if _exists(tokenizer):
        key = "tokenizer_config" if config.tokenizer_config else "base_model"
        files.append((key, Path(tokenizer).expanduser() / "tokenizer_config.json"))
    for key, path in files:
        if _json(path).get("auto_map"):
            yield Problem(
                (key,),
                f"{path} names Python code that comes with the model (auto_map); it is refused "
                "while trust_remote_code is not set",
                "trust_remote_code: true runs that code; false uses transformers' built-in class",
            )


def _positions(config: Config, own: dict[str, Any]) -> Iterator[Problem]:
    values = own | config.overrides_of_model_config
    limit = next((values[key] for key in LENGTH_KEYS if isinstance(values.get(key), int)), None)
    if limit is None or config.sequence_len <= limit:
        return
    kind = values.get("model_type")
    learned = kind in LEARNED_POSITIONS
    if not learned and any(config.overrides_of_model_config.get(key) for key in ROPE_KEYS):
        return
    remedy = f"lower sequence_len to {limit}"
    if not learned:
        remedy += (
            ", or extend the model: overrides_of_model_config: "
            f"{{max_position_embeddings: {config.sequence_len}}}, or with rope_scaling"
        )
    yield Problem(
        ("sequence_len",),
        f"sequence_len {config.sequence_len} is above the {limit} positions of the model"
        + (f" ({kind} learns one row for each)" if learned else ""),
        remedy,
    )
