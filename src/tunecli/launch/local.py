"""Start the processes of this machine with torch's elastic launcher, and wait for them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from torch import distributed as dist
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..errors import TunecliError
from .alarm import Alarm
from .failures import RankFailed, failures_of

if TYPE_CHECKING:
    from .plan import Machines, Plan

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
GRACE = 10
"""Seconds that processes have between being asked to end and being killed."""
MEETING = 900
"""Seconds that machines wait for each other."""


def launch(
    plan: Plan, machines: Machines, module: str, arguments: Sequence[str], log_dir: Path
) -> None:
    """Run `python -m module log_dir *arguments` once for each process of this machine.

    Args:
        plan: How many.
        machines: Which machines take part.
        module: What each process runs. It keeps rank 0 on this terminal and sends the others to
            `log_dir`.
        arguments: Arguments of the command.
        log_dir: Where the logs of ranks go.

    Raises:
        RankFailed: A process failed, or a signal ended this one; every process has ended.
        TunecliError: The machines do not find each other, or `log_dir` cannot be made.
    """
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TunecliError(f"no logs can be written to {log_dir}: {error.strerror}") from error
    with TemporaryDirectory(prefix="tunecli-") as name, _quiet_elastic():
        errors = Path(name)
        config = _config(plan, machines, _Streams(errors))
        command = elastic_launch(config, sys.executable)
        alarm = Alarm(machines, MEETING)
        try:
            with alarm:
                command("-m", module, str(log_dir), *arguments)
        except ChildFailedError as failed:
            failure = failures_of(errors, failed.failures, plan.per_machine * machines.rank)
            own = failure.error(log_dir / f"rank-{failure.rank}.log")
            raise alarm.first(own, failure.follows) from None
        except SignalException as ended:
            by = signal.Signals(ended.sigval).name
            raise alarm.heard or RankFailed(f"ended by {by}", 128 + ended.sigval) from None
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise TunecliError(_meeting(machines, error)) from error


def _config(plan: Plan, machines: Machines, streams: LogsSpecs) -> LaunchConfig:
    alone = machines.count == 1
    return LaunchConfig(
        min_nodes=machines.count,
        max_nodes=machines.count,
        nproc_per_node=plan.per_machine,
        run_id="tunecli",
        # Alone, elastic's store binds port 0 and tells the processes what it got: there is no
        # moment in which somebody else can take the port. Several machines need one that they
        # agree on, and "static" keeps the numbers that --node-rank gives them.
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint="127.0.0.1:0" if alone else machines.endpoint or "",
        rdzv_configs={"timeout": MEETING} | ({} if alone else {"rank": machines.rank}),
        local_addr="127.0.0.1" if alone else None,
        max_restarts=0,
        logs_specs=streams,
        signals_to_handle=",".join(_signals()),
        shutdown_timeout=GRACE,
    )


def _signals() -> Iterator[str]:
    """Yield the signals that end the run. What `nohup` ignores stays ignored."""
    for name in SIGNALS:
        if signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN:
            yield name


def _meeting(machines: Machines, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0]
    if machines.rank == 0:
        trouble = f"cannot listen at --rdzv-endpoint {machines.endpoint} for the other machines"
    else:
        trouble = f"cannot reach machine 0 at --rdzv-endpoint {machines.endpoint}"
    return f"{trouble}: {reason}"


class _Streams(LogsSpecs):
    """Leaves streams to the processes themselves, and says where errors go."""

    def __init__(self, errors: Path) -> None:
        super().__init__()
        self._errors = errors

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete each process's environment; return where its files are."""
        files = {local: str(self._errors / f"{local}.json") for local in envs}
        for local, environment in envs.items():
            environment["TORCHELASTIC_ERROR_FILE"] = files[local]
            # As torchrun does: else each process computes with as many threads as there are cores.
            if len(envs) > 1:
                environment.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        unchanged = dict.fromkeys(envs, "")
        return LogsDest(stdouts=unchanged, stderrs=unchanged, error_files=files)

    @property
    def root_log_dir(self) -> str:
        return str(self._errors)


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Keep elastic's account of signals and exit codes out of ours."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
