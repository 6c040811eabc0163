"""`chat_template`: conversations, rendered by a chat template, the wanted turns trained."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from ...errors import DataError
from ..chat import ChatRenderer, Conversation, Turn
from ..templates import missing_tokens, resolve_template
from .base import Format, FormatContext, Rendered, Row, Span, kind, register_format, text_field

ROLES = {
    "system": ["system"],
    "user": ["user", "human"],
    "assistant": ["assistant", "gpt", "model", "bot", "chatgpt"],
    "tool": ["tool", "function", "observation", "ipython"],
    "developer": ["developer"],
}
"""Names that data sets use, by the role's name in chat templates."""


THINK = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a row wants of one of its messages.

    Attributes:
        train: Whether it is trained; `None`: as its role.
        parts: Trained ranges of its content; `None`: all of it.
        weight: Weight of its tokens in the loss.
    """

    train: bool | None = None
    parts: list[Span] | None = None
    weight: float = 1.0

    def wanted(self, by_role: bool) -> bool:
        """Tell whether the message is trained; `by_role`: whether its role is."""
        if self.weight == 0:
            return False
        if self.train is not None:
            return self.train
        return by_role if self.parts is None else bool(self.parts)


@register_format("chat_template")
class ChatTemplate(Format):
    """Trains what the roles of `roles_to_train` say, each with its end-of-turn token."""

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        entry, config, tokenizer = context.entry, context.config, context.tokenizer
        template = tokenizer.chat_template
        if entry.chat_template is not None or entry.chat_template_jinja is not None:
            name = entry.chat_template or "jinja"
            template = resolve_template(name, entry.chat_template_jinja, tokenizer)
        elif not isinstance(template, str):
            template = resolve_template("tokenizer_default", None, tokenizer)
        variables = {**config.chat_template_kwargs, **entry.chat_template_kwargs}
        self.renderer = ChatRenderer(tokenizer, template, config.eot_tokens, variables)
        mappings = entry.message_property_mappings
        role = entry.message_field_role or mappings.role
        content = entry.message_field_content or mappings.content
        self.detects = role is None and content is None
        self.names: dict[str, str] = {entry.template_thinking_key: entry.field_thinking}
        self.names |= mappings.__pydantic_extra__
        self.names |= {"role": role or "role", "content": content or "content"}
        self.flags = (
            entry.message_field_training,
            entry.message_field_training_detail,
            entry.message_field_weight,
        )
        self.roles = {name: role for role, names in ROLES.items() for name in names}
        for role, names in entry.roles.items():
            self.roles |= dict.fromkeys((role, *names), role)
        self.trained = {self._role(name) for name in entry.roles_to_train}
        if config.train_on_inputs:
            self.trained = set(self.roles.values())
        self.train_on_eot = entry.train_on_eot or entry.train_on_eos
        self.eos = tokenizer.eos_token
        if self.eos in config.eot_tokens and self.train_on_eot != entry.train_on_eos:
            raise DataError(
                f"{self.eos} is the tokenizer's eos and one of eot_tokens, but train_on_eos is "
                f"{entry.train_on_eos} and train_on_eot {self.train_on_eot}: take it out of "
                "eot_tokens"
            )
        if not self.renderer.shows_end and {entry.train_on_eos, self.train_on_eot} != {"none"}:
            context.warn(
                f"{entry.path}: the chat template shows no token that ends the assistant's turns: "
                "the model will not learn to stop, unless eot_tokens names the one there is"
            )
        if missing := missing_tokens(template, tokenizer):
            context.warn(
                f"{entry.path}: the tokenizer cuts {', '.join(missing)} of the chat template into "
                "pieces: add them under tokens and train the embeddings, or use the template of "
                "the model's family"
            )

    def encode(self, row: Row, answers: int | None = None) -> Rendered:
        """Render the conversation; the spans are the trained turns.

        Only turns of the last `answers` messages are trained, if given.
        """
        messages, wishes = self.messages(row)
        conversation = self.renderer.render(messages, _tools(row.get(self.entry.field_tools)))
        wanted = [i for i, m in enumerate(messages) if m["role"] in self.trained]
        first = 0 if answers is None else len(messages) - answers
        wanted = [i for i in wanted if i >= first]
        if self.entry.train_on_last_turn_only:
            wanted = wanted[-1:]
        if conversation.generated is not None:
            spans = self._tagged(conversation.generated, wishes)
            return Rendered(
                conversation.text,
                spans[-len(wanted) if answers else None :],
                conversation.literal,
            )
        wanted = [i for i, w in enumerate(wishes) if i >= first and w.wanted(i in wanted)]
        trained = self._spans(conversation, messages, wanted, wishes)
        weights = [weight for _, _, weight in trained]
        return Rendered(
            conversation.text,
            [(start, end) for start, end, _ in trained],
            conversation.literal,
            weights=None if all(weight == 1 for weight in weights) else weights,
        )

    def fingerprint(self) -> str:
        """Return the template: the settings may name a file only."""
        return self.renderer.template

    def messages(self, row: Row) -> tuple[list[dict[str, Any]], list[Wish]]:
        """Return the row's messages as chat templates want them, and what it wants of each.

        Raises:
            DataError: A message is broken or its role unknown.
        """
        pairs = []
        for number, message in enumerate(self._list(row), 1):
            try:
                pairs.append(self._message(message))
            except DataError as error:
                raise DataError(f"message {number}: {error}") from None
        if self.entry.drop_system_message:
            pairs = [pair for pair in pairs if pair[0]["role"] != "system"]
        name = self.entry.field_system or "system"
        own = text_field(row, name, optional=True)
        has = [message["content"] for message, _ in pairs if message["role"] == "system"]
        if own and has and has != [own]:
            raise DataError(
                f"two system prompts: in field {name!r} and in the messages; set "
                "drop_system_message, or field_system to a field that the rows do not have"
            )
        if not has and (system := own or self.context.config.default_system_message) is not None:
            pairs.insert(0, ({"role": "system", "content": system}, Wish()))
        return [message for message, _ in pairs], [wish for _, wish in pairs]

    def _list(self, row: Row) -> list[Any]:
        name = self.entry.field_messages
        if name is None:
            both = [key for key in ("messages", "conversations") if row.get(key) is not None]
            if len(both) == 2:
                raise DataError("the row has 'messages' and 'conversations': set field_messages")
            name = both[0] if both else "messages"
        if name not in row:
            raise DataError(f"field {name!r} is missing; the row has {', '.join(map(repr, row))}")
        given = row[name]
        if not isinstance(given, list) or not given:
            what = "empty" if given == [] else kind(given)
            raise DataError(f"field {name!r} must be a list of messages; it is {what}")
        return given

    def _names(self, given: dict[str, Any]) -> dict[str, str]:
        """Return the names of the properties in this message; ShareGPT's are told by themselves."""
        if not (self.detects and "from" in given and "value" in given):
            return self.names
        if "role" in given or "content" in given:
            raise DataError(
                "it has 'from' and 'value', and 'role' or 'content': set message_property_mappings "
                "to {role: from, content: value} or {role: role, content: content}"
            )
        return {**self.names, "role": "from", "content": "value"}

    def _message(self, given: Any) -> tuple[dict[str, Any], Wish]:
        if not isinstance(given, dict):
            raise DataError(f"must be an object, not {kind(given)}")
        # Parquet and Arrow give every message the properties of all, with nulls.
        rest = {k: v for k, v in given.items() if v is not None}
        names = self._names(rest)
        training, detail, weight = (rest.pop(key, None) if key else None for key in self.flags)
        # A message that lacks the mapped property may have one of the template's own name.
        found = {name: rest[key if key in rest else name] for name, key in names.items()
                 if key in rest or name in rest}  # fmt: skip
        if not isinstance(found.get("role"), str):
            raise DataError(f"{names['role']!r} must say who speaks; it has {_keys(given)}")
        found["role"] = self._role(found["role"])
        skip = {*names, *names.values()}
        message = {"role": found["role"], **{k: v for k, v in rest.items() if k not in skip}}
        message |= found
        calls = message.pop("tool_calls", None)
        content = message.pop("content", None)
        if isinstance(content, list):
            content = _joined(content)
        if isinstance(content, str):
            message["content"] = content
        elif content is not None:
            raise DataError(f"{names['content']!r} must be a text, not {kind(content)}")
        elif not calls:
            raise DataError(f"{names['content']!r} is missing; it has {_keys(given)}")
        if calls:
            message["tool_calls"] = [_call(call) for call in _parsed(calls, "tool_calls", list)]
        thinking = self.entry.template_thinking_key
        if not isinstance(message.get(thinking, ""), str):
            raise DataError(f"{names[thinking]!r} must be a text, not {kind(message[thinking])}")
        wish = self._wish(training, detail, weight, content or "")
        if self.entry.split_thinking and message["role"] == "assistant" and content:
            self._split(message, wish)
        return message, wish

    def _wish(self, train: Any, detail: Any, weight: Any, content: str) -> Wish:
        if train is None and detail is None and weight is None:
            return Wish()
        if not isinstance(train, bool | None):
            raise DataError(f"{self.flags[0]!r} must be true or false, not {kind(train)}")
        weight = 1.0 if weight is None else weight
        if type(weight) not in (int, float) or not 0 <= weight < math.inf:
            raise DataError(f"{self.flags[2]!r} must be a number from 0 on, not {weight!r}")
        return Wish(train, None if detail is None else _parts(detail, content), float(weight))

    def _split(self, message: dict[str, Any], wish: Wish) -> None:
        """Move an inline think block into a property of its own."""
        match = THINK.fullmatch(message["content"])
        if match is None:
            if message["content"].lstrip().startswith("<think>"):
                raise DataError("'<think>' without '</think>', which split_thinking needs")
            return
        key = self.entry.template_thinking_key
        if message.get(key):
            raise DataError(f"it has reasoning in its content and in {key!r}: remove one")
        if wish.parts is not None:
            raise DataError("parts of a content that split_thinking cuts cannot be trained")
        message[key] = match[1].strip()
        message["content"] = match[2].lstrip()

    def says(self, message: dict[str, Any]) -> str | None:
        """Return the role of a message by its name in chat templates, `None` if it is unknown."""
        return self.roles.get(message.get(self._names(message)["role"], ""))

    def _role(self, name: str) -> str:
        if name not in self.roles:
            raise DataError(
                f"unknown role {name!r}; known: {', '.join(sorted(self.roles))}; map it with "
                f"roles: {{assistant: [{name}]}} or the like"
            )
        return self.roles[name]

    def _spans(
        self,
        conversation: Conversation,
        messages: list[dict[str, Any]],
        wanted: list[int],
        wishes: list[Wish],
    ) -> list[tuple[int, int, float]]:
        """Return the trained ranges and their weights."""
        found: list[tuple[int, int, float]] = []
        for index, (turn, wish) in enumerate(zip(conversation.turns, wishes, strict=True)):
            trained = index in wanted
            place = f"message {index + 1} ({messages[index]['role']}) cannot be trained:"
            if not isinstance(turn, Turn):
                if trained:
                    raise DataError(f"{place} {turn}")
                continue
            own = [(turn.start, turn.end)] if trained else []
            if trained and wish.parts is not None:
                content = messages[index].get("content", "")
                parts = [conversation.find(index, content, a, b) for a, b in wish.parts]
                if None in parts:
                    raise DataError(f"{place} the template changes its text")
                own = [span for part in parts for span in part or ()]
            is_eos = conversation.text[turn.end : turn.close] == self.eos
            ends = self.entry.train_on_eos if is_eos else self.train_on_eot
            last = ends == "last" and wanted[-1:] == [index]
            if ends == "all" or last or (ends == "turn" and trained):
                own.append((turn.end, turn.close))
            found += [(start, end, wish.weight) for start, end in own if start < end]
        spans: list[tuple[int, int, float]] = []
        for start, end, weight in sorted(found):
            if spans and spans[-1][1:] == (start, weight):
                start = spans.pop()[0]
            if weight > 0:
                spans.append((start, end, weight))
        return spans

    def _tagged(self, generated: list[Span], wishes: list[Wish]) -> list[Span]:
        plain = all(wish == Wish() for wish in wishes)
        ends = (self.entry.train_on_eos, self.train_on_eot)
        if self.trained != {"assistant"} or ends != ("turn", "turn") or not plain:
            raise DataError(
                "the chat template changes the text of the messages; only its generation tags tell "
                "what is trained, which goes with roles_to_train: [assistant] and "
                "train_on_eos: turn only, and without flags and weights in the messages"
            )
        return generated[-1:] if self.entry.train_on_last_turn_only else generated


