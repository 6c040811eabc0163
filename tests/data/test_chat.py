"""Conversations: roles, options, tools, reasoning, and templates that make it hard."""

from __future__ import annotations

import json
from typing import Any

import pytest
from data.chat_templates import FAMILIES, LLAMA3, QWEN3
from data.helpers import (
    IGNORE,
    Log,
    byte_tokenizer,
    chat,
    encode,
    prepared,
    render,
    spans,
    toy_tokenizer,
    with_control,
)
from toys import ROW2, ROW2_IDS, ROW2_LABELS, toy_template

from tunecli.errors import DataError


def qwen() -> Any:
    family = FAMILIES["qwen3"]
    return with_control(byte_tokenizer(), QWEN3, family.control, family.ordinary)


def test_template_without_generation_tags_trains_the_assistant() -> None:
    assert encode(ROW2) == (ROW2_IDS, ROW2_LABELS)


def test_last_turn_only() -> None:
    _, labels = encode(ROW2, entry={"train_on_last_turn_only": True})
    assert labels == [IGNORE] * 13 + [13, 6]


def test_end_of_turn_is_trained_though_it_is_not_the_eos() -> None:
    ids, labels = encode(ROW2)
    assert [i for i, label in enumerate(labels) if label == 6] == [8, 14]
    assert 2 not in ids


@pytest.mark.parametrize(
    ("option", "ends"), [("turn", [8, 14]), ("last", [14]), ("all", [4, 8, 11, 14]), ("none", [])]
)
def test_train_on_eos(option: str, ends: list[int]) -> None:
    _, labels = encode(ROW2, entry={"train_on_eos": option})
    assert [i for i, label in enumerate(labels) if label == 6] == ends
    assert [label for label in labels if label not in (IGNORE, 6)] == [10, 11, 13]


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("emits", [True, False])
def test_bos_comes_exactly_once(adds: bool, emits: bool) -> None:
    template = toy_template if emits else toy_template.replace("{{ bos_token }}", "")
    ids, _ = encode(chat("w0", "w1"), toy_tokenizer(template, add_bos=adds))
    assert ids.count(1) == (1 if adds or emits else 0)
    assert ids[-7:] == [1, 4, 8, 6, 5, 9, 6] if adds or emits else ids == [4, 8, 6, 5, 9, 6]


def test_system_prompts() -> None:
    own, without = chat("w0", "w1", system="w8"), chat("w0", "w1")
    ids, labels = encode(own, default_system_message="w9")
    assert ids[:4] == [1, 3, 16, 6]
    assert ids.count(3) == 1
    assert labels[:4] == [IGNORE] * 4
    ids, _ = encode(without, default_system_message="w9")
    assert ids[:4] == [1, 3, 17, 6]
    assert ids.count(3) == 1
    ids, _ = encode(own, entry={"drop_system_message": True})
    assert 3 not in ids
    ids, _ = encode(own, entry={"drop_system_message": True}, default_system_message="w9")
    assert ids[:4] == [1, 3, 17, 6]


def test_template_with_a_system_prompt_of_its_own() -> None:
    template = (
        "{{ bos_token }}{% if messages[0]['role'] != 'system' %}<|s|> w7 <|end|>{% endif %}"
        + toy_template.removeprefix("{{ bos_token }}")
    )
    for row, word in ((chat("w0", "w1"), 15), (chat("w0", "w1", system="w8"), 16)):
        ids, labels = encode(row, toy_tokenizer(template))
        assert ids[:4] == [1, 3, word, 6]
        assert ids.count(3) == 1
        assert labels == [IGNORE] * 8 + [9, 6]


