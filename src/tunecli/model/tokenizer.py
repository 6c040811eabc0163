"""The tokenizer: loaded, extended, and given its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..config import Config


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and what the configuration added to it.

    Attributes:
        tokenizer: Ready for use: special tokens set, tokens added, a pad token present.
        added: Tokens that the loaded vocabulary lacked and that training has to teach.
    """

    tokenizer: PreTrainedTokenizerFast
    added: list[str]


def load_tokenizer(config: Config) -> Vocabulary:
    """Load the tokenizer that `config` names and apply its token options.

    Raises:
        ModelError: It cannot be loaded, or has no fast (Rust) implementation.
    """
    from transformers import AutoTokenizer

    source = config.tokenizer_config or config.base_model
    arguments: dict[str, Any] = {"trust_remote_code": bool(config.trust_remote_code)}
    if source == config.base_model and config.revision_of_model:
        arguments["revision"] = config.revision_of_model
    if config.hub_token is not None:
        arguments["token"] = config.hub_token.get_secret_value()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"the tokenizer of {source} cannot be loaded: {error}") from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"{source}: {type(tokenizer).__name__} has no fast implementation. Masks are made "
            "from character offsets, which only fast tokenizers give: convert it once with "
            "transformers (AutoTokenizer, use_fast=True) and point tokenizer_config to the result"
        )
    return Vocabulary(tokenizer, _extend(tokenizer, config))


def _extend(tokenizer: PreTrainedTokenizerFast, config: Config) -> list[str]:
    """Set special tokens, add tokens; return those that are new and must be learnt."""
    known = set(tokenizer.get_vocab())
    roles = {
        name: value
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        if (value := getattr(config.special_tokens, name)) is not None
    }
    extra = config.special_tokens.additional_special_tokens
    if roles:
        tokenizer.add_special_tokens(roles)
    if extra:
        tokenizer.add_tokens(extra, special_tokens=True)
    if config.tokens:
        tokenizer.add_tokens(config.tokens)
    if tokenizer.pad_token_id is None:
        # Labels are made from masks, never from pad ids, so sharing the id hides no target.
        if tokenizer.eos_token is None:
            raise ModelError(
                "the tokenizer has neither a pad nor an eos token: set special_tokens.pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    # Padding is never trained nor attended to: a new pad token needs no learning.
    return [
        token
        for token in [*roles.values(), *extra, *config.tokens]
        if token not in known and token != roles.get("pad_token")
    ]
