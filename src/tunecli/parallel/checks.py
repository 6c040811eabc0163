"""What a layout asks of a model: checked before any weight is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config import layout_problems
from ..errors import ConfigError, Problem
from .tensor import plan_problem

if TYPE_CHECKING:
    from ..config import Config
    from .mesh import Layout


def check_layout(config: Config, model_config: Any, layout: Layout) -> None:
    """Raise a `ConfigError` with everything about `layout` that this model cannot do.

    Args:
        config: The configuration.
        model_config: The model's own config.
        layout: Sizes of the mesh's axes, filled in.

    Raises:
        ConfigError: TP does not divide heads, widths or vocabulary, or the family has no
            supported plan; CP does not divide heads as asked; DoRA with TP.
    """
    problems = []
    if layout.tp > 1 and (message := plan_problem(model_config)):
        key = ("tensor_parallel_size",)
        problems.append(Problem(key, message, "use tensor_parallel_size: 1"))
    else:
        sizes = model_config.to_dict()
        problems += layout_problems(config, sizes, cp=layout.cp, tp=layout.tp)
    if problems:
        raise ConfigError(problems)
