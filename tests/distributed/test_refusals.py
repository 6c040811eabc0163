"""Layouts that cannot be are refused before any weight is read."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import ranks
from distributed.conftest import Bench
from distributed.world import Worlds
from pydantic import ValidationError
from toys import toy_model_config, write_model_dir

from tunecli.config import Config
from tunecli.errors import ConfigError
from tunecli.parallel import Layout
from tunecli.parallel.checks import check_layout

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8}


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("key", ["tensor_parallel_size", "dp_shard_size"])
def test_a_size_is_at_least_one(bench: Bench, key: str, size: int) -> None:
    with pytest.raises(ValidationError, match=key):
        bench.config(**{key: size})


def _without_weights(bench: Bench, path: Any, layout: Layout, **values: Any) -> Config:
    return bench.config(layout, model=write_model_dir(path, weights=False), **values)


def test_a_product_that_does_not_match(bench: Bench, worlds: Worlds, tmp_path: Any) -> None:
    config = _without_weights(bench, tmp_path / "m", Layout(dp_shard=2, tp=2))
    for text in worlds[2].run(ranks.refusal, config):
        assert "dp_shard_size 2" in text
        assert "tensor_parallel_size 2 = 4, but 2 processes are there" in text


def test_heads_that_do_not_divide(bench: Bench, worlds: Worlds, tmp_path: Any) -> None:
    config = _without_weights(bench, tmp_path / "m", Layout(tp=4))
    for text in worlds[4].run(ranks.refusal, config):
        assert "tensor_parallel_size 4 does not divide" in text
        assert "attention heads 4, kv heads 2" in text
        assert "allowed here: {1, 2}" in text


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ({"tp": 3}, "attention heads 4, kv heads 2"),
        ({"tp": 2, "vocab_size": 63}, "vocabulary 63"),
        ({"tp": 2, "intermediate_size": 65}, "MLP width 65"),
    ],
    ids=["heads", "vocabulary", "mlp"],
)
def test_sizes_that_do_not_divide(bench: Bench, sizes: dict[str, int], shown: str) -> None:
    layout = Layout(tp=sizes.pop("tp"))
    with pytest.raises(ConfigError, match=shown) as caught:
        check_layout(bench.config(), toy_model_config(**sizes), layout)
    assert "allowed here" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "layout", "message"),
    [
        ({**LORA, "peft_use_dora": True}, Layout(tp=2), "DoRA"),
        ({**LORA, "adapter": "qlora", "load_in_4bit": True}, Layout(tp=2), "quantized weights"),
        ({"context_parallel_backend": "ulysses"}, Layout(cp=3), "cannot be dealt to 3 processes"),
        ({"context_parallel_backend": "ulysses"}, Layout(cp=4, tp=2), "2 query heads and 1 key"),
        ({"sequence_len": 32}, Layout(cp=32), "cannot be split into"),
        (
            {"context_parallel_backend": "ring", "sample_packing": True},
            Layout(cp=2),
            "ring attention knows no sample_packing",
        ),
    ],
    ids=["dora-tp", "qlora-tp", "ulysses-cp3", "ulysses-cp4-tp2", "short-rows", "ring-packed"],
)
def test_what_does_not_go_together(
    bench: Bench, values: dict[str, Any], layout: Layout, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layout(bench.config(**values), toy_model_config(), layout)


def test_a_batch_that_ranks_cannot_share(bench: Bench, worlds: Worlds) -> None:
    config = bench.config(Layout(dp_shard=4), batch_size=6)
    (text,) = set(worlds[4].run(ranks.refusal, config))
    assert "batch_size 6 is no multiple of micro_batch_size 1 x 4 data-parallel ranks" in text
