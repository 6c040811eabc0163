"""Where rows come from, how they become tokens, which of them are trained."""

from __future__ import annotations

import string
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from .base import Count, NonNegative, Section

FileType = Literal["json", "jsonl", "parquet", "csv", "arrow"]
TrainOnEnd = Annotated[
    Literal["all", "turn", "last", "none"],
    BeforeValidator(lambda v: ("turn" if v else "none") if isinstance(v, bool) else v),
]
"""`true` means `turn`, `false` none."""


class MessageMappings(Section):
    """Names of a message's properties in the data, by their name in the chat template.

    Any property may be named: `{tool_calls: calls}`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]

    role: str | None = None
    """Property that holds who speaks. Left out: `role`, or `from` in a message with `from` and
    `value`."""
    content: str | None = None
    """Property that holds the text. Left out: `content`, or `value` in a message with `from` and
    `value`."""


class PromptFormat(Section):
    """A prompt of one's own, as `type` of a data source. In the formats `{name}` stands for a part
    of the row; `{{` and `}}` are braces. With a key about prompt, chosen or rejected the rows are
    preference pairs, otherwise instructions."""

    system_prompt: str = ""
    """System prompt of rows that have none of their own."""
    system_format: str = "{system}"
    """What is put in front where there is a system prompt and the format does not name it."""
    field_system: str = "system"
    """Field with the row's own system prompt, may be missing or empty."""
    field_instruction: str = "instruction"
    """Field with the task."""
    field_input: str = "input"
    """Field with further input, may be missing or empty."""
    field_output: str = "output"
    """Field with the answer."""
    format: str = "{instruction} {input} "
    """Prompt of rows with input: names instruction, input, system."""
    no_input_format: str | None = None
    """Prompt of rows without input. Left out: `format` if that names no input, `{instruction} ` if
    `format` is left out, too; otherwise rows without input are errors."""
    fields: list[str] = Field(default_factory=list)
    """Further fields of the row that `format`, `no_input_format` and `prompt_format` may name."""
    field_prompt: str = "prompt"
    """Preference pairs: field with the prompt."""
    field_chosen: str = "chosen"
    """Preference pairs: field with the better answer."""
    field_rejected: str = "rejected"
    """Preference pairs: field with the worse answer."""
    prompt_format: str = "{prompt}"
    """Preference pairs: the prompt; names prompt, system."""
    chosen_format: str = "{chosen}"
    """Preference pairs: the better answer; names chosen."""
    rejected_format: str = "{rejected}"
    """Preference pairs: the worse answer; names rejected."""

    @property
    def paired(self) -> bool:
        """Whether rows are preference pairs."""
        return bool(self.model_fields_set & set(PAIR_KEYS))

    def names(self) -> dict[str, list[str]]:
        """Return what each format may name, by its key."""
        if self.paired:
            return {
                "system_format": ["system"],
                "prompt_format": ["prompt", "system", *self.fields],
                "chosen_format": ["chosen"],
                "rejected_format": ["rejected"],
            }
        return {
            "system_format": ["system"],
            "format": ["instruction", "input", "system", *self.fields],
            "no_input_format": ["instruction", "system", *self.fields],
        }


PAIR_KEYS = (
    "field_prompt", "field_chosen", "field_rejected", "prompt_format", "chosen_format",
    "rejected_format",
)  # fmt: skip
"""Keys of `PromptFormat` that make the rows preference pairs."""

INSTRUCTION_KEYS = (
    "field_instruction", "field_input", "field_output", "format", "no_input_format",
)  # fmt: skip
"""Keys of `PromptFormat` that do not go with these."""


def parse_format(text: str) -> list[tuple[str, str | None]]:
    """Part a format string into texts, each with the name in braces behind it, if there is one.

    Raises:
        ValueError: A brace stands alone, or something else than a name stands in braces.
    """
    pieces = []
    for before, name, spec, conversion in string.Formatter().parse(text):
        if spec or conversion or name == "":
            raise ValueError("only a name may stand in braces")
        pieces.append((before, name))
    return pieces


