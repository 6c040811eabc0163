"""Rules between fields. Each yields every problem it sees, so that one run shows them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import Problem
from .data import INSTRUCTION_KEYS, PAIR_KEYS, PromptFormat, parse_format

if TYPE_CHECKING:
    from . import Config


def cross_problems(config: Config) -> Iterator[Problem]:
    """Yield what is wrong between fields that are each right by themselves.

    `Problem.path` names the key to change; all keys that a rule looks at are spelled out in
    its message.
    """
    yield from _batch(config)
    yield from _schedule(config)
    yield from _adapter(config)
    yield from _precision(config)
    yield from _data(config)
    yield from _formats(config)
    yield from _mixture(config)
    yield from _evaluation(config)
    yield from _sharding(config)


def _is_chosen(c: Config, name: str) -> bool:
    # Not `model_fields_set`: a dumped configuration spells out every default.
    return bool(
        getattr(c, name) != type(c).model_fields[name].get_default(call_default_factory=True)
    )


def _batch(c: Config) -> Iterator[Problem]:
    if c.batch_size is not None and c.gradient_accumulation_steps is not None:
        yield Problem(
            ("batch_size",),
            "batch_size and gradient_accumulation_steps both say how large a step is",
            "keep one of the two",
        )
    elif c.batch_size is not None and c.batch_size % c.micro_batch_size:
        yield Problem(
            ("batch_size",),
            f"batch_size {c.batch_size} is no multiple of micro_batch_size {c.micro_batch_size}",
            f"use {-(-c.batch_size // c.micro_batch_size) * c.micro_batch_size}, "
            "or another micro_batch_size",
        )


def _schedule(c: Config) -> Iterator[Problem]:
    if c.warmup_steps is not None and c.warmup_ratio is not None:
        yield Problem(
            ("warmup_ratio",), "warmup_steps and warmup_ratio are both set", "keep one of the two"
        )
    if c.warmup_steps is not None and c.warmup_steps > 1 and c.warmup_steps % 1:
        yield Problem(
            ("warmup_steps",),
            f"warmup_steps must be a whole number or a share below 1, not {c.warmup_steps:g}",
        )
    for name in ("cosine_min_lr_ratio", "lr_decay_ratio"):
        wanted = "cosine" if name.startswith("cosine") else "warmup_stable_decay"
        if _is_chosen(c, name) and c.lr_scheduler != wanted:
            yield Problem(
                (name,),
                f"{name} has no effect with lr_scheduler: {c.lr_scheduler}",
                f"remove it, or use lr_scheduler: {wanted}",
            )
    if c.lr_scheduler == "constant" and (c.warmup_steps or c.warmup_ratio):
        yield Problem(
            ("lr_scheduler",),
            "lr_scheduler: constant has no warm-up, but warmup_steps or warmup_ratio is set",
            "use lr_scheduler: constant_with_warmup, or remove the warm-up",
        )


def _adapter(c: Config) -> Iterator[Problem]:
    if c.adapter is None:
        names = (
            "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear",
            "lora_modules_to_save", "lora_model_dir", "peft_use_dora", "peft_use_rslora",
            "peft_init_lora_weights",
        )  # fmt: skip
        for name in names:
            if getattr(c, name) and _is_chosen(c, name):
                yield Problem(
                    (name,), f"{name} has no effect without an adapter",
                    "set adapter: lora, or remove the key",
                )  # fmt: skip
        for name in ("load_in_4bit", "load_in_8bit"):
            if getattr(c, name):
                yield Problem(
                    (name,), f"{name}: a quantized base cannot be trained in full",
                    "set adapter: qlora (4 bits) or adapter: lora (8 bits), or remove the key",
                )  # fmt: skip
        return
    for name in ("lora_r", "lora_alpha"):
        if getattr(c, name) is None and c.lora_model_dir is None:
            yield Problem((name,), f"adapter: {c.adapter} needs {name}", f"for example {name}: 16")
    if c.adapter == "qlora" and not c.load_in_4bit:
        yield Problem(
            ("load_in_4bit",), "adapter: qlora needs load_in_4bit: true",
            "set it, or use adapter: lora",
        )  # fmt: skip
    if c.adapter == "lora" and c.load_in_4bit:
        yield Problem(
            ("adapter",), "load_in_4bit: true goes with adapter: qlora", "set adapter: qlora"
        )
    if c.load_in_4bit and c.load_in_8bit:
        yield Problem(("load_in_8bit",), "load_in_4bit and load_in_8bit are both true", "keep one")
    if c.lora_target_modules is not None and c.lora_target_linear:
        yield Problem(
            ("lora_target_linear",),
            "lora_target_linear: true takes every linear layer, and lora_target_modules names some",
            "keep one of the two",
        )
    if c.unfrozen_parameters:
        yield Problem(
            ("unfrozen_parameters",), "unfrozen_parameters is for full fine-tuning",
            "with an adapter use lora_modules_to_save",
        )  # fmt: skip


def _precision(c: Config) -> Iterator[Problem]:
    if c.bf16 is True and c.fp16:
        yield Problem(("fp16",), "bf16 and fp16 are both true", "keep one; bf16 is the better")


def _data(c: Config) -> Iterator[Problem]:
    if isinstance(c.val_set_size, float) and c.val_set_size >= 1:
        # 1 is one row, 1.0 is everything: pydantic keeps the two apart as they were written.
        yield Problem(
            ("val_set_size",),
            f"val_set_size {c.val_set_size} is a share of the rows (it has a decimal point), and "
            "leaves 0 rows to train on",
            f"a share below 1, or a whole number of rows: val_set_size: {int(c.val_set_size)}",
        )
    if c.test_datasets and c.val_set_size:
        yield Problem(
            ("val_set_size",), "val_set_size and test_datasets both give evaluation rows",
            "keep one of the two",
        )  # fmt: skip
    if c.chat_template == "jinja" and c.chat_template_jinja is None:
        yield Problem(
            ("chat_template_jinja",), "chat_template: jinja needs chat_template_jinja",
            "set it to a Jinja text or to a file that holds one",
        )  # fmt: skip
    if c.chat_template_jinja is not None and c.chat_template not in ("jinja", "tokenizer_default"):
        yield Problem(
            ("chat_template",), "chat_template and chat_template_jinja name two templates",
            "keep one of the two",
        )  # fmt: skip
    if c.min_sample_len > c.sequence_len:
        yield Problem(
            ("min_sample_len",),
            f"min_sample_len {c.min_sample_len} is above sequence_len {c.sequence_len}: "
            "every row would be dropped",
        )
    if c.sample_packing and c.pad_to_sequence_len is False:
        yield Problem(
            ("pad_to_sequence_len",), "packs always have the length sequence_len",
            "remove pad_to_sequence_len: false, or sample_packing",
        )  # fmt: skip


def _formats(c: Config) -> Iterator[Problem]:
    for name, entries in (("datasets", c.datasets), ("test_datasets", c.test_datasets)):
        for index, entry in enumerate(entries):
            if isinstance(entry.type, PromptFormat):
                for problem in _prompt_format(entry.type):
                    yield replace(problem, path=(name, index, "type", *problem.path))
                for key in sorted(entry.model_fields_set & set(PromptFormat.model_fields)):
                    if getattr(entry, key) is not None:
                        yield Problem(
                            (name, index, key), f"{key} stands beside a type that is a mapping",
                            f"put it there: type: {{{key}: ...}}",
                        )  # fmt: skip


def _prompt_format(prompt: PromptFormat) -> Iterator[Problem]:
    foreign = prompt.model_fields_set & set(INSTRUCTION_KEYS)
    if prompt.paired and foreign:
        pair = sorted(prompt.model_fields_set & set(PAIR_KEYS))[0]
        for key in sorted(foreign):
            yield Problem(
                (key,), f"{key} is for instructions, and {pair} makes the rows preference pairs",
                "keep one of the two",
            )  # fmt: skip
    for key, known in prompt.names().items():
        try:
            pieces = parse_format(getattr(prompt, key) or "")
        except ValueError as error:
            yield Problem(
                (key,), f"{key} is no format: {str(error).lower()}",
                "write {{ and }} for braces that are text",
            )  # fmt: skip
            continue
        for name in dict.fromkeys(name for _, name in pieces if name is not None):
            if name not in known:
                yield Problem(
                    (key,), f"{key} names {{{name}}}, which is not known here",
                    f"known: {', '.join(known)}; further fields of the rows are made known by "
                    f"fields: [{name}]" if len(known) > 1 else f"known: {known[0]}",
                )  # fmt: skip


def _mixture(c: Config) -> Iterator[Problem]:
    weights = [entry.weight for entry in c.datasets]
    if any(weight is not None for weight in weights):
        for index, weight in enumerate(weights):
            if weight is None:
                yield Problem(
                    ("datasets", index), "other entries of datasets have a weight",
                    "give every entry a weight, or none",
                )  # fmt: skip
            if c.datasets[index].repeat > 1:
                yield Problem(
                    ("datasets", index, "repeat"), "repeat has no effect on a source with a weight",
                    "keep one of the two",
                )  # fmt: skip
        if not any(weights):
            yield Problem(("datasets",), "all weights are 0: there is nothing to train on")
        if c.mixture_temperature is not None:
            yield Problem(
                ("mixture_temperature",), "mixture_temperature and weight both say how to mix",
                "keep one of the two",
            )  # fmt: skip
    for index, entry in enumerate(c.test_datasets):
        for name in ("weight", "repeat"):
            if name in entry.model_fields_set:
                yield Problem(
                    ("test_datasets", index, name),
                    "every evaluation row counts once", f"remove {name}",
                )  # fmt: skip
    if c.group_by_length and c.sample_packing:
        yield Problem(
            ("group_by_length",), "packs have no padding that grouping by length could save",
            "keep one of group_by_length and sample_packing",
        )  # fmt: skip


def _evaluation(c: Config) -> Iterator[Problem]:
    for verb, strategy, steps, per_epoch in (
        ("eval", c.eval_strategy, c.eval_steps, c.evals_per_epoch),
        ("save", c.save_strategy, c.save_steps, c.saves_per_epoch),
    ):
        if steps is not None and per_epoch is not None:
            yield Problem(
                (f"{verb}_steps",), f"{verb}_steps and {verb}s_per_epoch are both set",
                "keep one of the two",
            )  # fmt: skip
        if strategy == "steps" and steps is None:
            yield Problem((f"{verb}_steps",), f"{verb}_strategy: steps needs {verb}_steps")
        if steps is not None and strategy not in (None, "steps", "no"):
            yield Problem(
                (f"{verb}_strategy",),
                f"{verb}_steps has no effect with {verb}_strategy: {strategy}",
                f"use {verb}_strategy: steps, or remove one",
            )
        if per_epoch is not None and strategy not in (None, "epoch", "no"):
            yield Problem(
                (f"{verb}_strategy",),
                f"{verb}s_per_epoch has no effect with {verb}_strategy: {strategy}",
                "remove one of the two",
            )
        if steps is not None and steps > 1 and steps % 1:
            yield Problem((f"{verb}_steps",), f"{verb}_steps must be whole, or a share below 1")
    evaluates = bool(c.test_datasets or c.val_set_size)
    if not evaluates:
        wants = {
            "early_stopping_patience": c.early_stopping_patience is not None,
            "load_best_model_at_end": c.load_best_model_at_end,
            "save_strategy": c.save_strategy == "best",
        }
        for name, wanted in wants.items():
            if wanted:
                yield Problem(
                    (name,), f"{name} needs an evaluation, and there are no evaluation rows",
                    "set val_set_size or test_datasets",
                )  # fmt: skip
    elif c.eval_strategy == "no" and (
        c.early_stopping_patience or c.load_best_model_at_end or c.save_strategy == "best"
    ):
        yield Problem(
            ("eval_strategy",),
            "early_stopping_patience, load_best_model_at_end and save_strategy: best need "
            "evaluations, and eval_strategy is no",
        )


def _sharding(c: Config) -> Iterator[Problem]:
    options = c.fsdp_config
    if c.sequence_parallel and (c.tensor_parallel_size or 1) == 1:
        yield Problem(
            ("sequence_parallel",),
            "sequence_parallel splits tokens over tensor_parallel_size devices, which is 1",
            "set tensor_parallel_size, or remove sequence_parallel",
        )
    if options.layers_per_unit > 1 and (
        options.transformer_layer_cls_to_wrap or options.auto_wrap_policy == "NO_WRAP"
    ):
        yield Problem(
            ("fsdp_config", "layers_per_unit"),
            "layers_per_unit counts decoder layers, and transformer_layer_cls_to_wrap or "
            "auto_wrap_policy: NO_WRAP says that something else is sharded",
            "keep one of them",
        )
    if options.transformer_layer_cls_to_wrap and options.auto_wrap_policy == "NO_WRAP":
        yield Problem(
            ("fsdp_config", "auto_wrap_policy"),
            "auto_wrap_policy: NO_WRAP leaves no use for transformer_layer_cls_to_wrap",
            "keep one of the two",
        )
