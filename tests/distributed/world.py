"""Worlds of gloo processes that stay alive between tests.

Starting Python and importing torch and transformers costs seconds a process, so one server
process imports them once and every rank is forked from it (multiprocessing's forkserver; no
tensor was touched and no thread is running there yet, so the fork is safe). A world is started
by the first test that needs its size, and is then handed one function after the other: groups,
and torch's caches of how operations spread over meshes, stay warm.

There is one world for each size rather than one of 16 that smaller layouts use a part of: the
product synchronises over the default group (checkpoints do), as it may, since a layout always
fills it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection
from typing import Any

LIMIT = 120.0
"""Seconds that a function may take before the test fails."""

GRACE = 2.0
"""Seconds that other ranks get for their own errors once one has failed."""


class RankError(Exception):
    """A function failed on a rank, a rank died, or a world did not answer."""


class World:
    """`size` processes in one gloo group, each waiting for a function to run."""

    def __init__(self, size: int) -> None:
        from torch import distributed as dist

        self.size = size
        self.alive = True
        # Its server is a thread here, so that no rank's death takes it away.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = _context()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, self._store.port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._collect(LIMIT)

    def run(self, function: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
        """Call `function(*args)` on every rank; return the results, by rank.

        Args:
            function: A function of a module (pickled by its name).
            args: Its arguments.
            limit: Seconds until it is given up.

        Raises:
            RankError: With the traceback of each rank that failed. The world is closed then:
                its other ranks may hang in a collective for ever.
        """
        for pipe in self._pipes:
            pipe.send((function, args))
        return self._collect(limit)

    def _collect(self, limit: float) -> list[Any]:
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        deadline = time.monotonic() + limit
        while len(results) + len(errors) < self.size:
            waiting = [r for r in range(self.size) if r not in results and r not in errors]
            # A pipe is readable when its rank answers, and when it dies.
            ready = connection.wait(
                [self._pipes[r] for r in waiting], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                break
            for rank in waiting:
                if self._pipes[rank] not in ready:
                    continue
                try:
                    good, value = self._pipes[rank].recv()
                except (EOFError, ConnectionError):
                    self._processes[rank].join(GRACE)
                    good, value = False, f"died, exit code {self._processes[rank].exitcode}"
                (results if good else errors)[rank] = value
            if errors:
                deadline = min(deadline, time.monotonic() + GRACE)
        if len(results) == self.size:
            return [results[rank] for rank in range(self.size)]
        missing = [r for r in range(self.size) if r not in results and r not in errors]
        self.close()
        if not errors:
            raise RankError(f"ranks {missing} of {self.size} gave no answer in {limit:.0f} s")
        raise RankError("\n".join(f"rank {rank}: {text}" for rank, text in sorted(errors.items())))

    def close(self) -> None:
        """End every process: those that wait for a function by themselves, others by force."""
        self.alive = False
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + GRACE
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()


class Worlds:
    """One world for each size, started when it is first asked for."""

    def __init__(self) -> None:
        self._worlds: dict[int, World] = {}

    def __getitem__(self, size: int) -> World:
        world = self._worlds.get(size)
        if world is None or not world.alive:
            world = self._worlds[size] = World(size)
        return world

    def close(self) -> None:
        """End every process of every world."""
        for world in self._worlds.values():
            if world.alive:
                world.close()
        self._worlds = {}


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distributed.ranks"])
    # Python before 3.14 does not hand sys.path to the server, only to the processes from it.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        from multiprocessing import forkserver

        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _serve(rank: int, size: int, port: int, pipe: connection.Connection) -> None:
    """What each process does: join, then answer until the pipe closes."""
    import torch
    from torch import distributed as dist
    from transformers.utils.logging import disable_progress_bar

    # Ctrl-C goes to pytest, which ends the worlds.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # What a launcher sets: the product finds its place by these, and uses the group that is there.
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
    }
    torch.set_num_threads(1)
    disable_progress_bar()
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=2 * LIMIT)
        )
        _keep_meshes()
        pipe.send((True, None))
        while True:
            function, args = pipe.recv()
            try:
                reply = True, function(*args)
            except BaseException:
                reply = False, traceback.format_exc()
            pipe.send(reply)
    except (EOFError, ConnectionError):
        # pytest has closed the pipe. multiprocessing ends this process without the goodbyes of
        # process groups, which would wait for peers that may be gone.
        return


def _keep_meshes() -> None:
    """Let runs of one layout share their groups.

    A program makes its mesh once. Hundreds of runs in one process would leave hundreds of
    groups, each with threads and sockets, and torch keeps DTensor plans for meshes that are equal.
    """
    from tunecli.parallel import Layout, Mesh

    start, kept = Mesh.start, {}

    def start_once(layout: Layout, device: Any) -> Mesh:
        if layout not in kept:
            kept[layout] = start(layout, device)
        return kept[layout]

    Mesh.start = staticmethod(start_once)  # type: ignore[method-assign]
