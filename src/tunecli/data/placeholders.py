"""Conversations with placeholders for their texts, and how they lie over the real rendering."""

from __future__ import annotations

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
class Shape:
    """A conversation whose texts are placeholders ("slots").

    The white space around a text stays outside its slot, and so do the tags that the template
    may look for in it: a template that strips white space or cuts at `</think>` then does the
    same to both renderings.

    Attributes:
        messages: The conversation with placeholders.
        texts: Text of each slot.
        owners: Index of the message of each slot.
    """

    messages: list[Message] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


def hollow(messages: list[Message], marks: Marks, tags: re.Pattern[str]) -> Shape:
    """Replace the texts of a conversation, and the names in its tool calls, by placeholders.

    Args:
        messages: The conversation.
        marks: What encloses a placeholder; occurs nowhere in the texts.
        tags: One group that matches what must stay in a text.
    """
    shape = Shape()

    def slot(text: str) -> str:
        shape.texts.append(text)
        shape.owners.append(len(shape.messages))
        return f"{marks[0]}{len(shape.texts) - 1}{marks[1]}"

    def emptied(text: str) -> str:
        pieces = tags.split(text)
        for number in range(0, len(pieces), 2):
            core = pieces[number].strip()
            # The last piece always gets a slot, so that empty turns have a place, too.
            if core or number == len(pieces) - 1:
                lead, _, trail = (
                    pieces[number].partition(core) if core else (pieces[number], "", "")
                )
                pieces[number] = lead + slot(core) + trail
        return "".join(pieces)

    for message in messages:
        copy = dict(message)
        calls = message.get("tool_calls")
        for key in TEXT_KEYS:
            # An empty text beside tool calls stays empty: templates ask whether there is any.
            if isinstance(message.get(key), str) and (message[key] or not calls):
                copy[key] = emptied(message[key])
        if calls:
            copy["tool_calls"] = [
                {**call, "function": {**call["function"], "name": slot(call["function"]["name"])}}
                for call in calls
            ]
        shape.messages.append(copy)
    return shape


def lay_over(text: str, layout: list[str], texts: list[str]) -> list[Place] | None:
    """Lay the template's words and the texts of the slots over `text`, from end to end.

    Args:
        text: The real rendering.
        layout: Words of the template and slot numbers in turn; begins and ends with words.
        texts: Text of each slot.

    Returns:
        The places of the slots, in the order of `text`; `None` if they do not fit.
    """
    position = len(layout[0])
    if not text.startswith(layout[0]):
        return None
    places = []
    for number, words in zip(layout[1::2], layout[2::2], strict=True):
        core = texts[int(number)]
        # As it is, or as part of a JSON text (tool replies in some templates).
        for form in (core, json.dumps(core, ensure_ascii=False)[1:-1]):
            if text.startswith(form + words, position):
                end = position + len(form)
                places.append(Place(int(number), position, end))
                position = end + len(words)
                break
        else:
            return None
    return places if position == len(text) else None