def test_sharegpt_rows_and_roles_of_ones_own() -> None:
    row = {"conversations": [{"from": "human", "value": "w0"}, {"from": "gpt", "value": "w1"}]}
    mapping = {"role": "from", "content": "value"}
    entry = {"field_messages": "conversations", "message_property_mappings": mapping}
    expected = ([1, 4, 8, 6, 5, 9, 6], [IGNORE] * 5 + [9, 6])
    assert encode(row, entry=entry) == expected
    entry = {
        "field_messages": "conversations", "message_field_role": "from",
        "message_field_content": "value", "roles_to_train": ["gpt"],
    }  # fmt: skip
    assert encode(row, entry=entry) == expected
    row["conversations"][1]["from"] = "oracle"
    with pytest.raises(DataError, match=r"message 2: unknown role 'oracle'.*roles: "):
        encode(row, entry=entry)
    assert encode(row, entry={**entry, "roles": {"assistant": ["oracle"]}}) == expected
    with pytest.raises(DataError, match="unknown role 'asistant'"):
        encode(row, entry={**entry, "roles_to_train": ["asistant"]})


def test_training_users() -> None:
    _, labels = encode(ROW2, entry={"roles_to_train": ["user"]})
    assert labels == [IGNORE] * 2 + [8, 9, 6] + [IGNORE] * 5 + [12, 6] + [IGNORE] * 3


def test_equal_and_empty_turns() -> None:
    ids, labels = encode(chat("w0", "w0", "w0", "w0"))
    assert labels == [IGNORE] * 5 + [8, 6] + [IGNORE] * 4 + [8, 6]
    ids, labels = encode(chat("", "", "w0", ""))
    assert ids == [1, 4, 6, 5, 6, 4, 8, 6, 5, 6]
    assert labels == [IGNORE] * 4 + [6] + [IGNORE] * 4 + [6]


def test_content_in_parts() -> None:
    row = chat("w0", "w1")
    row["messages"][1]["content"] = [
        {"type": "text", "text": "w1 "},
        {"type": "text", "text": "w2"},
    ]
    assert encode(row)[1][-3:] == [9, 10, 6]
    row["messages"][1]["content"] = [{"type": "image", "url": "x"}]
    with pytest.raises(DataError, match="message 2: content has parts that are no text"):
        encode(row)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ({"role": "user", "content": 3}, "message 1: 'content' must be a text, not a number"),
        ({"role": "user"}, "message 1: 'content' is missing; it has 'role'"),
        ({"content": "w0"}, "message 1: 'role' must say who speaks; it has 'content'"),
        ("w0", "message 1: must be an object, not a text"),
        ({"role": "assistant", "tool_calls": "["}, "tool_calls is a text, but no JSON"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [1]}, "a tool call must be an object"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "needs the function's 'name'"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]},
            "arguments of a tool call must be an object",
        ),
    ],
)
def test_broken_messages(message: Any, cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        encode({"messages": [message]})


@pytest.mark.parametrize("messages", [[], None, "w0"])
def test_broken_lists_of_messages(messages: Any) -> None:
    with pytest.raises(DataError, match="'messages' must be a list of messages"):
        encode({"messages": messages})


CALL = [
    {"role": "user", "content": "w?"},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {
        "name": "weather", "arguments": {"city": "w1"}}}]},
    {"role": "tool", "name": "weather", "content": '{"t": 3}'},
    {"role": "assistant", "content": "3"},
]  # fmt: skip


def test_tool_calls_are_trained_whole() -> None:
    rendered = render({"messages": CALL, "tools": [{"name": "weather"}]}, qwen())
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "w1"}}\n</tool_call><|im_end|>'
    assert spans(rendered) == [call, "<think>\n\n</think>\n\n3<|im_end|>"]
    assert '<tools>\n{"name": "weather"}\n</tools>' in rendered.text
    assert spans(render({"messages": CALL}, qwen(), {"train_on_eos": "none"}))[0] == (
        call.removesuffix("<|im_end|>")
    )


def test_tool_calls_beside_text_and_several_at_once() -> None:
    call = CALL[1]["tool_calls"][0]
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call, call]}
    (first, _) = spans(render({"messages": [CALL[0], message, *CALL[2:]]}, qwen()))
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "w1"}}\n</tool_call>'
    assert first == f"Let me see.\n{text}\n{text}<|im_end|>"


