"""Formats other than chat, the registry, and the page that documents them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from data.helpers import (
    IGNORE,
    byte_tokenizer,
    encode,
    make_config,
    prepared,
    render,
    spans,
    toy_tokenizer,
    with_control,
)

from tunecli.data import Format, Rendered, built_in, get_format, register_format
from tunecli.errors import DataError

DOCS = Path(__file__).parents[2] / "docs" / "data-formats.md"


def test_alpaca() -> None:
    row = {"instruction": "Say {x}.", "input": "", "output": "w0"}
    rendered = render(row, entry={"type": "alpaca"})
    assert rendered.text.endswith("### Instruction:\nSay {x}.\n\n### Response:\nw0")
    assert "### Input" not in rendered.text
    assert spans(rendered) == ["w0"]
    ids, labels = encode(row, entry={"type": "alpaca"})
    assert ids[-2:] == labels[-2:] == [8, 2]
    assert set(labels[:-2]) == {IGNORE}
    rendered = render({**row, "input": "i"}, entry={"type": "alpaca"})
    assert "### Input:\ni\n\n### Response:\nw0" in rendered.text
    assert spans(render(row, entry={"type": "alpaca"}, train_on_inputs=True)) == [
        render(row, entry={"type": "alpaca"}).text
    ]


def test_alpaca_takes_typed_control_tokens_as_text() -> None:
    row = {"instruction": "a <eos> b", "output": "c<eos>"}
    ids, labels = encode(row, byte_tokenizer(), {"type": "alpaca"})
    eos = byte_tokenizer().eos_token_id
    assert ids.count(eos) == 1
    assert labels[-1] == eos


def test_completion_ends_in_one_trained_eos() -> None:
    entry = {"type": "completion"}
    assert encode({"text": "w0 w1"}, entry=entry) == ([8, 9, 2], [8, 9, 2])
    assert encode({"text": "w0 <eos>"}, entry=entry) == ([8, 2], [8, 2])
    ids, labels = encode({"text": "w0"}, toy_tokenizer(add_bos=True), entry)
    assert (ids, labels) == ([1, 8, 2], [IGNORE, 8, 2])
    assert encode({"body": "w0"}, entry={**entry, "field": "body"})[0] == [8, 2]
    with pytest.raises(DataError, match="field 'text' is missing; the row has 'body'"):
        encode({"body": "w0"}, entry=entry)
    with pytest.raises(DataError, match="field 'text' must be a text, not null"):
        encode({"text": None}, entry=entry)
    tokenizer = toy_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no eos token"):
        encode({"text": "w0"}, tokenizer, entry)


def test_input_output() -> None:
    row = {"segments": [
        {"label": False, "text": "<bos>w0 "}, {"label": True, "text": "w1 "},
        {"label": True, "text": "w2<eos>"}, {"label": False, "text": " w3"},
    ]}  # fmt: skip
    entry = {"type": "input_output"}
    assert spans(render(row, entry=entry)) == ["w1 w2<eos>"]
    expected = ([1, 8, 9, 10, 2, 11], [IGNORE, IGNORE, 9, 10, 2, IGNORE])
    assert encode(row, entry=entry) == expected
    assert encode(row, toy_tokenizer(add_bos=True), entry) == expected


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({}, "'segments' must be a list of segments, not null"),
        ({"segments": ["a"]}, "segment 1 must be an object, not a text"),
        ({"segments": [{"text": "a"}]}, "segment 1: 'label' must be true or false"),
        ({"segments": [{"label": True, "text": 1}]}, "segment 1: field 'text' must be a text"),
    ],
)
def test_broken_segments(row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        encode(row, entry={"type": "input_output"})


def test_tokenized() -> None:
    entry = {"type": "tokenized"}
    assert encode({"input_ids": [1, 2]}, entry=entry) == ([1, 2], [1, 2])
    row = {"input_ids": [0, 1, 2], "labels": [-100, -100, 2], "attention_mask": [0, 1, 1]}
    assert encode(row, entry=entry) == ([1, 2], [-100, 2])


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({}, "'input_ids' must be a list of token ids, not null"),
        ({"input_ids": [1, "a"]}, "whole numbers"),
        ({"input_ids": [-1]}, "negative"),
        ({"input_ids": [1], "labels": [1, 2]}, "2 labels for 1 input_ids"),
        ({"input_ids": [1], "labels": [-1]}, "ids and -100"),
        ({"input_ids": [1], "attention_mask": [2]}, "'attention_mask' must hold 0 or 1"),
    ],
)
def test_broken_tokens(row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        encode(row, entry={"type": "tokenized"})


def test_a_format_of_ones_own(tmp_path: Path) -> None:
    @register_format("shout")
    class Shout(Format):
        def encode(self, row: Any) -> Rendered:
            return Rendered(row["q"] + " " + row["a"], [(len(row["q"]), len(row["q"]) + 3)])

    assert get_format("shout") is Shout
    data = prepared(tmp_path, [{"q": "w0", "a": "w1"}], entry={"type": "shout"})
    assert data.train.row(0)[1].tolist() == [IGNORE, 9]
    with pytest.raises(ValueError, match="already"):
        register_format("shout")(get_format("alpaca"))
    register_format("alpaca")(get_format("alpaca"))  # Registering the same class again is fine.


def test_unknown_format_names_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"unknown data format 'alpacca' \(did you mean 'alpaca'\?\)"
    ):
        prepared(tmp_path, [{}], entry={"type": "alpacca"})


def test_the_page_shows_what_the_code_does() -> None:
    page = DOCS.read_text(encoding="utf-8")
    examples = re.findall(
        r"```yaml\n(.*?)```\s*```json\n(.*?)```\s*```text\n(.*?)\n```\s*```text\n(.*?)\n```",
        page, re.S,
    )  # fmt: skip
    assert len(examples) >= 5
    for settings, row, text, trained in examples:
        import yaml

        entry = {"path": "x.jsonl", **yaml.safe_load(settings)}
        tokenizer = with_control(
            byte_tokenizer(), built_in("chatml"), ("<|im_start|>", "<|im_end|>")
        )
        config = make_config(entry)
        given = json.loads(row)
        if entry["type"] == "tokenized":
            assert repr(given["input_ids"]) == text
            assert repr(encode(given, tokenizer, entry)[1]) == trained
            continue
        rendered = render(given, tokenizer, entry)
        assert rendered.text.replace("\n", "\\n") == text
        parts = spans(rendered)
        if rendered.append_eos:
            parts[-1] += "<eos>"
        assert "\n".join(part.replace("\n", "\\n") for part in parts) == trained
        assert config.datasets[0].type == entry["type"]
