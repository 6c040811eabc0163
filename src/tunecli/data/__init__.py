"""Data: sources, formats, masks, packing, and the loader of global batches."""

from __future__ import annotations

from .batch import Batch, Documents, StepBatch
from .formats import Format, FormatContext, Rendered, Tokens, get_format, register_format
from .inspect import Inspection, inspect_rows
from .loader import BatchLoader
from .packing import plan_packs
from .prepare import Prepared, prepare, split_rows
from .report import PrepareReport, SetReport
from .sources import Part, Source, open_source
from .store import TokenRows
from .templates import built_in, resolve_template
from .tokenize import Encoder

__all__ = [
    "Batch",
    "BatchLoader",
    "Documents",
    "Encoder",
    "Format",
    "FormatContext",
    "Inspection",
    "Part",
    "PrepareReport",
    "Prepared",
    "Rendered",
    "SetReport",
    "Source",
    "StepBatch",
    "TokenRows",
    "Tokens",
    "built_in",
    "get_format",
    "inspect_rows",
    "open_source",
    "plan_packs",
    "prepare",
    "register_format",
    "resolve_template",
    "split_rows",
]
