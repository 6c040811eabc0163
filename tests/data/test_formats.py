"""Formats other than chat, the registry, and the page that documents them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from data.helpers import (
    IGNORE,
    byte_tokenizer,
    encode,
    prepared,
    render,
    spans,
    toy_tokenizer,
    with_control,
)

from tunecli.config.axolotl import FOREIGN_TYPES, TYPES
from tunecli.data import Encoder, Format, Rendered, built_in, get_format, register_format
from tunecli.data.formats.base import Pair
from tunecli.data.formats.instruction import PROMPTS, STYLES
from tunecli.data.formats.preference import LAYOUTS
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


def test_typed_braces_and_control_tokens_in_a_prompt_of_ones_own() -> None:
    entry = {"type": {
        "system_format": "<|s|>{system}", "system_prompt": "<|end|>{x}", "fields": ["a.b"],
        "format": "<|u|>{instruction}{input}<|end|>{{{a.b}}}<|a|>", "no_input_format": "{a.b}",
    }}  # fmt: skip
    row = {"instruction": "{input}<|a|", "input": "><|u|>", "a.b": "<eos>", "output": "{0}<eos>"}
    rendered = render(row, entry=entry)
    assert rendered.text == "<|s|><|end|>{x}<|u|>{input}<|a|><|u|><|end|>{<eos>}<|a|>{0}<eos>"
    # What is typed is text, also where it only becomes a control token beside its neighbour.
    typed = [rendered.text[a:b] for a, b in rendered.literal]
    assert typed == ["<|a|>", "<|u|>", "<eos>", "<eos>"]
    assert spans(rendered) == ["{0}<eos>"]
    ids, labels = encode(row, byte_tokenizer(), entry)
    control = [byte_tokenizer().convert_tokens_to_ids(t) for t in ("<|s|>", "<|u|>", "<|a|>")]
    assert [ids.count(i) for i in control] == [1, 1, 1]
    assert labels[-1] == byte_tokenizer().eos_token_id


def test_system_prompts_of_instructions() -> None:
    own: dict[str, Any] = {
        "system_prompt": "base", "system_format": "S {system}. ", "format": "{instruction}:",
        "field_system": "sys",
    }  # fmt: skip
    row = {"instruction": "w0", "output": "w1"}
    assert render(row, entry={"type": own}).text == "S base. w0:w1"
    assert render({**row, "sys": "row"}, entry={"type": own}).text == "S row. w0:w1"
    inside = {**own, "format": "{instruction} [{system}]:"}
    assert render(row, entry={"type": inside}).text == "w0 [base]:w1"
    assert render({**row, "sys": "row"}, entry={"type": inside}).text == "w0 [row]:w1"
    assert render(row, entry={"type": {"format": "{system}{instruction}:"}}).text == "w0:w1"
    assert render(row, entry={"type": {}}).text == "w0 w1"
    assert render({**row, "input": "i"}, entry={"type": {}}).text == "w0 i w1"
    named = render({**row, "sys": "row"}, entry={"type": "alpaca", "field_system": "sys"}).text
    assert named == "row\n\n### Instruction:\nw0\n\n### Response:\nw1"


def test_instructions_through_the_chat_template() -> None:
    row = {"q": "w0", "context": "w1", "output": "w2"}
    entry = {"type": "alpaca:chat_template", "field_instruction": "q", "field_input": "context"}
    ids, labels = encode(row, entry=entry)
    assert ids == [1, 4, 8, 9, 6, 5, 10, 6]
    assert labels == [IGNORE] * 6 + [10, 6]
    assert encode(row, entry=entry, train_on_inputs=True)[1] == ids
    ids, _ = encode(row, entry=entry, default_system_message="w9")
    assert ids[:4] == [1, 3, 17, 6]
    # The names of the messages' properties are those of the data, whatever they are.
    mapped = {**entry, "message_property_mappings": {"role": "from", "content": "value"}}
    assert encode(row, entry=mapped) == encode(row, entry=entry)


@pytest.mark.parametrize(
    ("entry", "row", "cause"),
    [
        ({"type": "alpaca"}, {"q": "a"}, "'instruction' is missing; the row has 'q'; name the "
                                         "right one with field_instruction"),
        ({"type": "alpaca"}, {"instruction": "a", "output": None},
         "'output' must be a text, not null"),
        ({"type": "alpaca"}, {"instruction": 1, "output": "b"}, "'instruction' must be a text"),
        ({"type": "alpaca"}, {"instruction": "a", "input": 1, "output": "b"}, "'input' must be a"),
        ({"type": "explainchoice"}, {"question": "a", "choices": "b", "solution": "c"},
         "'choices' must be a list of texts, not a text"),
        ({"type": "explainchoice"}, {"question": "a", "choices": ["b"]},
         "'solution' or 'explanation' is missing"),
        ({"type": "context_qa"}, {"question": "a", "answer": "b"}, "'article' is missing"),
        ({"type": {"format": "{instruction}{input}"}}, {"instruction": "a", "output": "b"},
         "'input' is missing or empty.*set no_input_format"),
        ({"type": {"format": "{x}", "fields": ["x"]}}, {"output": "b"}, "'x' is missing"),
        ({"type": "alpaca:yoda"}, {}, "no style 'yoda'; known: instruct, chat, chatml, phi, cha"),
        ({"type": "summarizetldr:phi"}, {}, "no style 'phi'; known: chat_template"),
        ({"type": "reflection:chat_template"}, {}, "no style 'chat_template'; use type: refl"),
        ({"type": "context_qa", "field_input": "x"}, {}, "field_input: rows of type .* no such"),
        ({"type": "context_qa.load_404", "field_output": "x"}, {}, "field_output: rows of type"),
    ],
)  # fmt: skip
def test_broken_instructions(entry: dict[str, Any], row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        render(row, entry=entry)


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
        (
            {"segments": [{"label": True, "text": "a", "weight": -1}]},
            "segment 1: the weight must be",
        ),
    ],
)
def test_broken_segments(row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        encode(row, entry={"type": "input_output"})


def test_weights_of_segments_and_spans() -> None:
    segments = [
        {"label": True, "text": "w0 ", "weight": 2}, {"label": True, "text": "w1 ", "weight": 2.0},
        {"label": True, "text": "w2 "}, {"label": False, "text": "w3 "},
        {"label": True, "text": "", "weight": 7}, {"label": True, "text": "w4", "weight": 0},
    ]  # fmt: skip
    rendered = render({"segments": segments}, entry={"type": "input_output"})
    assert spans(rendered) == ["w0 w1 ", "w2 ", "w4"]
    assert rendered.weights == [2, 1, 0]
    row = Encoder(toy_tokenizer()).encode([rendered])[0]
    assert row.labels.tolist() == [8, 9, 10, IGNORE, IGNORE]
    assert row.weights is not None
    assert row.weights.tolist() == [2, 2, 1, 0, 0]
    same = {"text": "w0 w1 w2 w3 w4", "spans": [[0, 6, 2], [6, 9], [12, 14, 0]]}
    assert render(same, entry={"type": "text_spans"}) == rendered
    whole = render(same, entry={"type": "text_spans"}, train_on_inputs=True)
    assert spans(whole) == ["w0 w1 ", "w2 w3 ", "w4"]
    assert whole.weights == [2, 1, 0]
    whole = render(
        {"segments": segments[2:4]}, entry={"type": "input_output"}, train_on_inputs=True
    )
    assert (spans(whole), whole.weights) == (["w2 w3 "], None)


@pytest.mark.parametrize(
    ("spans", "cause"),
    [
        (None, "'spans' must be a list of .start, end., not null"),
        ([3], "span 1 must be .start, end."),
        ([[0, 1], [0, 1, 2, 3]], "span 2 must be .start, end."),
        ([[1, 0]], "span 1 must be two whole numbers, start before end"),
        ([[0, 2], [1, 3]], "span 2 must be .* behind the span before it; it is .1, 3."),
        ([[-1, 2]], "span 1 must be"),
        ([[0, 1.0]], "span 1 must be"),
        ([[0, True]], "span 1 must be"),
        ([[0, 9]], "span 1 ends at 9; the text has 5 characters"),
        ([[0, 1, -1]], "span 1: the weight must be a number of at least 0, not -1"),
        ([[0, 1, "x"]], "span 1: the weight must be a number"),
    ],
)
def test_broken_spans(spans: Any, cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        render({"text": "w0 w1", "spans": spans}, entry={"type": "text_spans"})


def test_weights_of_tokens() -> None:
    row = {"input_ids": [3, 4, 5], "weights": [1, 0, 0.5], "attention_mask": [0, 1, 1]}
    encoded = Encoder(toy_tokenizer()).encode([render(row, entry={"type": "tokenized"})])[0]
    assert encoded.ids.tolist() == [4, 5]
    assert encoded.labels.tolist() == [IGNORE, 5]
    assert encoded.weights is not None
    assert encoded.weights.tolist() == [0, 0.5]


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
        ({"input_ids": [1], "weights": [1, 2]}, "'weights' must hold a number for each"),
        ({"input_ids": [1], "weights": [True]}, "'weights' must hold numbers of at least 0"),
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
    assert len(examples) >= 17
    tokenizer = with_control(byte_tokenizer(), built_in("chatml"), ("<|im_start|>", "<|im_end|>"))
    for settings, row, text, trained in examples:
        entry = yaml.safe_load(settings)
        given = json.loads(row)
        if entry["type"] == "tokenized":
            assert repr(given["input_ids"]) == text
            assert repr(encode(given, tokenizer, entry)[1]) == trained
            continue
        shown = sides(render(given, tokenizer, entry))
        assert "\n".join(side.text.replace("\n", "\\n") for side in shown) == text
        parts = [part for side in shown for part in trained_parts(side)]
        assert "\n".join(part.replace("\n", "\\n") for part in parts) == trained


def test_the_page_names_every_type() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for name in [*PROMPTS, *LAYOUTS, *STYLES, *TYPES]:
        assert f"`{name}`" in page, name
    for name in FOREIGN_TYPES:
        assert f"`{name}" in page, name


def sides(rendered: Rendered | Pair) -> list[Rendered]:
    if isinstance(rendered, Rendered):
        return [rendered]
    assert isinstance(rendered.chosen, Rendered)
    assert isinstance(rendered.rejected, Rendered)
    return [rendered.chosen, rendered.rejected]


def trained_parts(rendered: Rendered) -> list[str]:
    """The trained texts, with the eos that is still to come."""
    parts = spans(rendered)
    if rendered.append_eos:
        parts[-1] += "<eos>"
    return parts


GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden_formats.jsonl").read_text("utf-8").splitlines()
]
"""For each type a row, the prompt before its answer, the trained answer (of pairs the better and
the worse one), what stands behind it, and the control tokens that were typed."""
HEADERS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@pytest.mark.parametrize("case", GOLDEN, ids=[str(case["type"])[:40] for case in GOLDEN])
def test_golden(case: dict[str, Any]) -> None:
    tokenizer = with_control(byte_tokenizer(), built_in("chatml"), HEADERS)
    shown = sides(render(case["row"], tokenizer, {"type": case["type"]}))
    answers = [case["answer"], case["worse"]] if "worse" in case else [case["answer"]]
    for side, answer in zip(shown, answers, strict=True):
        assert trained_parts(side) == [answer]
        assert side.text == case["prompt"] + spans(side)[0] + case.get("tail", "")
        assert [side.text[a:b] for a, b in side.literal] == case.get("typed", [])


def test_every_type_is_golden() -> None:
    named = {case["type"] for case in GOLDEN if isinstance(case["type"], str)}
    styles = {f"alpaca:{style}" for style in (*STYLES, "chat_template")}
    assert named >= {*PROMPTS, *LAYOUTS, *styles}
    assert any("format" in case["type"] for case in GOLDEN if isinstance(case["type"], dict))
