"""Build model/: the configuration of a tiny Llama and a tokenizer trained on train.jsonl.

No weights are written: training starts from random ones. Running this again writes the same files.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

HERE = Path(__file__).parent
MODEL = HERE / "model"

PAD, BOS, TURN_START, TURN_END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 3200
# Longer than any conversation of the data, with room for one that goes on in a chat.
CONTEXT = 1024

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def texts() -> Iterator[str]:
    """Yield every message of the training data, and the role names."""
    with (HERE / "train.jsonl").open(encoding="utf-8") as file:
        for line in file:
            for message in json.loads(line)["messages"]:
                yield message["role"] + "\n"
                yield message["content"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: any text can be encoded, and the tables' names become few tokens."""
    tokenizer = Tokenizer(models.BPE())
    # The expression behind `use_regex` splits words with their leading space, numbers and
    # punctuation from each other, so " Paris" is the same token before "." and before "?".
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, BOS, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Describe a Llama small enough to learn the tables on two CPU cores in minutes."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        # The default of 0.02 suits wide layers; narrow ones start to learn sooner from more.
        initializer_range=0.06,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def main() -> None:
    """Write the configuration, the tokenizer and the generation defaults."""
    tokenizer = build_tokenizer()
    config = build_config(tokenizer)
    tokenizer.save_pretrained(MODEL)
    config.save_pretrained(MODEL)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(MODEL)
    print(f"{MODEL.name}: vocabulary of {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
