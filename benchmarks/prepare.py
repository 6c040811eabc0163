"""Time and memory of preparing chat rows, beside rendering and tokenizing alone, and beside TRL.

    pip install trl
    python benchmarks/prepare.py [--rows 20000] [--words 350] [--sides bare,processes,tunecli,trl]

Both sides read the same JSON lines, use the same tokenizer (a byte-level BPE with 16k entries,
trained here on the same kind of text) and the same template (ChatML), and use every core:

- bare: each row through transformers' `render_jinja_template`, then `encode_batch` with offsets on
  all cores. No reading, no masks, no writing.
- processes: the same, but whole shares of the rows in one process for each core; the time of
  starting the processes is not counted.
- tunecli: `prepare` (read, render, find the trained spans, tokenize, mask, count, write) and the
  plan of the packs; with the start of its processes.
- trl: `datasets.load_dataset`, `map` with `apply_chat_template` to ids and assistant masks, and
  `pack_dataset`, one process for each core.

Each side runs in a process of its own. Peak memory is that of all its processes together, private
and shared pages counted once (PSS).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 6000
SEQUENCE = 4096
# TRL finds the assistant's tokens by these tags only; ours needs none.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\n' }}{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
)


def make_rows(path: Path, rows: int, words: int) -> None:
    """Write chat rows of two exchanges, with about `words` words each."""
    rng = np.random.default_rng(0)
    parts = np.array([a + b for a in "bcdfgklmnprstvz" for b in "aeiouy"])
    vocabulary = ["".join(rng.choice(parts, rng.integers(1, 4))) for _ in range(WORDS)]
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    with path.open("w") as file:
        for start in range(0, rows, 10_000):
            count = min(10_000, rows - start)
            sizes = np.maximum(2, rng.lognormal(np.log(words / 4), 0.5, (count, 4)).astype(int))
            drawn = iter(rng.choice(WORDS, int(sizes.sum()), p=shares).tolist())
            for row in sizes.tolist():
                messages = [
                    {"role": ("user", "assistant")[turn % 2],
                     "content": " ".join(vocabulary[next(drawn)] for _ in range(size))}
                    for turn, size in enumerate(row)
                ]  # fmt: skip
                file.write(json.dumps({"messages": messages}) + "\n")


def make_tokenizer(path: Path, data: Path) -> None:
    """Train a byte-level BPE on the first rows, with ChatML's tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    with data.open() as file:
        lines = [line for _, line in zip(range(4000), file, strict=False)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=16_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>",
                                   pad_token="<|endoftext|>")  # fmt: skip
    fast.add_tokens([AddedToken("<|im_start|>", special=True)], special_tokens=True)
    fast.chat_template = CHATML
    fast.save_pretrained(path)


def load(path: Path) -> Any:
    """Load the tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def bare_part(folder: Path, first: int, step: int, repeat: int = 1) -> tuple[int, float]:
    """Render and tokenize every `step`-th row; return the tokens and the seconds."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = load(folder / "tokenizer")
    with (folder / "rows.jsonl").open() as file:
        rows = [json.loads(line) for n, line in enumerate(file) if n % step == first]
    tokens = 0
    start = time.perf_counter()
    for at in range(0, len(rows), 512):
        texts = [
            render_jinja_template([row["messages"]], chat_template=CHATML)[0][0]
            for row in rows[at : at + 512]
        ]
        for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
            tokens += len(encoding.ids)
            _ = encoding.offsets
    return tokens, time.perf_counter() - start


def bare(folder: Path) -> tuple[int, float]:
    """One process, the tokenizer's own threads."""
    return bare_part(folder, 0, 1)


def processes(folder: Path) -> tuple[int, float]:
    """One process for each core."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(bare_part, [folder] * cores, range(cores), [cores] * cores))
    return sum(tokens for tokens, _ in parts), max(seconds for _, seconds in parts)


def tunecli(folder: Path) -> tuple[int, float]:
    """Prepare and plan the packs."""
    from tunecli import Reporter, load_config
    from tunecli.data import BatchLoader, prepare

    config = load_config({
        "base_model": str(folder / "tokenizer"), "learning_rate": 1e-4, "sequence_len": SEQUENCE,
        "datasets": [{"path": str(folder / "rows.jsonl")}], "sample_packing": True,
        "dataset_prepared_path": str(folder / "prepared"), "output_dir": str(folder / "out"),
    }, [])  # fmt: skip
    tokenizer = load(folder / "tokenizer")
    start = time.perf_counter()
    data = prepare(config, tokenizer, Reporter(quiet=True))
    BatchLoader(data.train, micro_batch_size=1, sequence_len=SEQUENCE, packing=True)
    return data.report.train.tokens, time.perf_counter() - start


def trl(folder: Path) -> tuple[int, float]:
    """Datasets and TRL."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from datasets import load_dataset
    from trl.data_utils import pack_dataset

    tokenizer = load(folder / "tokenizer")

    def tokenize(row: dict[str, Any]) -> dict[str, Any]:
        done = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": done["input_ids"], "assistant_masks": done["assistant_masks"]}

    start = time.perf_counter()
    data = load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train",
                        cache_dir=str(folder / "cache"))  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    data = data.map(tokenize, num_proc=cores, remove_columns=["messages"])
    packed = pack_dataset(data, SEQUENCE, map_kwargs={"num_proc": cores})
    seconds = time.perf_counter() - start
    return sum(len(row) for row in packed["input_ids"]), seconds


SIDES = {"bare": bare, "processes": processes, "tunecli": tunecli, "trl": trl}


def memory(process: Any) -> int:
    """Return the bytes of a process and its children, shared pages divided among them."""
    import psutil

    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:
            continue  # It ended meanwhile.
    return total


def run_side(name: str, folder: Path, results: Any) -> None:
    """Run one side in this process; put its figures into the queue."""
    import psutil

    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.5):
            peak = max(peak, memory(psutil.Process()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    tokens, seconds = SIDES[name](folder)
    done.set()
    watcher.join()
    results.put((tokens, seconds, peak))


def main() -> None:
    """Print one line for each side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--words", type=int, default=350)
    parser.add_argument("--sides", default=",".join(SIDES))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_rows(folder / "rows.jsonl", options.rows, options.words)
        make_tokenizer(folder / "tokenizer", folder / "rows.jsonl")
        size = (folder / "rows.jsonl").stat().st_size
        print(f"{options.rows:,} rows, {size / options.rows:,.0f} bytes each, "
              f"{len(os.sched_getaffinity(0))} cores")  # fmt: skip
        for side in options.sides.split(","):
            results = context.Queue()
            process = context.Process(target=run_side, args=(side, folder, results))
            process.start()
            tokens, seconds, peak = results.get()
            process.join()
            print(
                f"{side:10} {seconds:8.2f} s {options.rows / seconds:10,.0f} rows/s "
                f"{tokens / seconds:12,.0f} tokens/s {peak / 2**30:6.2f} GiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
