"""Ask a trained model every validation question and count the right answers, by kind.

    python examples/quickstart/score.py [MODEL_DIRECTORY]

An answer is right if it holds the expected one as a whole word. The model directory is a plain
Hugging Face one: nothing here needs tunecli.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
BATCH = 64


def main(directory: str) -> None:
    """Print the share of right answers of the model in `directory`."""
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    lines = (HERE / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    asked, right = Counter(), Counter()
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        for row, reply in zip(batch, replies(model, tokenizer, batch), strict=True):
            asked[row["kind"]] += 1
            right[row["kind"]] += bool(
                re.search(rf"(?<!\w){re.escape(row['answer'])}(?!\w)", reply)
            )
    for kind in sorted(asked):
        print(f"{kind:<20} {right[kind]:>4} of {asked[kind]:>4}")
    share = right.total() / asked.total()
    print(f"{'all':<20} {right.total():>4} of {asked.total():>4} ({share:.1%})")


@torch.no_grad()
def replies(model, tokenizer, rows) -> list[str]:
    """Return the greedy reply to the question of each row."""
    questions = [row["messages"][:-1] for row in rows]
    inputs = tokenizer.apply_chat_template(
        questions, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=48, do_sample=False)
    return tokenizer.batch_decode(
        output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "outputs/quickstart")
