"""Encoding blocks of rows on every core.

Rendering a template is Python and holds the interpreter's lock, so threads do not help. Processes
do, at the price of a few seconds for their start: they are started once the work has lasted so
long that it is worth it. Results come in the order of the rows, whatever process is faster.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .encode import BLOCK, EncodedBlock, Rules, encode_block

if TYPE_CHECKING:
    from .formats.base import Format
    from .sources import Block, Source
    from .tokenize import Encoder

PATIENCE = 1.0
"""Seconds of work in this process before others are started."""

AHEAD = 2
"""Blocks for each process that are read in advance."""


@dataclass(frozen=True)
class Recipe:
    """All that it takes to encode the blocks of some sources; travels to the processes once."""

    formats: list[Format]
    encoder: Encoder
    rules: Rules
    places: list[list[str]]
    first_parts: list[int]

    def __call__(self, source: int, block: Block) -> EncodedBlock:
        """Encode a block of a source."""
        return encode_block(
            block, self.formats[source], self.encoder, self.rules, self.places[source],
            self.first_parts[source],
        )  # fmt: skip


def encode_all(
    sources: list[tuple[Source, Format]],
    encoder: Encoder,
    rules: Rules,
    processes: int | None = None,
    patience: float = PATIENCE,
) -> Iterator[EncodedBlock]:
    """Yield the encoded blocks of all sources, in order.

    Args:
        sources: Sources and their formats.
        encoder: Tokenizes.
        rules: What is kept.
        processes: How many to use, this one included; `None`: one for each core that this
            process may use.
        patience: Seconds before processes are started.

    Raises:
        DataError: See `encode_block`; or a process was killed.
    """
    from loky import cpu_count

    places = [[part.place for part in source.parts] for source, _ in sources]
    first_parts = [sum(map(len, places[:index])) for index in range(len(places))]
    recipe = Recipe([row_format for _, row_format in sources], encoder, rules, places, first_parts)
    blocks = (
        (index, block)
        for index, (source, _) in enumerate(sources)
        for block in source.blocks(BLOCK)
    )
    workers = processes or cpu_count()
    started = time.perf_counter()
    for index, block in blocks:
        yield recipe(index, block)
        if workers > 1 and time.perf_counter() - started > patience:
            yield from _in_processes(recipe, blocks, workers - 1)


def _in_processes(
    recipe: Recipe, blocks: Iterator[tuple[int, Block]], helpers: int
) -> Iterator[EncodedBlock]:
    """Encode blocks in `helpers` further processes; whenever these have enough to do, here."""
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    # Each of them has one core: its tokenizer's threads would be in the others' way.
    environment = {"TOKENIZERS_PARALLELISM": "false"}
    pool = ProcessPoolExecutor(helpers, initializer=_start, initargs=(recipe,), env=environment)
    pending: deque[Future[EncodedBlock]] = deque()
    try:
        for index, block in blocks:
            if sum(not future.done() for future in pending) < AHEAD * helpers:
                pending.append(pool.submit(_encode, index, block))
            else:
                pending.append(Future())
                pending[-1].set_result(recipe(index, block))
            # If the oldest block takes long, what is done behind it must not pile up.
            while pending and (pending[0].done() or len(pending) > 4 * AHEAD * helpers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except TerminatedWorkerError as error:
        raise DataError(
            "a process that prepared data was killed (out of memory, most likely): set "
            f"dataset_num_proc below {helpers + 1}"
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=True)


_recipe: Any = None
"""The recipe of this worker process; set once at its start."""


def _start(recipe: Recipe) -> None:
    global _recipe
    # Ctrl-C goes to the whole group; the parent decides what becomes of the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _recipe = recipe


def _encode(index: int, block: Block) -> EncodedBlock:
    result: EncodedBlock = _recipe(index, block)
    return result
