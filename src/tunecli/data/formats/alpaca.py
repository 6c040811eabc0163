"""`alpaca`: instruction, optional input, output, in the prompts of the original data set."""

from __future__ import annotations

from ..control import control_tokens
from .base import Format, FormatContext, Rendered, Row, register_format, text_field

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)


@register_format("alpaca")
class Alpaca(Format):
    """Trains the output and the eos after it; with `train_on_inputs` the prompt, too."""

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self.control = control_tokens(context.tokenizer)

    def encode(self, row: Row) -> Rendered:
        """Return prompt and output as one text."""
        instruction = text_field(row, self.entry.field_instruction)
        further = text_field(row, self.entry.field_input, optional=True)
        prompt = (
            WITH_INPUT.format(instruction=instruction, input=further)
            if further
            else WITHOUT_INPUT.format(instruction=instruction)
        )
        text = prompt + text_field(row, self.entry.field_output)
        start = 0 if self.context.config.train_on_inputs else len(prompt)
        # The prompts hold no control token: whatever looks like one was typed.
        return Rendered(text, [(start, len(text))], self.control.find(text), append_eos=True)
