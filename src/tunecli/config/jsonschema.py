"""The configuration as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

from .schema import SECTIONS, Config


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    schema = Config.model_json_schema()
    # Editors offer keys in this order; pydantic's is that of the base classes, last one first.
    names = [name for section in SECTIONS for name in section.model_fields]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {name: schema["properties"][name] for name in names},
        "title": "tunecli configuration",
        "description": "One file that says how to fine-tune a language model.",
    }
