from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecli.config import Config, DatasetEntry, dump_config, load_config
from tunecli.config.axolotl import KEYS
from tunecli.config.loader import STAND_INS
from tunecli.errors import ConfigError, Problem

Load = Callable[..., Config]
Problems = Callable[..., dict[str, Problem]]


@pytest.mark.parametrize("text", ["1e-4", "1e-04", "1.0e-4", "0.0001"])
def test_learning_rate_in_any_spelling(load: Load, text: str) -> None:
    base = f"base_model: m\ndatasets: [{{path: d}}]\nlearning_rate: {text}\n"
    config = load("weight_decay: 1e-2\noptim_args: {eps: 1e-8}\n", base=base)
    assert config.learning_rate == 1e-4
    assert config.weight_decay == 0.01
    assert config.optim_args == {"eps": 1e-8}
    assert type(config.optim_args["eps"]) is float


@pytest.mark.parametrize(
    ("text", "key", "line", "column", "hint"),
    [
        ("gradient_accumulaton_steps: 4\n", "gradient_accumulaton_steps", 5, 1,
         "gradient_accumulation_steps"),
        ("lora: {rnk: 8}\n", "lora.rnk", 5, 8, "lora_r"),
        ("special_tokens:\n  pad_tokn: x\n", "special_tokens.pad_tokn", 6, 3, "pad_token"),
        ("field_messages: x\n", "field_messages", 5, 1, "in an entry of datasets"),
        ("offload_params: true\n", "offload_params", 5, 1, "in fsdp_config"),
        ("fsdp_config: {seed: 1}\n", "fsdp_config.seed", 5, 15, "at the top level"),
        ("role: x\n", "role", 5, 1, "message_property_mappings of an entry of datasets"),
        ("zzzzzz: 1\n", "zzzzzz", 5, 1, "docs/config.md"),
    ],
)  # fmt: skip
def test_unknown_keys(problems: Problems, text, key, line, column, hint) -> None:
    found = problems(text)[key]
    assert "unknown key" in found.message
    assert hint in f"{found.message} {found.remedy}"
    assert (found.line, found.column) == (line, column)


def test_top_level_key_in_an_entry(problems: Problems) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n    sequence_len: 64\n"
    found = problems(base=base)
    assert list(found) == ["datasets.0.sequence_len"]
    text = str(found["datasets.0.sequence_len"])
    assert "c.yaml:5:5: datasets.0.sequence_len: unknown key here; it belongs at the top" in text


@given(
    name=st.from_regex(r"[a-z][a-z_]{0,15}", fullmatch=True),
    place=st.sampled_from(["top", "entry", "special_tokens", "fsdp_config"]),
)
def test_random_unknown_keys_are_rejected_with_path(name: str, place: str) -> None:
    tree = {"base_model": "m", "datasets": [{"path": "d"}], "learning_rate": 1.0,
            "special_tokens": {}, "fsdp_config": {}}  # fmt: skip
    where = {"top": tree, "entry": tree["datasets"][0]}.get(place) or tree.get(place)
    if where is None:
        where = tree[place]
    name = f"zq_{name}"
    where[name] = 1
    path = {"top": name, "entry": f"datasets.0.{name}"}.get(place, f"{place}.{name}")
    with pytest.raises(ConfigError) as caught:
        load_config(tree)
    [found] = caught.value.problems
    assert found.key == path
    assert found.file == "<dict>"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["path", "type", "role", "pad_token", "offload_params", "x"]), inner,
        max_size=2,
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*Config.model_fields, *KEYS, "zq"]), values, max_size=6))
def test_any_values_load_or_are_explained(tree: dict[str, Any]) -> None:
    problems: list[Problem] = []
    try:
        config = load_config({**STAND_INS, **tree})
        dumped = dump_config(config)
        again = load_config(yaml.safe_load(dumped))
        assert dump_config(again) == dumped
    except ConfigError as error:
        problems = error.problems
    assert len({problem.path for problem in problems}) == len(problems)
    assert all(problem.path and problem.message for problem in problems)


