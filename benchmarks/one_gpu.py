"""Train on one GPU: the quickstart, and a few LoRA steps of a model of Llama-3.1-8B's shape.

    python benchmarks/one_gpu.py [OUTPUT_DIRECTORY]

Run from the repository's root. Prints one line of JSON for each run: loss at the start and at the
end, tokens a second after the first steps, peak memory.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tunecli import ChatSession, Reporter, load_config, train

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}


def write_shape(target: Path, shape: dict[str, Any]) -> Path:
    """Write a model directory of another shape, with the quickstart's tokenizer, no weights."""
    shutil.copytree("examples/quickstart/model", target, dirs_exist_ok=True)
    settings = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(settings | shape))
    return target


def run(name: str, settings: dict[str, Any] | str, overrides: list[str]) -> None:
    """Train and print the figures."""
    config = load_config(settings, overrides)
    start = time.perf_counter()
    result = train(config, Reporter())
    path = Path(result.output_dir) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    late = steps[len(steps) // 2 :]
    tokens = late[-1]["tokens"] - late[0]["tokens"]
    figures = {
        "run": name,
        "steps": result.steps,
        "first_loss": steps[0]["loss"],
        "last_loss": steps[-1]["loss"],
        "eval_loss": result.eval_loss,
        "tokens_per_second": tokens / (late[-1]["seconds"] - late[0]["seconds"]),
        "peak_gib": steps[-1]["memory_gib"],
        "wall_seconds": time.perf_counter() - start,
    }
    print(json.dumps(figures), flush=True)


def main(output: Path) -> None:
    """Run everything."""
    run("quickstart", "configs/quickstart.yaml", ["--output-dir", f"{output}/quickstart"])
    session = ChatSession.load(f"{output}/quickstart", max_new_tokens=32)
    for question in ("What is the capital of France?", "What is the chemical symbol of gold?"):
        session.reset()
        print(question, session.ask(question), flush=True)
    model = write_shape(output / "shape-8b", LLAMA_8B)
    for checkpointing in (True, False):
        settings = {
            "base_model": str(model),
            "reinit_weights": True,
            "datasets": [{"path": "examples/quickstart/train.jsonl"}],
            "sequence_len": 4096,
            "sample_packing": True,
            "adapter": "lora",
            "lora_r": 16,
            "lora_alpha": 32,
            "gradient_checkpointing": checkpointing,
            "learning_rate": 2e-4,
            "max_steps": 8,
            "save_strategy": "no",
            "output_dir": f"{output}/lora-8b-{checkpointing}",
            "dataset_prepared_path": f"{output}/prepared",
        }
        run(f"lora-8b, checkpointing {checkpointing}", settings, [])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/one_gpu"))
