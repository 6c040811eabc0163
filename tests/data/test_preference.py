"""Prompts with one answer or two: layouts, masks, and tokens that both answers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.helpers import (
    IGNORE,
    Log,
    byte_tokenizer,
    encode,
    make_config,
    prepared,
    render,
    spans,
    toy_tokenizer,
    with_control,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tunecli.builder import check_rows
from tunecli.data import Encoder, prepare
from tunecli.data.encode import _check_prompts
from tunecli.errors import DataError

Rows = list[tuple[list[int], list[int]]]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def encode_pair(
    row: dict[str, Any], tokenizer: PreTrainedTokenizerFast | None = None,
    entry: dict[str, Any] | str = "preference", **values: Any,
) -> Rows:  # fmt: skip
    entry = {"type": entry} if isinstance(entry, str) else entry
    tokenizer = tokenizer or toy_tokenizer()
    pair = render(row, tokenizer, entry, **values)
    rows = Encoder(tokenizer).encode([pair.chosen, pair.rejected])
    _check_prompts(rows)
    return [(row.ids.tolist(), row.labels.tolist()) for row in rows]


CHAT = [
    ([1, 4, 8, 6, 5, 9, 6], [IGNORE] * 5 + [9, 6]),
    ([1, 4, 8, 6, 5, 10, 6], [IGNORE] * 5 + [10, 6]),
]
"""User `w0`, answers `w1` and `w2`."""


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("preference", {"prompt": [user("w0")], "chosen": [assistant("w1")],
                        "rejected": [assistant("w2")]}),
        ("preference", {"prompt": [user("w0")], "chosen": assistant("w1"), "rejected": "w2"}),
        ("preference", {"prompt": "w0", "chosen": [assistant("w1")], "rejected": assistant("w2")}),
        ("preference", {"chosen": [user("w0"), assistant("w1")],
                        "rejected": [user("w0"), assistant("w2")]}),
        ("preference", {"prompt": "other", "chosen": [user("w0"), assistant("w1")],
                        "rejected": [user("w0"), assistant("w2")]}),
        ("preference:chat_template", {"prompt": "w0", "chosen": "w1", "rejected": "w2"}),
        ("bradley_terry.chat_template", {"input": "w0", "chosen": "w1", "rejected": "w2"}),
    ],
)  # fmt: skip
def test_layouts(kind: str, row: dict[str, Any]) -> None:
    assert encode_pair(row, entry=kind) == CHAT


def test_texts() -> None:
    row = {"prompt": "w0 w1", "chosen": " w2", "rejected": " w3 w4"}
    chosen, rejected = encode_pair(row)
    assert chosen == ([8, 9, 10, 2], [IGNORE, IGNORE, 10, 2])
    assert rejected == ([8, 9, 11, 12, 2], [IGNORE, IGNORE, 11, 12, 2])
    entry = {"type": "preference", "field_prompt": "p", "field_chosen": "c", "field_rejected": "r"}
    assert encode_pair({"p": "w0 w1", "c": " w2", "r": " w3 w4"}, entry=entry) == [chosen, rejected]


def test_conversations_part_where_they_differ() -> None:
    start = [user("w0"), assistant("w1"), user("w2")]
    row = {"chosen": [*start, assistant("w3"), user("w4"), assistant("w5")],
           "rejected": [*start, assistant("w6")]}  # fmt: skip
    chosen, rejected = encode_pair(row)
    assert [i for i in chosen[1] if i != IGNORE] == [11, 6, 13, 6]
    assert [i for i in rejected[1] if i != IGNORE] == [14, 6]
    # Equal answers: the last message is the answer.
    one, two = encode_pair({"chosen": start[:2], "rejected": start[:2]})
    assert one == two == CHAT[0]


def test_system_prompts_of_pairs() -> None:
    row = {"prompt": "w0", "chosen": "w1", "rejected": "w2", "system": "w9"}
    for kind in ("preference:chat_template", "chatml.prompt_pairs"):
        entry: dict[str, Any] = {"type": kind, "chat_template": "tokenizer_default"}
        chosen, _ = encode_pair(row, entry=entry)
        assert chosen[0][:4] == [1, 3, 17, 6]
    chosen, _ = encode_pair({**row, "system": None}, entry="preference:chat_template")
    assert chosen == CHAT[0]
    own = [{"role": "system", "content": "w8"}, user("w0")]
    chosen, _ = encode_pair({**row, "prompt": own}, entry="preference:chat_template")
    assert chosen[0][:4] == [1, 3, 16, 6]
    with pytest.raises(DataError, match=r"field_system: .* use type: preference:chat_template"):
        encode_pair(row, entry={"type": "preference", "field_system": "system"})


def test_sharegpt_messages_in_pairs() -> None:
    entry = {"type": "preference", "message_property_mappings": {"role": "from",
                                                                 "content": "value"}}  # fmt: skip
    row = {
        "prompt": [{"from": "human", "value": "w0"}],
        "chosen": {"from": "gpt", "value": "w1"},
        "rejected": {"from": "gpt", "value": "w2"},
    }
    assert encode_pair(row, entry=entry) == CHAT


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"prompt": "a", "rejected": "b"}, "'chosen' is missing; the row has 'prompt', 'rejected'; "
                                           "name the right one with field_chosen"),
        ({"chosen": "a", "rejected": "b"}, "'prompt' is missing.*field_prompt"),
        ({"prompt": None, "chosen": "a", "rejected": "b"},
         "'prompt' must be a text, a message or a list of messages, not null"),
        ({"prompt": "a", "chosen": 1, "rejected": "b"}, "'chosen' must be a text.*not a number"),
        ({"prompt": "a", "chosen": [], "rejected": "b"}, "'chosen' must be .* not an empty list"),
        ({"prompt": "a", "chosen": ["b"], "rejected": "b"}, "not a list of other things"),
        ({"chosen": [user("w0"), assistant("w1")], "rejected": [user("w1"), assistant("w1")]},
         "'chosen' and 'rejected' do not share their prompt: they differ in message 1 already"),
        ({"chosen": [user("w0"), assistant("w1"), user("w2")],
          "rejected": [user("w0"), assistant("w1"), user("w3")]}, "differ in message 3 already"),
        ({"chosen": [user("w0"), assistant("w1")], "rejected": assistant("w1")},
         "only one of the fields 'chosen' and 'rejected' begins with the prompt"),
        ({"prompt": [user("w0")], "chosen": [{"role": "tool", "content": "w1"}],
          "rejected": assistant("w1")}, "only one of the fields"),
    ],
)  # fmt: skip
def test_broken_pairs(row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        encode_pair(row)


@pytest.mark.parametrize(
    ("entry", "values", "cause"),
    [
        ({}, {"train_on_inputs": True}, "train_on_inputs: true: the prompt of a preference pair"),
        ({"train_on_eos": "all"}, {}, "train_on_eos: all: the prompt of a preference pair"),
    ],
)
def test_prompts_of_pairs_are_never_trained(
    entry: dict[str, Any], values: dict[str, Any], cause: str
) -> None:
    with pytest.raises(DataError, match=cause):
        encode_pair({}, entry={"type": "preference", **entry}, **values)


def test_a_template_that_looks_ahead() -> None:
    template = (
        "{{ bos_token }}{% if messages[-1]['reasoning_content'] %}w3 {% endif %}"
        "{% for m in messages %}<|{{ m['role'][0] }}|> {{ m['content'] }} <|end|>{% endfor %}"
    )
    thinking = {**assistant("w2"), "reasoning_content": "w4"}
    row = {"prompt": [user("w0")], "chosen": assistant("w1"), "rejected": thinking}
    with pytest.raises(DataError, match="renders the prompt of the two answers differently"):
        encode_pair(row, toy_tokenizer(template))


def merging(prefix: str = "") -> PreTrainedTokenizerFast:
    """Merges any two neighbours of these, the prompt's end with the answer's start, too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in ("a", "b", "Ċ", "Ġ", ":") for b in ("a", "b", "Ċ", "Ġ", ":")]
    vocabulary = {text: i for i, text in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    backend = Tokenizer(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(prefix), use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>"
    )
    return with_control(tokenizer, "", ("<eos>", "<bos>"))


MERGING = merging()
TEXT = st.text(st.sampled_from("ab\n :é😀"), max_size=6)
TYPED = st.builds("{}{}{}".format, TEXT, st.sampled_from(["", "<eos>"]), TEXT)


@given(prompt=TYPED, chosen=TYPED, rejected=TYPED)
@settings(max_examples=150, deadline=None)
def test_both_answers_have_the_same_prompt_tokens(prompt: str, chosen: str, rejected: str) -> None:
    alone = MERGING(prompt, add_special_tokens=False).input_ids
    row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    own = {"type": {"chosen_format": "{chosen}"}}
    for entry in ({"type": "preference"}, own):
        for (ids, labels), answer in zip(
            encode_pair(row, MERGING, entry), (chosen, rejected), strict=True
        ):
            head = next(i for i, label in enumerate(labels) if label != IGNORE)
            if entry is own:  # Typed control tokens are text here, and no ids of their own.
                assert MERGING.decode(ids[:head]) == prompt
                assert ids.count(MERGING.eos_token_id) == 1
            else:
                assert ids[:head] == alone
            assert ids[head:] == labels[head:]
            end = answer if entry is not own and answer.endswith("<eos>") else f"{answer}<eos>"
            assert MERGING.decode(ids[head:]) == end


def test_a_tokenizer_that_cannot_keep_the_prompt_apart() -> None:
    tokenizer = merging(prefix=" ")
    same = {"prompt": "a", "chosen": ":", "rejected": ":b"}
    (ids, labels), _ = encode_pair(same, tokenizer)
    assert labels[0] == IGNORE
    assert tokenizer.decode(ids) == " a:<eos>"
    with pytest.raises(DataError, match="the tokens of the prompt are not the same for both"):
        encode_pair({"prompt": "aa:", "chosen": "é", "rejected": "b"}, tokenizer)


def test_pairs_are_prepared(tmp_path: Path) -> None:
    rows = [{"prompt": f"w{i}", "chosen": " w40", "rejected": " w41 w42"} for i in range(6)]
    rows.append({"prompt": "w0 " * 20, "chosen": " w40", "rejected": " w41"})
    log = Log()
    data = prepared(tmp_path, rows, entry={"type": "preference"}, log=log, sequence_len=8)
    assert data.report.paired
    with pytest.raises(DataError, match=r"the rows are preference pairs .* training cannot use"):
        check_rows(data)
    assert (data.report.train.read, len(data.train), data.report.train.too_long) == (7, 12, 1)
    for index in range(0, 12, 2):
        (ids, labels), (other, _) = data.train.row(index)[:2], data.train.row(index + 1)[:2]
        assert np.array_equal(ids[:1], other[:1])
        assert labels.tolist() == [IGNORE, 48, 2]
    with pytest.raises(DataError, match=r"rows.jsonl:2: field 'rejected' is missing"):
        prepared(tmp_path, [rows[0], {"prompt": "a", "chosen": "b"}], entry={"type": "preference"})
    config = make_config(
        {"path": str(tmp_path / "rows.jsonl"), "type": "preference"},
        dataset_prepared_path=str(tmp_path / "prepared"), train_on_inputs=True,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"rows.jsonl: train_on_inputs: true"):
        prepare(config, toy_tokenizer(), Log())


def test_prompt_and_completion() -> None:
    entry = {"type": "prompt_completion"}
    row = {"prompt": "w0", "completion": " w1"}
    assert encode(row, entry=entry) == ([8, 9, 2], [IGNORE, 9, 2])
    assert encode(row, entry=entry, train_on_inputs=True)[1] == [8, 9, 2]
    assert encode({**row, "completion": " w1 <eos>"}, entry=entry)[0] == [8, 9, 2]
    named = {**entry, "field_prompt": "a", "field_completion": "b"}
    assert encode({"a": "w0", "b": " w1"}, entry=named) == ([8, 9, 2], [IGNORE, 9, 2])
    talk = [user("w0"), assistant("w1"), user("w2")]
    ids, labels = encode({"prompt": talk, "completion": "w3"}, entry=entry)
    assert [i for i in labels if i != IGNORE] == [11, 6]
    assert encode({"prompt": talk, "completion": [assistant("w3")]}, entry=entry)[0] == ids
    assert encode({"prompt": talk, "completion": "w3"}, entry=entry, train_on_inputs=True)[1] == ids
    longer = {"prompt": talk, "completion": [assistant("w3"), user("w4"), assistant("w5")]}
    assert [i for i in encode(longer, entry=entry)[1] if i != IGNORE] == [11, 6, 13, 6]
    with pytest.raises(
        DataError, match="must begin with a message of the assistant, not of 'user'"
    ):
        encode({"prompt": talk, "completion": talk}, entry=entry)
    with pytest.raises(DataError, match=r"'completion' is missing.*field_completion"):
        encode({"prompt": "w0"}, entry=entry)
    with pytest.raises(DataError, match="no style 'chat'; known: chat_template"):
        encode(row, entry={"type": "prompt_completion:chat"})


def test_texts_need_no_chat_template() -> None:
    tokenizer = byte_tokenizer(template=None)
    row = {"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}
    assert spans(render(row, tokenizer, {"type": "prompt_completion"})) == ["b"]
    assert len(encode_pair(row, tokenizer)) == 2
    with pytest.raises(DataError, match="the tokenizer has no chat template"):
        encode_pair({**row, "prompt": [user("a")]}, tokenizer)


def test_tools_and_generation_tags_in_pairs() -> None:
    template = (
        "{{ bos_token }}{% if tools %}<|s|>{{ tools | length }}{% endif %}"
        "{% for m in messages %}<|{{ m['role'][0] }}|>"
        "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | upper }}<|end|>"
        "{% endgeneration %}{% else %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    talk = [user("a"), assistant("b"), user("c")]
    row = {"tools": tools, "prompt": talk, "chosen": assistant("d"), "rejected": assistant("e")}
    pair = render(row, byte_tokenizer(template), {"type": "preference"})
    assert pair.chosen.text == "<bos><|s|>1<|u|>a<|end|><|a|>B<|end|><|u|>c<|end|><|a|>D<|end|>"
    assert (spans(pair.chosen), spans(pair.rejected)) == (["D<|end|>"], ["E<|end|>"])
