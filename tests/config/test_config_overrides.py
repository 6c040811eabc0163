from __future__ import annotations

from collections.abc import Callable

import pytest

from tunecli.config import Config
from tunecli.errors import Problem

Load = Callable[..., Config]
Problems = Callable[..., dict[str, Problem]]


@pytest.mark.parametrize(
    ("arguments", "expression", "value"),
    [
        (["--learning-rate", "2e-5"], "c.learning_rate", 2e-5),
        (["--learning_rate=2e-5"], "c.learning_rate", 2e-5),
        (["--datasets.0.path", "x"], "c.datasets[0].path", "x"),
        (["--datasets.1.path", "x", "--datasets.1.split", "s"], "c.datasets[1].split", "s"),
        (["--test-datasets.0.path", "x"], "c.test_datasets[0].path", "x"),
        (["--datasets.0.message_property_mappings.role", "from"],
         "c.datasets[0].message_property_mappings.role", "from"),
        (["--datasets.0.field-messages", "x"], "c.datasets[0].field_messages", "x"),
        (["--bf16", "false"], "c.bf16", False),
        (["--bf16", "auto"], "c.bf16", "auto"),
        (["--fsdp_config.offload_params", "true"], "c.fsdp_config.offload_params", True),
        (["--fsdp-config.offload-params"], "c.fsdp_config.offload_params", True),
        (["--sample-packing"], "c.sample_packing", True),
        (["--sample-packing", "--seed", "1"], "c.sample_packing", True),
        (["--wandb-name", "123"], "c.wandb_name", "123"),
        (["--wandb-name", "no"], "c.wandb_name", "no"),
        (["--wandb-name", ""], "c.wandb_name", ""),
        (["--wandb-name", "a: b: c"], "c.wandb_name", "a: b: c"),
        (["--wandb-name=--x=y"], "c.wandb_name", "--x=y"),
        (["--eot-tokens", "[a, b]"], "c.eot_tokens", ["a", "b"]),
        (["--lora-target-modules", "[a, b]", "--adapter", "lora", "--lora-r", "1",
          "--lora-alpha", "1"], "c.lora_target_modules", ["a", "b"]),
        (["--lora-target-modules", "[a-z]+", "--adapter", "lora", "--lora-r", "1",
          "--lora-alpha", "1"], "c.lora_target_modules", "[a-z]+"),
        (["--optim-args", "{eps: 1e-8}"], "c.optim_args", {"eps": 1e-8}),
        (["--optim-args.eps", "1e-8"], "c.optim_args", {"eps": 1e-8}),
        (["--optim-args.a.b-c", "x: y: z"], "c.optim_args", {"a": {"b-c": "x: y: z"}}),
        (["--tracker-kwargs.wandb.tags.0", "x"], "c.tracker_kwargs", {"wandb": {"tags": ["x"]}}),
        (["--tracker-kwargs", "{wandb: {tags: [a]}}"], "c.tracker_kwargs",
         {"wandb": {"tags": ["a"]}}),
        (["--datasets.0.roles.assistant", "[gpt]"], "c.datasets[0].roles", {"assistant": ["gpt"]}),
        (["--eval-strategy", "no"], "c.eval_strategy", "no"),
        (["--seed", "7", "--seed", "null"], "c.seed", 42),
        (["--resume-from-checkpoint"], "c.resume_from_checkpoint", True),
        (["--resume-from-checkpoint", "12"], "c.resume_from_checkpoint", "12"),
        (["--fsdp-version", "2"], "c.fsdp_version", 2),
        (["--adam-eps", "1e-6"], "c.adam_epsilon", 1e-6),
        (["--hub-token", "123"], "c.hub_token.get_secret_value()", "123"),
    ],
)  # fmt: skip
def test_values_are_typed_by_the_schema(load: Load, arguments, expression, value) -> None:
    result = eval(expression, {"c": load("", arguments)})
    assert result == value
    assert type(result) is type(value)


def test_null_unsets_what_the_file_sets(load: Load) -> None:
    config = load("seed: 7\ntest_datasets: [{path: a}, {path: b}]\n",
                  ["--seed", "null", "--test-datasets.0", "null"])  # fmt: skip
    assert config.seed == 42
    assert [entry.path for entry in config.test_datasets] == ["b"]
    assert load("", ["--wandb-name", "null"]).wandb_name is None


