"""What to say about a key that the schema does not have."""

from __future__ import annotations

from ..errors import Problem
from .fields import nearest, nested_sections, section_of, type_at
from .schema import Config
from .yaml import KeyPath


def suggestion(path: KeyPath) -> str | None:
    """Return the name that was most likely meant at this place."""
    section = section_of(type_at(path[:-1]))
    return nearest(str(path[-1]), section.model_fields) if section else None


def unknown_key(path: KeyPath, as_flag: bool = False) -> Problem:
    """Return the problem of an unknown key, with where it belongs or what was likely meant."""
    name = str(path[-1])
    message = "there is no such option" if as_flag else "unknown key"
    if len(path) > 1 and name in Config.model_fields:
        remedy = f"--{name.replace('_', '-')}" if as_flag else f"move {name} to the top level"
        return Problem(path, f"{message} here; it belongs at the top level", remedy)
    near = suggestion(path)
    places = [
        where
        for where, section in nested_sections()
        if name in section.model_fields and not where.endswith("test_datasets")
    ]
    if places and near != name:
        return Problem(path, f"{message} here; it belongs in {places[0]}", f"move {name} there")
    if near is None:
        return Problem(path, message, None if as_flag else "see the list of keys in docs/config.md")
    if as_flag:
        near = "--" + ".".join(map(str, (*path[:-1], near.replace("_", "-"))))
    return Problem(path, message, f"did you mean {near}?")


def nested_keys(name: str, value: object) -> list[Problem]:
    """Return the problems of `lora: {rnk: 8}`, where the schema is flat: `lora_r: 8`."""
    if not isinstance(value, dict) or name in Config.model_fields:
        return []
    family = [known for known in Config.model_fields if known.startswith(f"{name}_")]
    problems = []
    for inner in value if family else ():
        near = nearest(f"{name}_{inner}", family) or ", ".join(family[:3])
        problems.append(
            Problem((name, str(inner)), "unknown key: keys are flat here", f"did you mean {near}?")
        )
    return problems
