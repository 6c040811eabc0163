"""Who reads what, and how it is counted and weighed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from distributed import ranks
from distributed.conftest import Bench
from distributed.layouts import name, params
from distributed.world import RankError, Worlds
from runs import chat_row, chat_rows, words

from tunecli.parallel import Layout


@pytest.mark.parametrize(
    "layout",
    params(
        Layout(tp=2),
        Layout(cp=2),
        Layout(dp_shard=2, tp=2),
        Layout(dp_replicate=2, cp=2),
        Layout(dp_replicate=2, dp_shard=2, cp=2),
    ),
)
def test_peers_read_the_same_rows_and_others_the_rest(
    bench: Bench, worlds: Worlds, layout: Layout
) -> None:
    values = {"rows": chat_rows(8), "batch_size": 4, "pad_to_sequence_len": True}
    alone = ranks.rows_read(bench.config(**values))
    seen = worlds[layout.world_size].run(ranks.rows_read, bench.config(layout, **values))
    peers = layout.cp * layout.tp
    groups = [seen[i : i + peers] for i in range(0, len(seen), peers)]
    assert len(groups) == layout.data_ranks
    for group in groups:
        assert all(peer == group[0] for peer in group)
    rows = [set(chain.from_iterable(group[0])) for group in groups]
    assert sum(len(part) for part in rows) == len(set.union(*rows)) == 8
    assert set.union(*rows) == set(chain.from_iterable(alone))
    # Step by step, too: the same rows make a global batch in every layout.
    passes = len(groups[0][0]) // 2
    for step in range(2):
        part = slice(step * passes, (step + 1) * passes)
        together = set(chain.from_iterable(chain.from_iterable(g[0][part] for g in groups)))
        assert together == set(chain.from_iterable(alone[step * 4 : step * 4 + 4]))


@pytest.mark.parametrize("layout", params(Layout(tp=2), Layout(dp_shard=2, tp=2), Layout(cp=2)))
def test_an_untrained_model_has_the_loss_of_a_guess(bench: Bench, layout: Layout) -> None:
    values = {
        "rows": [chat_row(words(i, 1), words(3 * i, 1)) for i in range(4)],
        "learning_rate": 1e-30,
        "batch_size": 4,
        "max_steps": 1,
        "sample_packing": True,
    }
    found = bench.run(layout, **values)
    assert found.column("loss") == pytest.approx(bench.alone(**values).column("loss"), rel=1e-6)
    # ln 64; and each row counts once: 7 tokens, of which the answer and its end are trained.
    assert found.column("loss")[0] == pytest.approx(4.159, abs=0.25)
    assert found.column("tokens") == [28]
    assert found.column("trained_tokens") == [8]


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("count", [3, 1], ids=["3-rows", "1-row"])
@pytest.mark.parametrize(
    "layout", params(Layout(dp_shard=2), Layout(dp_replicate=2), Layout(dp_shard=4))
)
def test_ranks_without_rows_take_part(
    bench: Bench, layout: Layout, count: int, packing: bool
) -> None:
    # Rows of more than half a pack: as many packs as rows.
    rows = [chat_row(words(i, 6), words(i + 9, 8)) for i in range(count)]
    values = {"rows": rows, "batch_size": 4, "num_epochs": 2, "sample_packing": packing}
    found = bench.compare("ranks without rows", layout, **values)
    assert max(found.values()) <= 1e-5, found


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("layout", params(Layout(dp_shard=2), Layout(tp=2), Layout(cp=2)))
def test_the_schedule_does_not_run_faster_on_more_ranks(
    bench: Bench, layout: Layout, accumulation: int
) -> None:
    values = {
        "lr_scheduler": "linear",
        "learning_rate": 1e-3,
        "max_steps": 4,
        "gradient_accumulation_steps": accumulation,
    }
    expected = [1e-3, 7.5e-4, 5e-4, 2.5e-4]
    assert bench.run(layout, **values).column("learning_rate") == pytest.approx(expected)
    assert bench.alone(**values).column("learning_rate") == pytest.approx(expected)


@pytest.mark.parametrize("layout", params(Layout(dp_shard=2), Layout(dp_replicate=2)))
def test_ranks_are_weighed_by_their_tokens(bench: Bench, layout: Layout) -> None:
    # One rank trains 2 targets, the other 10: a mean of means would weigh them alike.
    rows = [chat_row("w0", "w1"), chat_row("w2", words(3, 9))]
    one = bench.alone(rows=rows, micro_batch_size=2, max_steps=1)
    two = bench.run(layout, rows=rows, micro_batch_size=1, max_steps=1)
    for column in ("loss", "grad_norm"):
        assert two.column(column) == pytest.approx(one.column(column), rel=1e-6), name(layout)
    assert two.column("trained_tokens") == [12]


def test_ranks_share_one_cache(bench: Bench, worlds: Worlds, tmp_path: Path) -> None:
    values = {
        "rows": chat_rows(200), "val_set_size": 20, "dataset_prepared_path": str(tmp_path / "p"),
    }  # fmt: skip
    results = worlds[4].run(ranks.prepare, bench.config(**values))
    assert sum(built for built, _, _ in results) == 1
    assert len({repr(rows) for _, *rows in results}) == 1
    assert (len(results[0][1]), len(results[0][2])) == (180, 20)


def test_a_cache_that_was_not_finished_is_built_again(
    bench: Bench, worlds: Worlds, tmp_path: Path
) -> None:
    values = {
        "rows": chat_rows(20), "val_set_size": 2, "dataset_prepared_path": str(tmp_path / "p"),
    }  # fmt: skip
    with pytest.raises(RankError, match="died, exit code 9"):
        worlds[2].run(ranks.die_while_preparing, bench.config(**values))
    results = worlds[2].run(ranks.prepare, bench.config(**values))
    assert sum(built for built, _, _ in results) == 1
    assert all((len(train), len(held_out)) == (18, 2) for _, train, held_out in results)
