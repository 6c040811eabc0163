"""What a launcher says about this process, read from its environment variables.

Two dialects are understood: torch's (`torchrun`, `accelerate launch`, and our own launcher, which
is torch's underneath) and that of SLURM's `srun`. Torch's wins, since a launcher may itself have
been started by `srun`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True)
class Place:
    """Where a launcher put this process.

    Attributes:
        rank: Its number among all, from 0.
        world_size: How many there are.
        local_rank: Its number on this machine.
        local_world_size: How many there are on this machine.
        endpoint: `host:port` where rank 0 listens. `None`: torch's own variables say it.
        own_gpus: Whether the launcher shows each process its own GPUs only.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    endpoint: str | None = None
    own_gpus: bool = False

    @property
    def one_per_machine(self) -> bool:
        """Whether `srun` started one task on each of several machines.

        Such a task may be a whole rank, or the launcher of its machine's ranks.
        """
        return self.endpoint is not None and self.local_world_size == 1 < self.world_size


def find_place(environment: Mapping[str, str]) -> Place | None:
    """Return what a launcher says in `environment`; `None` if there is no launcher.

    Raises:
        UsageError: The variables are there but make no sense.
    """
    try:
        return _torch(environment) or _slurm(environment)
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(f"the launcher's environment variables make no sense: {error!r}") from None


def _torch(environment: Mapping[str, str]) -> Place | None:
    if not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return Place(
        rank,
        world,
        int(environment.get("LOCAL_RANK", rank)),
        int(environment.get("LOCAL_WORLD_SIZE", world)),
    )


def _slurm(environment: Mapping[str, str]) -> Place | None:
    # srun alone sets the list of the step's nodes: in a batch script or an interactive
    # allocation SLURM_NTASKS may be there, too, but the tasks are not running.
    if not {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= environment.keys():
        return None
    count = environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"]
    world = int(count)
    if world == 1:
        return None
    nodes = hosts(environment["SLURM_STEP_NODELIST"])
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    node = int(environment.get("SLURM_NODEID", "0"))
    local = list(_counts(tasks))[node] if tasks else -(-world // len(nodes))
    return Place(
        int(environment["SLURM_PROCID"]),
        world,
        int(environment["SLURM_LOCALID"]),
        local,
        endpoint=f"{environment.get('MASTER_ADDR', nodes[0])}:{_port(environment)}",
        own_gpus="SLURM_GPUS_PER_TASK" in environment,
    )


def _port(environment: Mapping[str, str]) -> int:
    """Return a port that all tasks of a step agree on, and other steps hardly use."""
    if "MASTER_PORT" in environment:
        return int(environment["MASTER_PORT"])
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", "0"))
    # Below 32768, where Linux takes the ports of outgoing connections from.
    return 15000 + (7 * job + step) % 15000


def _counts(text: str) -> Iterator[int]:
    """Yield the numbers of SLURM's short form: `2(x3),1` is 2, 2, 2, 1."""
    for part in text.split(","):
        number, _, times = part.partition("(x")
        yield from [int(number)] * int(times.rstrip(")") or 1)


def hosts(text: str) -> list[str]:
    """Return the names in one of SLURM's lists: `n[01-03,7],gpu` is n01, n02, n03, n7, gpu.

    Raises:
        ValueError: It is no such list.
    """
    # A comma in brackets separates numbers, any other separates names.
    names = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not names or "".join(names) != re.sub(r",(?![^\[]*\])", "", text):
        raise ValueError(f"no list of nodes: {text!r}")
    return [host for name in names for host in _expand(name)]


def _expand(name: str) -> Iterator[str]:
    head, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    numbers, _, tail = rest.partition("]")
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expand(tail):
                yield f"{head}{number:0{len(first)}d}{end}"
