"""Each model family, by its own tensor-parallel plan, computes the numbers of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed.conftest import Bench
from distributed.families import FAMILIES, write_family
from distributed.layouts import with_backends
from distributed.test_matrix import TUNING
from runs import chat_row, words
from transformers import AutoConfig

from tunecli.errors import ConfigError
from tunecli.parallel import Layout
from tunecli.parallel.checks import check_layout

ROWS = [chat_row(words(i, 3 + i % 9), words(3 * i + 1, 4 + (i * 5) % 11)) for i in range(12)]

COMMON: dict[str, Any] = {
    "rows": ROWS,
    "sample_packing": True,
    "batch_size": 4,
    "max_steps": 2,
    "optimizer": "sgd",
    "learning_rate": 0.5,
}


@pytest.fixture(scope="session")
def family_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(
    ("layout", "backend"), with_backends(Layout(dp_shard=2, tp=2), Layout(dp_shard=2, cp=2))
)
@pytest.mark.parametrize("tuning", TUNING)
@pytest.mark.parametrize("kind", FAMILIES)
def test_family(
    bench: Bench, family_root: Path, kind: str, tuning: str, layout: Layout, backend: str
) -> None:
    found = bench.compare(
        "families",
        layout,
        model=write_family(family_root, kind),
        context_parallel_backend=backend,
        **COMMON,
        **TUNING[tuning],
    )
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize("kind", ["gemma2", "mistral"])
def test_family_on_three_axes(bench: Bench, family_root: Path, kind: str) -> None:
    layout = Layout(dp_shard=2, cp=2, tp=2)
    found = bench.compare("families", layout, model=write_family(family_root, kind), **COMMON)
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gpt2", "gpt2 has no tensor-parallel plan in transformers"),
        ("mixtral", "experts .mixtral. is not supported"),
        ("qwen3_moe", "experts .qwen3_moe. is not supported"),
    ],
)
def test_a_family_that_cannot_be_split_is_refused_by_name(
    bench: Bench, kind: str, message: str
) -> None:
    config = bench.config(Layout(tp=2))
    # Only the model's config is there: no weight can have been read.
    with pytest.raises(ConfigError, match=message):
        check_layout(config, AutoConfig.for_model(kind), Layout(tp=2))


def test_an_unknown_style_is_refused_by_name(bench: Bench) -> None:
    model_config = AutoConfig.for_model("llama")
    model_config.base_model_tp_plan = {"layers.*.mlp.up_proj": "spiral"}
    with pytest.raises(ConfigError, match="plan of llama has the style 'spiral'"):
        check_layout(bench.config(Layout(tp=2)), model_config, Layout(tp=2))
