"""How runs end that do not end well: at once, with one error, and with nothing left behind."""

import os
import sys
import time
from contextlib import contextmanager

import pytest
from launch.commands import (
    COMMAND,
    alive,
    free_port,
    ranks_of,
    run,
    send,
    start,
    until,
    wait_for_step,
    write_config,
    write_poisoned,
)

RAISING = """
import sys

import torch.distributed as dist

import tunecli.api
from tunecli.errors import TrainingError
from tunecli.builder import build
from tunecli.cli.app import main
from tunecli.config import load_config
from tunecli.parallel.processes import join_processes
from tunecli.reporter import Reporter
from tunecli.training.loop import Trainer


class Raising(Trainer):
    def _step(self, batch):
        if dist.get_rank() == 1 and self.state.step == 1:
            raise TrainingError("rank 1 has had enough")
        return super()._step(batch)


config = load_config(sys.argv[1])
with join_processes() as processes:
    Raising(build(config, processes, Reporter(quiet=True))).run()
"""


def _within(seconds: float, start: float) -> None:
    assert time.monotonic() - start < seconds


def test_a_rank_that_raises(tmp_path):
    path = write_poisoned(tmp_path, rank=1)
    begun = time.monotonic()
    done = run("train", str(path), tmp_path=tmp_path)
    _within(60, begun)
    assert done.returncode == 1
    # That rank's own error, once, and nobody else's.
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("poisoned row\n") == done.stderr.count("error: rank 1: ") == 1
    assert done.stderr.rstrip().endswith("RuntimeError: poisoned row")
    assert "poisoned row" in (tmp_path / "out" / "logs" / "rank-1.log").read_text()


def test_what_all_ranks_refuse_is_said_once(tmp_path):
    path = write_config(tmp_path, context_parallel_size=2, sequence_len=3)
    done = run("train", str(path), tmp_path=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("cannot be split into") == done.stderr.count("error:") == 1
    assert "rank" not in done.stderr.partition("error:")[2]


def test_a_rank_that_raises_under_torchrun(tmp_path):
    path = write_config(tmp_path, dp_shard_size=2)
    script = tmp_path / "script.py"
    script.write_text(RAISING)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), str(script), str(path)]
    begun = time.monotonic()
    with start(*command, tmp_path=tmp_path) as process:
        _, err = process.communicate(timeout=100)
    _within(60, begun)
    assert process.returncode == 1
    assert "rank 1 has had enough" in err


@pytest.fixture
def endless(tmp_path):
    """A run over two processes that does not come to an end."""
    path = write_poisoned(tmp_path, pause=0.2, max_steps=1000)
    with start(*COMMAND, "train", str(path), tmp_path=tmp_path) as process:
        wait_for_step(tmp_path / "out")
        ranks = ranks_of(process.pid)
        assert set(ranks) == {0, 1}
        process.ranks = ranks
        yield process
        left = [rank for rank, pid in ranks.items() if alive(pid)]
        for rank in left:
            send(ranks[rank], "SIGKILL")
    assert left == []


def test_a_rank_that_is_killed(endless):
    begun = time.monotonic()
    os.kill(endless.ranks[1], 9)
    _, err = endless.communicate(timeout=60)
    _within(30, begun)
    assert endless.returncode == 137
    assert err.count("error:") == 1
    assert "error: rank 1: was killed by SIGKILL" in err
    assert "rank-1.log" in err


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_every_process(endless, name, code):
    begun = time.monotonic()
    send(endless.pid, name)
    _, err = endless.communicate(timeout=60)
    _within(15, begun)
    assert endless.returncode == code
    assert err.count(f"ended by {name}") == 1
    assert "Traceback" not in err


def test_a_launcher_that_is_killed_takes_its_ranks_with_it(endless):
    send(endless.pid, "SIGKILL")
    until(lambda: not any(alive(pid) for pid in endless.ranks.values()), 10)


@contextmanager
def _machines(tmp_path, path):
    """Two launchers of one process each, as on two machines."""
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command = [*COMMAND, "train", str(path), *where, "--node-rank"]
    with start(*command, "1", tmp_path=tmp_path) as second:
        with start(*command, "0", tmp_path=tmp_path) as first:
            yield first, second


def test_a_machine_that_fails_ends_the_other(tmp_path):
    with _machines(tmp_path, write_poisoned(tmp_path, rank=1)) as (first, second):
        _, err = first.communicate(timeout=100)
        _, second_err = second.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (1, 1)
    assert "error: rank 1: " in second_err
    assert "error: on machine 1: rank 1: " in err
    for text in (err, second_err):
        assert text.rstrip().endswith("RuntimeError: poisoned row")
        assert text.count("error:") == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_ranks_that_do_not_notice_are_ended(tmp_path, failing):
    # A stopped rank stands for one that waits in NCCL for a rank that is gone.
    with _machines(tmp_path, write_poisoned(tmp_path, pause=0.2, max_steps=1000)) as machines:
        wait_for_step(tmp_path / "out")
        ranks = [ranks_of(machine.pid)[rank] for rank, machine in enumerate(machines)]
        send(ranks[1 - failing], "SIGSTOP")
        send(ranks[failing], "SIGKILL")
        errors = [machine.communicate(timeout=40)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [137, 137]
    text = f"rank {failing}: was killed by SIGKILL"
    assert f"error: {text}" in errors[failing]
    assert f"error: on machine {failing}: {text}" in errors[1 - failing]
    assert not any(alive(rank) for rank in ranks)
