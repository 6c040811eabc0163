"""What the schema says about a path: its type, in Python and in plain words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from .redact import is_secret_key, redact
from .schema import Config
from .schema.base import Section
from .yaml import KeyPath


@dataclass(frozen=True)
class Kind:
    """One alternative of a type: `int | None` has two."""

    type: Any
    """`int`, `str`, `list`, `dict`, `Literal`, a `Section`, `Any`, ..."""
    item: Any = None
    """Type of what a list or dict holds."""
    choices: tuple[Any, ...] = ()
    """Values of a `Literal`."""
    limits: tuple[tuple[str, Any], ...] = ()
    """Such as `("ge", 1)`."""


def kinds(annotation: Any, limits: tuple[tuple[str, Any], ...] = ()) -> list[Kind]:
    """Return the alternatives of a type annotation."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds(args[0], (*limits, *_limits(args[1:])))
    if origin in (Union, UnionType):
        return [kind for part in args for kind in kinds(part, limits)]
    if origin is Literal:
        return [Kind(Literal, choices=args)]
    if origin in (list, dict):
        return [Kind(origin, item=args[-1], limits=limits)]
    return [Kind(str if annotation is SecretStr else annotation, limits=limits)]


def _limits(metadata: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _limits(item.metadata)
        for name in ("ge", "gt", "le", "lt", "min_length"):
            if getattr(item, name, None) is not None:
                yield name, getattr(item, name)


def field_type(info: FieldInfo) -> Any:
    """Return a field's annotation with its limits, which pydantic keeps apart."""
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def section_of(annotation: Any) -> type[Section] | None:
    """Return the nested model that the type is, if it is one."""
    for kind in kinds(annotation):
        if isinstance(kind.type, type) and issubclass(kind.type, Section):
            return kind.type
    return None


def inner_type(annotation: Any, step: str | int) -> Any | None:
    """Return the type of what lies behind a key or index, `None` if there can be nothing."""
    section = section_of(annotation)
    if section is not None and step in section.model_fields:
        return field_type(section.model_fields[str(step)])
    for kind in kinds(annotation):
        if kind.type is Any:
            return Any
        if kind.type is (list if isinstance(step, int) else dict):
            return kind.item
    return None


def type_at(path: KeyPath) -> Any | None:
    """Return the type of the value at `path` of a configuration, `None` if there is none."""
    annotation: Any = Config
    for step in path:
        annotation = inner_type(annotation, step)
        if annotation is None:
            return None
    return annotation


def in_words(annotation: Any) -> str:
    """Return a type as users read it: `a whole number of at least 1`."""
    found = kinds(annotation)
    types = [kind.type for kind in found]
    words = ["true", "false"] if bool in types else []
    if str not in types:
        words += [str(choice) for kind in found for choice in kind.choices]
    for kind in found:
        if kind.type is int and float not in types:
            words.append("a whole number" + _range_in_words(kind))
        elif kind.type is float:
            words.append("a number" + _range_in_words(kind))
        elif kind.type is str:
            words.append("text that is not empty" if kind.limits else "text")
        elif kind.type is list:
            least = " with at least one entry" if kind.limits else ""
            words.append(f"a list of {_plural(kind.item)}{least}")
        elif kind.type is dict or section_of(kind.type):
            words.append("a mapping")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _plural(annotation: Any) -> str:
    return "mappings" if section_of(annotation) else "texts"


def _range_in_words(kind: Kind) -> str:
    limits = dict(kind.limits)
    above = f" of at least {limits['ge']}" if "ge" in limits else ""
    above = f" above {limits['gt']}" if "gt" in limits else above
    if "le" in limits:
        return f" from {limits.get('ge')} to {limits['le']}"
    return f"{above} and below {limits['lt']}" if "lt" in limits else above


def value_in_words(value: Any, path: KeyPath = ()) -> str:
    """Return a value for a message: short, as YAML writes it, secrets hidden."""
    if any(isinstance(step, str) and is_secret_key(step) for step in path):
        return "the hidden value"
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if value != value or value in (float("inf"), float("-inf")):
            return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
        case int() | float():
            # `repr` of a huge int is slow and, above 4,300 digits, an error.
            big = isinstance(value, int) and abs(value) >= 10**20
            return "a huge number" if big else repr(value)
        case str():
            text = redact(value)
            return f'"{text}"' if len(text) <= 60 else f'"{text[:57]}..."'
        case list():
            return "an empty list" if not value else f"a list of {len(value)}"
        case dict():
            return "a mapping"
    return f"a {type(value).__name__}"


def nested_sections() -> Iterator[tuple[str, type[Section]]]:
    """Yield each nested model with the place where it stands: `an entry of datasets`."""
    for name, info in Config.model_fields.items():
        yield from _nested(name, field_type(info))


def _nested(place: str, annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    found = [annotation, *(kind.item for kind in kinds(annotation) if kind.type is list)]
    for index, candidate in enumerate(found):
        if section := section_of(candidate):
            where = f"an entry of {place}" if index else place
            yield where, section
            for name, info in section.model_fields.items():
                yield from _nested(f"{name} of {where}", field_type(info))
            return


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was most likely meant."""
    plain = name.replace("-", "_").lower()
    found = difflib.get_close_matches(plain, list(names), n=1, cutoff=0.7)
    return found[0] if found else None


def allows(annotation: Any, value: Any) -> bool:
    """Tell whether a type takes values like this one, limits and texts aside."""
    accepted = {kind.type for kind in kinds(annotation)}
    if isinstance(value, int) and not isinstance(value, bool):
        choices = [choice for kind in kinds(annotation) for choice in kind.choices]
        return bool(accepted & {int, float}) or value in choices
    return type(value) in accepted
