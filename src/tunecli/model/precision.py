"""Numeric types: what is stored and in what is computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from ..config import Config


@dataclass(frozen=True)
class Precision:
    """Computation runs in `compute`; weights that are trained are always float32.

    Updates smaller than half a step of bfloat16 would vanish in bfloat16 weights: at 1.0 that
    is anything below 0.2%. So masters stay in float32 and autocast makes the copies.
    """

    compute: torch.dtype
    device: torch.device

    @classmethod
    def from_config(cls, config: Config, device: torch.device) -> Precision:
        """Choose the compute type, `auto` included, and set the matrix precision of `device`.

        Raises:
            ConfigError: `bf16: true` or `fp16: true` on a device that has no such arithmetic.
        """
        cuda = device.type == "cuda"
        if config.fp16:
            if not cuda:
                raise ConfigError(
                    [Problem(("fp16",), "fp16 needs a GPU", "use bf16, or leave both out")]
                )
            compute = torch.float16
        elif config.bf16 is True or (config.bf16 == "auto" and cuda):
            if cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
                if config.bf16 is True:
                    message = "this GPU has no bfloat16 arithmetic"
                    raise ConfigError([Problem(("bf16",), message, "use fp16: true")])
                compute = torch.float32
            else:
                compute = torch.bfloat16
        else:
            compute = torch.float32
        if cuda:
            tf32 = config.tf32 is not False
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        return cls(compute, device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run."""
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute)

    @property
    def frozen(self) -> torch.dtype:
        """Type of weights that are not trained."""
        return self.compute