class DatasetEntry(Section):
    """One data source and its format."""

    path: str = Field(min_length=1)
    """File, folder, glob, saved `datasets` directory, or Hub id. What exists locally never
    touches the network."""
    type: str | PromptFormat = "chat_template"
    """Format: `chat_template`, `alpaca`, `prompt_completion`, `completion`, `input_output`,
    `text_spans`, `tokenized`, `preference`, another name of docs/data-formats.md, one registered
    with `tunecli.register_format`, or a mapping that says how the prompt looks."""
    ds_type: FileType | None = None
    """Kind of file, where the name does not tell."""
    data_files: str | list[str] | None = None
    """Files or globs inside a folder or Hub repository."""
    name: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Split to read; slices such as `train[:1%]` work for Hub data."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    weight: NonNegative | None = None
    """Share of this source among the rows of an epoch, relative to the other entries' weights;
    then all need one. Rows repeat or wait for a later epoch as needed."""
    repeat: Count = 1
    """How often each row of this source counts in an epoch."""

    field: str = "text"
    """`completion` and `text_spans`: field with the text."""
    field_messages: str | None = None
    """`chat_template`: field with the list of messages. Left out: `messages`, or
    `conversations`."""
    field_tools: str = "tools"
    """`chat_template`: field with the list of tool definitions, if a row has one."""
    field_system: str | None = None
    """`chat_template`, instructions and preference pairs: field with the row's system prompt, may
    be missing or empty. This and the following keys, left out: the field that is usual for the
    `type`."""
    field_instruction: str | None = None
    """Instructions (`alpaca` and the like): field with the task."""
    field_input: str | None = None
    """Instructions: field with further input, may be missing or empty."""
    field_output: str | None = None
    """Instructions: field with the answer."""
    field_prompt: str | None = None
    """`prompt_completion` and `preference`: field with the prompt."""
    field_completion: str | None = None
    """`prompt_completion`: field with the answer."""
    field_chosen: str | None = None
    """`preference`: field with the better answer."""
    field_rejected: str | None = None
    """`preference`: field with the worse answer."""
    message_property_mappings: MessageMappings = Field(default_factory=MessageMappings)
    """Names of role, content and any other property in a message."""
    message_field_role: str | None = None
    """The same as `message_property_mappings.role`."""
    message_field_content: str | None = None
    """The same as `message_property_mappings.content`."""
    message_field_training: str | None = None
    """Property of a message that says whether it is trained (true or false), whatever its role."""
    message_field_training_detail: str | None = None
    """Property of a message with the parts of its content that are trained: a list of
    `{begin_offset, end_offset, train}`, characters counted from 0, the end included. What no part
    covers is not trained."""
    message_field_weight: str = "weight"
    """Property of a message with the weight of its tokens in the loss: 1 where it is left out,
    0 for none."""
    field_thinking: str = "reasoning_content"
    """Property of a message that holds the reasoning."""
    template_thinking_key: Literal["reasoning_content", "thinking", "reasoning"] = (
        "reasoning_content"
    )
    """Name of that property in the chat template."""
    split_thinking: bool = False
    """Move `<think> ... </think>` at the front of an assistant's content into
    `template_thinking_key`."""
    roles: dict[str, list[str]] = Field(default_factory=dict)
    """Role names of the data, by the template's role: `{assistant: [gpt, model]}`. The usual
    names (human, gpt, model, ...) are known."""

    chat_template: str | None = None
    """Template for this source; see the key of the same name at the top."""
    chat_template_jinja: str | None = None
    """Jinja text or file for this source; see the key of the same name at the top."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Values for the template of this source, on top of those of the key of the same name at the
    top."""
    roles_to_train: list[str] = Field(default_factory=lambda: ["assistant"])
    """`chat_template`: roles whose turns are trained."""
    train_on_eos: TrainOnEnd = "turn"
    """`chat_template`: which end-of-turn tokens are trained: those of trained turns (`turn`),
    of the last trained turn (`last`), of every turn (`all`), or none."""
    train_on_eot: TrainOnEnd | None = None
    """`chat_template`: the same for end-of-turn tokens other than the tokenizer's eos, which
    `train_on_eos` then leaves alone. Left out: as `train_on_eos`."""
    train_on_last_turn_only: bool = False
    """`chat_template`: train only the last turn of `roles_to_train` in each row."""
    drop_system_message: bool = False
    """`chat_template`: remove system messages of the data."""

    @property
    def format_name(self) -> str:
        """Name of the registered format."""
        if isinstance(self.type, PromptFormat):
            return "preference" if self.type.paired else "alpaca"
        return self.type


