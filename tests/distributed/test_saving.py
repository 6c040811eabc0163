"""Checkpoints and final models of a mesh, read by the same mesh, another one, or none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import ranks
from distributed.compare import errors, outcome, weight_error
from distributed.conftest import Bench
from distributed.layouts import params
from distributed.world import Worlds
from runs import chat_rows
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tunecli.parallel import Layout

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8}
COMMON: dict[str, Any] = {
    "rows": chat_rows(11),
    "batch_size": 4,
    "max_steps": 5,
    "learning_rate": 5e-3,
    "optimizer": "adamw_torch",
    "adam_epsilon": 1e-4,
    "lr_scheduler": "cosine",
    "sample_packing": True,
    "val_set_size": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
}
TUNING = {
    "full": {},
    "lora": LORA,
    "embeddings": {**LORA, "lora_modules_to_save": ["embed_tokens"]},
}
IDS = torch.arange(8, 40)[None]


@pytest.mark.parametrize(
    "layout", params(Layout(dp_shard=2), Layout(tp=2), Layout(dp_replicate=2, dp_shard=2, tp=2))
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_final_model_needs_no_mesh(bench: Bench, layout: Layout, tied: bool) -> None:
    values = {**COMMON, "tied": tied, "max_steps": 3}
    config = bench.config(layout, **values)
    bench.train(config, layout)
    alone = bench.config(**values)
    bench.train(alone, Layout())
    ours, info = AutoModelForCausalLM.from_pretrained(config.output_dir, output_loading_info=True)
    assert not any(info.values()), info
    theirs = AutoModelForCausalLM.from_pretrained(alone.output_dir)
    head, embedding = ours.get_output_embeddings().weight, ours.get_input_embeddings().weight
    assert (head is embedding) == tied
    stored = load_file(Path(config.output_dir) / "model.safetensors")
    assert ("lm_head.weight" in stored) != tied
    shapes = {name: p.shape for name, p in ours.named_parameters()}
    assert shapes == {name: p.shape for name, p in theirs.named_parameters()}
    with torch.no_grad():
        assert torch.allclose(ours(IDS).logits, theirs(IDS).logits, atol=1e-5)


@pytest.mark.parametrize(
    "layout", params(Layout(dp_shard=2), Layout(tp=2), Layout(dp_shard=2, cp=2, tp=2))
)
def test_the_adapter_needs_no_mesh(bench: Bench, layout: Layout) -> None:
    from peft import PeftModel

    values = {**COMMON, **LORA, "learning_rate": 1e-2}
    config = bench.config(layout, **values)
    bench.train(config, layout)
    alone = bench.config(**values)
    bench.train(alone, Layout())
    ours = load_file(Path(config.output_dir) / "adapter_model.safetensors")
    theirs = load_file(Path(alone.output_dir) / "adapter_model.safetensors")
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    for name, tensor in ours.items():
        if "lora_B" in name:
            halves = [*tensor.chunk(2, dim=0), *tensor.chunk(2, dim=1)]
            assert all(half.abs().max() > 0 for half in halves), name
    logits = []
    for directory in (config.output_dir, alone.output_dir):
        base = AutoModelForCausalLM.from_pretrained(config.base_model)
        model = PeftModel.from_pretrained(base, directory)
        with torch.no_grad():
            logits.append(model(IDS).logits)
    assert torch.allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("tuning", TUNING)
@pytest.mark.parametrize(
    "layout", params(Layout(dp_replicate=2, tp=2), Layout(dp_shard=2, tp=2), Layout(cp=2, tp=2))
)
def test_resume_on_the_same_mesh_is_exact(
    bench: Bench, worlds: Worlds, layout: Layout, tuning: str
) -> None:
    dropout = {"lora_dropout": 0.1} if tuning == "lora" else {}
    values = {**COMMON, **TUNING[tuning], **dropout, "save_strategy": "steps", "save_steps": 2}
    whole = bench.run(layout, **values)
    cut = bench.config(layout, **values, resume_from_checkpoint="auto")
    worlds[layout.world_size].run(ranks.train_until, cut, 3)
    assert (Path(cut.output_dir) / "checkpoint-2" / "manifest.json").is_file()
    bench.train(cut, layout)
    assert max(errors(outcome(cut), whole).values()) == 0.0


@pytest.fixture(scope="module", params=TUNING)
def stopped(request: pytest.FixtureRequest, bench: Bench, worlds: Worlds) -> Any:
    """A run on dp2 x tp2 that died after its third step: its values and its directory."""
    values = {
        **COMMON, **TUNING[request.param], "save_strategy": "steps", "save_steps": 2,
        "resume_from_checkpoint": "auto",
    }  # fmt: skip
    config = bench.config(Layout(dp_shard=2, tp=2), **values)
    worlds[4].run(ranks.train_until, config, 3)
    return values, Path(config.output_dir)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(Layout(), id="one-process"),
        *params(
            Layout(dp_shard=4),
            Layout(dp_replicate=2),
            Layout(cp=2),
            Layout(dp_replicate=2, dp_shard=2, tp=2),
        ),
    ],
)
def test_resume_on_another_mesh(bench: Bench, stopped: Any, layout: Layout) -> None:
    values, directory = stopped
    config = bench.config(layout, **values)
    shutil.copytree(directory, config.output_dir)
    bench.train(config, layout)
    whole = bench.alone(**{k: v for k, v in values.items() if k != "resume_from_checkpoint"})
    found = errors(outcome(config), whole)
    assert max(found.values()) <= 1e-5, found


def test_dropout_of_peers_stays_the_same_after_another_mesh(bench: Bench, worlds: Worlds) -> None:
    """Two data-parallel ranks draw different numbers; two tensor-parallel ones must not."""
    values = {
        **COMMON, **LORA, "lora_dropout": 0.3, "save_strategy": "steps", "save_steps": 2,
        "resume_from_checkpoint": "auto",
    }  # fmt: skip
    config = bench.config(Layout(dp_shard=2), **values)
    worlds[2].run(ranks.train_until, config, 3)
    for layout in (Layout(tp=2), Layout(dp_shard=2, tp=2)):
        again = bench.config(layout, **values)
        shutil.copytree(config.output_dir, again.output_dir)
        assert max(worlds[layout.world_size].run(ranks.drift, again)) == 0.0


@pytest.mark.parametrize("layout", params(Layout(dp_shard=2, tp=2), Layout(cp=2)))
def test_evaluation_of_a_checkpoint_and_of_the_result(
    bench: Bench, worlds: Worlds, stopped: Any, layout: Layout
) -> None:
    values, directory = stopped
    checkpoint = str(directory / "checkpoint-2")
    found = worlds[layout.world_size].run(
        ranks.evaluate, bench.config(layout, **values), checkpoint
    )
    alone = ranks.evaluate(bench.config(**values), checkpoint)
    assert all(result == found[0] for result in found)
    assert found[0] == (pytest.approx(alone[0], rel=1e-6), alone[1])


def test_the_best_checkpoint_is_loaded_at_the_end(bench: Bench) -> None:
    # So high a rate that the first evaluation is the best one.
    values = {
        **COMMON, "learning_rate": 0.3, "save_strategy": "best", "load_best_model_at_end": True,
        "eval_steps": 1, "max_steps": 3,
    }  # fmt: skip
    one, mesh = bench.alone(**values), bench.run(Layout(dp_shard=2, tp=2), **values)
    losses = one.column("eval_loss")
    assert min(losses) < losses[-1]
    for name, tensor in one.weights.items():
        assert weight_error(mesh.weights[name], tensor) <= 1e-3
