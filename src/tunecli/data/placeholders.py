"""Conversations with placeholders for their texts, and how they lie over the real rendering."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Marks = tuple[str, str]

TEXT_KEYS = ("content", "reasoning_content", "thinking", "reasoning")
"""Properties of a message that hold free text."""
MARKS: tuple[Marks, ...] = (
    ("\ue000", "\ue001"), ("\uf8f0", "\uf8f1"), ("\U000f0000", "\U000f0001"),
)  # fmt: skip
"""Private characters that may enclose a placeholder; a row that holds one gets the next pair."""


@dataclass(slots=True)
class Place:
    """Where the text of a slot stands in the rendering."""

    slot: int
    start: int
    end: int


@dataclass(slots=True)
class Outline:
    """A conversation, parted into the texts of its slots and the rest.

    The white space around a text stays outside its slot, and so do the tags that the template
    may look for in it: a template that strips white space or cuts at `</think>` then does the
    same to the real rendering and to that of the placeholders.

    Attributes:
        key: The rest: equal for conversations that a template treats alike.
        texts: Text of each slot.
        spots: Message, property and offset in its text of each slot.
    """

    key: tuple[Any, ...]
    texts: list[str]
    spots: list[tuple[int, str, int]]


def outline(messages: list[Message], tags: re.Pattern[str]) -> Outline:
    """Part a conversation; `tags` matches what must stay in a text (one group)."""
    texts: list[str] = []
    spots: list[tuple[int, str, int]] = []
    key: list[Any] = []
    for index, message in enumerate(messages):
        for name, value in message.items():
            key.append(name)
            if is_text(message, name):
                fixed, cores = _cut(value, tags)
                key.append(fixed)
                offset = 0
                for before, core in zip(fixed, cores, strict=False):
                    offset += len(before)
                    texts.append(core)
                    spots.append((index, name, offset))
                    offset += len(core)
            elif name == "tool_calls" and value:
                for call in value:
                    texts.append(call["function"]["name"])
                    spots.append((index, name, 0))
                key.append(json.dumps(_nameless(value, ""), default=str))
            else:
                key.append(value if isinstance(value, str) else json.dumps(value, default=str))
        key.append(None)
    return Outline(tuple(key), texts, spots)


def hollow(messages: list[Message], tags: re.Pattern[str], marks: Marks) -> list[Message]:
    """Return the conversation with a placeholder in each slot, numbered as in its outline.

    Args:
        messages: The conversation.
        tags: One group that matches what must stay in a text.
        marks: What encloses a placeholder; occurs nowhere in the texts.
    """
    number = itertools.count()
    result = []
    for message in messages:
        copy = dict(message)
        for name, value in message.items():
            if is_text(message, name):
                fixed, cores = _cut(value, tags)
                slots = [placeholder(next(number), marks) for _ in cores]
                copy[name] = "".join(itertools.chain(*zip(fixed, [*slots, ""], strict=True)))
            elif name == "tool_calls" and value:
                copy[name] = [_nameless([call], placeholder(next(number), marks))[0]
                              for call in value]  # fmt: skip
        result.append(copy)
    return result


def placeholder(slot: int, marks: Marks) -> str:
    """Return what stands for the text of a slot."""
    return f"{marks[0]}{slot}{marks[1]}"


def is_text(message: Message, name: str) -> bool:
    """Tell whether a property is text with slots.

    An empty text beside tool calls stays empty: templates ask whether there is any.
    """
    value = message[name]
    return (
        name in TEXT_KEYS
        and isinstance(value, str)
        and bool(value or not message.get("tool_calls"))
    )


def _nameless(calls: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{**call, "function": {**call["function"], "name": name}} for call in calls]


def _cut(text: str, tags: re.Pattern[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the fixed strings around the slots of a text, one more than slots, and their texts."""
    if tags.search(text) is None:
        core = text.strip()
        if len(core) == len(text):
            return ("", ""), [core]
        lead, _, trail = text.partition(core) if core else (text, "", "")
        return (lead, trail), [core]
    fixed, cores = [""], []
    pieces = tags.split(text)
    for number, piece in enumerate(pieces):
        core = piece.strip()
        # Tags stand at odd numbers. The last piece always gets a slot: it may be an empty turn.
        if number % 2 or not (core or number == len(pieces) - 1):
            fixed[-1] += piece
            continue
        lead, _, trail = piece.partition(core) if core else (piece, "", "")
        fixed[-1] += lead
        cores.append(core)
        fixed.append(trail)
    return tuple(fixed), cores


@dataclass(slots=True)
class Layout:
    """How a template lays out all conversations with the same outline key.

    Attributes:
        words: The template's own words before, between and behind the slots.
        slots: Number of the slot after each of them but the last.
        turns: For each message: index in `slots` of its first place and how far before it the turn
            starts, index of its last place, and how far behind that the turn ends and closes. Or a
            text: why it has no turn.
    """

    words: list[str]
    slots: list[int]
    turns: list[tuple[int, int, int, int, int] | str] = field(default_factory=list)


def lay_over(text: str, layout: Layout, texts: list[str]) -> list[Place] | None:
    """Lay the template's words and the texts of the slots over `text`, from end to end.

    Args:
        text: The real rendering.
        layout: Words of the template and slot numbers.
        texts: Text of each slot.

    Returns:
        The places of the slots, in the order of `text`; `None` if they do not fit.
    """
    words = layout.words
    if not text.startswith(words[0]):
        return None
    position = len(words[0])
    places = []
    for index, slot in enumerate(layout.slots, 1):
        core = texts[slot]
        if not text.startswith(core + words[index], position):
            # As part of a JSON text: tool replies in some templates.
            core = json.dumps(core, ensure_ascii=False)[1:-1]
            if not text.startswith(core + words[index], position):
                return None
        end = position + len(core)
        places.append(Place(slot, position, end))
        position = end + len(words[index])
    return places if position == len(text) else None
