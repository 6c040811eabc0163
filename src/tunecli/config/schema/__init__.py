"""The schema: one small file a concern, composed here into the flat file that users write."""

from __future__ import annotations

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from .adapter import AdapterConfig
from .checks import cross_problems
from .data import DataConfig, DatasetEntry, MessageMappings, PromptFormat
from .model import ModelConfig, SpecialTokens
from .parallel import FsdpConfig, ParallelConfig
from .run import RunConfig
from .training import TrainingConfig

SECTIONS = (ModelConfig, DataConfig, AdapterConfig, TrainingConfig, RunConfig, ParallelConfig)
"""In the order in which the reference page shows them."""

CROSS_FIELD = "cross_field"
"""Type of the pydantic error that carries the problems between fields."""


class Config(ModelConfig, DataConfig, AdapterConfig, TrainingConfig, RunConfig, ParallelConfig):
    """A whole configuration, as one flat YAML file."""

    @model_validator(mode="after")
    def _check_between_fields(self) -> Config:
        if problems := list(cross_problems(self)):
            # One error that carries all of them: pydantic would stop at the first otherwise.
            text = "; ".join(problem.message for problem in problems)
            raise PydanticCustomError(CROSS_FIELD, "{text}", {"text": text, "problems": problems})
        return self


__all__ = [
    "CROSS_FIELD",
    "SECTIONS",
    "AdapterConfig",
    "Config",
    "DataConfig",
    "DatasetEntry",
    "FsdpConfig",
    "MessageMappings",
    "ModelConfig",
    "ParallelConfig",
    "PromptFormat",
    "RunConfig",
    "SpecialTokens",
    "TrainingConfig",
]
