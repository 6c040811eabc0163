"""What all parts of the schema share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: unknown keys, coercions, NaN and infinities are errors.

    Strict mode is what turns `micro_batch_size: true` or `wandb_name: 12` into an error
    instead of a guess. Attribute docstrings are the descriptions in the reference page
    and in the JSON Schema.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )


Count = Annotated[int, Field(ge=1)]
"""A whole number of at least one."""

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(ge=0, lt=1)]

Amount = Annotated[int | float, Field(gt=0)]
"""A number above zero that stays whole where it was written whole."""
