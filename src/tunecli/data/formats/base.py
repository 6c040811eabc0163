"""What a format is, and the registry of them."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from ...config.schema.data import DataConfig, DatasetEntry
from ...errors import DataError

Span = tuple[int, int]
"""Half-open range of characters."""


@dataclass(slots=True)
class Rendered:
    """A row as the text that the model will see.

    Attributes:
        text: The whole text.
        spans: Trained ranges of `text`, in order, without overlap.
        literal: Ranges of `text` that look like control tokens but were typed by somebody;
            they are tokenized as ordinary text.
        weights: Weight of each span's tokens in the loss, at least 0; `None`: all 1.
        append_eos: Whether the tokenizer's eos follows, trained.
        apart: Whether what stands before the first span is tokenized by itself, as a prompt is at
            inference. Tokenizers that put white space before every text cannot do it.
    """

    text: str
    spans: list[Span]
    literal: list[Span] = field(default_factory=list)
    append_eos: bool = False
    weights: list[float] | None = None
    apart: bool = False


@dataclass(slots=True)
class Tokens:
    """A row that comes as tokens: ids, and labels of the same length (-100: not trained).

    `weights`, of the same length if given, are those of the tokens in the loss.
    """

    input_ids: list[int]
    labels: list[int]
    weights: list[float] | None = None


@dataclass(slots=True)
class Pair:
    """Two answers to one prompt, for a preference loss."""

    chosen: Rendered | Tokens
    rejected: Rendered | Tokens


Row = Mapping[str, Any]


@dataclass(frozen=True)
class FormatContext:
    """What a format may look at when it is made.

    Attributes:
        entry: The data source's own settings.
        config: Settings for all sources.
        tokenizer: The tokenizer, its chat template already in place.
        warn: Shows a warning to the user.
    """

    entry: DatasetEntry
    config: DataConfig
    tokenizer: Any
    warn: Callable[[str], None] = lambda text: None


class Format(ABC):
    """Turns rows of one kind into text with trained spans. One instance serves one source."""

    name: ClassVar[str] = ""
    excess: ClassVar[Literal["drop", "split"]] = "drop"
    """What happens to rows above `sequence_len` where the configuration does not say."""

    def __init__(self, context: FormatContext) -> None:
        self.context = context
        self.entry = context.entry

    @abstractmethod
    def encode(self, row: Row) -> Rendered | Tokens | Pair:
        """Return the row as text, tokens, or a pair of them.

        Raises:
            DataError: What is wrong with the row; file and line are added by the caller.
        """

    def fingerprint(self) -> str:
        """Return what `encode` depends on besides settings and tokenizer; part of the cache key."""
        return ""


F = TypeVar("F", bound=type[Format])
_FORMATS: dict[str, type[Format]] = {}


def register_format(name: str) -> Callable[[F], F]:
    """Make a `Format` subclass available as `type: name` of a data source.

    Raises:
        ValueError: The name is taken by another class.
    """

    def register(cls: F) -> F:
        known = _FORMATS.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise ValueError(f"format {name!r} is already {known.__qualname__}")
        cls.name = name
        _FORMATS[name] = cls
        return cls

    return register


def get_format(name: str) -> type[Format]:
    """Return the class registered under `name`.

    Raises:
        DataError: There is none; the message lists the known names.
    """
    # What stands behind a colon is a style, which the format knows: `alpaca:chat`.
    found = _FORMATS.get(name) or _FORMATS.get(name.partition(":")[0])
    if found is not None:
        return found
    near = difflib.get_close_matches(name, _FORMATS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise DataError(f"unknown data format {name!r}{hint}; known: {', '.join(sorted(_FORMATS))}")


def kind(value: object) -> str:
    """Return what a JSON value is, in words for an error message."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number",
             str: "a text", list: "a list", dict: "an object"}  # fmt: skip
    return names.get(type(value), type(value).__name__)


def field_value(row: Row, name: str | tuple[str, ...], key: str | None = None) -> tuple[str, Any]:
    """Return the name and the value of a field; of several, those of the first that the row has.

    Args:
        row: The row.
        name: The field, or several.
        key: Key of the configuration that names it.

    Raises:
        DataError: The row has none of them.
    """
    candidates = (name,) if isinstance(name, str) else name
    for candidate in candidates:
        if candidate in row:
            return candidate, row[candidate]
    remedy = f"; name the right one with {key}" if key else ""
    raise DataError(
        f"field {' or '.join(map(repr, candidates))} is missing; the row has "
        f"{', '.join(map(repr, row)) or 'no fields'}{remedy}"
    )


def text_field(
    row: Row, name: str | tuple[str, ...], optional: bool = False, key: str | None = None
) -> str:
    """Return the text in a field of a row, see `field_value`; `""` if it may be missing and is.

    Raises:
        DataError: The field is missing, or holds no text.
    """
    if optional and all(row.get(n) is None for n in ((name,) if isinstance(name, str) else name)):
        return ""
    found, value = field_value(row, name, key)
    if not isinstance(value, str):
        raise DataError(f"field {found!r} must be a text, not {kind(value)}")
    return value