def _parts(detail: Any, content: str) -> list[Span]:
    """Return the trained ranges of a content."""
    if not isinstance(detail, list):
        raise DataError(f"the training detail must be a list, not {kind(detail)}")
    ranges: list[tuple[int, int, bool]] = []
    for part in detail:
        keys = ("begin_offset", "end_offset", "train")
        values: list[Any] = [part.get(k) if isinstance(part, dict) else None for k in keys]
        begin, end, train = values
        if (type(begin), type(end), type(train)) != (int, int, bool):
            raise DataError(
                "a training detail needs begin_offset and end_offset (whole numbers) and train "
                "(true or false)"
            )
        if not 0 <= begin <= end < len(content):
            raise DataError(
                f"training detail {begin} to {end} (included) does not lie in the content's "
                f"{len(content)} characters"
            )
        ranges.append((begin, end + 1, train))
    ranges.sort()
    for (_, end, _), (begin, _, _) in itertools.pairwise(ranges):
        if begin < end:
            raise DataError(f"training details overlap at character {begin}")
    return [(begin, end) for begin, end, train in ranges if train]


def _keys(message: dict[str, Any]) -> str:
    return ", ".join(map(repr, message)) or "no properties"


def _joined(parts: list[Any]) -> str:
    texts = [p.get("text") if isinstance(p, dict) else p for p in parts]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("content has parts that are no text; only text can be trained on")
    return "".join(map(str, texts))


def _parsed(value: Any, name: str, wanted: type) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{name} is a text, but no JSON: {error}") from None
    if not isinstance(value, wanted):
        raise DataError(f"{name} must be {kind(wanted())}, not {kind(value)}")
    return value


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise DataError(f"a tool call must be an object, not {kind(call)}")
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError("a tool call needs the function's 'name'")
    # The arguments keep exactly what the row holds: null is a value, and a missing key is none.
    arguments = _parsed(function.get("arguments", {}), "arguments of a tool call", dict)
    if function is call:
        rest = {k: v for k, v in call.items() if k not in ("name", "arguments")}
        return {
            "type": "function",
            **rest,
            "function": {"name": call["name"], "arguments": arguments},
        }
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(value: Any) -> list[Any] | None:
    return _parsed(value, "tools", list) or None if value is not None else None
