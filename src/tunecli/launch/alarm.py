"""How the launchers of several machines tell each other that a rank has failed.

A rank that waits in NCCL for one on another machine may not notice for half an hour that it is
gone. The launchers have a store in common, that of machine 0: who fails first writes there why.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from .failures import RankFailed

if TYPE_CHECKING:
    from .plan import Machines

KEY = "tunecli/failed"
INTERVAL = 0.5
"""Seconds between two looks at the store."""
PATIENCE = 3.0
"""Seconds to wait for the error that an error about lost peers follows from, and, on machine 0,
for others to read the store before it goes."""
LOST = 10.0
"""Seconds to go on after the store is gone: at the end of a good run it goes first."""


class Alarm:
    """Listens for failures on other machines while its block runs; interrupts this process then.

    The interruption is SIGTERM to this process, for which the elastic launcher has a handler that
    ends all ranks; `heard` then says what happened.
    """

    def __init__(self, machines: Machines, meeting: float) -> None:
        self._machines = machines
        self._meeting = meeting
        self._store: TCPStore | None = None
        self._done = threading.Event()
        self.heard: RankFailed | None = None

    def __enter__(self) -> Self:
        if self._machines.count > 1:
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def first(self, error: RankFailed, follows: bool) -> RankFailed:
        """Tell the others about a failure here; return the one that came first, if it is known.

        Args:
            error: The failure.
            follows: Whether it only says that another rank is lost.
        """
        self._done.set()
        if self._store is None:
            return error
        try:
            end = time.monotonic() + PATIENCE
            while follows and time.monotonic() < end and not self._store.check([KEY]):
                time.sleep(INTERVAL)
            own = json.dumps([self._machines.rank, error.exit_code, str(error)])
            told = self._store.compare_set(KEY, "", own).decode()
            if self._machines.rank == 0:
                time.sleep(PATIENCE)
        except DistError:
            return error
        return error if told == own else _read(told)

    def _listen(self) -> None:
        host, _, port = (self._machines.endpoint or "").rpartition(":")
        try:
            self._store = store = TCPStore(
                host,
                int(port),
                is_master=False,
                timeout=timedelta(seconds=self._meeting),
                wait_for_workers=False,
            )
            while not self._done.wait(INTERVAL):
                if store.check([KEY]):
                    self._interrupt(_read(store.get(KEY).decode()))
                    return
        except DistError:
            # Before the machines have met, elastic says what is wrong.
            if self._store is not None and not self._done.wait(LOST):
                self._interrupt(RankFailed("machine 0 is gone: its launcher has ended", 1))

    def _interrupt(self, error: RankFailed) -> None:
        if not self._done.is_set():
            self.heard = error
            os.kill(os.getpid(), signal.SIGTERM)


def _read(text: str) -> RankFailed:
    machine, exit_code, message = json.loads(text)
    return RankFailed(f"on machine {machine}: {message}", exit_code)
