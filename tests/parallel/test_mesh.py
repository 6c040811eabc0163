import pytest
import torch

from tunecli.config import Config
from tunecli.errors import ConfigError
from tunecli.parallel import Layout, Mesh


def _config(**sizes):
    return Config(base_model="m", datasets=[{"path": "x"}], learning_rate=1.0, **sizes)


def test_sizes_left_out_are_filled_in():
    assert Layout.from_config(_config(), 1) == Layout()
    assert Layout.from_config(_config(), 4) == Layout(dp_shard=4)
    sizes = _config(tensor_parallel_size=2, context_parallel_size=2)
    assert Layout.from_config(sizes, 8) == Layout(dp_shard=2, cp=2, tp=2)
    assert Layout.from_config(_config(dp_replicate_size=4), 4) == Layout(dp_replicate=4)


@pytest.mark.parametrize(
    ("sizes", "processes", "product"),
    [
        ({"dp_shard_size": 2, "tensor_parallel_size": 2}, 2, 4),
        ({"tensor_parallel_size": 3}, 4, 3),
        ({"dp_replicate_size": 2}, 1, 2),
        ({"context_parallel_size": 2}, 1, 2),
    ],
)
def test_a_product_that_does_not_match_shows_every_factor(sizes, processes, product):
    with pytest.raises(ConfigError) as caught:
        Layout.from_config(_config(**sizes), processes)
    text = str(caught.value)
    for key, size in sizes.items():
        assert f"{key} {size}" in text
    assert f"= {product}, but {processes} process" in text


def test_accelerate_gets_the_same_sizes():
    ours = Layout(dp_replicate=2, dp_shard=2, cp=1, tp=2)
    theirs = ours.parallelism_config()
    assert theirs.total_size == ours.world_size == 8
    assert theirs.data_parallel_size == ours.data_ranks == 4
    assert str(ours) == "2x2x1x2"


def test_peers_of_cp_and_tp_read_the_same_rows():
    layout = Layout(dp_shard=2, cp=2, tp=2)
    ranks = [Mesh(layout, rank, torch.device("cpu")).data_rank for rank in range(8)]
    assert ranks == [0] * 4 + [1] * 4
    assert Mesh(layout, 0, torch.device("cpu")).is_main
