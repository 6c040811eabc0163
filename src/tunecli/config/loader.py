"""From a YAML file and command line arguments to a checked `Config`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..errors import ConfigError, Problem
from .fields import (
    allows,
    in_words,
    inner_type,
    kinds,
    nearest,
    section_of,
    type_at,
    value_in_words,
)
from .names import nested_keys, suggestion, unknown_key
from .overrides import Overrides, place_of_flag
from .schema import CROSS_FIELD, Config
from .translate import Translation
from .yaml import Document, KeyPath, Marks, parse_value, read_yaml

STAND_INS: Mapping[str, Any] = {
    "base_model": "-", "datasets": [{"path": "-"}], "learning_rate": 1.0,
}  # fmt: skip
"""Values for required keys that are wrong or missing, so that the rest can still be checked."""


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> Config:
    """Load and check a configuration.

    `null` at the top level or in a nested section means that the key is left out.

    Args:
        source: A YAML file, or the values themselves.
        overrides: Command line arguments that replace values: `["--learning-rate", "1e-4"]`.
        note: Told, in a sentence each, about keys that are accepted but read as something else.

    Raises:
        ConfigError: Everything that is wrong, each problem with its place.
    """
    if isinstance(source, Mapping):
        document = Document(copy.deepcopy(dict(source)), Marks(), [])
        file = "<dict>"
    else:
        file = str(source)
        document = read_yaml(Path(source))
    tree = document.tree
    flags = Overrides(overrides, tree)
    translation = Translation(tree)
    _drop_nulls(tree, Config)
    config, found = _check(tree)

    def placed(problem: Problem, of_key: bool = False) -> Problem:
        path = translation.original(problem.path)
        if flag := flags.flag_of(path):
            return replace(problem, path=path, file=place_of_flag(flag))
        line, column = document.marks.place(path, of_key) or (None, None)
        return replace(problem, path=path, file=file, line=line, column=column)

    if note is not None:
        for path, text in translation.notes:
            note(str(placed(Problem(path, text), of_key=True)))
    problems = [
        *document.problems,
        *(placed(problem, of_key=True) for problem in translation.problems),
        *(placed(problem, problem.message.startswith("unknown key")) for problem in found),
    ]
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    problems += flags.problems
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _drop_nulls(tree: dict[str, Any], annotation: Any) -> None:
    for name in [name for name, value in tree.items() if value is None]:
        del tree[name]
    for name, value in tree.items():
        inner = inner_type(annotation, name)
        items = value if isinstance(value, list) else [value]
        if isinstance(value, list):
            inner = inner_type(inner, 0)
        if inner is not None and section_of(inner):
            for item in items:
                if isinstance(item, dict):
                    _drop_nulls(item, inner)


def _check(tree: dict[str, Any]) -> tuple[Config | None, list[Problem]]:
    """Validate; where fields are wrong, check the rules between the others all the same."""
    config, errors = _validate(tree)
    crossed = _crossed(errors)
    if config is not None or crossed:
        return config, crossed
    problems = _field_problems(errors, tree)
    wrong = {str(problem.path[0]) for problem in problems if problem.path}
    wrong |= {str(error["loc"][0]) for error in errors}
    meant = {suggestion((name,)) for name in wrong if name not in Config.model_fields}
    rest = {name: value for name, value in tree.items() if name not in wrong}
    crossed = _crossed(_validate({**STAND_INS, **rest})[1])
    doubtful = (wrong & set(Config.model_fields)) | meant
    problems += [p for p in crossed if doubtful.isdisjoint(re.findall(r"\w+", f"{p.key} {p}"))]
    return None, problems


def _validate(tree: dict[str, Any]) -> tuple[Config | None, list[ErrorDetails]]:
    try:
        return Config.model_validate(tree), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _crossed(errors: list[ErrorDetails]) -> list[Problem]:
    return [
        problem
        for error in errors
        if error["type"] == CROSS_FIELD
        for problem in error["ctx"]["problems"]
    ]


def _field_problems(errors: list[ErrorDetails], tree: dict[str, Any]) -> list[Problem]:
    """Return one problem a field: pydantic reports one for each branch of a union."""
    problems: dict[KeyPath, Problem] = {}
    for error in errors:
        path = _real_path(error, tree)
        if error["type"] == "extra_forbidden":
            for problem in nested_keys(str(path[0]), error["input"]) or [unknown_key(path)]:
                problems[problem.path] = problem
        elif error["type"] == "missing":
            problems[path] = Problem(path, "is required, and missing")
        elif error["type"] == "invalid_key" or error["loc"][-1] == "[key]":
            problems[path] = Problem(path, "a key must be text")
        else:
            problems[path] = _wrong_value(path, _at(tree, path))
    meant = {
        (*path[:-1], suggestion(path))
        for path, problem in problems.items()
        if problem.message.startswith("unknown key")
    }
    return [
        problem
        for path, problem in problems.items()
        # Of the branches of a union, the one that got deepest; of a misspelt key, the misspelling.
        if not any(other[: len(path)] == path != other for other in problems)
        and not (path in meant and problem.message.endswith("missing"))
    ]


def _real_path(error: ErrorDetails, tree: Any) -> KeyPath:
    """Return pydantic's location without the names of union branches in it."""
    path: list[str | int] = []
    for step in error["loc"]:
        missing = error["type"] == "missing" and step == error["loc"][-1]
        inside = isinstance(tree, dict) and step in tree
        if isinstance(tree, list) and isinstance(step, int):
            inside = step < len(tree)
        if inside:
            tree = tree[step]
        if inside or missing:
            path.append(step)
    return tuple(path)


def _at(tree: Any, path: KeyPath) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _wrong_value(path: KeyPath, value: Any) -> Problem:
    annotation = type_at(path)
    wanted = in_words(annotation)
    message = f"must be {wanted}, not {value_in_words(value, path)}"
    return Problem(path, message, _remedy(annotation, value, path))


def _remedy(annotation: Any, value: Any, path: KeyPath) -> str | None:
    if isinstance(value, str) and len(value) <= 40:
        try:
            meant = parse_value(value)
        except ConfigError:
            meant = None
        if isinstance(meant, bool | int | float) and allows(annotation, meant):
            return f"remove the quotes: {path[-1]}: {value}"
        choices = [str(c) for kind in kinds(annotation) for c in kind.choices]
        if near := nearest(value, choices):
            return f"did you mean {near}?"
        if allows(annotation, []):
            return "write a list: [a, b]"
    elif isinstance(value, bool | int | float) and allows(annotation, ""):
        return "put it in quotes to make it text"
    return None
