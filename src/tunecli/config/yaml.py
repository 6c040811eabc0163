"""YAML with the position of every key and value, and without YAML's traps.

Beyond `yaml.SafeLoader`: `1e-4` is a number, dates stay text, a key given twice is a problem,
and aliases can neither recurse nor blow up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ..errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]
Place = tuple[int, int]

FLOAT_TAG = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
"""Numbers with an exponent that YAML 1.1 takes for text: `1e-4`, `1.5e3`."""
EXPONENT_STARTS = list("-+.0123456789")

MERGE_TAG = "tag:yaml.org,2002:merge"
SCALAR_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}
MAX_VALUES = 20_000
"""Values that a file may hold after its aliases are expanded."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own class attribute)
        # Dates: `wandb_name: 2024-01-01` is meant as text.
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(FLOAT_TAG, EXPONENT, EXPONENT_STARTS)


@dataclass(frozen=True)
class Marks:
    """Line and column (from 1) of keys and values, by path."""

    keys: Mapping[KeyPath, Place] = field(default_factory=dict)
    values: Mapping[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath, of_key: bool = False) -> Place | None:
        """Return where the value (or key) at `path` stands, or what holds it if it is missing."""
        if of_key and path in self.keys:
            return self.keys[path]
        while path:
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return None


@dataclass(frozen=True)
class Document:
    """A parsed file: its values, where they stand, and what is wrong with keys."""

    tree: dict[str, Any]
    marks: Marks
    problems: list[Problem]