def test_duplicates_and_other_problems_are_shown_together(problems: Problems) -> None:
    text = "sequence_len: 1024\nseed: -1\nsequence_len: 64\nwarmup_steps: 1\nwarmup_ratio: 0.1\n"
    found = problems(text)
    assert "lines 5 and 7" in found["sequence_len"].message
    assert set(found) == {"sequence_len", "seed", "warmup_ratio"}
    assert found["warmup_ratio"].line == 9


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("micro_batch_size: true", "a whole number of at least 1, not true"),
        ("learning_rate: .nan", "a number above 0, not .nan"),
        ("learning_rate: -.inf", "a number above 0, not -.inf"),
        ("learning_rate: -1", "a number above 0, not -1"),
        ("num_epochs: 0", "a number above 0, not 0"),
        ("lora_r: 0", "a whole number of at least 1, not 0"),
        ("gradient_accumulation_steps: 0", "a whole number of at least 1, not 0"),
        ("gradient_accumulation_steps: 1.5", "a whole number of at least 1, not 1.5"),
        ("val_set_size: -0.1", "a number of at least 0, not -0.1"),
        ("warmup_ratio: 2", "a number from 0 to 1, not 2"),
        ("adam_beta1: 1", "a number of at least 0 and below 1, not 1"),
        ("seed: 99999999999999999999999", "not a huge number"),
        ("bf16: '['", 'true, false or auto, not "["'),
        ("bf16: yess", 'true, false or auto, not "yess"'),
        ("lora_target_modules: 3", "text or a list of texts, not 3"),
        ("tokens: {a: b}", "a list of texts, not a mapping"),
        ("datasets: []", "a list of mappings with at least one entry, not an empty list"),
        ("datasets: [null]", "must be a mapping, not null"),
        ("datasets: [3]", "must be a mapping, not 3"),
        ("base_model: ''", 'text that is not empty, not ""'),
        ("model_type: [a]", "must be text, not a list of 1"),
        ("fsdp_version: 1", "must be 2, not 1"),
        ("special_tokens: 3", "must be a mapping, not 3"),
        ("roles: x", "belongs in an entry of datasets"),
        ("optimizer: [" + "x, " * 200 + "]", "a list of 200"),
        ("bf16: " + "y" * 200, "..."),
        ("hub_token: 123456789", "must be text, not the hidden value"),
    ],
)
def test_wrong_values_in_plain_words(tmp_path: Path, line: str, words: str) -> None:
    name = line.partition(":")[0]
    lines = {"base_model": "base_model: m", "datasets": "datasets: [{path: d}]",
             "learning_rate": "learning_rate: 1", name: line}  # fmt: skip
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(lines.values()))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [found] = caught.value.problems
    assert words in found.message
    assert len(found.message) < 200
    assert found.key.startswith(name)
    assert found.line == list(lines).index(name) + 1
    assert "123456789" not in str(caught.value)


def test_boundaries_are_legal(load: Load) -> None:
    config = load("weight_decay: 0\nwarmup_steps: 0\nval_set_size: 0\nmax_grad_norm: 0\n")
    assert (config.weight_decay, config.warmup_steps, config.val_set_size) == (0, 0, 0)


def test_val_set_size_rows_and_shares(load: Load, problems: Problems) -> None:
    assert load("val_set_size: 1\n").val_set_size == 1
    assert type(load("val_set_size: 1\n").val_set_size) is int
    assert load("val_set_size: 0.1\n").val_set_size == 0.1
    assert type(load("", ["--val-set-size", "1"]).val_set_size) is int
    for text in ("1.0", "2.5", "1e1"):
        found = problems(f"val_set_size: {text}\n")["val_set_size"]
        assert "leaves 0 rows" in found.message
        assert found.line == 5
    assert "leaves 0 rows" in str(problems("", ["--val-set-size=1.0"])["val_set_size"])


@pytest.mark.parametrize("word", ["no", "off", "false", "'no'"])
def test_no_for_a_strategy(load: Load, word: str) -> None:
    config = load(f"eval_strategy: {word}\nsave_strategy: {word}\n")
    assert (config.eval_strategy, config.save_strategy) == ("no", "no")


