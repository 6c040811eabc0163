"""The harness itself: a test must fail, and soon, whatever a rank does."""

from __future__ import annotations

import time

import pytest
from distributed import ranks
from distributed.world import RankError, Worlds


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"rank 1: Traceback[\s\S]*ValueError: this rank's own error"),
        ("die", "rank 1: died, exit code 3"),
        ("hang", r"ranks \[0, 1\] of 2 gave no answer in 3 s"),
    ],
)
def test_a_rank_that_fails_ends_the_test(worlds: Worlds, how: str, message: str) -> None:
    world = worlds[2]
    assert world.run(ranks.fail, 99, how) == [0, 1]
    start = time.monotonic()
    with pytest.raises(RankError, match=message):
        world.run(ranks.fail, 1, how, limit=3 if how == "hang" else 60)
    assert time.monotonic() - start < 20
    assert not world.alive
    # The next test gets a fresh world.
    assert worlds[2].run(ranks.fail, 99, how) == [0, 1]
