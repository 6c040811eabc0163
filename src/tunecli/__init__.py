"""tunecli: fine-tune language models from one YAML file.

from tunecli import load_config, train
train(load_config("config.yaml"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .config import Config, load_config
from .errors import TunecliError
from .reporter import Reporter

if TYPE_CHECKING:
    from .api import evaluate, inspect, merge, preprocess, train
    from .chat import ChatSession
    from .data import register_format
    from .training.optimizer import register_optimizer

# These import torch: only when they are asked for, so that `import tunecli` stays fast.
_LAZY = {
    "evaluate": "tunecli.api",
    "inspect": "tunecli.api",
    "merge": "tunecli.api",
    "preprocess": "tunecli.api",
    "train": "tunecli.api",
    "ChatSession": "tunecli.chat",
    "register_format": "tunecli.data",
    "register_optimizer": "tunecli.training.optimizer",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tunecli' has no attribute {name!r}")


__all__ = [
    "ChatSession",
    "Config",
    "Reporter",
    "TunecliError",
    "__version__",
    "evaluate",
    "inspect",
    "load_config",
    "merge",
    "preprocess",
    "register_format",
    "register_optimizer",
    "train",
]
