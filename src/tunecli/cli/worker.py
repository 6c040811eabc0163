"""One rank of a run that `tunecli` itself has started: `python -m tunecli.cli.worker LOGS ...`.

It runs the same command as the user's, with three differences: ranks other than 0 write to a file
instead of the terminal, an error is left for the launcher to print, and the end of the launcher
is the end of the rank.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

from ..launch.failures import record_failure


def main() -> None:
    """Run the command that follows the directory of logs on the command line."""
    log_dir, *arguments = sys.argv[1:]
    launcher = os.getppid()
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
    rank = int(os.environ["RANK"])
    if rank > 0:
        _log_to(Path(log_dir) / f"rank-{rank}.log", arguments)
    from .app import app
    from .common import Worker

    try:
        app(arguments, prog_name="tunecli", obj=Worker())
    except SystemExit:
        raise
    except BaseException as error:  # torch has errors that are no Exception
        failure = record_failure(error)
        if rank > 0:
            print(f"error: {failure.message}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # An ordinary exit would tear down NCCL, which may wait for ranks that wait for this one.
        os._exit(failure.exit_code)


def _log_to(path: Path, arguments: list[str]) -> None:
    """Append standard output and error to a file, those of C libraries and children included."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S} tunecli {shlex.join(arguments)}\n")
        file.flush()
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def _end_with(launcher: int) -> None:
    """Wait until the launcher is gone, as after SIGKILL, then end this rank and its children."""
    while os.getppid() == launcher:
        time.sleep(1)
    # The launcher made this process the leader of a group of its own.
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
