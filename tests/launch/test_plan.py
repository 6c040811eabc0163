"""How many processes a configuration asks for."""

import pytest

from tunecli.config import Config
from tunecli.errors import ConfigError, UsageError
from tunecli.launch.plan import Machines, plan_processes
from tunecli.parallel import Layout


def _config(**sizes):
    return Config(base_model="m", datasets=[{"path": "x"}], learning_rate=1.0, **sizes)


@pytest.mark.parametrize(
    ("sizes", "gpus", "machines", "layout", "per_machine"),
    [
        ({}, 0, 1, Layout(), 1),
        ({"dp_shard_size": 2, "tensor_parallel_size": 2}, 0, 1, Layout(1, 2, 1, 2), 4),
        ({"context_parallel_size": 2}, 0, 1, Layout(cp=2), 2),
        # Without sizes, each machine takes part.
        ({}, 0, 2, Layout(dp_shard=2), 1),
        ({"tensor_parallel_size": 2}, 0, 2, Layout(tp=2), 1),
        ({"tensor_parallel_size": 3}, 0, 2, Layout(dp_shard=2, tp=3), 3),
        ({}, 1, 1, Layout(), 1),
        ({}, 8, 1, Layout(dp_shard=8), 8),
        ({"tensor_parallel_size": 2}, 8, 2, Layout(dp_shard=8, tp=2), 8),
        ({"dp_replicate_size": 4}, 4, 1, Layout(dp_replicate=4), 4),
        # Sizes that are given are kept: more GPUs than needed are left alone.
        ({"dp_shard_size": 1}, 8, 1, Layout(), 1),
        ({"dp_shard_size": 2}, 8, 1, Layout(dp_shard=2), 2),
    ],
)
def test_processes(sizes, gpus, machines, layout, per_machine):
    plan = plan_processes(_config(**sizes), gpus, machines)
    assert (plan.layout, plan.per_machine) == (layout, per_machine)
    filled = gpus > 1 and "dp_shard_size" not in sizes
    assert bool(plan.note) == filled
    if filled:
        assert f"dp_shard_size left out: {layout.dp_shard}" in plan.note


@pytest.mark.parametrize(
    ("sizes", "gpus", "machines", "texts"),
    [
        ({"tensor_parallel_size": 3}, 4, 1, ["tensor_parallel_size 3", "= 3, but 4 GPUs are"]),
        ({"tensor_parallel_size": 2}, 1, 1, ["= 2, but 1 GPU is there", "CUDA_VISIBLE_DEVICES="]),
        ({"dp_shard_size": 8}, 4, 1, ["dp_shard_size 8", "= 8, but 4 GPUs are there"]),
        ({"dp_shard_size": 3}, 0, 2, ["dp_shard_size 3", "no multiple of 2 machines"]),
        ({"dp_shard_size": 2, "dp_replicate_size": 2}, 1, 2, ["= 4, but 2 GPUs are there"]),
    ],
)
def test_a_product_that_does_not_fit_shows_every_factor(sizes, gpus, machines, texts):
    with pytest.raises(ConfigError) as caught:
        plan_processes(_config(**sizes), gpus, machines)
    for text in [*texts, "dp_replicate_size", "context_parallel_size"]:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((2, 0, None), "needs --rdzv-endpoint"),
        ((2, 2, "h:1"), "--node-rank 2 with --nnodes 2"),
        ((0, 0, None), "--nnodes 0"),
        ((2, 0, "host"), "is no HOST:PORT"),
    ],
)
def test_machines_that_cannot_be(values, text):
    with pytest.raises(UsageError, match=text):
        Machines(*values)
