"""What launchers say in environment variables, and how a layout is shown."""

from datetime import timedelta

import pytest

from tunecli.errors import UsageError
from tunecli.parallel import Layout
from tunecli.parallel.environment import Place, find_place, hosts
from tunecli.parallel.layout_table import describe_layout

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[08-10]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7],gpu", ["node01", "node02", "node03", "node7", "gpu"]),
        ("a1,b[9-10]", ["a1", "b9", "b10"]),
        ("r[1-2]n[3,4].x", ["r1n3.x", "r1n4.x", "r2n3.x", "r2n4.x"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_lists_of_nodes(text, names):
    assert hosts(text) == names


@pytest.mark.parametrize("text", ["", "n[1-2", "n[a]", ",", "n]1["])
def test_what_is_no_list_of_nodes(text):
    with pytest.raises(ValueError):
        hosts(text)


def test_no_launcher():
    assert find_place({}) is None
    # A batch script or an interactive allocation knows the tasks, but nobody runs them.
    batch = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert find_place(batch) is None
    alone = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert find_place(SRUN | alone) is None


def test_torch():
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    place = Place(5, 8, 1, 4)
    assert find_place(variables) == place
    assert find_place(SRUN | variables) == place
    assert not place.one_per_machine
    assert find_place({"RANK": "0", "WORLD_SIZE": "1"}) == Place(0, 1, 0, 1)
    # Kubernetes operators set half of it for other reasons.
    assert find_place({"WORLD_SIZE": "2"}) is None


def test_srun():
    place = find_place(SRUN)
    assert place == Place(3, 5, 1, 2, endpoint=f"gpu08:{15000 + (7 * 4711 + 1) % 15000}")
    assert not place.one_per_machine
    given = find_place(SRUN | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"})
    assert given.endpoint == "10.0.0.1:29400"
    assert find_place(SRUN | {"SLURM_GPUS_PER_TASK": "1"}).own_gpus
    ports = {find_place(SRUN | {"SLURM_STEP_ID": str(step)}).endpoint for step in range(5)}
    assert len(ports) == 5


def test_srun_with_one_task_on_each_machine():
    spread = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    place = find_place(SRUN | spread | {"SLURM_PROCID": "1", "SLURM_LOCALID": "0"})
    assert place.one_per_machine
    assert (place.rank, place.world_size, place.local_world_size) == (1, 3, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        SRUN | {"SLURM_NODEID": "7"},
        {name: value for name, value in SRUN.items() if name != "SLURM_JOB_ID"},
    ],
)
def test_nonsense_is_refused(variables):
    with pytest.raises(UsageError, match="make no sense"):
        find_place(variables)


def test_the_layout_in_words():
    layout = Layout(dp_replicate=1, dp_shard=2, cp=1, tp=2)
    text = describe_layout(layout, "cuda:{}".format, "nccl", timedelta(minutes=30))
    assert text.splitlines() == [
        "layout: dp_replicate 1 x dp_shard 2 x cp 1 x tp 2 = 4 processes",
        "  rank  dp_replicate  dp_shard  cp  tp  device",
        "     0             0         0   0   0  cuda:0",
        "     1             0         0   0   1  cuda:1",
        "     2             0         1   0   0  cuda:2",
        "     3             0         1   0   1  cuda:3",
        "  dp_shard 2: weights, gradients and optimizer state are sharded; each rank reads its own "
        "rows",
        "  tp 2: each layer's matrices and the vocabulary are split; peers read the same rows",
        "  backend nccl; a collective may take 30 minutes",
    ]


def test_a_long_table_is_cut():
    layout = Layout(dp_replicate=8, dp_shard=8)
    text = describe_layout(layout, lambda rank: "cpu", "gloo", timedelta(minutes=1))
    ranks = [line.split()[0] for line in text.splitlines()[2:11]]
    assert ranks == ["0", "1", "2", "3", "...", "60", "61", "62", "63"]
    assert "    63             7         7   0   0  cpu" in text
