from __future__ import annotations

import pytest
from pydantic import SecretStr

from tunecli.config import Config, is_secret_key, redact, redact_tree


@pytest.mark.parametrize(
    "name",
    ["hub_token", "HF_TOKEN", "hf_token", "token", "WANDB_API_KEY", "api-key", "apiKey", "hubToken",
     "password", "DB_PASSWORD", "client_secret", "AWS_SECRET_ACCESS_KEY", "private_key",
     "credentials", "auth_token", "Authorization"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_key(name)


@pytest.mark.parametrize(
    "name",
    ["num_memory_tokens", "special_tokens", "tokens", "eos_token", "pad_token", "bos_token",
     "eot_tokens", "unk_token", "additional_special_tokens", "max_tokens", "tokenizer_config",
     "key", "template_thinking_key", "secretary", "monkey", "", "_"],
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    assert not is_secret_key(name)


def test_only_hub_token_of_the_schema_is_secret() -> None:
    assert [name for name in Config.model_fields if is_secret_key(name)] == ["hub_token"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://u:pFAKE@h/x", "https://***@h/x"),
        ("see https://u:p@FAKE@h", "see https://***@h"),
        ("git+https://tok_FAKE@h", "git+https://***@h"),
        ("https://h/a@b", "https://h/a@b"),
        ("https://h?api_key=FAKE&x=1", "https://h?api_key=***&x=1"),
        ("HF_TOKEN=FAKE", "HF_TOKEN=***"),
        ("hub_token: tok_FAKE123", "hub_token: ***"),
        ('{"api_key": "FAKE", "x": 1}', '{"api_key": "***", "x": 1}'),
        ("password = 'FA KE'", "password = '***'"),
        ("Authorization: Bearer FAKE.FAKE", "Authorization: Bearer ***"),
        ("hf_" + "a" * 30, "***"),
    ],
)
def test_secrets_in_text(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "num_memory_tokens: 4",
        "c.yaml:3:4: hub_token: must be text, not the hidden value",
        "eos_token='<eos>' pad_token=<pad>",
        "tokens: 123456, trained_tokens=5, loss 2.3",
        "unknown token: '<|end|>'",
        "seconds per token: 0.02",
        "password:",
        "a user@host: x",
    ],
)
def test_text_without_secrets_stays(text: str) -> None:
    assert redact(text) == text


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "kFAKEkFAKE")
    monkeypatch.setenv("SHORT_TOKEN", "true")
    monkeypatch.setenv("PLAIN_VALUE", "some-plain-value")
    assert redact("kFAKEkFAKE true some-plain-value") == "*** true some-plain-value"


def test_trees() -> None:
    tree = {"api_key": "FAKE", "a": [{"token": "FAKE"}, ("https://u:FAKE@h",)],
            "s": SecretStr("FAKE"),
            "num_memory_tokens": 4, "template": "{{ token: x1FAKE }}"}  # fmt: skip
    assert redact_tree(tree) == {
        "api_key": "***", "a": [{"token": "***"}, ["https://***@h"]], "s": "***",
        "num_memory_tokens": 4, "template": "{{ token: x1FAKE }}",
    }  # fmt: skip
    assert tree["api_key"] == "FAKE"
