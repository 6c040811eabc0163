"""A prompt and the answer to it, each as a text or as messages."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from ...errors import DataError
from .base import FormatContext, Rendered, Row, kind
from .chat_template import ChatTemplate

CHAT = "chat_template"
"""Style of texts that become messages, as in `alpaca:chat_template`."""

Messages = list[dict[str, Any]]


class Exchange:
    """Renders prompts and answers through the chat template of a data source.

    The template is looked up when the first messages come: rows of texts need none.

    Args:
        context: That of the format.
        template: Name of a built-in template, where the source's settings name none.
    """

    def __init__(self, context: FormatContext, template: str | None = None) -> None:
        entry = context.entry
        if template is not None and entry.chat_template is entry.chat_template_jinja is None:
            entry = entry.model_copy(update={"chat_template": template})
        self.context = replace(context, entry=entry)

    @cached_property
    def chat(self) -> ChatTemplate:
        """The format that renders messages."""
        return ChatTemplate(self.context)

    def fingerprint(self) -> str:
        """Return the template, or why there is none."""
        try:
            return self.chat.fingerprint()
        except DataError as error:
            return str(error)

    def message(self, role: str, text: str) -> dict[str, Any]:
        """Return a message as the rows of the source have them."""
        return {self.chat.names["role"]: role, self.chat.names["content"]: text}

    def messages(self, value: Any, role: str, name: str) -> Messages:
        """Return a text, a message or a list of messages as a list; a text is said by `role`.

        Raises:
            DataError: It is none of these; `name` is that of the field.
        """
        if isinstance(value, str):
            return [self.message(role, value)]
        if isinstance(value, dict):
            return [value]
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            return value
        what = "an empty list" if value == [] else kind(value)
        what = "a list of other things" if isinstance(value, list) and value else what
        raise DataError(
            f"field {name!r} must be a text, a message or a list of messages, not {what}"
        )

    def prompt(self, value: Any, name: str, system: str) -> Messages:
        """Return a prompt as messages, with a system prompt unless it is empty or there is one.

        Raises:
            DataError: See `messages`.
        """
        messages = self.messages(value, "user", name)
        if system and self.chat.says(messages[0]) != "system":
            return [self.message("system", system), *messages]
        return messages

    def render(self, row: Row, prompt: Messages, answer: Messages) -> Rendered:
        """Render a conversation, in which only turns of the answer are trained.

        With `train_on_inputs` everything is.

        Raises:
            DataError: The answer does not begin with the assistant, or see `ChatTemplate.encode`.
        """
        if self.chat.says(answer[0]) != "assistant":
            raise DataError(
                "the answer must begin with a message of the assistant, not of "
                f"{self.chat.says(answer[0])!r}"
            )
        entry = self.context.entry
        conversation = {
            entry.field_messages or "messages": [*prompt, *answer],
            entry.field_tools: row.get(entry.field_tools),
        }
        rendered = self.chat.encode(conversation, len(answer))
        if self.context.config.train_on_inputs:
            return replace(rendered, spans=[(0, len(rendered.text))], weights=None)
        return rendered
