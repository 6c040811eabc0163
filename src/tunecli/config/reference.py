"""The reference page of the configuration, made from the schema."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from .axolotl import ENTRY_KEYS, FSDP_KEYS, KEYS, Rule
from .fields import field_type, in_words, nested_sections
from .schema import SECTIONS
from .schema.base import Section

HEAD = """# Configuration reference

Made from the schema by `scripts/gen_docs.py`; do not edit.

One flat YAML file. Unknown keys, keys given twice and values of a wrong type are errors. A key
with the value `null` counts as left out. Numbers may be written as `1e-4`. Any value can be set
on the command line: `--learning-rate 1e-4 --datasets.0.path rows.jsonl`.
"""

AXOLOTL = """
## Keys of Axolotl

Files written for Axolotl may hold keys that do not exist here. Where such a key is not used
(`null`, `false`, empty) it is accepted; otherwise:
"""

_WHAT = {"renamed": "read as", "ignored": "no effect", "unsupported": "not supported"}


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    parts += [_section(part, (inspect.getdoc(part) or "").rstrip(".")) for part in SECTIONS]
    seen: set[type[Section]] = set()
    for where, section in nested_sections():
        if section not in seen:
            seen.add(section)
            heading = f"In `{where}`" if " of " not in where else f"In {where}"
            parts.append(_section(section, heading, inspect.getdoc(section)))
    parts.append(AXOLOTL)
    tables = (("Top level", KEYS), ("Entries of datasets", ENTRY_KEYS), ("fsdp_config", FSDP_KEYS))
    parts += [_rules(title, table) for title, table in tables]
    return "\n".join(parts)


def _section(section: type[Section], title: str, text: str | None = None) -> str:
    rows = [
        f"| `{name}` | {_cell(in_words(field_type(info)))} | {_default(info)} "
        f"| {_cell(info.description or '')} |"
        for name, info in section.model_fields.items()
    ]
    intro = f"\n{text}\n" if text else ""
    table = "\n".join(["| key | value | default | |", "|---|---|---|---|", *rows])
    return f"## {title}\n{intro}\n{table}\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value: Any = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Section):
        return "see below"
    if value is None:
        return ""
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    return f"`{text}`"


def _rules(title: str, table: Mapping[str, Rule]) -> str:
    groups: dict[tuple[str, str | None, str], list[str]] = {}
    for name, rule in table.items():
        switched = rule.convert(True)  # what a switch such as flash_attention sets
        target = rule.target if switched is True else f"{rule.target}: {switched}"
        groups.setdefault((rule.kind, target, rule.text), []).append(f"`{name}`")
    rows = []
    for (kind, target, text), names in groups.items():
        what = f"{_WHAT[kind]} `{target}`" if target else _WHAT[kind]
        rows.append(f"| {', '.join(names)} | {what} | {_cell(text)} |")
    body = "\n".join(["| keys | here | |", "|---|---|---|", *rows])
    return f"### {title}\n\n{body}\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
