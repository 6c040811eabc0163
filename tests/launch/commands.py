"""Real runs of the command line in processes of their own, and toy models that misbehave."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import yaml
from runs import run_config, train_lines

COMMAND = [sys.executable, "-m", "tunecli"]

POISONED = """
import os, time
from torch import distributed as dist
from transformers import LlamaForCausalLM

class Poisoned(LlamaForCausalLM):
    calls = 0

    def forward(self, *args, **kwargs):
        Poisoned.calls += 1
        time.sleep(self.config.pause)
        rank = dist.get_rank() if dist.is_initialized() else 0
        if (rank, Poisoned.calls) == (self.config.poisoned_rank, 2):
            raise RuntimeError("poisoned row")
        return super().forward(*args, **kwargs)
"""
"""A model whose forward pass takes its time, and fails on one rank in the second call."""


def write_config(tmp_path: Path, **values) -> Path:
    """Write a YAML file for a run of three steps with two rows each."""
    defaults = {"max_steps": 3, "batch_size": 2, "micro_batch_size": 1}
    config = run_config(tmp_path, **(defaults | values))
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    return path


def write_poisoned(tmp_path: Path, rank: int = -1, pause: float = 0.0, **values) -> Path:
    """Write a YAML file for a run over two processes with the model above."""
    path = write_config(tmp_path, dp_shard_size=2, trust_remote_code=True, **values)
    model = tmp_path / "model"
    (model / "poisoned.py").write_text(POISONED)
    config = json.loads((model / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "poisoned.Poisoned"}}
    config |= {"poisoned_rank": rank, "pause": pause, "architectures": ["Poisoned"]}
    (model / "config.json").write_text(json.dumps(config))
    return path


def environment(tmp_path: Path, **values: str) -> dict[str, str]:
    """Return the environment of a run: no caches of ours, and `values`."""
    return os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"} | values


def run(*arguments: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(tmp_path, **variables),
    )


@contextmanager
def start(*command: str, tmp_path: Path, **variables: str):
    """Start a command; its streams are pipes. Whatever is left of it is killed at the end."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, **variables),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def losses(directory: Path) -> list[float]:
    """Return the training losses of the run in `directory`."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    return [line["loss"] for line in train_lines(_Out(config["output_dir"]))]


class _Out:
    def __init__(self, output_dir: str) -> None:
        self.output_dir = output_dir


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the process of each rank that a launcher has started."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (entry / "environ").read_bytes().split(b"\0") if parent == launcher else []
        except (OSError, ValueError):
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = int(entry.name)
    return found


def wait_for_step(output_dir: Path, seconds: float = 60) -> None:
    """Wait until a run has written the metrics of a step."""
    until(lambda: (output_dir / "metrics.jsonl").exists(), seconds)


def until(condition, seconds: float) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def send(process: int, name: str) -> None:
    """Send a signal by its name."""
    os.kill(process, signal.Signals[name])