def test_index_into_a_free_form_list(load: Load) -> None:
    config = load("optim_args: {betas: [0.9, 0.99]}\n", ["--optim-args.betas.1", "0.95"])
    assert config.optim_args == {"betas": [0.9, 0.95]}


def test_flag_wins_over_the_other_name_in_the_file(load: Load) -> None:
    assert load("adam_eps: 1e-3\n", ["--adam-epsilon", "1e-4"]).adam_epsilon == 1e-4
    assert load("adam_epsilon: 1e-3\n", ["--adam-eps", "1e-4"]).adam_epsilon == 1e-4


@pytest.mark.parametrize(
    ("arguments", "place", "words"),
    [
        (["--learning-rat", "1"], "command line, --learning-rat", "did you mean --learning-rate?"),
        (["--datasets.0.pth", "1"], "command line, --datasets.0.pth", "--datasets.0.path"),
        (["--datasets.0.seed", "1"], "command line, --datasets.0.seed", "--seed"),
        (["--zzzzzz", "1"], "command line, --zzzzzz", "no such option"),
        (["--seed.x", "1"], "command line, --seed.x", "no such option"),
        (["--datasets.2.path", "x"], "command line, --datasets.2.path", "has 1 entries"),
        (["--datasets.1", "null"], "command line, --datasets.1", "has 1 entries"),
        (["--datasets.-1.path", "x"], "command line, --datasets.-1.path", "no such option"),
        (["--optim-args.betas.x", "1"], "command line, --optim-args.betas.x", "a list: write"),
        (["--optim-args.eps.x", "1"], "command line, --optim-args.eps.x", "no mapping"),
        (["--optim-args.o.0", "1"], "command line, --optim-args.o.0", "not a list"),
        (["--seed"], "command line, --seed", "a value is missing"),
        (["--eot-tokens", "[a"], "command line, --eot-tokens", "not valid YAML"),
        (["x"], "command line", "unexpected argument 'x'"),
        (["-x"], "command line, -x", "unexpected argument '-x'"),
        (
            ["-hub-token", "tok_FAKE"],
            "command line, -hub-token",
            "unexpected argument '-hub-token'",
        ),
    ],
)
def test_flags_that_cannot_be_applied(problems: Problems, arguments, place, words) -> None:
    found = problems("optim_args: {betas: [1], eps: 1, o: {}}\n", arguments)
    assert list(found) == [place]
    assert words in f"{found[place].message} {found[place].remedy}"


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (["--seed", "x"], "seed", 'not "x"'),
        (["--seed", "-1"], "seed", "not -1"),
        (["--datasets.0.path", ""], "datasets.0.path", "not empty"),
        (["--datasets.1.split", "x"], "datasets.1.path", "required"),
        (["--eot-tokens", "x"], "eot_tokens", "a list of texts"),
        (["--learning-rate", "null"], "learning_rate", "required"),
        (["--deepspeed", "x.json"], "deepspeed", "not supported"),
        (["--debug", "--rl", "dpo"], "rl", "not supported"),
    ],
)
def test_wrong_values_name_the_flag(problems: Problems, arguments, key, words) -> None:
    found = problems("", arguments)
    assert words in found[key].message
    if key != "datasets.1.path":
        assert str(found[key].file).startswith("command line, --")
        assert found[key].line is None


def test_entry_that_the_command_line_makes_is_not_in_the_file(problems: Problems) -> None:
    found = problems("", ["--datasets", "3"])["datasets"]
    assert found.file == "command line, --datasets"


def test_overriding_something_that_is_wrong_in_the_file(problems: Problems) -> None:
    found = problems(
        "", ["--datasets.0.path", "x"], base="base_model: m\nlearning_rate: 1\ndatasets: x\n"
    )
    assert "not a list" in found["command line, --datasets.0.path"].message


def test_secrets_are_not_echoed(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    config = load("", ["--hub-token", "tok_FAKE123"])
    assert "FAKE" not in repr(config)