def test_remedies(problems: Problems) -> None:
    found = problems('weight_decay: "2e-5"\nwandb_name: 12\nbf16: "true"\neot_tokens: x\n'
                     "lr_scheduler: cosin\nhub_token: 3\n")  # fmt: skip
    assert found["weight_decay"].remedy == "remove the quotes: weight_decay: 2e-5"
    assert found["bf16"].remedy == "remove the quotes: bf16: true"
    assert "in quotes" in str(found["wandb_name"].remedy)
    assert "[a, b]" in str(found["eot_tokens"].remedy)
    assert found["lr_scheduler"].remedy == "did you mean cosine?"


def test_one_problem_a_field_at_its_deepest_place(problems: Problems) -> None:
    found = problems("lora_target_modules: [a, 1]\ntracker_kwargs: {wandb: 3}\n")
    assert set(found) == {"lora_target_modules.1", "tracker_kwargs.wandb"}


def test_missing_keys(problems: Problems) -> None:
    found = problems("seed: 1\ndatasets:\n  - type: alpaca\n", base="")
    assert set(found) == {"base_model", "learning_rate", "datasets.0.path"}
    assert found["base_model"].line is None
    assert found["datasets.0.path"].line == 3
    assert "required" in found["base_model"].message


def test_a_misspelt_required_key_is_told_once(problems: Problems) -> None:
    found = problems(base="base_modl: m\ndatasets: [{pth: d}]\nlearning_rate: 1\n")
    assert set(found) == {"base_modl", "datasets.0.pth"}


def test_null_means_left_out(load: Load, problems: Problems) -> None:
    config = load(
        "special_tokens:\nsequence_len: null\nfsdp_config: {offload_params: null}\n"
        "test_datasets:\n  - {path: x, split: null, message_property_mappings: {role: null}}\n"
    )
    assert config.sequence_len == 2048
    assert config.test_datasets == [DatasetEntry(path="x")]
    assert "sequence_len" not in config.model_fields_set
    assert "required" in problems(base="base_model: null\ndatasets: [{path: d}]\n"
                                  "learning_rate: 1\n")["base_model"].message  # fmt: skip


def test_cross_field_problems_of_wrong_fields_are_left_out(problems: Problems) -> None:
    text = "adapter: loraa\nlora_r: 8\nmin_sample_len: 10\nbf16: true\nfp16: true\n"
    assert set(problems(text)) == {"adapter", "fp16"}
    # A misspelt key counts as the one that was meant.
    assert set(problems("adapter: lora\nlora_alpha: 1\nlora_rr: 8\n")) == {"lora_rr"}
    assert set(problems("adapter: lora\nlora_alpha: 1\nseed: x\n")) == {"seed", "lora_r"}


def test_stand_ins_cover_what_is_required() -> None:
    required = {name for name, info in Config.model_fields.items() if info.is_required()}
    assert set(STAND_INS) == required


def test_load_from_a_mapping_leaves_it_alone() -> None:
    tree = {"base_model": "m", "datasets": [{"path": "d"}], "learning_rate": 1.0, "seed": None}
    config = load_config(tree, ["--datasets.0.path", "e"])
    assert config.datasets[0].path == "e"
    assert tree["datasets"] == [{"path": "d"}]
    assert "seed" in tree
    with pytest.raises(ConfigError, match="a key must be text"):
        load_config({**tree, "optim_args": {1: 2}})
    with pytest.raises(ConfigError, match=r"<dict>: wandb_name: must be text, not a PosixPath"):
        load_config({**tree, "wandb_name": Path("x")})
    with pytest.raises(ConfigError, match="a key must be text"):
        load_config({**tree, 1: 2})


def test_messages_read_well(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("seqence_len: 1\nseed: true\n")
    first, second, third = str(caught.value).splitlines()
    assert first.endswith("c.yaml:5:1: seqence_len: unknown key")
    assert second == "    -> did you mean sequence_len?"
    assert ":6:7: seed: must be a whole number of at least 0 and below 4294967296, not" in third
