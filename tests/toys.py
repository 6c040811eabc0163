"""Toy tokenizers and models: tiny, random, built in memory; nothing is downloaded.

Words of `toy_tokenizer` are `w0` to `w49`, so that every id in a test can be read off its text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTROL = ("<pad>", "<bos>", "<eos>", "<|s|>", "<|u|>", "<|a|>", "<|end|>")
"""Control tokens of both toy tokenizers; in the word-level one they have the ids 0 to 6."""

PAD, BOS, EOS, SYSTEM, USER, ASSISTANT, END, UNK = range(8)
WORDS = [f"w{i}" for i in range(50)]

toy_template = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'][0] }}|> {{ m['content'] }} <|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}"
)
"""`<bos>`, then `<|u|> content <|end|>` for each message; no generation tags."""

ROW2: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "w0 w1"},
        {"role": "assistant", "content": "w2 w3"},
        {"role": "user", "content": "w4"},
        {"role": "assistant", "content": "w5"},
    ]
}
ROW2_IDS = [1, 4, 8, 9, 6, 5, 10, 11, 6, 4, 12, 6, 5, 13, 6]
ROW2_LABELS = [-100] * 6 + [10, 11, 6] + [-100] * 4 + [13, 6]


def word(index: int) -> int:
    """Return the id of the word `w{index}`."""
    return 8 + index


def toy_tokenizer(
    template: str | None = toy_template, add_bos: bool = False, pad_token: str = "<pad>"
) -> PreTrainedTokenizerFast:
    """Word-level tokenizer of 58 entries: 7 control tokens, `<unk>` 7, `w0`..`w49` 8..57."""
    vocabulary = {text: i for i, text in enumerate([*CONTROL, "<unk>", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(backend, [*CONTROL, "<unk>"], template, add_bos, pad_token, unk_token="<unk>")


def byte_tokenizer(
    template: str | None = toy_template, add_bos: bool = False, pad_token: str = "<pad>"
) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: one token for each UTF-8 byte, then the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend, list(CONTROL), template, add_bos, pad_token)


def _wrap(
    backend: Tokenizer,
    control: list[str],
    template: str | None,
    add_bos: bool,
    pad_token: str,
    **names: str,
) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A",
            pair="<bos> $A $B",
            special_tokens=[("<bos>", backend.token_to_id("<bos>"))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token=pad_token,
        **names,
    )
    tokenizer.chat_template = template
    return tokenizer


def toy_model_config(tied: bool = True, **overrides: Any) -> LlamaConfig:
    """Llama: vocab 64, hidden 32, 2 layers, 4 heads, 2 KV heads, MLP 64, 128 positions."""
    values: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_dropout": 0.0,
        "tie_word_embeddings": tied,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    return LlamaConfig(**{**values, **overrides})


def toy_model(tied: bool = True, seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """Random float32 model of `toy_model_config`; the global random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(toy_model_config(tied, **overrides)).float()


def write_model_dir(
    path: str | Path,
    weights: bool = True,
    tied: bool = True,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerFast | None = None,
    **overrides: Any,
) -> Path:
    """Save config, tokenizer with template and, if asked, weights to `path`; return it."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if weights:
        toy_model(tied, seed, **overrides).save_pretrained(path)
    else:
        config = toy_model_config(tied, **overrides)
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(path)
    (tokenizer or toy_tokenizer()).save_pretrained(path)
    return path
