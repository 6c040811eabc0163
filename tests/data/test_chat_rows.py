"""What rows say about their own messages: names, flags, weights, reasoning, system prompts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from data.chat_templates import FAMILIES, QWEN3
from data.helpers import (
    IGNORE,
    Log,
    byte_tokenizer,
    chat,
    encode,
    make_config,
    prepared,
    render,
    spans,
    toy_tokenizer,
    with_control,
    write_jsonl,
)
from toys import ROW2, ROW2_IDS, toy_template, write_model_dir

from tunecli.builder import build_vocabulary
from tunecli.data import Encoder, built_in, prepare
from tunecli.errors import DataError

FLAG = {"message_field_training": "training"}
DETAIL = {"message_field_training_detail": "detail"}


def qwen() -> Any:
    family = FAMILIES["qwen3"]
    return with_control(byte_tokenizer(), QWEN3, family.control, family.ordinary)


def row2(**changes: Any) -> dict[str, Any]:
    """`ROW2` with properties added: `m1={...}` changes its second message."""
    row = copy.deepcopy(ROW2)
    for name, values in changes.items():
        row["messages"][int(name[1:])] |= values
    return row


def trained(row: dict[str, Any], entry: dict[str, Any] | None = None, **values: Any) -> list[int]:
    """The places of the trained tokens of the 15 of `ROW2`."""
    ids, labels = encode(row, entry=entry, **values)
    assert ids == ROW2_IDS
    return [i for i, label in enumerate(labels) if label != IGNORE]


FIRST, SECOND = [6, 7, 8], [13, 14]


def test_training_flags_win_over_roles() -> None:
    assert trained(row2(m1={"training": False}), FLAG) == SECOND
    assert trained(row2(m0={"training": True}), FLAG) == [2, 3, 4, *FIRST, *SECOND]
    assert trained(row2(m0={"training": None}), FLAG) == [*FIRST, *SECOND]
    only = {**FLAG, "train_on_eos": "all"}
    assert trained(row2(m1={"training": False}), only) == [4, 8, 11, *SECOND]
    last = {**FLAG, "train_on_eos": "last"}
    assert trained(row2(m3={"training": False}), last) == FIRST
    last = {**FLAG, "train_on_last_turn_only": True}
    assert trained(row2(m1={"training": True}), last) == [*FIRST, *SECOND]
    with pytest.raises(DataError, match="message 2: 'training' must be true or false, not a text"):
        encode(row2(m1={"training": "no"}), entry=FLAG)


def part(begin: Any, end: Any, train: Any = True) -> dict[str, Any]:
    return {"begin_offset": begin, "end_offset": end, "train": train}


@pytest.mark.parametrize(
    ("detail", "places"),
    [
        ([part(0, 1)], [6, 8]),  # "w2" of "w2 w3": the end is included.
        ([part(0, 2, False), part(3, 4)], [7, 8]),
        ([part(3, 4, False)], []),
        ([part(0, 0)], [8]),  # Half a token is not trained.
        ([], []),
    ],
)
def test_parts_of_a_message(detail: list[Any], places: list[int]) -> None:
    assert trained(row2(m1={"detail": detail}), DETAIL) == [
        *(places if any(p["train"] for p in detail) else []),
        *SECOND,
    ]


def test_parts_in_the_text() -> None:
    content = "  héllo <think>wörld</think> end \n"
    message = {"role": "assistant", "content": content}
    for begin, end in [(0, len(content) - 1), (2, 6), (3, 20), (0, 1), (26, len(content) - 1)]:
        message["detail"] = [part(begin, end)]
        rendered = render({"messages": [chat("q")["messages"][0], message]}, byte_tokenizer(),
                          {**DETAIL, "train_on_eos": "none"})  # fmt: skip
        assert "".join(spans(rendered)) == content[begin : end + 1]
    # Qwen3 cuts the reasoning of earlier turns out, and strips line breaks.
    message = {"role": "assistant", "content": "<think>\nab\n</think>\n\ncd"}
    row = chat("q", "", "r", "s")
    row["messages"][1] = {**message, "detail": [part(8, 9), part(21, 22)]}
    assert "".join(spans(render(row, qwen(), DETAIL))).startswith("cd<|im_end|><think>")


@pytest.mark.parametrize(
    ("detail", "cause"),
    [
        ("all", "must be a list, not a text"),
        ([{"begin_offset": 0}], "needs begin_offset and end_offset"),
        ([part(0, 1, "yes")], "needs begin_offset and end_offset"),
        ([part(0, 5)], "0 to 5 .* does not lie in the content's 5 characters"),
        ([part(2, 1)], "2 to 1"),
        ([part(0, 3), part(3, 4)], "overlap at character 3"),
    ],
)
def test_broken_parts(detail: Any, cause: str) -> None:
    with pytest.raises(DataError, match=f"message 2: .*{cause}"):
        encode(row2(m1={"detail": detail}), entry=DETAIL)


def test_weights() -> None:
    def weights(row: dict[str, Any], **entry: Any) -> list[float] | None:
        tokenizer = toy_tokenizer()
        encoded = Encoder(tokenizer).encode([render(row, tokenizer, entry)])[0]
        return None if encoded.weights is None else encoded.weights.tolist()

    assert weights(row2(m1={"weight": 1})) is None
    assert weights(row2(m1={"weight": 0.5})) == [0] * 6 + [0.5] * 3 + [0] * 4 + [1, 1]
    assert weights(row2(m1={"w": 3}, m3={"w": 2}), message_field_weight="w") == (
        [0] * 6 + [3] * 3 + [0] * 4 + [2, 2]
    )
    # Weight 0: not trained, its end neither; and a weight alone makes no user trained.
    assert trained(row2(m1={"weight": 0}, m0={"weight": 1.0})) == SECOND
    assert trained(row2(m1={"weight": 0}), {"train_on_eos": "all"}) == [4, 11, *SECOND]
    for wrong in (-1, "1", True, float("inf")):
        with pytest.raises(DataError, match="message 2: 'weight' must be a number from 0 on"):
            encode(row2(m1={"weight": wrong}))


def test_train_on_eot() -> None:
    # <|end|> is no eos of this tokenizer: train_on_eot speaks of it, and train_on_eos does not.
    assert trained(ROW2, {"train_on_eot": "none"}) == [6, 7, 13]
    assert trained(ROW2, {"train_on_eos": "none", "train_on_eot": "all"}) == [
        4, 6, 7, 8, 11, 13, 14,
    ]  # fmt: skip
    assert trained(ROW2, {"train_on_eos": False}) == [6, 7, 13]
    assert trained(ROW2, {"train_on_eos": False, "train_on_eot": True}) == [*FIRST, *SECOND]
    tokenizer = toy_tokenizer(toy_template.replace("<|end|>", "{{ eos_token }}"))
    _, labels = encode(ROW2, tokenizer, {"train_on_eos": "last", "train_on_eot": "all"})
    assert [i for i, label in enumerate(labels) if label == 2] == [14]
    with pytest.raises(DataError, match="take it out of eot_tokens"):
        encode(ROW2, entry={"train_on_eot": "all"}, eot_tokens=["<eos>"])


def test_train_on_inputs_trains_every_role() -> None:
    assert trained(ROW2, train_on_inputs=True) == [2, 3, 4, *FIRST, 10, 11, *SECOND]


def test_sharegpt_is_told_by_itself() -> None:
    messages = [{"from": "human", "value": "w0"}, {"from": "gpt", "value": "w1", "role": None}]
    expected = ([1, 4, 8, 6, 5, 9, 6], [IGNORE] * 5 + [9, 6])
    assert encode({"conversations": messages}) == expected
    assert encode({"messages": messages}) == expected
    assert encode({"conversations": chat("w0", "w1")["messages"]}) == expected
    with pytest.raises(DataError, match="'messages' and 'conversations': set field_messages"):
        encode({"messages": messages, "conversations": messages})
    assert encode({"messages": None, "conversations": messages}) == expected
    messages[1]["role"] = "assistant"
    with pytest.raises(DataError, match=r"message 2: it has 'from' and 'value'.*mappings"):
        encode({"conversations": messages})
    mappings = {"message_property_mappings": {"role": "from", "content": "value"}}
    assert encode({"conversations": messages}, entry=mappings) == expected


def test_any_property_can_be_mapped() -> None:
    template = "{% for m in messages %}{{ m.name ~ ':' ~ m.content }}<|end|>{% endfor %}"
    mappings = {"message_property_mappings": {"name": "who", "content": "text"}}
    messages = [
        {"role": "user", "who": "Ann", "text": "a"},
        {"role": "assistant", "name": "Bob", "content": "b"},
    ]
    rendered = render({"messages": messages}, byte_tokenizer(template), mappings)
    # A message without the mapped property may have one of the template's name.
    assert rendered.text == "Ann:a<|end|>Bob:b<|end|>"
    call = {"name": "f", "arguments": {}}
    messages = [chat("a")["messages"][0], {"role": "assistant", "calls": [call]}]
    mappings = {"message_property_mappings": {"tool_calls": "calls"}}
    [span] = spans(render({"messages": messages}, qwen(), mappings))
    assert '<tool_call>\n{"name": "f"' in span


def test_system_prompt_of_the_row() -> None:
    row = {**chat("w0", "w1"), "system": "w8"}
    assert encode(row)[0][:4] == [1, 3, 16, 6]
    assert encode(row, default_system_message="w9")[0][:4] == [1, 3, 16, 6]
    assert encode({**row, "system": None}, default_system_message="w9")[0][:4] == [1, 3, 17, 6]
    assert encode({**row, "s": "w7"}, entry={"field_system": "s"})[0][:4] == [1, 3, 15, 6]
    both = {**chat("w0", "w1", system="w8"), "system": "w8"}
    assert encode(both)[0].count(3) == 1
    both["system"] = "w7"
    with pytest.raises(DataError, match="two system prompts: in field 'system'"):
        encode(both)
    assert encode(both, entry={"drop_system_message": True})[0][:4] == [1, 3, 15, 6]


def test_reasoning_under_another_name() -> None:
    row = chat("a", "b")
    row["messages"][1]["thoughts"] = "why"
    entry = {"field_thinking": "thoughts"}
    assert spans(render(row, qwen(), entry)) == ["<think>\nwhy\n</think>\n\nb<|im_end|>"]
    template = QWEN3.replace("reasoning_content", "thinking")
    family = FAMILIES["qwen3"]
    tokenizer = with_control(byte_tokenizer(), template, family.control, family.ordinary)
    with pytest.raises(
        DataError, match="message 2: the chat template shows no 'reasoning_content'"
    ):
        render(row, tokenizer, entry)
    entry["template_thinking_key"] = "thinking"
    assert spans(render(row, tokenizer, entry)) == ["<think>\nwhy\n</think>\n\nb<|im_end|>"]
    row["messages"][1]["thoughts"] = ["why"]
    with pytest.raises(DataError, match="message 2: 'thoughts' must be a text, not a list"):
        render(row, tokenizer, entry)


def test_splitting_of_inline_reasoning() -> None:
    template = toy_template.replace(
        "{{ m['content'] }}", "[{{ m['reasoning_content'] }}] {{ m['content'] }}"
    )
    row = chat("<think>u</think>", "\n<think> a b </think>\n\n c ")
    split = {"split_thinking": True}
    rendered = render(row, byte_tokenizer(template), split)
    assert "<|u|> [] <think>u</think> <|end|>" in rendered.text
    assert rendered.text.endswith("<|a|> [a b] c  <|end|>")
    assert render(row, byte_tokenizer(template)).text.endswith(f"[] {chat_text(row)} <|end|>")
    plain = chat("a", "b <think> c </think>")
    assert render(plain, byte_tokenizer(template), split).text.endswith(
        "[] b <think> c </think> <|end|>"
    )
    row["messages"][1]["reasoning_content"] = "x"
    with pytest.raises(DataError, match="message 2: it has reasoning in its content and in"):
        render(row, byte_tokenizer(template), split)
    with pytest.raises(DataError, match="'<think>' without '</think>'"):
        render(chat("a", "<think>b"), byte_tokenizer(template), split)
    row = chat("a", "<think>b</think>c")
    row["messages"][1]["detail"] = [part(0, 1)]
    with pytest.raises(DataError, match="split_thinking cuts"):
        render(row, byte_tokenizer(template), {**split, **DETAIL})


def chat_text(row: dict[str, Any]) -> str:
    return str(row["messages"][1]["content"])


def test_what_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(DataError, match="the chat template shows no tools"):
        encode({**ROW2, "tools": [{"name": "f"}]})
    assert encode({**ROW2, "tools": [{"name": "f"}]}, entry={"field_tools": "-"})[0] == ROW2_IDS
    assert encode({**ROW2, "tools": []})[0] == ROW2_IDS
    call = [{"name": "f", "arguments": {}}]
    with pytest.raises(DataError, match=r"message 2 \(assistant\).*leaves tool calls out"):
        encode(row2(m1={"tool_calls": call}))
    # Its tool calls are shown, and its text is not.
    row = chat("a", "Let me see.")
    row["messages"][1]["tool_calls"] = [{**call[0], "id": "123456789"}]
    with pytest.raises(DataError, match="leaves its text out"):
        render(row, byte_tokenizer(built_in("mistral")))


def test_values_for_the_template() -> None:
    template = toy_template.replace("{{ m", "{{ mark }}{{ m")
    rendered = render(chat("a", "b"), byte_tokenizer(template), chat_template_kwargs={"mark": "!"})
    assert rendered.text.endswith("!b <|end|>")
    rendered = render(
        chat("a", "b"), byte_tokenizer(template), {"chat_template_kwargs": {"mark": "?"}},
        chat_template_kwargs={"mark": "!"},
    )  # fmt: skip
    assert rendered.text.endswith("?b <|end|>")
    with pytest.raises(DataError, match="chat_template_kwargs cannot set messages, tools"):
        render(ROW2, chat_template_kwargs={"tools": [], "messages": []})


def test_qwen3_without_thinking_trains_only_what_follows_the_prompt() -> None:
    template = built_in("qwen3")
    row = chat("a", "b", "c", "d")
    call = {"name": "f", "arguments": {}}
    row["messages"][1]["tool_calls"] = [call]
    tokenizer = with_control(byte_tokenizer(), template, FAMILIES["qwen3"].control)
    off = {"enable_thinking": False}
    tool = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert spans(render(row, tokenizer, chat_template_kwargs=off)) == [
        f"b{tool}<|im_end|>",
        "d<|im_end|>",
    ]
    row["messages"][3]["reasoning_content"] = "e"
    assert spans(render(row, tokenizer, chat_template_kwargs=off))[1] == (
        "<think>\ne\n</think>\n\nd<|im_end|>"
    )


def test_values_for_the_template_are_part_of_the_cache_key(tmp_path: Path) -> None:
    rows = [chat("w0", "w1")]
    keys = {
        prepared(tmp_path, rows, chat_template_kwargs=kwargs, entry=entry).key
        for kwargs, entry in [
            ({}, {}),
            ({"a": 1}, {}),
            ({"a": 2}, {}),
            ({}, {"chat_template_kwargs": {"a": 2}}),
        ]
    }
    assert len(keys) == 4


def test_a_source_may_keep_the_template_of_the_tokenizer(tmp_path: Path) -> None:
    model = write_model_dir(tmp_path / "model", weights=False, tokenizer=byte_tokenizer())
    path = str(write_jsonl(tmp_path / "rows.jsonl", [chat("a", "b")]))
    entries = [{"path": path}, {"path": path, "chat_template": "tokenizer_default"}]
    config = make_config(
        entries, base_model=str(model), chat_template="chatml", dataset_prepared_path=str(tmp_path)
    )
    tokenizer = build_vocabulary(config).tokenizer
    assert tokenizer.chat_template == built_in("chatml")
    log = Log()
    rows = prepare(config, tokenizer, log).train
    texts = [tokenizer.decode(rows.row(i)[0]) for i in range(2)]
    assert texts == [
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n",
        "<bos><|u|> a <|end|><|a|> b <|end|>",
    ]
    # The tokenizer of this model does not know the words of chatml.
    assert log.text.count("cuts <|im_start|>, <|im_end|> of the chat template into pieces") == 1
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = make_config(entries, base_model=str(tmp_path / "saved"))
    assert build_vocabulary(saved).tokenizer.chat_template == built_in("chatml")


def test_no_template_is_needed_without_conversations(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer(template=None)
    model = write_model_dir(tmp_path / "model", weights=False, tokenizer=tokenizer)
    path = str(write_jsonl(tmp_path / "rows.jsonl", [{"text": "w0"}]))
    values = {"base_model": str(model), "dataset_prepared_path": str(tmp_path)}
    config = make_config({"path": path, "type": "completion"}, **values)
    vocabulary = build_vocabulary(config)
    assert len(prepare(config, vocabulary.tokenizer, Log()).train) == 1
    config = make_config({"path": path}, **values)
    with pytest.raises(DataError, match="the tokenizer has no chat template: set chat_template"):
        prepare(config, build_vocabulary(config).tokenizer, Log())


def test_odd_values_beside_the_text() -> None:
    import datetime

    row = row2(m0={"time": datetime.datetime(2024, 1, 1)}, m1={"score": 0.5})
    assert trained(row) == [*FIRST, *SECOND]


@pytest.mark.parametrize("turns", [1, 8, 64])
def test_a_row_is_rendered_a_constant_number_of_times(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    from tunecli.data.encode import open_format

    count = 0
    render_once = chat_template_utils.render_jinja_template

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return render_once(*args, **kwargs)

    monkeypatch.setattr(chat_template_utils, "render_jinja_template", counting)
    config = make_config({"path": "x.jsonl"})
    chats = open_format(config.datasets[0], config, byte_tokenizer(), print)
    learning, count = count, 0
    assert learning == 3
    chats.encode(chat(*["a", "b"] * turns))
    assert count == 2  # The row, and its shape.
    count = 0
    for letter in "cde":
        chats.encode(chat(*[letter, letter] * turns))
    assert count == 3  # The shape is known.
