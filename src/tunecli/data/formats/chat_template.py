"""`chat_template`: conversations, rendered by a chat template, the wanted turns trained."""

from __future__ import annotations

import json
from typing import Any

from ...errors import DataError
from ..chat import ChatRenderer, Conversation, Turn
from ..templates import resolve_template
from .base import Format, FormatContext, Rendered, Row, Span, kind, register_format

ROLES = {
    "system": ["system"],
    "user": ["user", "human"],
    "assistant": ["assistant", "gpt", "model", "bot", "chatgpt"],
    "tool": ["tool", "function", "observation", "ipython"],
    "developer": ["developer"],
}
"""Names that data sets use, by the role's name in chat templates."""


@register_format("chat_template")
class ChatTemplate(Format):
    """Trains what the roles of `roles_to_train` say, each with its end-of-turn token."""

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        entry, config = context.entry, context.config
        template, jinja = "tokenizer_default", None
        if entry.chat_template is not None or entry.chat_template_jinja is not None:
            template, jinja = entry.chat_template or "jinja", entry.chat_template_jinja
        text = resolve_template(template, jinja, context.tokenizer)
        self.renderer = ChatRenderer(context.tokenizer, text, config.eot_tokens)
        self.role_key = entry.message_field_role or entry.message_property_mappings.role
        self.content_key = entry.message_field_content or entry.message_property_mappings.content
        self.roles = {name: role for role, names in ROLES.items() for name in names}
        for role, names in entry.roles.items():
            self.roles |= dict.fromkeys((role, *names), role)
        self.trained = {self._role(name) for name in entry.roles_to_train}
        if not self.renderer.shows_end and entry.train_on_eos != "none":
            context.warn(
                f"{entry.path}: the chat template shows no token that ends the assistant's turns: "
                "the model will not learn to stop, unless eot_tokens names the one there is"
            )

    def encode(self, row: Row) -> Rendered:
        """Render the conversation; the spans are the trained turns."""
        messages = self.messages(row)
        conversation = self.renderer.render(messages, _tools(row.get(self.entry.field_tools)))
        wanted = [i for i, m in enumerate(messages) if m["role"] in self.trained]
        if self.entry.train_on_last_turn_only:
            wanted = wanted[-1:]
        spans = (
            self._spans(conversation, messages, wanted)
            if conversation.generated is None
            else self._tagged(conversation.generated, messages)
        )
        return Rendered(conversation.text, spans, conversation.literal)

    def fingerprint(self) -> str:
        """Return the template: the settings may name a file only."""
        return self.renderer.template

    def messages(self, row: Row) -> list[dict[str, Any]]:
        """Return the row's messages as chat templates want them.

        Raises:
            DataError: A message is broken or its role unknown.
        """
        name = self.entry.field_messages
        if name not in row:
            raise DataError(f"field {name!r} is missing; the row has {', '.join(map(repr, row))}")
        given = row[name]
        if not isinstance(given, list) or not given:
            what = "empty" if given == [] else kind(given)
            raise DataError(f"field {name!r} must be a list of messages; it is {what}")
        messages = []
        for number, message in enumerate(given, 1):
            try:
                messages.append(self._message(message))
            except DataError as error:
                raise DataError(f"message {number}: {error}") from None
        if self.entry.drop_system_message:
            messages = [m for m in messages if m["role"] != "system"]
        default = self.context.config.default_system_message
        if default is not None and all(m["role"] != "system" for m in messages):
            messages.insert(0, {"role": "system", "content": default})
        return messages

    def _message(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise DataError(f"must be an object, not {kind(given)}")
        if not isinstance(given.get(self.role_key), str):
            raise DataError(f"{self.role_key!r} must say who speaks; it has {_keys(given)}")
        message: dict[str, Any] = {"role": self._role(given[self.role_key])}
        rest = {k: v for k, v in given.items() if v is not None}
        calls = rest.get("tool_calls")
        content = rest.get(self.content_key)
        if isinstance(content, list):
            content = _joined(content)
        if isinstance(content, str):
            message["content"] = content
        elif content is not None:
            raise DataError(f"{self.content_key!r} must be a text, not {kind(content)}")
        elif not calls:
            raise DataError(f"{self.content_key!r} is missing; it has {_keys(given)}")
        skip = {self.role_key, self.content_key, "role", "content"}
        message |= {k: v for k, v in rest.items() if k not in skip}
        if calls:
            message["tool_calls"] = [_call(call) for call in _parsed(calls, "tool_calls", list)]
        else:
            message.pop("tool_calls", None)
        return message

    def _role(self, name: str) -> str:
        if name not in self.roles:
            raise DataError(
                f"unknown role {name!r}; known: {', '.join(sorted(self.roles))}; map it with "
                f"roles: {{assistant: [{name}]}} or the like"
            )
        return self.roles[name]

    def _spans(
        self, conversation: Conversation, messages: list[dict[str, Any]], wanted: list[int]
    ) -> list[Span]:
        eos = self.entry.train_on_eos
        spans: list[Span] = []
        for index, turn in enumerate(conversation.turns):
            if index in wanted:
                if not isinstance(turn, Turn):
                    role = messages[index]["role"]
                    raise DataError(f"message {index + 1} ({role}) cannot be trained: {turn}")
                closes = eos in ("all", "turn") or (eos == "last" and index == wanted[-1])
                spans.append((turn.start, turn.close if closes else turn.end))
            elif eos == "all" and isinstance(turn, Turn) and turn.close > turn.end:
                spans.append((turn.end, turn.close))
        return sorted(spans)

    def _tagged(self, generated: list[Span], messages: list[dict[str, Any]]) -> list[Span]:
        if self.trained != {"assistant"} or self.entry.train_on_eos != "turn":
            raise DataError(
                "the chat template changes the text of the messages; only its generation tags tell "
                "what is trained, which goes with roles_to_train: [assistant] and "
                "train_on_eos: turn only"
            )
        return generated[-1:] if self.entry.train_on_last_turn_only else generated


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
        return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(value: Any) -> list[Any] | None:
    return _parsed(value, "tools", list) or None if value is not None else None
