"""Where templates come from, and what the built-in ones render."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from data.helpers import byte_tokenizer, render, toy_tokenizer, with_control
from toys import toy_template
from transformers import PreTrainedTokenizerFast

from tunecli.data import built_in, resolve_template
from tunecli.data.templates import BUILT_IN
from tunecli.errors import DataError


def test_where_templates_come_from(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    assert resolve_template("tokenizer_default", None, tokenizer) == toy_template
    assert resolve_template("chatml", None, tokenizer) == built_in("chatml")
    assert resolve_template("{{ x }}", None, tokenizer) == "{{ x }}"
    assert resolve_template("jinja", "{{ x }}", tokenizer) == "{{ x }}"
    file = tmp_path / "t.jinja"
    file.write_bytes(b"a\r\n{{ x }}")
    for name in ("jinja", "tokenizer_default"):
        assert resolve_template(name, str(file), tokenizer) == "a\r\n{{ x }}"
    tokenizer.chat_template = {"default": "{{ d }}", "tool_use": "{{ t }}"}
    assert resolve_template("tokenizer_default", None, tokenizer) == "{{ d }}"


@pytest.mark.parametrize(
    ("name", "jinja", "cause"),
    [
        ("chatmll", None, "unknown chat_template 'chatmll'; did you mean 'chatml'"),
        ("jinja", None, "needs chat_template_jinja"),
        ("jinja", "no/such/file", "no file 'no/such/file'"),
        ("tokenizer_default", None, "the tokenizer has no chat template"),
    ],
)
def test_templates_that_are_not_there(name: str, jinja: str | None, cause: str) -> None:
    with pytest.raises(DataError, match=cause):
        resolve_template(name, jinja, toy_tokenizer(template=None))


SYSTEM = {"role": "system", "content": "You are a helpful assistant"}
CONVERSATION = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "Who are you"},
    {"role": "assistant", "content": "   I am an assistant   "},
    {"role": "user", "content": "Another question"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
WEATHER = {"name": "weather", "arguments": {"city": "Zürich", "day": None}}
CALLS = [
    {"role": "user", "content": "Sunny?"},
    {"role": "assistant", "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": WEATHER}]},
    {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"sun": true}'},
    {"role": "assistant", "content": "Yes."},
]  # fmt: skip
REASONING = [
    {"role": "user", "content": "1 + 1"},
    {"role": "assistant", "content": "2", "reasoning_content": "Easy."},
    {"role": "user", "content": "2 + 2"},
    {"role": "assistant", "content": "4", "reasoning_content": "Twice as much."},
]
CASES: dict[str, dict[str, Any]] = {
    "prompt": {"messages": [SYSTEM, *CONVERSATION]},
    "prompt without thinking": {"messages": CONVERSATION[:1], "enable_thinking": False},
    "conversation": {"messages": [SYSTEM, *CONVERSATION[:4]]},
    "tools": {"messages": [SYSTEM, *CALLS], "tools": TOOLS},
    "reasoning": {"messages": REASONING},
}
NO_SYSTEM = ("gemma",)


def template_tokenizer(name: str) -> PreTrainedTokenizerFast:
    return with_control(byte_tokenizer(), built_in(name), tuple(BUILT_IN[name][2].split()))


def goldens(name: str) -> dict[str, str]:
    """Cases of a golden file: after `=== case` the text, trained parts between guillemets."""
    path = Path(__file__).parent / "golden" / "templates" / f"{name}.txt"
    pieces = re.split(r"^=== (.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {case: text[:-1] for case, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def shown(name: str, case: str) -> str:
    """What the template makes of a case; a prompt, or a row with its trained parts."""
    row = dict(CASES[case])
    row["messages"] = [m for m in row["messages"] if m is not SYSTEM or name not in NO_SYSTEM]
    tokenizer = template_tokenizer(name)
    if case.startswith("prompt"):
        return tokenizer.apply_chat_template(
            row.pop("messages"), tokenize=False, add_generation_prompt=True, **row
        )
    rendered = render(row, tokenizer)
    text, done = "", 0
    for start, end in rendered.spans:
        text += rendered.text[done:start] + "«" + rendered.text[start:end] + "»"
        done = end
    return text + rendered.text[done:]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_render_what_their_family_publishes(name: str) -> None:
    expected = goldens(name)
    assert {"prompt", "conversation"} <= set(expected)
    for case, text in expected.items():
        assert shown(name, case) == text, case


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_refuse_what_the_family_has_not(name: str) -> None:
    expected = goldens(name)
    for case in {"tools", "reasoning"} - set(expected):
        with pytest.raises(DataError):
            shown(name, case)
    if name in NO_SYSTEM:
        with pytest.raises(DataError, match="system"):
            render({"messages": [SYSTEM, *CONVERSATION]}, template_tokenizer(name))