def test_arguments_keep_their_nulls_and_gain_none(tmp_path: Any) -> None:
    rows = []
    for arguments in ({"city": "w1"}, {"n": None}, '{"b": 1, "a": {"x": null}}'):
        call = {"name": "f", "arguments": arguments}
        rows.append({"messages": [CALL[0], {"role": "assistant", "tool_calls": [call]}]})
    tokenizer = qwen()
    data = prepared(tmp_path, rows, tokenizer, sequence_len=512)
    texts = [tokenizer.decode(data.train.row(i)[0]) for i in range(3)]
    for text, wanted in zip(
        texts, ['{"city": "w1"}', '{"n": null}', '{"b": 1, "a": {"x": null}}'], strict=True
    ):
        assert f'"arguments": {wanted}}}\n</tool_call>' in text


def test_reasoning_content() -> None:
    row = chat("a", "b", "c", "d")
    row["messages"][1]["reasoning_content"] = "one"
    row["messages"][3]["reasoning_content"] = "two"
    # Qwen3 drops the reasoning of earlier turns.
    assert spans(render(row, qwen())) == ["b<|im_end|>", "<think>\ntwo\n</think>\n\nd<|im_end|>"]


def test_tool_replies_that_the_template_escapes() -> None:
    template = LLAMA3.replace(
        "m['content'] | trim",
        "(m['content'] | tojson if m['role'] == 'tool' else m['content'] | trim)",
    )
    family = FAMILIES["llama3"]
    tokenizer = with_control(byte_tokenizer(), template, family.control)
    row = {"messages": [*chat("a", "b")["messages"], {"role": "tool", "content": 'x "y"\n\\z'},
                        {"role": "assistant", "content": "c"}]}  # fmt: skip
    rendered = render(row, tokenizer)
    assert '"x \\"y\\"\\n\\\\z"' in rendered.text
    assert spans(rendered) == ["b<|eot_id|>", "c<|eot_id|>"]


def test_control_tokens_typed_in_a_text_stay_text(tmp_path: Any) -> None:
    row = chat("w0 <|end|><|a|> w1", "w2 <|end|> w3")
    tokenizer = byte_tokenizer()
    ids, labels = encode(row, tokenizer)
    special = {t: tokenizer.convert_tokens_to_ids(t) for t in ("<|end|>", "<|a|>")}
    assert ids.count(special["<|end|>"]) == 2
    assert ids.count(special["<|a|>"]) == 1
    trained = [i for i in labels if i != IGNORE]
    assert tokenizer.decode(trained) == " w2 <|end|> w3 <|end|>"
    assert trained.count(special["<|end|>"]) == 1
    log = Log()
    report = prepared(tmp_path, [row, ROW2], tokenizer, log=log).report
    assert report.train.control == 1
    assert "1 with control tokens typed in their text, taken as ordinary text" in log.text


def test_control_tokens_in_tool_calls_are_refused() -> None:
    call = {"name": "f", "arguments": {"x": "<|im_end|>"}}
    message = {"role": "assistant", "tool_calls": [call]}
    with pytest.raises(DataError, match=r"control token '<\|im_end\|>' inside a tool definition"):
        render({"messages": [CALL[0], message]}, qwen())


def test_template_that_changes_texts_is_refused_or_needs_tags() -> None:
    plain = toy_template.replace("m['content'] }}", "m['content'] | upper }}")
    row = chat("x", "y")
    with pytest.raises(DataError, match=r"changes the text of the messages.*generation"):
        render(row, byte_tokenizer(plain))
    tagged = plain.replace(
        "{{ m['content'] | upper }} <|end|>",
        "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | upper }} <|end|>"
        "{% endgeneration %}{% else %}{{ m['content'] }}<|end|>{% endif %}",
    )
    rendered = render(row, byte_tokenizer(tagged))
    assert spans(rendered) == ["Y <|end|>"]
    four = chat("x", "y", "z", "y")
    assert spans(render(four, byte_tokenizer(tagged))) == ["Y <|end|>"] * 2
    last = {"train_on_last_turn_only": True}
    assert spans(render(four, byte_tokenizer(tagged), last)) == ["Y <|end|>"]
    with pytest.raises(DataError, match="only its generation tags"):
        render(row, byte_tokenizer(tagged), {"train_on_eos": "none"})
    with pytest.raises(DataError, match="control token"):
        render(chat("x", "y<eos>"), byte_tokenizer(tagged))


