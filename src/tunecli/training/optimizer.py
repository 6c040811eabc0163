"""Optimizers by name, and which parameters decay."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import ConfigError, MissingDependencyError, Problem

if TYPE_CHECKING:
    from ..config import Config

Factory = Callable[[list[dict[str, Any]], "Config"], torch.optim.Optimizer]
_FACTORIES: dict[str, Factory] = {}


def register_optimizer(name: str) -> Callable[[Factory], Factory]:
    """Make `optimizer: NAME` call the decorated function.

    It gets the parameter groups (`params`, `weight_decay`, and as `kind` whether they are a
    `vector`, a `matrix`, or a `table` of embeddings) and the configuration, and returns a torch
    optimizer. The learning rate is set by the loop before each step.
    """

    def add(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return add


@dataclass(frozen=True)
class Library:
    """An optimizer that a package has.

    Attributes:
        module: Where it is.
        name: Its class.
        package: What to install for it.
        adam: It takes Adam's `betas` and `eps`.
        mesh: It works on weights that are laid out over processes.
        fixed: Arguments that make it what its name says.
    """

    module: str
    name: str
    package: str = ""
    adam: bool = True
    mesh: bool = True
    fixed: dict[str, Any] = field(default_factory=dict)

    def __call__(self, groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
        """Make it; see `register_optimizer`."""
        try:
            made = getattr(import_module(self.module), self.name)
        except ImportError as error:
            raise MissingDependencyError(self.package, f"optimizer: {config.optimizer}") from error
        sharded = any(isinstance(p, DTensor) for group in groups for p in group["params"])
        if sharded and not self.mesh:
            raise _refused(
                f"{config.optimizer} knows no weights that are laid out over processes",
                "use adamw_torch_8bit or adamw_torch_fused, or one process",
            )
        arguments: dict[str, Any] = {"lr": config.learning_rate}
        if self.adam:
            arguments |= {"betas": (config.adam_beta1, config.adam_beta2)}
            arguments |= {"eps": config.adam_epsilon}
        arguments |= self.fixed | config.optim_args
        return made(groups, **arguments)  # type: ignore[no-any-return]


def _torch(name: str, **options: Any) -> Library:
    return Library("torch.optim", name, **options)


def _torchao(name: str) -> Library:
    return Library("torchao.optim", name, "torchao")


def _bitsandbytes(name: str, adam: bool = True) -> Library:
    # Lion takes betas, too, but others than Adam's are its usual ones.
    return Library("bitsandbytes.optim", name, "bitsandbytes", adam, mesh=False)


def _muon(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    """Muon for the matrices of the layers, AdamW for the rest (arXiv:2502.16982).

    Updates of matrices are scaled to the size that AdamW's have, so that one learning rate and one
    decay do for both. `optim_args` go to Muon.
    """
    hidden = [group for group in groups if group["kind"] == "matrix"]
    rest = [group for group in groups if group["kind"] != "matrix"]
    if not hidden:
        raise _refused("muon needs matrices to train, and there are none", "use adamw_torch_fused")
    arguments: dict[str, Any] = {"lr": config.learning_rate, "adjust_lr_fn": "match_rms_adamw"}
    muon = torch.optim.Muon(hidden, **(arguments | config.optim_args))
    plain = config.model_copy(update={"optim_args": {}})
    return Several([muon, *([_torch("AdamW", fixed={"fused": True})(rest, plain)] if rest else [])])


_FACTORIES |= {
    "adamw_torch_fused": _torch("AdamW", fixed={"fused": True}),
    "adamw_torch": _torch("AdamW", fixed={"fused": False}),
    "sgd": _torch("SGD", adam=False),
    "adafactor": _torch("Adafactor", adam=False),
    "muon": _muon,
    "adamw_torch_8bit": _torchao("AdamW8bit"),
    "adamw_torch_4bit": _torchao("AdamW4bit"),
    "adamw_torch_fp8": _torchao("AdamWFp8"),
    "adamw_bnb_8bit": _bitsandbytes("AdamW8bit"),
    "adamw_8bit": _bitsandbytes("AdamW8bit"),
    "paged_adamw_8bit": _bitsandbytes("PagedAdamW8bit"),
    "paged_adamw_32bit": _bitsandbytes("PagedAdamW32bit"),
    "lion_32bit": _bitsandbytes("Lion32bit", adam=False),
    "lion_8bit": _bitsandbytes("Lion8bit", adam=False),
    "paged_lion_32bit": _bitsandbytes("PagedLion32bit", adam=False),
    "paged_lion_8bit": _bitsandbytes("PagedLion8bit", adam=False),
    "lion_pytorch": Library("lion_pytorch", "Lion", "lion-pytorch", adam=False, mesh=False),
}


class Several(torch.optim.Optimizer):
    """Several optimizers, each for some of the parameters, as one."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def _share(self) -> None:
        """Let the parts work on the groups and the state that this object shows."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See torch."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make a step of each."""
        for part in self.parts:
            part.step()


def check_optimizer(name: str) -> None:
    """Raise a `ConfigError` unless `name` is registered."""
    if name not in _FACTORIES:
        near = difflib.get_close_matches(name, _FACTORIES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        there = f"{hint}There are: {', '.join(sorted(_FACTORIES))}"
        raise _refused(f"there is no optimizer {name!r}", there)


def _refused(message: str, remedy: str, key: str = "optimizer") -> ConfigError:
    return ConfigError([Problem((key,), message, remedy)])


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Make the optimizer over the trained parameters of `model`.

    Vectors (biases, norms) never decay: pulling a norm's scale to zero is no regularisation.

    Raises:
        ConfigError: Unknown name, or `optim_args` that the optimizer does not take.
    """
    check_optimizer(config.optimizer)
    groups: dict[Any, dict[str, Any]] = {}
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables.add(id(getattr(head, "weight", None)))
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        kind = "vector" if parameter.ndim < 2 else "matrix"
        kind = "table" if id(parameter) in tables else kind
        decay = 0.0 if kind == "vector" else config.weight_decay
        # Optimizers work on whole lists at once, which must not mix ways of lying on a mesh.
        place = None
        if isinstance(parameter, DTensor):
            place = (parameter.device_mesh, parameter.placements)
        new = {"params": [], "weight_decay": decay, "kind": kind}
        group = groups.setdefault((kind, place), new)
        group["params"].append(parameter)
    try:
        return _FACTORIES[config.optimizer](list(groups.values()), config)
    except (TypeError, ValueError) as error:
        message = f"{config.optimizer} does not take this: {error}"
        raise ConfigError([Problem(("optim_args",), message)]) from error
