"""Optimizers by name, and which parameters decay."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import ConfigError, Problem

if TYPE_CHECKING:
    from ..config import Config

Factory = Callable[[list[dict[str, Any]], "Config"], torch.optim.Optimizer]
_FACTORIES: dict[str, Factory] = {}


def register_optimizer(name: str) -> Callable[[Factory], Factory]:
    """Make `optimizer: NAME` call the decorated function.

    It gets the parameter groups (`params`, `weight_decay`) and the configuration, and returns
    a torch optimizer. The learning rate is set by the loop before each step.
    """

    def add(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return add


@register_optimizer("adamw_torch_fused")
def _adamw_fused(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    return _make_adamw(groups, config, fused=True)


@register_optimizer("adamw_torch")
def _adamw(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    return _make_adamw(groups, config, fused=False)


def _make_adamw(groups: list[dict[str, Any]], config: Config, fused: bool) -> torch.optim.Optimizer:
    arguments = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
        "fused": fused,
        **config.optim_args,
    }
    return torch.optim.AdamW(groups, **arguments)


@register_optimizer("sgd")
def _sgd(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, **{"lr": config.learning_rate, **config.optim_args})


def check_optimizer(name: str) -> None:
    """Raise a `ConfigError` unless `name` is registered."""
    if name not in _FACTORIES:
        near = difflib.get_close_matches(name, _FACTORIES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            [
                Problem(
                    ("optimizer",),
                    f"there is no optimizer {name!r}",
                    f"{hint}There are: {', '.join(sorted(_FACTORIES))}",
                )
            ]
        )


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Make the optimizer over the trained parameters of `model`.

    Vectors (biases, norms) never decay: pulling a norm's scale to zero is no regularisation.

    Raises:
        ConfigError: Unknown name, or `optim_args` that the optimizer does not take.
    """
    check_optimizer(config.optimizer)
    groups: dict[Any, dict[str, Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        # Optimizers work on whole lists at once, which must not mix ways of lying on a mesh.
        place = None
        if isinstance(parameter, DTensor):
            place = (parameter.device_mesh, parameter.placements)
        group = groups.setdefault((decay, place), {"params": [], "weight_decay": decay})
        group["params"].append(parameter)
    try:
        return _FACTORIES[config.optimizer](list(groups.values()), config)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem(("optim_args",), f"{config.optimizer} does not take this: {error}")]
        ) from error
