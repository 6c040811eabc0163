"""The whole path from Python: prepare, train, evaluate, adapt, merge, ask.

    python examples/python_api/end_to_end.py [STEPS]

Run it from the repository's root. First a small model is trained from random weights, then a LoRA
adapter on top of it, which is merged into a plain Hugging Face directory.
"""

from __future__ import annotations

import sys

from tunecli import ChatSession, Reporter, evaluate, load_config, merge, preprocess, train

QUICKSTART = "configs/quickstart.yaml"


def main(steps: int, output: str = "outputs/python_api") -> str:
    """Run everything with `steps` optimizer steps each; return a reply of the merged model."""
    reporter = Reporter()

    # Any value of the YAML can be overridden, in the words of the command line.
    short = ["--max-steps", str(steps), "--save-strategy", "no", "--eval-strategy", "no"]
    config = load_config(QUICKSTART, [*short, "--output-dir", f"{output}/base"])
    report = preprocess(config, reporter)
    print(f"{report.train_rows} rows to train, {report.train.trained_tokens} trained tokens")
    print(f"loss after {steps} steps: {train(config, reporter).loss:.3f}")

    # A configuration may come from a mapping as well as from a file.
    adapted = load_config(
        {
            "base_model": f"{output}/base",
            "datasets": [{"path": "examples/quickstart/train.jsonl"}],
            "test_datasets": [{"path": "examples/quickstart/validation.jsonl"}],
            "sequence_len": 384,
            "sample_packing": True,
            "adapter": "lora",
            "lora_r": 8,
            "lora_alpha": 16,
            "learning_rate": 1e-3,
            "max_steps": steps,
            "save_strategy": "no",
            "eval_strategy": "no",
            "output_dir": f"{output}/lora",
        }
    )
    train(adapted, reporter)
    print(f"evaluation loss with the adapter: {evaluate(adapted, reporter).eval_loss:.3f}")

    merged = merge(adapted, reporter)
    reply = ChatSession.load(merged, max_new_tokens=32).ask("What is the capital of France?")
    print(f"{merged} says: {reply}")
    return reply


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
