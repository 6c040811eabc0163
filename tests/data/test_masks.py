"""Masks against oracles: random conversations, several templates, two kinds of tokenizer."""

from __future__ import annotations

from functools import cache

import pytest
from data.chat_templates import FAMILIES, LLAMA3, Messages
from data.helpers import IGNORE, byte_tokenizer, encode, render, spans, with_control
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from toys import CONTROL, toy_tokenizer
from transformers import PreTrainedTokenizerFast

from tunecli.data import built_in
from tunecli.data.templates import BUILT_IN
from tunecli.data.tokenize import trained_tokens

ALPHABET = ["a", "b", " ", "\n", ".", "é", "😀", "中", "\t", "\\", '"', "{", "<", "|", "\u200d"]
TEXT = st.text(st.sampled_from(ALPHABET), max_size=8)
THINKING = st.builds("<think>\n{}\n</think>\n\n{}".format, TEXT, TEXT)
TYPED = st.builds("{}{}{}".format, TEXT, st.sampled_from(["<eos>", "<|end|>", "<bos>"]), TEXT)


def conversations(text: st.SearchStrategy[str]) -> st.SearchStrategy[Messages]:
    def build(pairs: list[tuple[str, str]], system: str | None) -> Messages:
        messages = [] if system is None else [{"role": "system", "content": system}]
        for user, assistant in pairs:
            messages += [
                {"role": "user", "content": user},
                {"role": "assistant", "content": assistant},
            ]
        return messages

    pairs = st.lists(st.tuples(text, text), min_size=1, max_size=3)
    return st.builds(build, pairs, st.none() | text)


@cache
def byte_level(family: str) -> PreTrainedTokenizerFast:
    f = FAMILIES[family]
    return with_control(byte_tokenizer(), f.template, f.control, f.ordinary)


@cache
def merged(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE with merges, some of them over white space and over split characters."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(CONTROL),
        show_progress=False,
    )
    backend.train_from_iterator(["ab ab. \n\nab é😀 中a\n a.b\n\n\n b" * 3] * 4, trainer)
    f = FAMILIES[family]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    return with_control(tokenizer, f.template, f.control, f.ordinary)


def usable(family: str, messages: Messages) -> Messages:
    return [m for m in messages if FAMILIES[family].system or m["role"] != "system"]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(messages=conversations(TEXT | THINKING | TYPED))
