"""Values given on the command line: `--learning-rate 1e-4 --datasets.0.path x`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ConfigError, Problem
from .axolotl import KEYS
from .fields import allows, inner_type, kinds, type_at
from .names import unknown_key
from .schema import Config
from .yaml import KeyPath, parse_value


class _FlagError(Exception):
    """An override that cannot be applied."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


class Overrides:
    """Puts the values of command line arguments into `tree`, in place.

    Attributes:
        problems: Flags that cannot be applied.
        flags: Each path that was set, with the flag that set it.
    """

    def __init__(self, arguments: Sequence[str], tree: dict[str, Any]) -> None:
        self.problems: list[Problem] = []
        self.flags: dict[KeyPath, str] = {}
        for flag, text in _pairs(arguments):
            try:
                self._apply(flag, text, tree)
            except _FlagError as bad:
                file = place_of_flag(flag) if flag.startswith("-") else "command line"
                self.problems.append(Problem((), bad.message, bad.remedy, file))

    def flag_of(self, path: KeyPath) -> str | None:
        """Return the flag that set the value at `path`, if one did."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.flags:
                return self.flags[path[:length]]
        return None

    def _apply(self, flag: str, text: str | None, tree: dict[str, Any]) -> None:
        if not flag.startswith("--"):
            raise _FlagError(
                f"unexpected argument {flag!r}", "values are set as --key value, such as --seed 1"
            )
        path = _path(flag)
        if len(path) == 1 and path[0] in KEYS:
            annotation: Any = bool if text is None else Any
        else:
            annotation = type_at(path)
        if annotation is None:
            problem = unknown_key(path, as_flag=True)
            raise _FlagError(problem.message, problem.remedy)
        value = _value(text, annotation)
        _forget_other_names(str(path[0]), tree)
        _set(tree, path, value)
        self.flags[path] = flag


def place_of_flag(flag: str) -> str:
    """Return what stands for `file:line` in problems of a flag."""
    return f"command line, {flag}"


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("-"):
            yield flag, None
        elif "=" in flag:
            name, _, value = flag.partition("=")
            yield name, value
        elif rest and not rest[0].startswith("--"):
            yield flag, rest.pop(0)
        else:
            yield flag, None


def _path(flag: str) -> KeyPath:
    """Return `("datasets", 0, "path")` for `--datasets.0.path`."""
    path: list[str | int] = []
    annotation: Any = Config
    for part in flag.removeprefix("--").split("."):
        step: str | int = part
        if annotation is not None:
            if part.isdecimal() and any(kind.type in (list, Any) for kind in kinds(annotation)):
                step = int(part)
            elif inner_type(annotation, part) is None or annotation is Config:
                step = part.replace("-", "_")
            annotation = inner_type(annotation, step)
        path.append(step)
    return tuple(path)


def _value(text: str | None, annotation: Any) -> Any:
    """Read a flag's text as the schema's type says; `None` unsets."""
    if text is None:
        if allows(annotation, True):
            return True
        raise _FlagError("a value is missing behind it")
    if text == "null":
        return None
    types = {kind.type for kind in kinds(annotation)}
    takes_text = str in types or any(
        isinstance(choice, str) for kind in kinds(annotation) for choice in kind.choices
    )
    try:
        value = parse_value(text)
    except ConfigError as error:
        if takes_text or Any in types or not types & {list, dict}:
            return text
        raise _FlagError(f"not valid YAML: {error.problems[0].message}") from None
    if takes_text and (value is None or not allows(annotation, value)):
        return text
    return value


def _forget_other_names(name: str, tree: dict[str, Any]) -> None:
    """Remove Axolotl's names for what a flag sets, and the reverse: the flag wins."""
    for old, rule in KEYS.items():
        if rule.target is not None and name in (old, rule.target):
            tree.pop(rule.target if name == old else old, None)


def _set(tree: Any, path: KeyPath, value: Any) -> None:
    """Set (or, for `None`, remove) the value at `path`; make mappings and lists on the way."""
    for depth, step in enumerate(path):
        where, last = ".".join(map(str, path[:depth])), depth == len(path) - 1
        if isinstance(step, int):
            if not isinstance(tree, list):
                raise _FlagError(f"{where} is not a list in the file")
            if step > len(tree) or (step == len(tree) and last and value is None):
                raise _FlagError(
                    f"{where} has {len(tree)} entries", f"{len(tree)} would add one behind them"
                )
            if step == len(tree):
                tree.append(None)
        elif not isinstance(tree, dict):
            wanted = "a list: write the entry's number" if isinstance(tree, list) else "no mapping"
            raise _FlagError(f"{where} is {wanted}")
        if last:
            _put(tree, step, value)
            return
        inner = tree[step] if isinstance(step, int) else tree.get(step)
        if inner is None:
            inner = tree[step] = [] if isinstance(path[depth + 1], int) else {}
        tree = inner


def _put(holder: Any, step: Any, value: Any) -> None:
    if value is not None:
        holder[step] = value
    elif isinstance(step, int) or step in holder:
        del holder[step]
