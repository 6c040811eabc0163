"""Every layout computes the numbers of one process.

All products of replicas, shards, context and tensor parallelism of size 1 and 2, up to 16
processes, each with full fine-tuning and LoRA, tied and untied embeddings, SGD and AdamW. Rows
are packed, the last window of an epoch is short, and evaluation rows do not divide by the ranks.
"""

from __future__ import annotations

from typing import Any

import pytest
from distributed.conftest import Bench
from distributed.layouts import EVERY, params, with_backends
from runs import chat_rows

from tunecli.parallel import Layout

ROWS = chat_rows(30)

COMMON: dict[str, Any] = {
    "rows": ROWS,
    "sample_packing": True,
    # The global batch is the same in every layout: one process makes four passes, four
    # data-parallel ranks one each.
    "batch_size": 4,
    "max_steps": 5,
    "lr_scheduler": "linear",
    "val_set_size": 5,
    "eval_strategy": "steps",
    "eval_steps": 5,
}

TUNING: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"adapter": "lora", "lora_r": 4, "lora_alpha": 8},
}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.5},
    # Adam divides each gradient by its own size, so that rounding of a gradient near zero moves
    # its weight as far as any: with the usual epsilon of 1e-8 single weights differ by 1e-4. This
    # one is above the rounding and below the gradients.
    "adamw": {"optimizer": "adamw_torch", "learning_rate": 5e-3, "adam_epsilon": 1e-4},
}
LIMIT = 1e-5


def _check(
    bench: Bench, layout: Layout, backend: str, tuning: str, tied: bool, optimizer: str
) -> None:
    values = {**COMMON, **OPTIMIZERS[optimizer], **TUNING[tuning]}
    found = bench.compare(
        f"matrix, {tuning}, {optimizer}",
        layout,
        tied=tied,
        context_parallel_backend=backend,
        **values,
    )
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("tuning", TUNING)
@pytest.mark.parametrize(("layout", "backend"), with_backends(*EVERY))
def test_sgd(bench: Bench, layout: Layout, backend: str, tuning: str, tied: bool) -> None:
    _check(bench, layout, backend, tuning, tied, "sgd")


# Both backends of context parallelism give the same gradients (above): once is enough here.
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("tuning", TUNING)
@pytest.mark.parametrize("layout", params(*EVERY))
def test_adamw(bench: Bench, layout: Layout, tuning: str, tied: bool) -> None:
    _check(bench, layout, "auto", tuning, tied, "adamw")
