"""Where each turn of a conversation stands in the text that a chat template renders.

A template is a program: the text of a turn cannot be had by rendering turns one by one (many
templates rewrite earlier turns) nor by searching for it (two turns may be equal). Instead the
conversation is rendered twice: once as it is, and once with each text replaced by a unique
placeholder, whose surroundings are then the template's own words. Both must agree character by
character, so that a span is exact or the row is refused. The second rendering depends on the
shape of a conversation only and is remembered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError
from .control import any_of, control_tokens
from .placeholders import (
    MARKS,
    TEXT_KEYS,
    Layout,
    Marks,
    Message,
    Outline,
    Place,
    hollow,
    lay_over,
    outline,
    placeholder,
)

Span = tuple[int, int]

MEMORY = 4096
"""Shapes of conversations that are remembered."""

_OWN = {
    "messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "return_assistant_tokens_mask",
}  # fmt: skip


@dataclass(slots=True)
class Turn:
    """One message in the rendered text.

    Attributes:
        start: Where what the speaker says begins, after the template's header.
        end: Where it ends, before the end-of-turn token.
        close: Where the end-of-turn token ends; `end` if there is none.
    """

    start: int
    end: int
    close: int


@dataclass(slots=True)
class Conversation:
    """A rendered conversation.

    Attributes:
        text: What the template renders.
        turns: For each message its place in `text`; a text says why there is none.
        literal: Ranges of `text` that somebody typed and that look like control tokens.
        generated: Ranges inside the template's generation tags, where they had to be used
            instead of `turns`.
        outline: The conversation's texts, where `turns` were found.
        places: Where these stand in `text`.
    """

    text: str
    turns: list[Turn | str]
    literal: list[Span] = field(default_factory=list)
    generated: list[Span] | None = None
    outline: Outline | None = None
    places: list[Place] = field(default_factory=list)

    def find(self, message: int, content: str, start: int, end: int) -> list[Span] | None:
        """Return the ranges of `text` that show a range of a message's content.

        Args:
            message: Index of the message.
            content: Its content.
            start: Where the range begins in the content.
            end: Where it ends.

        Returns:
            In order, without overlap; what the template leaves out (white space, earlier
            reasoning) is not in them. `None` if the template changed the text.
        """
        assert self.outline is not None
        found: list[Span] = []
        cores = [
            (offset, offset + len(text), place)
            for place in self.places
            for text, (owner, name, offset) in [
                (self.outline.texts[place.slot], self.outline.spots[place.slot])
            ]
            if owner == message and name == "content"
        ]
        # White space and tags around a core belong to it as far as the template shows them.
        for number, (first, last, place) in enumerate(cores):
            if self.text[place.start : place.end] != content[first:last]:
                return None
            shift = place.start - first
            low = cores[number - 1][1] if number else 0
            high = cores[number + 1][0] if number + 1 < len(cores) else len(content)
            while first > low and self.text[first - 1 + shift] == content[first - 1]:
                first -= 1
            while last < high and self.text.startswith(content[last], last + shift):
                last += 1
            span = (max(start, first) + shift, min(end, last) + shift)
            if span[0] < span[1]:
                found.append(span)
        return found


class ChatRenderer:
    """Renders conversations with one template and finds their turns.

    Args:
        tokenizer: Gives the control tokens and the values of `bos_token` and so on.
        template: Jinja text.
        eot_tokens: Texts that end a turn, besides what the template itself shows.
        variables: Further values for the template.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str,
        eot_tokens: Sequence[str] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.template = template
        self.variables = {**tokenizer.special_tokens_map, **(variables or {})}
        if taken := _OWN & self.variables.keys():
            raise DataError(f"chat_template_kwargs cannot set {', '.join(sorted(taken))}")
        self.control = control_tokens(tokenizer)
        # Texts that the template may look for inside a message: they stay in the placeholder.
        tags = set(re.findall(r"</?[^\s<>'\"]{1,40}>|\[/?[A-Z_]{1,40}\]", template))
        tags -= self.control.texts
        self._tags = re.compile(f"({any_of(tags).pattern})")
        self._has_tags = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self.headers: list[str] = []
        self.ends = {text for text in (tokenizer.eos_token, *eot_tokens) if text}
        self.shows_end = self._learn()
        self._breaks = any_of(self.control.texts | self.ends)

    def _learn(self) -> bool:
        """Learn how the template opens the assistant's turns and how it ends turns."""
        user, assistant = "\ue000u\ue001", "\ue000a\ue001"
        probe = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        try:
            done = self.text(probe)
            asked = self.text([*probe, probe[0]])
            prompted = self.text([*probe, probe[0]], add_generation_prompt=True)
        except DataError:
            return False  # A template that refuses the probe may still take the rows.
        if done.count(assistant) != 1:
            return False
        before, after = done.split(assistant)
        between = before.split(user)[-1] if user in before else ""
        # Some templates close what is no prompt, so that it is not how the prompt begins.
        pairs = enumerate(zip(asked, prompted, strict=False))
        prompt = prompted[next((i for i, (a, b) in pairs if a != b), len(asked)) :]
        # The prompt may hold more than the header (an opened think block, for instance), or
        # nothing, where the user's turn ends in what opens the answer ("[/INST]").
        # An earlier turn may be opened with less than the prompt.
        earlier = asked.split(assistant)[0].split(user)[-1] if assistant in asked else ""
        sizes = (n for n in range(len(prompt), 0, -1) if earlier.endswith(prompt[:n]))
        opened = prompt[: next(sizes, 0)]
        self.headers = [text for text in (prompt, opened, between.rstrip()) if text.strip()]
        ended = [after]
        if prompt and prompt in between:
            ended.append(between[: between.rfind(prompt)])
        for gap in ended:
            if match := self.control.pattern.search(gap):
                self.ends.add(match.group())
        return bool(any_of(self.ends).search(after))

    def text(self, messages: list[Message], tools: Any = None, **options: Any) -> str:
        """Return what the template renders.

        Raises:
            DataError: The template refuses the conversation.
        """
        return self._render(messages, tools, **options)[0]

    def _render(
        self, messages: list[Message], tools: Any = None, **options: Any
    ) -> tuple[str, list[list[Span]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, generated = render_jinja_template(
                [messages], tools, chat_template=self.template, **options, **self.variables
            )
        except Exception as error:  # A template is a program: it may fail in any way.
            raise DataError(f"the chat template refuses the row: {error}") from error
        return texts[0], generated

    def render(self, messages: list[Message], tools: Any = None) -> Conversation:
        """Render a conversation and find its turns.

        Args:
            messages: With `role`, and `content` (text) or `tool_calls`.
            tools: Definitions of tools, or `None`.

        Raises:
            DataError: The template refuses the row, or changes its texts in a way that leaves
                their places unknown, or the row holds control tokens where no text belongs.
        """
        self._check_structure(messages, tools)
        text = self.text(messages, tools)
        marks = next((m for m in MARKS if m[0] not in text and m[1] not in text), None)
        parted = outline(messages, self._tags)
        fitted = marks and self._align(text, messages, parted, tools, marks)
        if not fitted:
            return self._by_tags(text, messages, tools)
        layout, places = fitted
        literal = [
            (place.start + start, place.start + end)
            for place in places
            for start, end in self.control.find(text[place.start : place.end])
        ]
        turns = [
            turn
            if isinstance(turn, str)
            else Turn(
                places[turn[0]].start - turn[1],
                places[turn[2]].end + turn[3],
                places[turn[2]].end + turn[4],
            )
            for turn in layout.turns
        ]
        return Conversation(text, turns, literal, None, parted, places)

    def _check_structure(self, messages: list[Message], tools: Any) -> None:
        if tools and "tools" not in self.template:
            raise DataError(
                "the chat template shows no tools: use one that does, or set field_tools to a "
                "field that the rows do not have"
            )
        for number, message in enumerate(messages, 1):
            for key in TEXT_KEYS[1:]:
                if message.get(key) and key not in self.template:
                    raise DataError(
                        f"message {number}: the chat template shows no {key!r}: use one that does, "
                        "or set template_thinking_key to the name that it has there"
                    )
        plain = {"role", *TEXT_KEYS}
        extras = [{k: m[k] for k in m.keys() - plain} for m in messages if m.keys() - plain]
        for part in (extras, tools):
            if part and (
                found := self.control.pattern.search(
                    json.dumps(part, ensure_ascii=False, default=str)
                )
            ):
                raise DataError(
                    f"control token {found.group()!r} inside a tool definition, a tool call or "
                    "another property of a message: it would act as one"
                )

    def _align(
        self, text: str, messages: list[Message], parted: Outline, tools: Any, marks: Marks
    ) -> tuple[Layout, list[Place]] | None:
        """Return the layout and where each slot stands in `text`; `None` if they do not fit."""
        key = (marks, parted.key, tools and json.dumps(tools, default=str))
        layout = self._layouts.get(key)
        places = layout and lay_over(text, layout, parted.texts)
        if not layout or places is None:
            # Also if it was remembered: a template may show the time of day.
            layout = self._layout(hollow(messages, self._tags, marks), parted, tools, marks)
            places = lay_over(text, layout, parted.texts)
            if len(self._layouts) >= MEMORY:
                self._layouts.clear()
            self._layouts[key] = layout
        return (layout, places) if places else None

    def _layout(self, shape: list[Message], parted: Outline, tools: Any, marks: Marks) -> Layout:
        """Learn how the template lays out a conversation whose texts are placeholders."""
        rendered = self.text(shape, tools)
        pieces = re.split(f"{marks[0]}(\\d+){marks[1]}", rendered)
        layout = Layout(pieces[::2], [int(slot) for slot in pieces[1::2]])
        texts = [placeholder(slot, marks) for slot in range(len(parted.texts))]
        places = lay_over(rendered, layout, texts)
        assert places is not None
        layout.turns = list(self._turns(rendered, shape, parted, places, marks))
        return layout

    def _turns(
        self, text: str, shape: list[Message], parted: Outline, places: list[Place], marks: Marks
    ) -> Iterator[tuple[int, int, int, int, int] | str]:
        owners = [message for message, _, _ in parted.spots]
        anchors: dict[int, int] = {}
        twice: set[int] = set()
        for number, place in enumerate(places):
            # The first place of a slot counts: replies may repeat the name of the tool.
            if anchors.setdefault(place.slot, number) != number:
                twice.add(owners[place.slot])
        order = list(anchors.values())
        own: list[list[int]] = [[] for _ in shape]
        for k, number in enumerate(order):
            own[owners[places[number].slot]].append(k)
        shown = {parted.spots[slot][:2] for slot in anchors}
        hidden = {spot[:2] for slot, spot in enumerate(parted.spots) if slot not in anchors}
        for index, message in enumerate(shape):
            mine = own[index]
            if (index, "content") in hidden - shown:
                yield "the template leaves its text out"
            elif (index, "tool_calls") in hidden:
                yield "the template leaves tool calls out"
            elif index in twice and not message.get("tool_calls"):
                yield "the template shows its text twice"
            elif mine[-1] - mine[0] >= len(mine):
                yield "the template mixes its text with that of another message"
            else:
                first, last = order[mine[0]], order[mine[-1]]
                before = places[order[mine[0] - 1]].end if mine[0] else 0
                following = mine[-1] + 1
                after = places[order[following]].start if following < len(order) else len(text)
                turn = self._turn(
                    text, message, (before, after), places[first], places[last], marks
                )
                if isinstance(turn, str):
                    yield turn
                    continue
                end = places[last].end
                start = places[first].start - turn.start
                yield first, start, last, turn.end - end, turn.close - end

    def _turn(
        self, text: str, message: Message, bounds: Span, first: Place, last: Place, marks: Marks
    ) -> Turn | str:
        """Return the turn whose slots reach from `first` to `last`.

        `bounds` are the end of the slot before them and the start of the one after them.
        """
        before, after = bounds
        content = message.get("content") or ""
        calls = bool(message.get("tool_calls"))
        start = self._opening(text[before : first.start]) if message["role"] == "assistant" else -1
        if start >= 0:
            start += before
        elif calls:
            return "where it begins cannot be told from the template"
        else:
            # No header to go by: the text itself, with the white space and tags before its slot.
            own = content.split(marks[0])[0]
            start = first.start
            for lead in (own, own.lstrip()):
                if text.endswith(lead, before, first.start):
                    start -= len(lead)
                    break
        for match in self._breaks.finditer(text, last.end, after):
            if match.group() in self.ends:
                return Turn(start, match.start(), match.end())
            if not calls:
                break  # The next turn's header: this one has no end token.
        if calls:
            return "where its tool call ends cannot be told: add its end token to eot_tokens"
        tail = re.search(r"\s*$", content).group()  # type: ignore[union-attr]
        end = last.end + (len(tail) if text.startswith(tail, last.end, after) else 0)
        return Turn(start, end, end)

    def _opening(self, gap: str) -> int:
        """Return where the assistant begins to speak in the text before its first slot, or -1."""
        for header in self.headers:
            at = gap.rfind(header)
            if at >= 0:
                return at + len(header)
        return -1

    def _by_tags(self, text: str, messages: list[Message], tools: Any) -> Conversation:
        """Use the template's generation tags: it changes texts, so that they cannot be found."""
        if not self._has_tags:
            raise DataError(
                "the chat template changes the text of the messages, so that the trained parts "
                "cannot be found; put {% generation %} ... {% endgeneration %} around what the "
                "assistant says in the template"
            )
        if any(self.control.find(str(m.get(k, ""))) for m in messages for k in TEXT_KEYS):
            raise DataError("the row holds a control token in its text, and the chat template "
                            "changes that text: it would act as one")  # fmt: skip
        generated = self._render(messages, tools, return_assistant_tokens_mask=True)[1][0]
        why = "the template changes its text"
        return Conversation(text, [why] * len(messages), [], [(a, b) for a, b in generated])
