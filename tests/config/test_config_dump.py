from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunecli.config import Config, dump_config, load_config
from tunecli.config.yaml import parse_yaml

Load = Callable[..., Config]

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
words = text | st.sampled_from(["1e-4", "no", "null", "2024-01-01", "0x1F", "1:30", "<<", "=", "~"])
floats = st.floats(min_value=1e-300, max_value=1e300)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
free = st.dictionaries(
    words.filter(lambda name: "token" not in name),
    st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=5),
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(
    rate=floats, decay=floats, epochs=st.integers(1, 9) | floats, words=words, free=free,
    rows=st.integers(0, 9) | st.floats(0, 0.99), tokens=st.lists(words, max_size=3),
)  # fmt: skip
def test_a_dump_loads_back(
    rate: float, decay: float, epochs: Any, words: str, free: Any, rows: Any, tokens: list[str]
) -> None:
    config = load_config(
        {"base_model": "m", "datasets": [{"path": "d", "field": words}], "learning_rate": rate,
         "weight_decay": decay, "num_epochs": epochs, "val_set_size": rows, "wandb_name": words,
         "optim_args": free, "eot_tokens": tokens, "tracker_kwargs": {"wandb": free}}
    )  # fmt: skip
    dumped = dump_config(config)
    again = load_config(parse_yaml(dumped, "f").tree)
    assert again == config
    assert type(again.num_epochs) is type(config.num_epochs)
    assert type(again.val_set_size) is type(config.val_set_size)
    plain = yaml.safe_load(dumped)
    assert plain["learning_rate"] == rate
    assert type(plain["learning_rate"]) is float
    assert plain["wandb_name"] == words


def test_floats_are_readable_and_plain_yaml(load: Load) -> None:
    dumped = dump_config(load("weight_decay: 1e-5\nadam_epsilon: 1.5e-8\n"))
    assert "learning_rate: 0.0001\n" in dumped
    assert "weight_decay: 1.0e-05\n" in dumped
    assert "adam_epsilon: 1.5e-08\n" in dumped


def test_grouped_in_the_order_of_the_schema(load: Load) -> None:
    dumped = dump_config(load())
    assert dumped.startswith("# Model, tokenizer and numeric types.\nbase_model: m\n")
    assert "\n\n# Steps, optimizer and schedule.\nmicro_batch_size: 1\n" in dumped
    keys = list(yaml.safe_load(dumped))
    assert set(keys) == set(Config.model_fields) - {"hub_token"}


def test_secrets_stay_out(load: Load, tmp_path: Path) -> None:
    config = load(
        "hub_token: tok_FAKE123\nmlflow_tracking_uri: https://u:pFAKE@h\n"
        "tracker_kwargs: {wandb: {api_key: FAKE, tags: [https://u:pFAKE@h]}}\n"
        "overrides_of_model_config: {num_memory_tokens: 4}\n"
    )
    dumped = dump_config(config)
    assert "FAKE" not in dumped
    assert "hub_token" not in dumped
    assert "num_memory_tokens: 4" in dumped
    path = tmp_path / "again.yaml"
    path.write_text(dumped)
    again = load_config(path)
    assert again.mlflow_tracking_uri == "https://***@h"
    assert again.hub_token is None
