from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecli.config import load_config, local_problems
from tunecli.errors import Problem

LLAMA = {"model_type": "llama", "max_position_embeddings": 128}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", LLAMA)


def make_model(path: Path, config: Any, tokenizer: Any = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer or {}))
    return path


def check(base_model: object = "m", entry: Any = None, **values: Any) -> dict[str, Problem]:
    config = load_config(
        {"base_model": str(base_model), "datasets": [entry or {"path": "org/name"}],
         "learning_rate": 1.0, "sequence_len": 64, **values}
    )  # fmt: skip
    return {problem.key: problem for problem in local_problems(config, file="c.yaml")}


def test_nothing_to_complain_about(model: Path, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").touch()
    assert not check(model, {"path": str(tmp_path / "d.jsonl")})
    assert not check(model, {"path": str(tmp_path), "data_files": ["*.jsonl", "d.jsonl"]})
    assert not check(model, {"path": str(tmp_path / "*.jsonl")})
    assert not check(model, {"path": "hf://datasets/x/y.jsonl"})
    assert not check(model, {"path": "org/name", "data_files": "x/*.jsonl"})
    assert not check("org/model", chat_template_jinja="{{ x }}")


@pytest.mark.parametrize(
    "path",
    ["./nope", "/nope", "~/nope-x", "nope.jsonl", "a/nope.parquet", "nope/*", "nope[0-9]",
     "../nope.json", "~nobody-here/x"],
)  # fmt: skip
def test_data_that_is_not_there(path: str) -> None:
    found = check(entry={"path": path}, test_datasets=[{"path": path}])
    assert set(found) == {"datasets.0.path", "test_datasets.0.path"}
    assert path in found["datasets.0.path"].message
    assert found["datasets.0.path"].file == "c.yaml"


def test_data_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    found = check(entry={"path": str(tmp_path), "data_files": ["a.jsonl", "b.jsonl"]})
    assert set(found) == {"datasets.0.data_files.1"}
    found = check(entry={"path": str(tmp_path), "data_files": "b*.jsonl"})
    assert set(found) == {"datasets.0.data_files"}


def test_loading_scripts_are_refused_whatever_the_model_may_do(tmp_path: Path) -> None:
    folder = tmp_path / "facts"
    folder.mkdir()
    marker = tmp_path / "marker"
    (folder / "facts.py").write_text(f"open({str(marker)!r}, 'w')")
    for path in (folder, folder / "facts.py"):
        found = check(entry={"path": str(path)}, trust_remote_code=True)
        assert "trust_remote_code does not extend" in found["datasets.0.path"].message
    assert not marker.exists()


def test_models_that_are_not_there(tmp_path: Path, model: Path) -> None:
    found = check("./nope", tokenizer_config="/nope", lora_model_dir="~/nope-x", adapter="lora")
    assert set(found) == {"base_model", "tokenizer_config", "lora_model_dir"}
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in check(tmp_path / "empty")["base_model"].message
    (tmp_path / "empty" / "adapter_config.json").touch()
    assert "lora_model_dir" in str(check(tmp_path / "empty")["base_model"].remedy)
    for text in ("{", "[1]"):
        (model / "config.json").write_text(text)
        assert "not a JSON object" in check(model)["base_model"].message


@pytest.mark.parametrize("where", ["config", "tokenizer", "own tokenizer"])
def test_code_of_a_model_is_refused_until_chosen(tmp_path: Path, where: str) -> None:
    marker = tmp_path / "marker"
    code = {"auto_map": {"AutoConfig": "evil.Config"}}
    model = make_model(
        tmp_path / "model",
        LLAMA | (code if where == "config" else {}),
        code if where == "tokenizer" else {},
    )
    (model / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    values: dict[str, Any] = {}
    if where == "own tokenizer":
        values["tokenizer_config"] = str(make_model(tmp_path / "tok", LLAMA, code))
    found = check(model, **values)
    [problem] = found.values()
    assert "trust_remote_code is not set" in problem.message
    assert "trust_remote_code: true" in str(problem.remedy)
    assert "false" in str(problem.remedy)
    assert problem.key == ("tokenizer_config" if values else "base_model")
    for choice in (True, False):
        assert not check(model, trust_remote_code=choice, **values)
    assert not marker.exists()


def test_sequence_len_above_the_positions(model: Path) -> None:
    problem = check(model, sequence_len=256)["sequence_len"]
    assert "256" in problem.message
    assert "128" in problem.message
    assert "max_position_embeddings: 256" in str(problem.remedy)
    assert not check(model, sequence_len=128)


@pytest.mark.parametrize(
    "overrides",
    [{"max_position_embeddings": 256}, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
     {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}],
)  # fmt: skip
def test_positions_can_be_extended(model: Path, overrides: dict[str, Any]) -> None:
    assert not check(model, sequence_len=256, overrides_of_model_config=overrides)


@pytest.mark.parametrize(
    "config",
    [{"model_type": "gpt2", "n_positions": 128},
     {"model_type": "opt", "max_position_embeddings": 128}],
)  # fmt: skip
def test_learned_positions_cannot_be_scaled(tmp_path: Path, config: dict[str, Any]) -> None:
    model = make_model(tmp_path / "model", config)
    overrides = {"rope_scaling": {"factor": 2.0}}
    problem = check(model, sequence_len=256, overrides_of_model_config=overrides)["sequence_len"]
    assert "256" in problem.message
    assert "128" in problem.message
    assert "learns one row for each" in problem.message
    assert problem.remedy == "lower sequence_len to 128"


def test_models_without_a_limit_and_nested_configs(tmp_path: Path) -> None:
    assert not check(make_model(tmp_path / "a", {"model_type": "bloom"}), sequence_len=9999)
    nested = make_model(tmp_path / "b", {"model_type": "gemma3", "text_config": LLAMA})
    assert "128" in check(nested, sequence_len=256)["sequence_len"].message


def test_template_file_that_is_not_there(tmp_path: Path) -> None:
    found = check(entry={"path": "org/name", "chat_template_jinja": "x.jinja"},
                  chat_template_jinja=str(tmp_path / "x.jinja"))  # fmt: skip
    assert set(found) == {"datasets.0.chat_template_jinja", "chat_template_jinja"}
    (tmp_path / "x.jinja").touch()
    assert not check(chat_template_jinja=str(tmp_path / "x.jinja"))


@pytest.mark.parametrize("size", [3, 4])
def test_sizes_that_do_not_divide_are_seen_before_launch(tmp_path: Path, size: int) -> None:
    values = LLAMA | {
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
        "vocab_size": 64,
    }  # fmt: skip
    found = check(make_model(tmp_path / "m", values), tensor_parallel_size=size)
    problem = found["tensor_parallel_size"]
    assert "attention heads 4, kv heads 2, MLP width 64, vocabulary 64" in problem.message
    assert problem.remedy == "allowed here: {1, 2}"
