"""How fast does one GPU train, beside transformers' Trainer on the same tokens?

    python benchmarks/speed.py OUTPUT_DIRECTORY CASE

Run from the repository's root, a case at a time: memory figures stay apart. Cases: `KIND-trainer`
(transformers' Trainer, bf16, fused AdamW), `KIND-tunecli` and `KIND-compiled`, of the kinds

- `1b`: full fine-tuning of Llama-3.2-1B's shape, four rows of 4,096 tokens a step;
- `8b`: LoRA r16 on all linear layers of Llama-3.1-8B's shape, two rows of 4,096 tokens a step;
- `chat`: 1b's shape on rows of lognormal length, 600 tokens on average, sixteen a step padded for
  the Trainer, four packs of 4,096 tokens for tunecli.

Weights are random, made on the GPU. Prints one line of JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from one_gpu import LLAMA_8B, write_shape
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tunecli import Reporter, load_config, train

LLAMA_1B: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
SHAPES = {"1b": LLAMA_1B, "chat": LLAMA_1B, "8b": LLAMA_8B}
STEPS, LENGTH = 24, 4096
LORA = {"adapter": "lora", "lora_r": 16, "lora_alpha": 32}


def write_model(target: Path, shape: dict[str, Any]) -> None:
    """Write a model with random weights, made on the GPU: on CPU 8B take minutes."""
    if (target / "model.safetensors").exists():
        return
    write_shape(target, shape)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(target)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {k: v.cpu().contiguous() for k, v in model.state_dict().items()}
    if shape["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    save_file(weights, target / "model.safetensors", {"format": "pt"})


def rows(kind: str) -> list[list[int]]:
    """Return rows of random tokens, ids from 10 on."""
    draw = np.random.default_rng(0)
    if kind != "chat":
        return [draw.integers(10, 120_000, LENGTH).tolist() for _ in range(STEPS * 4)]
    lengths = draw.lognormal(math.log(600) - 0.32, 0.8, STEPS * 40).clip(8, LENGTH).astype(int)
    return [draw.integers(10, 120_000, n).tolist() for n in lengths]


def flops_per_token(shape: dict[str, Any], lora: bool, length: float) -> float:
    """6 (LoRA: 4) for each weight in a matrix product, attention (causal) with its own 3 passes."""
    d, head = shape["hidden_size"], shape["head_dim"]
    kv = shape["num_key_value_heads"] * head
    heads = shape["num_attention_heads"] * head
    layer = d * (2 * heads + 2 * kv + 3 * shape["intermediate_size"])
    weights = shape["num_hidden_layers"] * layer + d * shape["vocab_size"]
    attention = shape["num_hidden_layers"] * 2 * heads * length
    return (4 if lora else 6) * weights + 3 * attention


def by_trainer(kind: str, model_path: Path, output: Path) -> dict[str, float]:
    """Train with transformers' Trainer; PEFT for LoRA."""
    given = rows(kind)
    batch = {"1b": 4, "8b": 2, "chat": 16}[kind]
    lora = kind == "8b"
    model = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.bfloat16 if lora else torch.float32
    )
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    marks: list[tuple[float, int]] = []
    tokens = 0

    def collate(batch_rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        nonlocal tokens
        ids = [torch.tensor(row["input_ids"]) for row in batch_rows]
        tokens += sum(map(len, ids))
        pad = torch.nn.utils.rnn.pad_sequence
        mask = [torch.ones_like(row) for row in ids]
        return {
            "input_ids": pad(ids, batch_first=True, padding_value=0),
            "labels": pad(ids, batch_first=True, padding_value=-100),
            "attention_mask": pad(mask, batch_first=True),
        }

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            marks.append((time.perf_counter(), tokens))

    arguments = TrainingArguments(
        output_dir=str(output / "trainer"), per_device_train_batch_size=batch, max_steps=STEPS,
        bf16=True, optim="adamw_torch_fused", learning_rate=1e-5, logging_steps=1, report_to=[],
        save_strategy="no", gradient_checkpointing=lora, max_grad_norm=1.0,
        remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, data_collator=collate, callbacks=[Marks()],
                      train_dataset=[{"input_ids": row} for row in given])  # fmt: skip
    start = time.perf_counter()
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    half = len(marks) // 2
    (early, few), (late, many) = marks[half], marks[-1]
    return {
        "tokens_per_second": (many - few) / (late - early),
        "first_step_seconds": marks[0][0] - start,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def by_tunecli(kind: str, model_path: Path, output: Path, compiled: bool) -> dict[str, float]:
    """Train with tunecli, packed."""
    path = output / f"{kind}.jsonl"
    with path.open("w") as file:
        for row in rows(kind):
            file.write(json.dumps({"input_ids": row, "labels": row}) + "\n")
    name = f"{kind}-{compiled}"
    settings: dict[str, Any] = {
        "base_model": str(model_path),
        "datasets": [{"path": str(path), "type": "tokenized"}],
        "sequence_len": LENGTH,
        "sample_packing": True,
        "micro_batch_size": 2 if kind == "8b" else 4,
        "gradient_checkpointing": kind == "8b",
        "torch_compile": compiled,
        "learning_rate": 1e-5,
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "output_dir": f"{output}/{name}",
        "dataset_prepared_path": f"{output}/prepared",
    }
    if kind == "8b":
        settings |= LORA
    train(load_config(settings, []), Reporter(quiet=True))
    text = (output / name / "metrics.jsonl").read_text()
    steps = [line for line in map(json.loads, text.splitlines()) if "loss" in line]
    early, late = steps[len(steps) // 2], steps[-1]
    return {
        "tokens_per_second": (late["tokens"] - early["tokens"])
        / (late["seconds"] - early["seconds"]),
        "first_step_seconds": steps[0]["seconds"],
        "data_wait": late["data_wait"],
        "first_loss": steps[0]["loss"],
        "last_loss": late["loss"],
        "peak_gib": late["memory_gib"],
    }


def main(output: Path, case: str) -> None:
    """Run one case."""
    kind, side = case.split("-")
    shape = SHAPES[kind]
    model = output / f"model-{'8b' if kind == '8b' else '1b'}"
    write_model(model, shape)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if side == "trainer":
        figures = by_trainer(kind, model, output)
    else:
        figures = by_tunecli(kind, model, output, side == "compiled")
    if kind != "chat":
        work = flops_per_token(shape, kind == "8b", LENGTH / 2)
        figures["mfu"] = figures["tokens_per_second"] * work / 989e12
    print(json.dumps({"case": case} | figures), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
