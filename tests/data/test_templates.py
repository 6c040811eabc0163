from __future__ import annotations

from pathlib import Path

import pytest
from data.helpers import toy_tokenizer
from toys import toy_template

from tunecli.data import built_in, resolve_template
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