class DataConfig(Section):
    """Data sources, formats, lengths, packing and the prepared cache."""

    datasets: Annotated[list[DatasetEntry], Field(min_length=1)]
    """Sources to train on; several are concatenated."""
    test_datasets: list[DatasetEntry] = Field(default_factory=list)
    """Sources to evaluate on, instead of a share of `datasets`."""
    val_set_size: Annotated[int | float, Field(ge=0)] = 0
    """Rows kept for evaluation: a share below 1, or a whole number of rows from 1 on.
    `0`: no evaluation."""

    chat_template: str = "tokenizer_default"
    """`tokenizer_default`, a built-in name (`chatml`), `jinja` (with `chat_template_jinja`),
    or a Jinja text."""
    chat_template_jinja: str | None = None
    """A Jinja text, or a file that holds one."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Values for the chat template: `{enable_thinking: false}`."""
    default_system_message: str | None = None
    """System prompt for conversations that have none."""
    eot_tokens: list[str] = Field(default_factory=list)
    """Texts that end a turn, where they are neither the tokenizer's eos nor a special token."""
    train_on_inputs: bool = False
    """Instructions, `prompt_completion`, `input_output` and `text_spans`: train the prompt (what
    is not marked), too. `chat_template`: train what every role says."""

    excess_length_strategy: Literal["drop", "truncate", "raise", "split"] | None = None
    """What happens to rows above `sequence_len`: dropped, cut, an error, or split into pieces of
    that length, each a row of its own. Left out: `completion` rows are split, others dropped.
    Counts are reported."""
    split_overlap: Annotated[int, Field(ge=0)] = 0
    """Tokens that a piece of a split row repeats of the one before, as context that is not trained
    again."""
    skip_invalid_rows: bool = False
    """Skip rows that are broken (bad JSON, missing fields, unknown roles), count them and name the
    first ones. `false`: the first one is an error."""
    min_sample_len: Annotated[int, Field(ge=0)] = 0
    """Rows with fewer tokens are dropped (and counted)."""
    mixture_temperature: Annotated[float, Field(ge=1)] | None = None
    """Mix `datasets` by size: the share of n rows is proportional to n^(1/T). 1 keeps the sizes,
    higher values level them. Instead of `weight`."""
    dataset_num_proc: Count | None = None
    """Processes that prepare data. Left out: one for each core; fewer need less memory."""
    sample_packing: bool = False
    """Put several rows into one of `sequence_len`, isolated from each other."""
    eval_sample_packing: bool | None = None
    """The same for evaluation; left out, as for training."""
    pad_to_sequence_len: bool | None = None
    """Pad every batch to `sequence_len`. Left out: yes when packed, else to the longest row."""
    pad_to_multiple_of: Count = 1
    """Round the length of every batch up to a multiple of this."""
    group_by_length: bool = False
    """Without packing: batches of rows of similar length, so that little is padded. Still in
    random order."""
    dataset_exact_deduplication: bool = False
    """Keep only the first of rows that are equal after tokenization."""
    shuffle_merged_datasets: bool = True
    """Shuffle rows each epoch. `false`: the order of the sources."""
    dataset_prepared_path: str = "last_run_prepared"
    """Folder of the prepared cache."""
