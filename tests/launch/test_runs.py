"""Runs over several processes, started as users start them."""

import json
import os
import socket
import subprocess
import sys

import pytest
from launch.commands import COMMAND, free_port, losses, run, start, write_config

from tunecli.cli.app import main

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def _same(directory, other):
    assert losses(directory) == pytest.approx(losses(other), rel=1e-5)
    assert len(losses(directory)) == 3


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The directory of a run in one process."""
    directory = tmp_path_factory.mktemp("one")
    path = write_config(directory, val_set_size=2)
    done = run("train", str(path), "--json", tmp_path=directory)
    assert done.returncode == 0, done.stderr
    assert "starting" not in done.stderr
    assert not (directory / "out" / "logs").exists()
    return directory


def test_two_processes_equal_one(tmp_path, one):
    path = write_config(tmp_path, val_set_size=2, dp_shard_size=2)
    done = run("train", str(path), "--json", "--logging-steps", "1", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    _same(tmp_path, one)
    # Rank 0 alone speaks, and once.
    assert json.loads(done.stdout)["steps"] == 3
    assert done.stderr.count("layout: ") == done.stderr.count("done: ") == 1
    assert "     1             0         1   0   0  cpu" in done.stderr
    assert "backend gloo" in done.stderr
    log = tmp_path / "out" / "logs" / "rank-1.log"
    assert "tunecli train" in log.read_text()

    # Again: the earlier run goes aside, and the logs of this one are where they are said to be.
    again = run("evaluate", str(path), "--json", tmp_path=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["eval_loss"] > 0
    repeated = run("train", str(path), "--quiet", tmp_path=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stderr.strip() == ""
    assert log.read_text().count("--- ") == 3
    aside = [entry.name for entry in tmp_path.glob("out.*")]
    assert len(aside) == 1
    assert (tmp_path / aside[0] / "result.json").exists()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_two_machines(tmp_path, one):
    path = write_config(tmp_path, val_set_size=2, dp_shard_size=2)
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [*COMMAND, "train", str(path), *where, "--node-rank"]
    with start(*command, "1", tmp_path=tmp_path) as second:
        with start(*command, "0", tmp_path=tmp_path) as first:
            out, err = first.communicate(timeout=100)
            assert first.returncode == 0, err
            second_out, second_err = second.communicate(timeout=30)
    assert second.returncode == 0, second_err
    assert "steps: 3" in out
    assert second_out == ""
    assert "machine 1 of 2" in second_err
    assert "layout: " in err
    assert "layout: " not in second_err
    _same(tmp_path, one)


def test_torchrun_is_joined(tmp_path, one):
    # dp_shard_size is filled in from what is there.
    path = write_config(tmp_path, val_set_size=2)
    command = [*TORCHRUN, "--master-port", str(free_port()), "-m", "tunecli", "train", str(path)]
    with start(*command, "--json", tmp_path=tmp_path) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert json.loads(out)["steps"] == 3
    assert err.count("layout: ") == 1
    assert "starting" not in err
    _same(tmp_path, one)


def _srun(tmp_path, path, nodes, rank, **variables):
    spread = "2" if "," not in nodes else "1(x2)"
    own = {"SLURM_NODEID": "0", "SLURM_LOCALID": str(rank)}
    if "," in nodes:
        own = {"SLURM_NODEID": str(rank), "SLURM_LOCALID": "0"}
    return start(
        *COMMAND,
        "train",
        str(path),
        tmp_path=tmp_path,
        SLURM_JOB_ID="1",
        SLURM_NTASKS="2",
        SLURM_STEP_NODELIST=nodes,
        SLURM_STEP_TASKS_PER_NODE=spread,
        SLURM_PROCID=str(rank),
        **own,
        **variables,
    )


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        ("127.0.0.1", {}),
        # One task on each machine, which starts two ranks.
        ("127.0.0.1,localhost", {"dp_shard_size": 2, "tensor_parallel_size": 2}),
    ],
)
def test_srun(tmp_path, one, nodes, sizes):
    path = write_config(tmp_path, val_set_size=2, **sizes)
    port = str(free_port())
    with _srun(tmp_path, path, nodes, 1, MASTER_PORT=port) as second:
        with _srun(tmp_path, path, nodes, 0, MASTER_PORT=port) as first:
            out, err = first.communicate(timeout=100)
            assert first.returncode == 0, err
            second_out, second_err = second.communicate(timeout=30)
    assert second.returncode == 0, second_err
    assert "steps: 3" in out
    assert second_out == ""
    assert "layout: " not in second_err
    assert ("starting 2 processes as machine 0 of 2" in err) == bool(sizes)
    _same(tmp_path, one)


def test_two_runs_at_once_although_a_port_is_taken(tmp_path):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 29500))
            listener.listen()
        except OSError:
            pass  # somebody else has it: all the better
        paths = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            paths.append(write_config(tmp_path / name, context_parallel_size=2))
        commands = [[*COMMAND, "train", str(path)] for path in paths]
        with (
            start(*commands[0], tmp_path=tmp_path) as a,
            start(*commands[1], tmp_path=tmp_path) as b,
        ):
            for process in (a, b):
                _, err = process.communicate(timeout=100)
                assert process.returncode == 0, err
    _same(tmp_path / "a", tmp_path / "b")


def test_a_taken_endpoint_is_named(tmp_path):
    path = write_config(tmp_path, dp_shard_size=2)
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        done = run(
            "train", str(path), "--nnodes", "2", "--rdzv-endpoint", endpoint, tmp_path=tmp_path
        )
    assert done.returncode == 1
    assert f"cannot listen at --rdzv-endpoint {endpoint}" in done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--nnodes", "2"], ["--rdzv-endpoint"]),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--dp-shard-size", "3"],
            ["dp_shard_size 3", "= 3, but that is no multiple of 2 machines"],
        ),
        (["--tensor-parallel-size", "0"], ["tensor_parallel_size"]),
        (["--dp-shard-size", "2", "--datasets.0.path", "./none.jsonl"], ["none.jsonl"]),
    ],
)
def test_what_can_be_known_is_refused_before_processes_start(tmp_path, arguments, texts, refused):
    error = refused("train", str(write_config(tmp_path)), *arguments)
    for text in texts:
        assert text in error
    assert not (tmp_path / "out").exists()


def test_a_launcher_with_another_number_of_processes(tmp_path, refused, monkeypatch):
    path = write_config(tmp_path, dp_shard_size=2, tensor_parallel_size=2)
    # No rank 1 is there: the error must not wait for it.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = refused("train", str(path))
    assert "dp_shard_size 2" in error
    assert "tensor_parallel_size 2 = 4, but 2 processes are there" in error
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "= 4, but 1 process is there" in refused("evaluate", str(path), "--val-set-size", "2")
    options = ["--nnodes", "2", "--rdzv-endpoint", "h:1"]
    assert "a launcher has started this one" in refused("train", str(path), *options)


@pytest.fixture
def refused(capsys, monkeypatch):
    """A function that runs the command line here, where it is to fail, and returns its error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tunecli", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert error.count("error:") == 1
        return error

    return call


def test_processes_share_the_cores(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; "
        "Path(sys.argv[2], os.environ['RANK']).write_text(os.environ['OMP_NUM_THREADS'])"
    )
    (tmp_path / "shown.py").write_text(code)
    launcher = (
        "import sys; from pathlib import Path; from tunecli.launch.local import launch; "
        "from tunecli.launch.plan import Machines, Plan; from tunecli.parallel import Layout; "
        "launch(Plan(Layout(dp_shard=2), 2), Machines(), 'shown', [sys.argv[1]], Path(sys.argv[1]))"
    )
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    variables["PYTHONPATH"] = f"{variables.get('PYTHONPATH', '')}:{tmp_path}"
    subprocess.run(
        [sys.executable, "-c", launcher, str(tmp_path)], env=variables, check=True, timeout=60
    )
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["1", "1"]
