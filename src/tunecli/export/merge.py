"""Merge an adapter into its base model, and prove that the result is what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import ModelError
from ..files import whole_directory
from ..model.loading import is_adapter_dir, load_model
from ..model.saving import save_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..config import Config
    from ..model.precision import Precision
    from ..model.tokenizer import Vocabulary
    from ..reporter import Reporter

PROBE_LENGTH = 16
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest accepted root mean square of the probe logits' change, as a share of their deviation.

A mean, since one logit of one token may move far when weights are rounded; a wrong merge moves
all of them.
"""


def merge_adapter(
    config: Config,
    vocabulary: Vocabulary,
    precision: Precision,
    adapter_dir: Path,
    target: Path,
    reporter: Reporter,
) -> Path:
    """Write base + adapter to `target` in the base's own type; return `target`.

    The base is loaded unquantized, whatever it was trained on. `target` appears whole or not
    at all.

    Raises:
        ModelError: There is no adapter, it does not fit the base, it changes nothing, or the
            merged model gives other logits than base and adapter together.
    """
    from peft import PeftModel

    if not is_adapter_dir(adapter_dir):
        raise ModelError(
            f"{adapter_dir} holds no adapter (adapter_config.json): train first, or set "
            "lora_model_dir. A fully fine-tuned model needs no merge"
        )
    dtype = base_dtype(config)
    plain = config.model_copy(update={"load_in_4bit": False, "load_in_8bit": False})
    with reporter.task("merging", 3, "stages") as task:
        base = load_model(plain, vocabulary, precision, dtype=dtype).to(precision.device)
        before = _probe(base)
        try:
            model = PeftModel.from_pretrained(base, str(adapter_dir))
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise ModelError(f"{adapter_dir} does not fit {config.base_model}: {error}") from error
        model.eval()
        expected = _probe(model)
        if torch.equal(before, expected):
            reporter.warn("the adapter does not change the model at all: was it trained?")
        task.advance()
        merged = model.merge_and_unload(safe_merge=True)
        _compare(expected, _probe(merged), dtype)
        task.advance()
        with whole_directory(target) as directory:
            save_model(merged, vocabulary.tokenizer, directory)
        task.advance()
    return target


def base_dtype(config: Config) -> torch.dtype:
    """Return the type in which the base model is stored, float32 if it does not say."""
    from ..model.loading import load_model_config

    dtype = load_model_config(config).dtype
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


@torch.no_grad()
def _probe(model: PreTrainedModel) -> torch.Tensor:
    """Return logits `[PROBE_LENGTH, vocab]` for a fixed row of tokens spread over the ids."""
    model.eval()
    vocab = model.get_input_embeddings().weight.shape[0]
    device = model.get_input_embeddings().weight.device
    ids = torch.linspace(0, vocab - 1, PROBE_LENGTH, device=device).long()[None]
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()


def _compare(expected: torch.Tensor, actual: torch.Tensor, dtype: torch.dtype) -> None:
    change = (expected - actual).square().mean().sqrt()
    difference = (change / expected.std().clamp_min(1e-6)).item()
    if not difference <= TOLERANCE[dtype]:
        raise ModelError(
            f"the merged model's logits differ from base and adapter by {difference:.2e} of their "
            f"deviation (allowed for {dtype}: {TOLERANCE[dtype]:.0e}): nothing was written"
        )