def read_yaml(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: There is no such file, it is not UTF-8, not YAML, empty, or no mapping.
    """
    file = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            [Problem((), f"cannot be read: {error.strerror or error}", file=file)]
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem((), "is not UTF-8 text", "save the file as UTF-8", file, line)
        raise ConfigError([problem]) from None
    return parse_yaml(text, file)


def parse_yaml(text: str, file: str) -> Document:
    """Parse YAML text whose top level is a mapping; see `read_yaml`."""
    walker, value = _walk(text, file)
    if value is None:
        raise ConfigError([Problem((), "is empty: at least base_model, datasets and learning_rate "
                                   "are needed", file=file)])  # fmt: skip
    if not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else "a single value"
        raise ConfigError(
            [Problem((), f"must hold keys with values (`key: value`), not {what}", file=file)]
        )
    return Document(value, Marks(walker.keys, walker.values), walker.problems)


def parse_value(text: str) -> Any:
    """Parse a value written on the command line.

    Raises:
        ConfigError: It is no YAML.
    """
    walker, value = _walk(text, "command line")
    if walker.problems:
        raise ConfigError(walker.problems)
    return value


def _walk(text: str, file: str) -> tuple[_Walker, Any]:
    try:
        loader = _Loader(text)
        walker = _Walker(loader, file)
        try:
            node = loader.get_single_node()
            return walker, None if node is None else walker.value(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        message, remedy = _in_plain_words(error)
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ConfigError([Problem((), message, remedy, file, *place)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"holds the character #x{_code(error):04x}, which YAML forbids"
        raise ConfigError([Problem((), message, None, file, line)]) from None
    except RecursionError:
        raise ConfigError([Problem((), "is nested too deeply", file=file)]) from None


class _Walker:
    """Turns nodes into values. Every alias gets its own copy, so that nothing is shared."""

    def __init__(self, loader: _Loader, file: str) -> None:
        self._loader, self._file = loader, file
        self._open: set[int] = set()
        self._count = 0
        self.keys: dict[KeyPath, Place] = {}
        self.values: dict[KeyPath, Place] = {}
        self.problems: list[Problem] = []

    def value(self, node: Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            self._fail(node, path, f"the file has more than {MAX_VALUES:,} values (aliases count)")
        if id(node) in self._open:
            self._fail(node, path, "the anchor contains itself")
        self._open.add(id(node))
        self.values[path] = _place(node)
        try:
            if isinstance(node, MappingNode) and node.tag.endswith(":map"):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode) and node.tag.endswith(":seq"):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            if isinstance(node, ScalarNode) and node.tag in SCALAR_TAGS:
                return self._scalar(node, path)
        finally:
            self._open.remove(id(node))
        self._fail(node, path, f"the tag {node.tag} is not allowed here")

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        construct: Callable[[Any, Any], Any] = self._loader.yaml_constructors[node.tag]
        try:
            return construct(self._loader, node)
        except (ValueError, KeyError):  # such as `0x_`, `!!bool maybe`, or 5,000 digits
            self._fail(node, path, f"{node.value[:40]!r} cannot be read as a number or truth value")

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = "<<" if key_node.tag == MERGE_TAG else self._key(key_node, path)
            if name is None:
                continue
            if name in own:
                first, second = _place(own[name][0])[0], _place(key_node)[0]
                self._problem(
                    key_node, (*path, name), f"given twice, on lines {first} and {second}",
                    "keep one of the two",
                )  # fmt: skip
            own[name] = key_node, value_node
            if key_node.tag == MERGE_TAG:
                merged = self._merge(value_node, path)
                self.values[path] = _place(node)
        for name, (key_node, value_node) in own.items():
            if key_node.tag != MERGE_TAG:
                self.keys[(*path, name)] = _place(key_node)
                merged[name] = self.value(value_node, (*path, name))
        return merged

    def _merge(self, node: Node, path: KeyPath) -> dict[str, Any]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        result: dict[str, Any] = {}
        for source in reversed(sources):  # the first of a list wins
            if not isinstance(source, MappingNode):
                self._fail(source, path, "`<<` takes a mapping or a list of mappings")
            result |= self.value(source, path)
        return result

    def _key(self, node: Node, path: KeyPath) -> str | None:
        if not isinstance(node, ScalarNode):
            self._problem(
                node, path, "a list or mapping cannot be a key",
                "if this is meant as text (such as a template), put it in quotes",
            )  # fmt: skip
            return None
        if node.tag != "tag:yaml.org,2002:str":
            kind = node.tag.rpartition(":")[2]
            meant = {"bool": "true or false", "null": "nothing", "int": "a number"}
            self._problem(
                node, (*path, node.value),
                f"a key must be text, and YAML reads this one as {meant.get(kind, f'a {kind}')}",
                f'put the key in quotes: "{node.value}"',
            )  # fmt: skip
            return None
        return str(node.value)

    def _problem(self, node: Node, path: KeyPath, message: str, remedy: str | None = None) -> None:
        line, column = _place(node)
        seen = {(problem.line, problem.column, problem.message) for problem in self.problems}
        if (line, column, message) not in seen:  # an anchor is walked once for each alias
            self.problems.append(Problem(path, message, remedy, self._file, line, column))

    def _fail(self, node: Node, path: KeyPath, message: str) -> Any:
        raise ConfigError([Problem(path, message, None, self._file, *_place(node))])


def _code(error: yaml.reader.ReaderError) -> int:
    code: Any = error.character  # an int, whatever the stubs say
    return int(code)


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


_SYNTAX = {
    r"'\t' that cannot start": ("a tab where YAML wants spaces", "indent with spaces"),
    "mapping values are not allowed": (
        "a colon that does not fit here",
        "put text that holds `: ` in quotes, and indent keys of one level alike",
    ),
    "could not find expected ':'": (
        "this line is neither `key: value` nor a list item",
        "is a colon, or the space behind it, missing?",
    ),
    "expected <block end>": (
        "the indentation does not fit the lines above",
        "indent keys of one level alike",
    ),
    "expected ',' or": ("a list or mapping in brackets is not closed", "look for a missing ] or }"),
    "expected the node content": ("a value that YAML cannot read", "put it in quotes"),
    "cannot start any token": ("a value that starts with a special character", "put it in quotes"),
    "unexpected end of stream": ("the file ends inside of quotes", "close the quotes"),
    "but found another document": ("a second document starts here", "remove the `---`"),
}


def _in_plain_words(error: yaml.MarkedYAMLError) -> tuple[str, str | None]:
    problem = error.problem or "syntax error"
    if match := re.match("found undefined alias '(.*)'", problem):
        return f"*{match[1]} is used, but no &{match[1]} stands above it", None
    for sign, (message, remedy) in _SYNTAX.items():
        if sign in problem:
            return message, remedy
    return f"not valid YAML: {problem}", None
