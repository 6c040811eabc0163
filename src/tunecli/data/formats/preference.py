"""Prompts with one answer (`prompt_completion`) or with a better and a worse one (`preference`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...config.schema.data import DatasetEntry, PromptFormat, parse_format
from ...errors import DataError
from ..control import control_tokens
from .base import (
    Format,
    FormatContext,
    Pair,
    Rendered,
    Row,
    field_value,
    register_format,
    text_field,
)
from .exchange import CHAT, Exchange
from .prompt import Text, names, turn_pieces


@dataclass(frozen=True)
class Layout:
    """Where the rows of one kind have what, and which chat template renders it.

    Attributes:
        prompt: Fields with the prompt, of which the first that there is counts; none: the answers
            are whole conversations.
        chosen: Fields with the better answer.
        rejected: Fields with the worse answer.
        chat: Whether texts are messages, too.
        template: Built-in chat template; `None`: that of the source.
    """

    prompt: tuple[str, ...] = ("prompt",)
    chosen: tuple[str, ...] = ("chosen",)
    rejected: tuple[str, ...] = ("rejected",)
    chat: bool = True
    template: str | None = None


_ANY = ("prompt", "input", "question", "instruction")
_CHOSEN, _REJECTED = ("chosen", "chosen_response"), ("rejected", "rejected_response")

LAYOUTS: dict[str, Layout] = {
    "preference": Layout(chat=False),
    "chat_template.argilla": Layout(),
    "chat_template.argilla_chat": Layout(prompt=()),
    "bradley_terry.chat_template": Layout(prompt=("input",)),
}
for _template in ("chatml", "llama3"):
    LAYOUTS |= {
        _template: Layout(_ANY, _CHOSEN, _REJECTED, template=_template),
        f"{_template}.default": Layout(_ANY, _CHOSEN, _REJECTED, template=_template),
        f"{_template}.argilla": Layout(_ANY, _CHOSEN, _REJECTED, template=_template),
        f"{_template}.argilla_chat": Layout(prompt=(), template=_template),
        f"{_template}.icr": Layout(prompt=("input",), template=_template),
        f"{_template}.intel": Layout(prompt=("question",), template=_template),
        f"{_template}.prompt_pairs": Layout(template=_template),
        f"{_template}.ultra": Layout(template=_template),
    }
"""Preference sets by the name in `type`."""


def _plain(prompt: str, answer: str, whole: bool = False) -> Rendered:
    # As in `completion`, the row is the final text: control tokens in it are control tokens.
    text = prompt + answer
    return Rendered(text, [(0 if whole else len(prompt), len(text))], append_eos=True)


@register_format("prompt_completion")
class PromptCompletion(Format):
    """Trains the completion and its end; with `train_on_inputs` the prompt, too.

    Texts are the final text; messages (and, with the style `chat_template`, texts) go through the
    chat template.
    """

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self.texts = _styled(self.entry.type, chat=False)
        self.exchange = Exchange(context)

    def encode(self, row: Row) -> Rendered:
        """Return prompt and completion as one text."""
        entry = self.entry
        name, prompt = field_value(row, entry.field_prompt or "prompt", "field_prompt")
        other, answer = field_value(row, entry.field_completion or "completion", "field_completion")
        if self.texts and isinstance(prompt, str) and isinstance(answer, str):
            _no_system(entry)
            return _plain(prompt, answer, self.context.config.train_on_inputs)
        messages = self.exchange.prompt(prompt, name, _system(entry, row))
        return self.exchange.render(
            row, messages, self.exchange.messages(answer, "assistant", other)
        )

    def fingerprint(self) -> str:
        """Return the chat template, if there is one."""
        return self.exchange.fingerprint()


class Preference(Format):
    """Trains both answers, each with its end, behind the same prompt."""

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        entry = self.entry
        for key, found in (
            ("train_on_inputs: true", context.config.train_on_inputs),
            ("train_on_eos: all", entry.train_on_eos == "all"),
        ):
            if found:
                raise DataError(
                    f"{key}: the prompt of a preference pair is never trained; remove it"
                )
        given = entry.type
        self.control = control_tokens(context.tokenizer)
        self.own: PromptFormat | None = None
        layout = Layout(chat=False)
        if isinstance(given, PromptFormat):
            self.own = given
        else:
            layout = LAYOUTS[given.partition(":")[0]]
        self.texts = _styled(given, layout.chat)
        self.prompt = (entry.field_prompt,) if entry.field_prompt else layout.prompt
        self.chosen = (entry.field_chosen,) if entry.field_chosen else layout.chosen
        self.rejected = (entry.field_rejected,) if entry.field_rejected else layout.rejected
        self.exchange = Exchange(context, layout.template)

    def encode(self, row: Row) -> Pair:
        """Return prompt and better answer, prompt and worse answer.

        Raises:
            DataError: A part is missing or of a wrong kind, or the prompts differ.
        """
        better, worse = self._sides(row)
        prompts = {side.text[: side.spans[0][0]] for side in (better, worse) if side.spans}
        if len(prompts) > 1:
            raise DataError("the chat template renders the prompt of the two answers differently")
        return Pair(replace(better, apart=True), replace(worse, apart=True))

    def _sides(self, row: Row) -> tuple[Rendered, Rendered]:
        if self.own is not None:
            return self._filled(row, "chosen"), self._filled(row, "rejected")
        chosen_name, chosen = field_value(row, self.chosen, "field_chosen")
        rejected_name, rejected = field_value(row, self.rejected, "field_rejected")
        held = any(name in row for name in self.prompt)
        if self.texts and held and isinstance(chosen, str) and isinstance(rejected, str):
            name, prompt = field_value(row, self.prompt)
            if isinstance(prompt, str):
                _no_system(self.entry)
                return _plain(prompt, chosen), _plain(prompt, rejected)
        better = self.exchange.messages(chosen, "assistant", chosen_name)
        worse = self.exchange.messages(rejected, "assistant", rejected_name)
        whole = [self.exchange.chat.says(answer[0]) != "assistant" for answer in (better, worse)]
        if all(whole):
            # The prompt is what both begin with; at least one message is the answer.
            size = 0
            while size < min(len(better), len(worse)) - 1 and better[size] == worse[size]:
                size += 1
            value, better, worse = better[:size], better[size:], worse[size:]
            name = chosen_name
            if not value or not all(
                self.exchange.chat.says(answer[0]) == "assistant" for answer in (better, worse)
            ):
                raise DataError(
                    f"fields {chosen_name!r} and {rejected_name!r} do not share their prompt: "
                    f"they differ in message {size + 1} already, which is not the assistant's"
                )
        elif any(whole):
            raise DataError(
                f"only one of the fields {chosen_name!r} and {rejected_name!r} begins with the "
                "prompt: both must, or neither"
            )
        else:
            name, value = field_value(row, self.prompt or ("prompt",), "field_prompt")
        messages = self.exchange.prompt(value, name, _system(self.entry, row))
        render = self.exchange.render
        return render(row, messages, better), render(row, messages, worse)

    def fingerprint(self) -> str:
        """Return the chat template, if there is one."""
        return self.exchange.fingerprint()

    def _filled(self, row: Row, answer: str) -> Rendered:
        """Put the parts of a row into the formats of the YAML."""
        own = self.own
        assert own is not None
        system = text_field(row, own.field_system, optional=True)
        turn = turn_pieces(
            own.system_format, own.prompt_format, None if system else own.system_prompt
        )
        ending = parse_format(own.chosen_format if answer == "chosen" else own.rejected_format)
        values = {"system": system} if system else {}
        for name in (names(turn) | names(ending)) - {"system"}:
            key = f"field_{name}"
            field = name if name in own.fields else getattr(own, key)
            values[name] = text_field(row, field, key=None if name in own.fields else key)
        text = Text()
        text.add(turn, values)
        start = len(text.text)
        text.add(ending, values)
        span = (start, len(text.text))
        return Rendered(text.text, [span], text.literal(self.control), append_eos=True)


for _name in LAYOUTS:
    register_format(_name)(Preference)


def _styled(given: str | PromptFormat, chat: bool) -> bool:
    """Return whether texts are final texts, from a type and what its name alone means."""
    base, _, style = ("", "", "") if isinstance(given, PromptFormat) else given.partition(":")
    if style and (style != CHAT or chat):
        raise DataError(
            f"type {base!r} has no style {style!r}; "
            + (f"use type: {base}" if chat else f"known: {CHAT}")
        )
    return not (style or chat)


def _system(entry: DatasetEntry, row: Row) -> str:
    return text_field(row, entry.field_system or "system", optional=True)


def _no_system(entry: DatasetEntry) -> None:
    if entry.field_system is not None:
        raise DataError(
            "field_system: texts that are the final text have no place for a system prompt; "
            f"use type: {entry.format_name}:{CHAT}"
        )
