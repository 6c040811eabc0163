"""Where rows come from, how they become tokens, which of them are trained."""

from __future__ import annotations

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


class DatasetEntry(Section):
    """One data source and its format."""

    path: str = Field(min_length=1)
    """File, folder, glob, saved `datasets` directory, or Hub id. What exists locally never
    touches the network."""
    type: str = "chat_template"
    """Format: `chat_template`, `alpaca`, `completion`, `input_output`, `tokenized`, or one
    registered with `tunecli.register_format`."""
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
    """`completion`: field with the text."""
    field_messages: str | None = None
    """`chat_template`: field with the list of messages. Left out: `messages`, or
    `conversations`."""
    field_tools: str = "tools"
    """`chat_template`: field with the list of tool definitions, if a row has one."""
    field_system: str | None = None
    """`chat_template`: field with the row's system prompt, if it has one. Left out: `system`."""
    field_instruction: str = "instruction"
    """`alpaca`: field with the task."""
    field_input: str = "input"
    """`alpaca`: field with further input, may be missing or empty."""
    field_output: str = "output"
    """`alpaca`: field with the answer."""
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
    """`alpaca`: train the prompt, too. `chat_template`: train what every role says."""

    excess_length_strategy: Literal["drop", "truncate", "raise", "split"] = "drop"
    """What happens to rows above `sequence_len`: dropped, cut, an error, or split into pieces of
    that length, each a row of its own. Counts are reported."""
    split_overlap: Annotated[int, Field(ge=0)] = 0
    """`excess_length_strategy: split`: tokens that a piece repeats of the one before, as context
    that is not trained again."""
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
