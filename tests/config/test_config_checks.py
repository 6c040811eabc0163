from __future__ import annotations

from collections.abc import Callable

import pytest

from tunecli.config import Config
from tunecli.errors import Problem

Load = Callable[..., Config]
Problems = Callable[..., dict[str, Problem]]

LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 8\n"
QLORA = "adapter: qlora\nlora_r: 8\nlora_alpha: 8\nload_in_4bit: true\n"
TESTS = "test_datasets: [{path: t}]\n"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("batch_size: 4\ngradient_accumulation_steps: 2\n", {"batch_size"}),
        ("batch_size: 3\nmicro_batch_size: 2\n", {"batch_size"}),
        ("warmup_steps: 1\nwarmup_ratio: 0.1\n", {"warmup_ratio"}),
        ("warmup_steps: 1.5\n", {"warmup_steps"}),
        ("lr_scheduler: linear\ncosine_min_lr_ratio: 0.1\n", {"cosine_min_lr_ratio"}),
        ("lr_decay_ratio: 0.2\n", {"lr_decay_ratio"}),
        ("lr_scheduler: constant\nwarmup_steps: 1\n", {"lr_scheduler"}),
        ("lora_r: 8\nlora_dropout: 0.1\npeft_use_dora: true\n",
         {"lora_r", "lora_dropout", "peft_use_dora"}),
        ("peft_init_lora_weights: gaussian\n", {"peft_init_lora_weights"}),
        ("load_in_4bit: true\nload_in_8bit: true\n", {"load_in_4bit", "load_in_8bit"}),
        ("adapter: lora\n", {"lora_r", "lora_alpha"}),
        (QLORA.replace("true", "false"), {"load_in_4bit"}),
        (LORA + "load_in_4bit: true\n", {"adapter"}),
        (QLORA + "load_in_8bit: true\n", {"load_in_8bit"}),
        (LORA + "lora_target_modules: [a]\nlora_target_linear: true\n", {"lora_target_linear"}),
        (LORA + "unfrozen_parameters: [a]\n", {"unfrozen_parameters"}),
        ("bf16: true\nfp16: true\n", {"fp16"}),
        (TESTS + "val_set_size: 1\n", {"val_set_size"}),
        ("chat_template: jinja\n", {"chat_template_jinja"}),
        ("chat_template: chatml\nchat_template_jinja: x\n", {"chat_template"}),
        ("min_sample_len: 9\nsequence_len: 8\n", {"min_sample_len"}),
        ("sample_packing: true\npad_to_sequence_len: false\n", {"pad_to_sequence_len"}),
        ("eval_steps: 5\nevals_per_epoch: 1\n", {"eval_steps"}),
        ("save_strategy: steps\n", {"save_steps"}),
        ("save_strategy: epoch\nsave_steps: 4\n", {"save_strategy"}),
        ("save_steps: 1.5\n", {"save_steps"}),
        ("early_stopping_patience: 1\nload_best_model_at_end: true\nsave_strategy: best\n",
         {"early_stopping_patience", "load_best_model_at_end", "save_strategy"}),
        (TESTS + "eval_strategy: no\nsave_strategy: best\n", {"eval_strategy"}),
    ],
)  # fmt: skip
def test_rules_between_fields(problems: Problems, text: str, keys: set[str]) -> None:
    found = problems(text)
    assert set(found) == keys
    for problem in found.values():
        written = [line.partition(":")[0] for line in text.splitlines()]
        if problem.key in written:
            assert problem.line == 5 + written.index(problem.key)


@pytest.mark.parametrize(
    "text",
    [
        LORA,
        QLORA,
        LORA + "load_in_8bit: true\n",
        "adapter: lora\nlora_model_dir: x\n",
        "batch_size: 4\nmicro_batch_size: 2\n",
        "lora_r:\nlora_dropout: 0\nlora_target_linear: false\npeft_init_lora_weights: true\n",
        "warmup_steps: 0.1\neval_steps: 0.5\nval_set_size: 1\n",
        "lr_scheduler: linear\ncosine_min_lr_ratio: 0\nlr_decay_ratio: 0.1\n",
    ],
)
def test_what_goes_together(load: Load, text: str) -> None:
    assert load(text)