def test_template_that_repeats_or_leaves_out_a_trained_text() -> None:
    body = "<|{{ m['role'][0] }}|> {{ m['content'] }} <|end|>"
    twice = toy_template.replace(body, body + body)
    with pytest.raises(DataError, match=r"message 2 \(assistant\) cannot be trained: .*twice"):
        encode(chat("w0", "w1"), toy_tokenizer(twice))
    gone = toy_template.replace(body, "{% if loop.last %}" + body + "{% endif %}")
    with pytest.raises(DataError, match=r"message 2.*leaves its text out"):
        encode(chat("w0", "w1", "w2", "w3"), toy_tokenizer(gone))
    # Only the last turn is wanted, and it is there.
    row = chat("w0", "w1", "w2", "w3")
    _, labels = encode(row, toy_tokenizer(gone), {"train_on_last_turn_only": True})
    assert labels == [IGNORE, IGNORE, 11, 6]


def test_template_errors_name_the_cause() -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}x"
    with pytest.raises(DataError, match="the chat template refuses the row: user first"):
        encode({"messages": [{"role": "assistant", "content": "w0"}]}, toy_tokenizer(template))


def test_private_characters_in_the_text() -> None:
    tokenizer = byte_tokenizer()
    for text in ("\ue0000\ue001", "\ue000\uf8f0", "a\ue001"):
        assert spans(render(chat(text, text), tokenizer)) == [f" {text} <|end|>"]
    with pytest.raises(DataError, match="trained parts cannot be found"):
        render(chat("\ue000\uf8f0\U000f0000", "a"), tokenizer)


def test_template_with_a_clock_is_laid_out_anew() -> None:
    counter = toy_template.replace("{{ bos_token }}", "{{ bos_token }}{{ messages | length }}")
    assert spans(render(chat("a", "b"), byte_tokenizer(counter))) == [" b <|end|>"]


def test_template_without_end_tokens_warns_and_eot_tokens_helps(tmp_path: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n###\n{% endfor %}"
    tokenizer = byte_tokenizer(template)
    log = Log()
    prepared(tmp_path, [chat("a", "b")], tokenizer, log=log)
    assert "shows no token that ends the assistant's turns" in log.text
    assert spans(render(chat("a", "b"), tokenizer)) == [" b"]
    log = Log()
    data = prepared(tmp_path, [chat("a", "b")], tokenizer, log=log, eot_tokens=["###"])
    labels = data.train.row(0)[1]
    assert "shows no token" not in log.text
    assert tokenizer.decode([i for i in labels if i != IGNORE]) == " b\n###"


def test_tool_call_without_a_known_end_is_refused() -> None:
    end = '\n    {%- elif message.role == "tool"'
    old, new = ("{{- '" + token + "\\n' }}" + end for token in ("<|im_end|>", "<|eom|>"))
    template = QWEN3.replace(old, new)
    assert template != QWEN3
    # The probe shows <|eom|> as the end of plain turns, too; hide it from the probe.
    template = template.replace("'<|eom|>\\n'", "'<|eom|>\\n' if message.tool_calls else '\\n'")
    family = FAMILIES["qwen3"]
    tokenizer = with_control(byte_tokenizer(), template, (*family.control, "<|eom|>"))
    with pytest.raises(DataError, match="add its end token to eot_tokens"):
        render({"messages": CALL}, tokenizer)
    rendered = render({"messages": CALL}, tokenizer, eot_tokens=["<|eom|>"])
    assert spans(rendered)[0].endswith("</tool_call><|eom|>")


def test_arguments_survive_jsonl(tmp_path: Any) -> None:
    row = {"messages": CALL, "tools": json.dumps([{"name": "weather"}])}
    data = prepared(tmp_path, [row], qwen())
    assert len(data.train) == 1
