"""Host memory that loading a model on a mesh takes, by process, against loading it whole.

    python benchmarks/mesh_memory.py [PROCESSES]

Writes a model of 338 million parameters in bfloat16 to a temporary directory, lays it (in float32)
out over so many gloo processes with FSDP2, and prints the peak of each process's own memory
(anonymous pages, sampled every 5 ms, what it had before loading taken off). Pages of the
memory-mapped files are shared by all processes of a machine and given back on demand: they are not
counted. Linux only.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import multiprocessing
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tunecli import builder, load_config
from tunecli.model.precision import Precision
from tunecli.model.tokenizer import Vocabulary
from tunecli.parallel import Layout, Mesh

TOKENIZER = "examples/quickstart/model"
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def own_gib() -> float:
    """Return the anonymous memory of this process now."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 2**20


class Peak(threading.Thread):
    """Samples the memory until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_gib = self.peak = own_gib()
        self.going = True

    def run(self) -> None:
        while self.going:
            self.peak = max(self.peak, own_gib())
            time.sleep(0.005)


def load(rank: int, world: int, directory: str, store: str, whole: bool, figures) -> None:
    """Build the model on one rank and note its peak."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    config = load_config(
        {"base_model": directory, "datasets": [{"path": "x/y"}], "learning_rate": 1e-4}
    )
    mesh = Mesh.start(Layout(dp_shard=world), torch.device("cpu"))
    precision = Precision(torch.float32, mesh.device)
    vocabulary = Vocabulary(AutoTokenizer.from_pretrained(TOKENIZER), [])
    if whole:
        # What loading is where slices cannot be read: the whole model in each process first.
        builder.sliced_source = lambda *arguments: None
    peak = Peak()
    peak.start()
    model = builder.build_model(config, vocabulary, precision, mesh)
    peak.going = False
    peak.join()
    figures[rank] = (peak.peak - peak.start_gib, own_gib() - peak.start_gib)
    dist.barrier()
    del model
    dist.destroy_process_group()


def main(world: int) -> None:
    """Measure both ways."""
    with tempfile.TemporaryDirectory() as directory:
        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
        size = sum(p.numel() for p in model.parameters()) * 4 / 2**30
        largest = max(p.numel() for p in model.parameters()) * 4 / 2**30
        # Stored in bfloat16, trained with float32 masters: the usual case.
        model.to(torch.bfloat16).save_pretrained(directory)
        AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(directory)
        del model
        print(f"float32: model {size:.2f} GiB, largest tensor {largest:.2f} GiB; {world} processes")
        for whole in (True, False):
            store = tempfile.mktemp()
            figures = multiprocessing.Manager().dict()
            multiprocessing.spawn(
                load, (world, directory, store, whole, figures), nprocs=world, join=True
            )
            peaks = [figures[rank][0] for rank in range(world)]
            kept = [figures[rank][1] for rank in range(world)]
            print(
                f"{'whole' if whole else 'slices':<7} peak of a process {max(peaks):.2f} GiB, "
                f"of all {sum(peaks):.2f} GiB; kept by all {sum(kept):.2f} GiB"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