def test_trained_ids_decode_to_the_trained_text(family: str, messages: Messages) -> None:
    messages = usable(family, messages)
    tokenizer = byte_level(family)
    pieces = FAMILIES[family].oracle(messages)
    rendered = render({"messages": messages}, tokenizer)
    assert rendered.text == "".join(text for text, _ in pieces)
    ids, labels = encode({"messages": messages}, tokenizer)
    trained = [i for i in labels if i != IGNORE]
    assert tokenizer.decode(trained) == "".join(text for text, wanted in pieces if wanted)
    assert tokenizer.decode(ids) == rendered.text
    assert all(label in (IGNORE, i) for i, label in zip(ids, labels, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(messages=conversations(TEXT | THINKING | TYPED))
def test_typed_control_tokens_never_become_control_tokens(family: str, messages: Messages) -> None:
    messages = usable(family, messages)
    tokenizer = byte_level(family)
    pieces = FAMILIES[family].oracle([{**m, "content": "x"} for m in messages])
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids, _ = encode({"messages": messages}, tokenizer)
    clean = tokenizer("".join(text for text, _ in pieces), add_special_tokens=False).input_ids
    assert [i for i in ids if i in special] == [i for i in clean if i in special]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(messages=conversations(TEXT | THINKING))
def test_merges_never_train_text_outside_the_turns(family: str, messages: Messages) -> None:
    messages = usable(family, messages)
    tokenizer = merged(family)
    pieces = FAMILIES[family].oracle(messages)
    text = "".join(piece for piece, _ in pieces)
    wanted, at = [], 0
    for piece, trained in pieces:
        wanted += [trained] * len(piece)
        at += len(piece)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, labels = encode({"messages": messages}, tokenizer)
    assert ids == encoding.input_ids
    for (start, end), label in zip(encoding.offset_mapping, labels, strict=True):
        inside = [wanted[i] for i in range(start, end)]
        solid = [wanted[i] for i in range(start, end) if not text[i].isspace()]
        if all(inside):
            assert label != IGNORE
        elif not inside[-1] or not all(solid):
            assert label == IGNORE


WORDS = st.lists(st.sampled_from([f"w{i}" for i in range(50)]), max_size=4).map(" ".join)


@settings(max_examples=80, deadline=None)
@given(messages=conversations(WORDS))
def test_word_level(messages: Messages) -> None:
    ids, labels = encode({"messages": messages})
    expected_ids, expected = [1], [IGNORE]
    for m in messages:
        trained = m["role"] == "assistant"
        body = [*(8 + int(w[1:]) for w in m["content"].split()), 6]
        expected_ids += [{"system": 3, "user": 4, "assistant": 5}[m["role"]], *body]
        expected += [IGNORE, *(body if trained else [IGNORE] * len(body))]
    assert (ids, labels) == (expected_ids, expected)


@cache
def of_template(name: str, words: bool) -> PreTrainedTokenizerFast:
    tokenizer = toy_tokenizer() if words else byte_tokenizer()
    return with_control(tokenizer, built_in(name), tuple(BUILT_IN[name][2].split()))


def without_system(name: str, messages: Messages) -> Messages:
    return [m for m in messages if name != "gemma" or m["role"] != "system"]


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=25, deadline=None)
@given(messages=conversations(TEXT | TYPED))
def test_built_in_templates_train_what_the_assistant_says(name: str, messages: Messages) -> None:
    messages = without_system(name, messages)
    tokenizer = of_template(name, words=False)
    rendered = render({"messages": messages}, tokenizer)
    ids, labels = encode({"messages": messages}, tokenizer)
    assert tokenizer.decode(ids) == rendered.text
    texts = spans(rendered)
    assert tokenizer.decode([i for i in labels if i != IGNORE]) == "".join(texts)
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    assert len(texts) == len(answers)
    end = texts[0][-5:] if texts[0].endswith("<eos>") else "<" + texts[0].rpartition("<")[2]
    # The prompt's place is where the text begins, less what the template puts between them.
    for text, answer in zip(texts, answers, strict=True):
        assert text.endswith(end)
        said = text.removesuffix(end).removeprefix("<think>\n")
        said = said.removeprefix("\n</think>\n\n")
        assert said.strip() == answer.strip()


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=25, deadline=None)
@given(messages=conversations(WORDS))
def test_built_in_templates_word_by_word(name: str, messages: Messages) -> None:
    messages = without_system(name, messages)
    tokenizer = of_template(name, words=True)
    _, labels = encode({"messages": messages}, tokenizer)
    end = next(i for i in reversed(labels) if i != IGNORE)
    assert tokenizer.convert_ids_to_tokens(end) in ("<eos>", *BUILT_IN[name][2].split())
    expected: list[int] = []
    for m in messages:
        if m["role"] == "assistant":
            expected += [*(8 + int(w[1:]) for w in m["content"].split()), end]
    unknown = tokenizer.unk_token_id  # Qwen3's empty think block.
    assert [i for i in labels if i not in (IGNORE, unknown)] == expected


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([(0, 3), (3, 5), (5, 6)], [(1, 2)]),  # The space before the word is glued to it.
        ([(0, 3), (3, 4), (4, 5), (5, 6)], [(2, 3)]),  # It is a token of its own.
        ([(0, 3), (2, 5), (5, 6)], [(2, 2)]),  # A token that holds the header's last letter.
        ([(0, 4), (4, 6)], [(1, 1)]),  # A token that goes on behind the span.
        ([(0, 3), (3, 5), (4, 5), (4, 5), (5, 6)], [(1, 4)]),  # A character of three tokens.
    ],
)
def test_tokens_at_the_edges_of_a_span(
    offsets: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert trained_tokens("[I] a.", offsets, [(4, 5)]) == expected


def test_end_token_that_swallows_white_space_is_trained() -> None:
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(
        [AddedToken("<|stop|>", special=True, rstrip=True, normalized=False)], special_tokens=True
    )
    tokenizer.chat_template = LLAMA3.replace("<|eot_id|>'", "<|stop|>\n'")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    _, labels = encode(row, tokenizer)
    stop = tokenizer.convert_tokens_to_ids("<|stop|>")
    assert labels[-1] == stop
    assert labels.count(stop) == 1


def test_bytes_of_one_character_share_their_fate() -> None:
    tokenizer = byte_tokenizer()
    row = {"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "😀"}]}
    _, labels = encode(row, tokenizer)
    trained = [i for i in labels if i != IGNORE]
    assert tokenizer.decode(trained) == " 😀 <|end|>"
    assert spans(render(row, tokenizer)) == [" 😀 <|end|>"]
    assert toy_tokenizer().eos_token_id not in trained
