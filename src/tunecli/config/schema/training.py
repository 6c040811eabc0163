"""Steps, optimizer and schedule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Amount, Count, NonNegative, OpenShare, Positive, Section, Share

Scheduler = Literal["cosine", "linear", "constant", "constant_with_warmup", "warmup_stable_decay"]


class CheckpointingKwargs(Section):
    """Options of gradient checkpointing."""

    use_reentrant: bool = False
    """torch's older implementation; the newer one is better in every known case."""


class TrainingConfig(Section):
    """Steps, optimizer and schedule."""

    micro_batch_size: Count = 1
    """Rows (packs) in one forward pass of one device."""
    gradient_accumulation_steps: Count | None = None
    """Forward passes for one optimizer step. Left out: 1, or what `batch_size` needs."""
    batch_size: Count | None = None
    """Rows (packs) in one optimizer step over all devices; instead of
    `gradient_accumulation_steps`, and independent of the number of devices."""
    eval_batch_size: Count | None = None
    """Rows (packs) in one forward pass of evaluation. Left out: `micro_batch_size`."""
    num_epochs: Amount = 1
    """Passes over the data; may be a fraction."""
    max_steps: Count | None = None
    """Optimizer steps of the run, whatever `num_epochs` says."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of the order of rows, of dropout, of the split and of fresh weights."""

    optimizer: str = "adamw_torch_fused"
    """Optimizer by name: `adamw_torch_fused`, `adamw_torch`, `adafactor`, `muon`, `sgd`; with
    small states from torchao (`adamw_torch_8bit`, `adamw_torch_4bit`, `adamw_torch_fp8`) or from
    bitsandbytes (`adamw_bnb_8bit`, `paged_adamw_8bit`, `paged_adamw_32bit`, `lion_8bit`,
    `lion_32bit`, `paged_lion_8bit`, `paged_lion_32bit`); `lion_pytorch`; or one registered with
    `tunecli.register_optimizer`."""
    optim_args: dict[str, Any] = Field(default_factory=dict)
    """More arguments for the optimizer, such as `{momentum: 0.9}` for `sgd`."""
    learning_rate: Positive
    """Highest learning rate of the schedule."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, on matrices only: never on biases and norms."""
    adam_beta1: OpenShare = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: OpenShare = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: Positive = 1e-8
    """Term that keeps Adam's division finite."""
    max_grad_norm: NonNegative = 1.0
    """Gradients are scaled down to this norm. `0`: no clipping."""

    lr_scheduler: Scheduler = "cosine"
    """Shape of the learning rate over the run."""
    warmup_steps: Annotated[int | float, Field(ge=0)] | None = None
    """Steps of linear warm-up. Below 1 it is taken as `warmup_ratio`."""
    warmup_ratio: Share | None = None
    """Warm-up as a share of all steps."""
    cosine_min_lr_ratio: Share = 0.0
    """`cosine` ends at this share of `learning_rate`."""
    lr_decay_ratio: Share = 0.1
    """`warmup_stable_decay`: the last share of the steps, over which the rate falls to zero."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    gradient_checkpointing_kwargs: CheckpointingKwargs = Field(default_factory=CheckpointingKwargs)
    """How activations are recomputed."""

    torch_compile: bool = False
    """Compile each decoder layer. The first steps take longer, every other one less."""
    torch_compile_backend: str = "inductor"
    """Compiler. `inductor` needs a C++ compiler on CPU, and Triton on a GPU."""
    torch_compile_mode: Literal["default", "max-autotune-no-cudagraphs"] = "default"
    """How long `inductor` looks for faster kernels."""

    early_stopping_patience: Count | None = None
    """Stop after this many evaluations without a better loss."""
    loss_watchdog_threshold: Positive | None = None
    """Stop when the loss stands above this for `loss_watchdog_patience` logged steps."""
    loss_watchdog_patience: Count = 3
    """See `loss_watchdog_threshold`."""
