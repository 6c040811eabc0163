"""Which rank failed first, and why: written by the rank, read by the launcher.

The file and its shape are those of torch's elastic launcher, so that `torchrun` reads it, too.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from ..config import redact
from ..errors import TunecliError

LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "gloo/transport",
    "NCCL communicator was aborted",
    "ncclRemoteError",
)
"""What errors say that only follow the end of another rank."""


class RankFailed(TunecliError):
    """A process of the run failed; the message is its own. Its exit code is passed on."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True)
class Failure:
    """How a rank ended.

    Attributes:
        rank: Its number.
        exit_code: Its exit code; above 128 for a signal.
        message: Its error. Empty if it left none.
        time: When it failed, in seconds since 1970.
        follows: Whether it failed because another rank had ended.
    """

    rank: int
    exit_code: int
    message: str = ""
    time: float = 0.0
    follows: bool = False

    @classmethod
    def from_exception(cls, error: BaseException, rank: int = 0) -> Failure:
        """Describe what an exception that is being handled means for its rank."""
        known = isinstance(error, TunecliError)
        text = str(error) if known else traceback.format_exc().strip()
        return cls(
            rank,
            exit_code=error.exit_code if isinstance(error, TunecliError) else 1,
            message=redact(text),
            time=time.time(),
            follows=any(sign in str(error) for sign in LOST_PEER) and not known,
        )

    @classmethod
    def read(cls, path: Path, rank: int) -> Failure | None:
        """Read what a rank wrote; `None` if it wrote nothing of use."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))["tunecli"]
            return cls(**(values | {"rank": rank}))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Write it where the launcher looks for it."""
        elastic = {
            "message": self.message,
            "extraInfo": {"py_callstack": self.message, "timestamp": str(int(self.time))},
        }
        path.write_text(
            json.dumps({"message": elastic, "tunecli": self.__dict__}), encoding="utf-8"
        )

    def error(self, log: Path | None) -> RankFailed:
        """Return what the user is to see: the message, and whose it is.

        Not of rank 0, which has this terminal, nor of wrong input, which all ranks see alike.
        """
        text = self.message
        if not text:
            text = f"ended with exit code {self.exit_code} and left no error"
            if self.exit_code > 128:
                text = f"was killed by {Signals(self.exit_code - 128).name}"
                text += " (out of memory?)" * (self.exit_code == 137)
        if text.startswith("Traceback"):
            text = "\n" + text
        if not self.message or (self.rank and self.exit_code != 2):
            text = f"rank {self.rank}: {text}"
        if log is not None and log.is_file() and not self.message:
            text += f"\n    -> its log: {log}"
        return RankFailed(text, self.exit_code)


def record_failure(error: BaseException) -> Failure:
    """Write the exception being handled where an elastic launcher looks for it, if there is one.

    The launcher knows by the file's name whose it is.
    """
    failure = Failure.from_exception(error)
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):
            failure.write(Path(path))
    return failure


def first_failure(recorded: Iterable[Failure], ended: Iterable[Failure]) -> Failure:
    """Pick the failure that the others follow from.

    A rank that fails takes its peers with it: they lose a connection, abort, or are ended by the
    launcher. So the earliest error of a rank's own comes first, then ranks that were killed from
    outside, and last the errors that speak of lost peers.

    Args:
        recorded: What ranks wrote.
        ended: Exit codes of all ranks that ended badly, in the order in which this was seen.
    """
    recorded = sorted(recorded, key=lambda failure: failure.time)
    own = [failure for failure in recorded if not failure.follows]
    wrote = {failure.rank for failure in recorded}
    silent = [failure for failure in ended if failure.rank not in wrote]
    # The launcher ends the rest with SIGTERM: this signal proves nothing while there is better.
    killed = [failure for failure in silent if failure.exit_code != 128 + Signals.SIGTERM]
    return [*own, *killed, *recorded, *silent][0]


def exit_code(returncode: int) -> int:
    """Turn Python's return code of a process into a shell's: 128 + signal."""
    return returncode if returncode >= 0 else 128 - returncode


def failures_of(directory: Path, processes: dict[int, Any], first_rank: int) -> Failure:
    """Return the first failure among the processes that elastic saw fail on this machine."""
    found = [
        failure
        for path in directory.glob("*.json")
        if (failure := Failure.read(path, first_rank + int(path.stem)))
    ]
    ended = [
        Failure(first_rank + process.local_rank, exit_code(process.exitcode))
        for process in processes.values()
    ]
    return first_failure(found, ended)
