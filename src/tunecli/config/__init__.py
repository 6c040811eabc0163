"""Configuration: schema, loading, checks and rendering. Imports nothing heavy."""

from .dump import dump_config
from .jsonschema import json_schema
from .layout import choose_backend, layout_problems
from .loader import load_config
from .local import local_problems
from .redact import is_secret_key, redact, redact_tree
from .reference import reference_page
from .schema import (
    Config,
    DatasetEntry,
    FsdpConfig,
    MessageMappings,
    ParallelConfig,
    PromptFormat,
    SpecialTokens,
)

__all__ = [
    "Config",
    "DatasetEntry",
    "FsdpConfig",
    "MessageMappings",
    "ParallelConfig",
    "PromptFormat",
    "SpecialTokens",
    "choose_backend",
    "dump_config",
    "is_secret_key",
    "json_schema",
    "layout_problems",
    "load_config",
    "local_problems",
    "redact",
    "redact_tree",
    "reference_page",
]
