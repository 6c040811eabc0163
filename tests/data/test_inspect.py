"""What `inspect` shows is what training gets; causes and counts are those of the preparation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import (
    IGNORE,
    Log,
    byte_tokenizer,
    chat,
    make_config,
    toy_tokenizer,
    write_jsonl,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toys import ROW2, ROW2_IDS, ROW2_LABELS
from transformers import PreTrainedTokenizerFast

from tunecli.data import (
    BatchLoader,
    Format,
    Inspection,
    Tokens,
    inspect_rows,
    prepare,
    register_format,
)
from tunecli.data.formats.base import Pair
from tunecli.data.inspect import histogram, split_text, token_bytes
from tunecli.errors import DataError, UsageError

SHORT = chat("w0", "w1")  # 7 tokens.
LONG = chat(" ".join(f"w{i}" for i in range(10)), "w1")  # 16 tokens.
UNTRAINED = {"messages": [{"role": "user", "content": "w3"}]}


def look(
    tmp_path: Path,
    rows: list[Any],
    tokenizer: PreTrainedTokenizerFast | None = None,
    entry: dict[str, Any] | None = None,
    show: dict[str, Any] | None = None,
    **values: Any,
) -> Inspection:
    """Prepare `rows` and inspect them; `show` are the arguments of `inspect_rows`."""
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    values = {"dataset_prepared_path": str(tmp_path / "prepared"), **values}
    config = make_config({"path": str(path), **(entry or {})}, **values)
    tokenizer = tokenizer or toy_tokenizer()
    data = prepare(config, tokenizer, Log(), may_be_empty=True)
    return inspect_rows(config, tokenizer, data, **(show or {}))


def test_a_row(tmp_path: Path) -> None:
    found = look(tmp_path, [SHORT, ROW2], show={"row": "2"})
    assert found.found == 1
    (view,) = found.rows
    assert view.origin == f"{tmp_path}/rows.jsonl:2"
    assert (view.number, view.entry, view.answer, view.fate, view.cut) == (2, 0, "", "", 0)
    assert view.ids == ROW2_IDS
    assert view.weights == [float(label != IGNORE) for label in ROW2_LABELS]
    assert view.trained == 5
    # A word-level tokenizer decodes with a space between tokens.
    assert view.texts[:4] == ["<bos>", " <|u|>", " w0", " w1"]
    assert [i for i, special in zip(view.ids, view.special, strict=True) if special] == [
        i for i in ROW2_IDS if i < 8
    ]


def test_nothing_predicts_the_first_token(tmp_path: Path) -> None:
    row = {"input_ids": [8, 9, 10], "labels": [8, 9, 10]}
    (view,) = look(tmp_path, [row], entry={"type": "tokenized"}).rows
    assert view.weights == [0, 1, 1]


@register_format("test_inspect_pairs")
class _Pairs(Format):
    def encode(self, row: Any) -> Pair:
        return Pair(*(Tokens(ids, [IGNORE, *ids[1:]]) for ids in (row["a"], row["b"])))


@register_format("test_inspect_weights")
class _Weights(Format):
    def encode(self, row: Any) -> Tokens:
        return Tokens([8, 9, 10, 11], [8, 9, 10, 11], [1.0, 0.0, 0.1, 2.0])


def test_pairs(tmp_path: Path) -> None:
    rows = [{"a": [8, 9], "b": [8, 10, 11]}, {"a": [8], "b": [8, 9]}, {"a": [8, 12], "b": [8, 13]}]
    entry = {"type": "test_inspect_pairs"}
    found = look(tmp_path, rows, entry=entry, sample_packing=True)
    assert found.found == 2
    shown = [(view.number, view.answer, view.ids) for view in found.rows]
    assert shown == [(1, "chosen", [8, 9]), (1, "rejected", [8, 10, 11]),
                     (2, "chosen", [8, 12]), (2, "rejected", [8, 13])]  # fmt: skip
    assert found.stats.entries[0].read == 3
    longest = look(tmp_path, rows[::-1], entry=entry, show={"longest": True, "limit": 1}).rows
    assert [(view.number, len(view.ids)) for view in longest] == [(2, 2), (2, 3)]
    found = look(tmp_path, rows, entry=entry, show={"row": "2"})
    assert [view.origin[-7:] for view in found.rows] == ["jsonl:3"] * 2
    found = look(tmp_path, rows, entry=entry, show={"only_untrained": True})
    assert [(view.answer, view.fate) for view in found.rows] == [
        ("chosen", "untrained"), ("rejected", "untrained"),
    ]  # fmt: skip


def test_weights(tmp_path: Path) -> None:
    (view,) = look(tmp_path, [{}], entry={"type": "test_inspect_weights"}).rows
    assert view.weights == [0, 0, 0.1, 2]
    assert view.trained == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_packs_are_those_of_the_loader(tmp_path: Path, seed: int) -> None:
    rows = [chat(*["w1"] * (2 + 2 * (i % 4))) for i in range(20)]
    found = look(tmp_path, rows, sequence_len=30, sample_packing=True, seed=seed,
                 show={"limit": 100})  # fmt: skip
    config = make_config({"path": str(tmp_path / "rows.jsonl")}, sequence_len=30,
                         dataset_prepared_path=str(tmp_path / "prepared"))  # fmt: skip
    loader = BatchLoader(prepare(config, toy_tokenizer(), Log()).train, micro_batch_size=1,
                         sequence_len=30, packing=True, seed=seed)  # fmt: skip
    assert found.found == found.stats.packs == len(found.packs) == loader.steps_per_epoch
    used = 0
    for index, pack in enumerate(found.packs):
        batch = loader.step(0, index).micro_batches[0]
        ids = [i for view in pack.rows for i in view.ids]
        used += len(ids)
        assert batch.input_ids[0].tolist() == ids + [0] * pack.padding
        restarts = np.flatnonzero(batch.position_ids[0].numpy() == 0).tolist()
        assert restarts == pack.begins + ([len(ids)] if pack.padding else [])
        trained = [weight > 0 for view in pack.rows for weight in view.weights]
        assert (batch.labels[0, : len(ids)] != IGNORE).tolist() == [*trained[1:], False]
    assert found.stats.pack_fill == used / (30 * len(found.packs))


def test_a_row_in_its_pack(tmp_path: Path) -> None:
    rows = [chat("w1", f"w{i}") for i in range(9)]
    options = {"sequence_len": 14, "sample_packing": True}
    assert look(tmp_path, rows, show={"row": "3"}, **options).packs == []
    found = look(tmp_path, rows, show={"row": "3", "packed": True}, **options)
    (pack,) = found.packs
    assert 3 in [view.number for view in pack.rows]
    every = look(tmp_path, rows, show={"limit": 99}, **options).packs
    assert pack == every[pack.number - 1]
    assert look(tmp_path, rows, show={"packed": False}, **options).rows[0].number == 1
    for wrong in ({"longest": True}, {"only_untrained": True}):
        with pytest.raises(UsageError, match="packs can be shown with sample_packing"):
            look(tmp_path, rows, show={"packed": True, **wrong}, **options)
    with pytest.raises(UsageError, match="packs can be shown with sample_packing"):
        look(tmp_path, rows, show={"packed": True})


ROWS = [SHORT, chat("w1 w2 w3", ""), {"messages": 3}, LONG, SHORT, chat("", "w1"), ROW2]
RULES = {"sequence_len": 15, "min_sample_len": 7, "skip_invalid_rows": True,
         "dataset_exact_deduplication": True}  # fmt: skip


def test_dropped_rows_and_causes(tmp_path: Path) -> None:
    found = look(tmp_path, ROWS, show={"only_untrained": True}, **RULES)
    shown = {view.origin.rpartition(":")[2]: (view.fate, len(view.ids)) for view in found.rows}
    assert shown == {"3": ("invalid", 0), "4": ("too_long", 16), "5": ("duplicates", 7),
                     "6": ("too_short", 6)}  # fmt: skip
    assert found.rows[0].problem == "field 'messages' must be a list of messages; it is a number"
    assert [view.cut for view in found.rows] == [0, 15, 0, 0]
    assert all(view.number == 0 for view in found.rows)
    (entry,) = found.stats.entries
    assert (entry.read, entry.rows) == (7, 3)
    assert entry.fates == {"invalid": 1, "too_long": 1, "too_short": 1, "duplicates": 1}


def test_an_untrained_row(tmp_path: Path) -> None:
    found = look(tmp_path, [UNTRAINED, SHORT], show={"row": "rows.jsonl:1"})
    (view,) = found.rows
    assert (view.fate, view.trained, view.ids) == ("untrained", 0, [1, 4, 11, 6])
    assert look(tmp_path, [SHORT], show={"only_untrained": True}).found == 0


@pytest.mark.parametrize("packing", [True, False])
def test_no_row_is_left(tmp_path: Path, packing: bool) -> None:
    """The case in which it matters most to see what was dropped."""
    options = {"sample_packing": packing, "val_set_size": 0.5}
    found = look(tmp_path, [UNTRAINED], show={"only_untrained": True}, **options)
    assert [(view.fate, view.ids) for view in found.rows] == [("untrained", [1, 4, 11, 6])]
    found = look(tmp_path, [UNTRAINED], **options)
    assert (found.found, found.stats.rows, found.stats.packs) == (0, 0, 0)
    assert found.stats.entries[0].fates == {"untrained": 1}


def test_a_row_whose_answer_was_cut_off(tmp_path: Path) -> None:
    found = look(tmp_path, [LONG, SHORT], show={"only_untrained": True}, sequence_len=7,
                 excess_length_strategy="truncate")  # fmt: skip
    (view,) = found.rows
    assert (view.fate, view.cut, len(view.ids), view.trained) == ("untrained", 7, 16, 2)


def test_too_long_where_that_is_an_error(tmp_path: Path) -> None:
    found = look(tmp_path, [LONG, SHORT], show={"only_untrained": True}, sequence_len=7,
                 excess_length_strategy="raise", skip_invalid_rows=True)  # fmt: skip
    assert [view.problem for view in found.rows] == ["16 tokens, more than sequence_len 7"]


@pytest.mark.parametrize(("strategy", "fate"), [("truncate", "truncated"), ("split", "split")])
def test_cut_rows(tmp_path: Path, strategy: str, fate: str) -> None:
    found = look(tmp_path, [SHORT, ROW2], sequence_len=9, excess_length_strategy=strategy,
                 show={"row": "rows.jsonl:2"})  # fmt: skip
    assert {view.fate for view in found.rows} == {fate}
    assert [i for view in found.rows for i in view.ids] == ROW2_IDS[: 9 if fate != "split" else 15]
    assert found.stats.entries[0].fates == {fate: 1}
    assert found.stats.entries[0].read == 2


@pytest.fixture
def two_sets(tmp_path: Path) -> Any:
    a = write_jsonl(tmp_path / "a.jsonl", [SHORT, UNTRAINED, ROW2])
    b = write_jsonl(tmp_path / "b.jsonl", [{"text": f"w{i}"} for i in range(5)])

    def run(repeat: int = 1, **show: Any) -> Inspection:
        config = make_config(
            [{"path": str(a)}, {"path": str(b), "type": "completion", "repeat": repeat}],
            test_datasets=[{"path": str(b), "type": "completion"}],
            dataset_prepared_path=str(tmp_path / "p"),
        )
        return inspect_rows(
            config, toy_tokenizer(), prepare(config, toy_tokenizer(), Log()), **show
        )

    return run


def test_data_sets(two_sets: Any, tmp_path: Path) -> None:
    stats = two_sets(repeat=3).stats
    a, b = stats.entries
    assert (a.path, a.read, a.rows, a.tokens, a.trained, a.epoch_rows, a.fates) == (
        str(tmp_path / "a.jsonl"), 3, 2, 22, 7, 2, {"untrained": 1},
    )  # fmt: skip
    assert (b.read, b.rows, b.tokens, b.trained, b.epoch_rows, b.fates) == (5, 5, 10, 5, 15, {})
    assert (stats.rows, stats.tokens, stats.trained) == (7, 32, 12)
    for name in ("1", "b.jsonl", str(tmp_path / "b.jsonl")):
        found = two_sets(dataset=name)
        assert [view.entry for view in found.rows] == [1] * 5
    assert [view.number for view in two_sets(longest=True).rows] == [2, 1, 3, 4, 5, 6, 7]
    assert two_sets(limit=2).found == 7
    with pytest.raises(UsageError, match=r"no data set 7; there are: 0 \(.*a.jsonl\), 1 \("):
        two_sets(dataset="7")
    for row in ("0", "8", "a.jsonl:9", "c.jsonl:1", "x"):
        with pytest.raises(UsageError, match=f"no row {row}: give 1 to 7, or file:line"):
            two_sets(row=row)


def test_evaluation_rows(two_sets: Any, tmp_path: Path) -> None:
    found = two_sets(evaluation=True)
    assert [view.ids for view in found.rows] == [[8 + i, 2] for i in range(5)]
    assert [entry.read for entry in found.stats.entries] == [5]
    rows = [chat("w0", f"w{i}") for i in range(10)]
    parts = [look(tmp_path, rows, val_set_size=4, show={"evaluation": e}) for e in (False, True)]
    assert [part.found for part in parts] == [6, 4]
    assert [part.stats.entries[0].read for part in parts] == [10, 10]
    assert len({view.origin for part in parts for view in part.rows}) == 10
    with pytest.raises(DataError, match="no evaluation rows: set val_set_size or test_datasets"):
        look(tmp_path, rows, show={"evaluation": True})


def test_lengths(tmp_path: Path) -> None:
    rows = [{"input_ids": [8] * n, "labels": [8] * n} for n in (2, 3, 3, 10)]
    stats = look(tmp_path, rows, entry={"type": "tokenized"}, sequence_len=12, micro_batch_size=2,
                 shuffle_merged_datasets=False).stats  # fmt: skip
    assert stats.lengths == {"min": 2, "p50": 3, "p90": 10, "p99": 10, "max": 10, "mean": 4.5}
    assert stats.histogram == [
        (2, 2, 1),
        (3, 3, 2),
        *((n, n, 0) for n in range(4, 10)),
        (10, 10, 1),
    ]
    assert stats.packs == 2
    assert stats.pack_fill == 18 / 24
    assert stats.batch_fill == 18 / (2 * 3 + 2 * 10)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_histogram_holds_every_row_once(lengths: list[int]) -> None:
    bars = histogram(np.array(lengths))
    assert len(bars) <= 12
    assert [count for _, _, count in bars] == [
        sum(first <= n <= last for n in lengths) for first, last, _ in bars
    ]
    assert sum(count for _, _, count in bars) == len(lengths)


@given(st.text(max_size=30), st.data())
def test_characters_stand_with_their_first_byte(text: str, data: st.DataObject) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    edges = [0, *cuts, len(whole)]
    parts = [whole[a:b] for a, b in pairwise(edges)]
    texts = split_text(parts)
    assert "".join(texts) == text
    for i in range(len(parts)):
        assert len("".join(texts[:i]).encode()) >= edges[i]
        assert len("".join(texts[:i]).encode()) < edges[i] + 4


def test_stray_bytes() -> None:
    assert split_text([b"a\xe2", b"\x82", b"b"]) == ["a\\xe2", "\\x82", "b"]
    assert split_text([b"\xe2", b"\x82\xac", b""]) == ["\N{EURO SIGN}", "", ""]


def _sentencepiece() -> PreTrainedTokenizerFast:
    """Pieces with a mark for the space, and bytes for what has no piece."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(vocabulary, [("\u2581", "a")], byte_fallback=True, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@pytest.mark.parametrize("make", [byte_tokenizer, _sentencepiece])
def test_texts_add_up(make: Any) -> None:
    tokenizer = make()
    text = "a b\n  \N{EURO SIGN}a\u4f60\U0001f389\tb\u00e9 ab"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    find = token_bytes(tokenizer)
    texts = split_text([find(i, at == 0) for at, i in enumerate(ids)])
    assert "".join(texts) == text
    assert texts[len(ids) - 1] in ("b", "ab")


def test_texts_of_control_tokens_and_unknown_ids() -> None:
    find = token_bytes(byte_tokenizer())
    ids = byte_tokenizer().convert_tokens_to_ids(["<|end|>", "a"])
    assert [find(i, False) for i in ids] == [b"<|end|>", b"a"]
    assert find(9999, False) == b"<unknown id 9999>"
