"""What else a run can ask for, on layouts where it could go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import ranks
from distributed.compare import errors
from distributed.conftest import Bench
from distributed.layouts import params, with_backends
from distributed.world import Worlds
from runs import chat_rows
from toys import write_model_dir

from tunecli.parallel import Layout

COMMON: dict[str, Any] = {
    "rows": chat_rows(11),
    "batch_size": 4,
    "max_steps": 4,
    "optimizer": "sgd",
    "learning_rate": 0.5,
}
LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8}
LIMIT = 1e-5

OPTIONS: dict[str, dict[str, Any]] = {
    # 11 rows, 4 a step: the third window of an epoch is short, and a rank has no row at its end.
    "padded": {},
    "padded-to-full-length": {"pad_to_sequence_len": True},
    "larger-micro-batches": {"micro_batch_size": 2, "batch_size": 8},
    "packed-accumulation": {"sample_packing": True, "batch_size": 8},
    "checkpointing": {"sample_packing": True, "gradient_checkpointing": True},
    "reentrant-checkpointing-lora": {
        **LORA,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "uneven-evaluation": {"val_set_size": 3, "eval_strategy": "steps", "eval_steps": 2},
    "unpacked-evaluation-of-packed-training": {
        "sample_packing": True,
        "eval_sample_packing": False,
        "eval_batch_size": 2,
        "val_set_size": 3,
    },
    "frozen": {"unfrozen_parameters": ["mlp", r"layers\.1\.self_attn", "norm"]},
    "only-norms": {"unfrozen_parameters": ["norm"]},
    "embeddings-and-head": {
        **LORA, "lora_modules_to_save": ["embed_tokens", "lm_head"], "tied": False,
    },
    "tied-embeddings": {**LORA, "lora_modules_to_save": ["embed_tokens"]},
    "some-targets": {**LORA, "lora_target_modules": ["q_proj", "down_proj"]},
    "rslora": {**LORA, "peft_use_rslora": True},
    "fused-adamw": {
        "optimizer": "adamw_torch_fused", "learning_rate": 5e-3, "adam_epsilon": 1e-4,
        "weight_decay": 0.1,
    },
    "no-clipping": {"max_grad_norm": 0, "learning_rate": 0.1},
}  # fmt: skip

SELECTED = with_backends(
    Layout(dp_shard=4),
    Layout(dp_replicate=2, tp=2),
    Layout(dp_shard=2, cp=2, tp=2),
)


@pytest.mark.parametrize(("layout", "backend"), SELECTED)
@pytest.mark.parametrize("option", OPTIONS)
def test_option(bench: Bench, option: str, layout: Layout, backend: str) -> None:
    values = {**COMMON, **OPTIONS[option], "context_parallel_backend": backend}
    found = bench.compare("options", layout, **values)
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize("options", [
    {"reshard_after_forward": True},
    {"reshard_after_forward": False},
    {"auto_wrap_policy": "NO_WRAP"},
    {"offload_params": True},
    {"layers_per_unit": 2},
    {"transformer_layer_cls_to_wrap": ["LlamaMLP", "LlamaDecoderLayer"]},
    {"mixed_precision_policy": {"param_dtype": "fp32", "reduce_dtype": "fp32"}},
], ids=lambda options: "-".join(map(str, next(iter(options.items())))))  # fmt: skip
@pytest.mark.parametrize("layout", params(Layout(dp_shard=4), Layout(dp_shard=4, tp=2)))
@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
def test_fsdp_config(
    bench: Bench, layout: Layout, options: dict[str, Any], tuning: dict[str, Any]
) -> None:
    found = bench.compare("fsdp_config", layout, **COMMON, **tuning, fsdp_config=options)
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize(
    "layout",
    params(Layout(cp=2), Layout(cp=4), Layout(dp_shard=2, cp=2), Layout(cp=2, tp=2)),
)
@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
def test_ring(bench: Bench, layout: Layout, tuning: dict[str, Any]) -> None:
    values = {**COMMON, **tuning, "val_set_size": 3, "gradient_checkpointing": True}
    found = bench.compare("ring", layout, **values, context_parallel_backend="ring")
    assert max(found.values()) <= LIMIT, found


def test_attention_and_mlp_are_reduced_once_each(bench: Bench, worlds: Worlds) -> None:
    """Two layers: two all-reduces each, and one for the vocabulary at either end."""
    config = bench.config(Layout(tp=2), **{**COMMON, "batch_size": 1})
    for forward, backward in worlds[2].run(ranks.reductions, config):
        assert forward == 2 * 2 + 1
        assert backward == 2 * 2 + 1


SEQUENCE = with_backends(Layout(tp=2), Layout(dp_shard=2, tp=2), Layout(dp_shard=2, cp=2, tp=2))


@pytest.mark.parametrize(("layout", "backend"), SEQUENCE)
@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_sequence_parallel_norms(
    bench: Bench, layout: Layout, backend: str, tuning: dict[str, Any], packed: bool
) -> None:
    found = bench.compare(
        "sequence_parallel",
        layout,
        **COMMON,
        **tuning,
        sample_packing=packed,
        sequence_parallel=True,
        context_parallel_backend=backend,
    )
    assert max(found.values()) <= LIMIT, found


def test_a_class_that_the_model_lacks_is_named(bench: Bench, worlds: Worlds) -> None:
    options = {"transformer_layer_cls_to_wrap": ["GemmaDecoderLayer"]}
    config = bench.config(Layout(dp_shard=2), **COMMON, fsdp_config=options)
    for text in worlds[2].run(ranks.refusal, config):
        assert "no GemmaDecoderLayer" in text
        assert "LlamaDecoderLayer" in text


@pytest.mark.parametrize("layout", params(Layout(dp_shard=4), Layout(dp_replicate=2, dp_shard=4)))
def test_reshard_to_groups(bench: Bench, layout: Layout) -> None:
    options = {"reshard_after_forward": 2}
    found = bench.compare("fsdp_config", layout, **{**COMMON, "batch_size": 8}, fsdp_config=options)
    assert max(found.values()) <= LIMIT, found


def test_reshard_to_groups_is_refused_with_tensor_parallelism(bench: Bench, worlds: Worlds) -> None:
    layout = Layout(dp_shard=4, tp=2)
    config = bench.config(layout, **COMMON, fsdp_config={"reshard_after_forward": 2})
    for text in worlds[8].run(ranks.refusal, config):
        assert "groups of 2 do not go together with tensor_parallel_size 2" in text


@pytest.mark.parametrize(
    ("kv_heads", "layout", "backend"),
    [
        pytest.param(kv, layout, backend, id=f"kv{kv}-{backend}-{id_}")
        for kv, layout, id_ in [
            (1, Layout(cp=2), "cp2"),
            (1, Layout(cp=4), "cp4"),
            (2, Layout(cp=4), "cp4"),
            (2, Layout(cp=2, tp=2), "cp2-tp2"),
            (4, Layout(cp=2, tp=2), "cp2-tp2"),
        ]
        for backend in ("ulysses", "allgather")
    ],
)
def test_fewer_key_heads_than_processes(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, kv_heads: int, layout: Layout,
    backend: str,
) -> None:  # fmt: skip
    model = tmp_path_factory.getbasetemp() / f"kv{kv_heads}"
    if not model.exists():
        write_model_dir(model, num_key_value_heads=kv_heads)
    found = bench.compare(
        "kv heads",
        layout,
        model=model,
        sample_packing=True,
        context_parallel_backend=backend,
        **COMMON,
    )
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("layout", "backend"),
    with_backends(
        Layout(dp_shard=2), Layout(dp_replicate=2), Layout(cp=2), Layout(tp=2),
        Layout(dp_shard=2, cp=2, tp=2),
    ),
)  # fmt: skip
def test_bf16(bench: Bench, layout: Layout, backend: str, tuning: dict[str, Any]) -> None:
    """Rounding to 8 bits depends on the order of sums: close, not equal."""
    values = {**COMMON, **tuning, "bf16": True, "sample_packing": True, "learning_rate": 0.1}
    found = bench.compare("bf16", layout, context_parallel_backend=backend, **values)
    assert found["loss"] <= 1e-2, found
    assert found["grad_norm"] <= 5e-2, found


@pytest.mark.parametrize("layout", params(Layout(dp_shard=2), Layout(cp=2), Layout(dp_replicate=2)))
def test_dora(bench: Bench, layout: Layout) -> None:
    found = bench.compare("DoRA", layout, **COMMON, **LORA, peft_use_dora=True)
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize(
    "layout", params(Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2), Layout(cp=2))
)
def test_qlora(bench: Bench, layout: Layout) -> None:
    pytest.importorskip("bitsandbytes")
    values = {**COMMON, **LORA, "adapter": "qlora", "load_in_4bit": True}
    found = bench.compare("QLoRA", layout, **values)
    assert max(found.values()) <= 1e-4, found


@pytest.mark.parametrize(
    "layout", params(Layout(tp=2), Layout(dp_shard=2, tp=2), Layout(cp=2, tp=2))
)
def test_dropout_keeps_peers_together(bench: Bench, worlds: Worlds, layout: Layout) -> None:
    """Dropout draws differ between layouts, but peers must not drift apart: a rerun is the same,
    and what the first processes write is what all compute with."""
    values = {**COMMON, **LORA, "lora_dropout": 0.2, "val_set_size": 2}
    config = bench.config(layout, **values)
    first, again = (bench.run(layout, **values) for _ in range(2))
    assert max(errors(first, again).values()) == 0.0
    bench.train(config, layout)
    loss, _ = worlds[layout.world_size].run(ranks.evaluate, config)[0]
    alone, _ = ranks.evaluate(bench.config(**{**values, "output_dir": config.output_dir}))
    assert loss == pytest.approx(alone, rel=1e-6)
    assert loss == pytest.approx(first.column("eval_loss")[-1], rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "share"),
    [
        (Layout(dp_replicate=2), 1.0),
        (Layout(dp_shard=2), 0.5),
        (Layout(dp_replicate=2, dp_shard=2), 0.5),
        # Context parallelism shards, too: its processes need whole weights as little as others.
        (Layout(cp=2), 0.5),
        (Layout(dp_shard=2, cp=2), 0.25),
        (Layout(dp_shard=2, tp=2), 0.25),
        (Layout(dp_shard=2, cp=2, tp=2), 0.125),
    ],
    ids=str,
)
def test_each_rank_holds_its_share(
    bench: Bench, worlds: Worlds, layout: Layout, share: float
) -> None:
    config = bench.config(layout, **{**COMMON, "max_steps": 1})
    whole = ranks.elements_held(bench.config(**{**COMMON, "max_steps": 1}))
    for held in worlds[layout.world_size].run(ranks.elements_held, config):
        # Norms are not split by tensor parallelism.
        assert held / whole == pytest.approx(share, rel=0.02)


def test_sizes_are_filled_in(bench: Bench, worlds: Worlds, tmp_path: Path) -> None:
    config = bench.config(Layout(tp=2), **COMMON)
    config = config.model_copy(update={"dp_shard_size": None, "dp_replicate_size": None})
    world = worlds[4].run(ranks.elements_held, config)
    assert len(set(world)) == 1
    assert world[0] < 0.3 * ranks.elements_held(bench.config(**COMMON))
    assert torch.distributed.is_initialized() is False
