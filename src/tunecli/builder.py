"""The one place where a configuration becomes the parts of a run.

Read it top to bottom: mesh, numeric types, tokenizer, data, model, optimizer. What can be
refused cheaply is refused before weights are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .config import choose_backend, local_problems
from .data import BatchLoader, Prepared, TokenRows, prepare, resolve_template
from .errors import ConfigError, DataError, ModelError, Problem
from .model.adapter import add_adapter
from .model.attention import check_isolation
from .model.loading import load_model, load_model_config, select_trained
from .model.loss import TokenLoss, fit_loss
from .model.precision import Precision
from .model.sliced import fill_weights, sliced_source
from .model.tokenizer import Vocabulary, load_tokenizer
from .parallel import Layout, Mesh
from .parallel.checks import check_layout
from .parallel.context import ContextSplit
from .parallel.layout_table import describe_layout
from .parallel.parallelize import parallelize
from .parallel.processes import TIMEOUT, Processes
from .training.job import Job
from .training.optimizer import build_optimizer, check_optimizer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel

    from .config import Config
    from .reporter import Reporter


def check_local(config: Config) -> None:
    """Raise a `ConfigError` with every problem that the files on this machine show."""
    if problems := local_problems(config):
        raise ConfigError(problems)


def build_mesh(config: Config, processes: Processes) -> Mesh:
    """Lay the processes out as the configuration says.

    Raises:
        ConfigError: The product of the sizes is not the number of processes.
    """
    layout = Layout.from_config(config, processes.world_size)
    return Mesh.start(layout, processes.device)


def build_vocabulary(config: Config) -> Vocabulary:
    """Load the tokenizer and give it the chat template that the configuration names."""
    vocabulary = load_tokenizer(config)
    tokenizer = vocabulary.tokenizer
    asked = config.chat_template != "tokenizer_default" or config.chat_template_jinja is not None
    # A tokenizer without one is fine as long as no conversation has to be rendered.
    if asked or tokenizer.chat_template:
        tokenizer.chat_template = resolve_template(
            config.chat_template, config.chat_template_jinja, tokenizer
        )
    return vocabulary


def build_model(
    config: Config, vocabulary: Vocabulary, precision: Precision, mesh: Mesh
) -> PreTrainedModel | PeftModel:
    """Load the model, wrap it in its adapter, and lay it out over the mesh."""
    alone = mesh.layout.world_size == 1
    source = None
    if not alone:
        source = sliced_source(config, load_model_config(config), len(vocabulary.tokenizer))
    straight = precision.device if alone and precision.device.type == "cuda" else None
    model = load_model(config, vocabulary, precision, empty=source is not None, device=straight)
    if config.adapter:
        model = add_adapter(model, config, vocabulary)
    else:
        select_trained(model, config.unfrozen_parameters)
    if config.gradient_checkpointing:
        reentrant = config.gradient_checkpointing_kwargs.use_reentrant
        # Renamed in transformers 5.20; the older name goes in 6.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": reentrant})
        # The reentrant kind drops gradients of layers whose input needs none.
        if reentrant and config.adapter:
            model.enable_input_require_grads()
    parallelize(model, mesh, config, precision.compute)
    if source is not None:
        fill_weights(model, source)
    if config.fsdp_config.offload_params and not alone:
        # Offloaded weights stay where they are; rotary tables and the like do not.
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(precision.device))
    else:
        model.to(precision.device)
    model.train()
    return model


def build_loss(config: Config, mesh: Mesh, model_config: PreTrainedConfig) -> TokenLoss:
    """Make the loss for the mesh: the vocabulary over `tp`, rows over `cp`."""
    context = None
    sequence = config.sequence_parallel and mesh.layout.tp > 1
    if mesh.layout.cp > 1:
        backend = choose_backend(
            config.context_parallel_backend,
            model_config.num_attention_heads,
            model_config.num_key_value_heads,
            mesh.layout.cp,
            mesh.layout.tp,
        )
        context = ContextSplit(mesh, backend, sequence)
    elif sequence:
        context = ContextSplit(mesh, "whole", sequence)
    return TokenLoss(mesh.tp_group, mesh.tp_rank, context)


def build_loader(
    config: Config, data: Prepared, mesh: Mesh, pad_id: int, multiple: int = 1
) -> BatchLoader:
    """Make the loader of training batches."""
    per_pass = config.micro_batch_size * mesh.layout.data_ranks
    if config.batch_size is not None and config.batch_size % per_pass:
        message = (
            f"batch_size {config.batch_size} is no multiple of micro_batch_size "
            f"{config.micro_batch_size} x {mesh.layout.data_ranks} data-parallel ranks"
        )
        raise ConfigError([Problem(("batch_size",), message)])
    accumulation = config.gradient_accumulation_steps or (config.batch_size or per_pass) // per_pass
    return BatchLoader(
        data.train,
        micro_batch_size=config.micro_batch_size,
        accumulation=accumulation,
        dp_rank=mesh.data_rank,
        dp_size=mesh.layout.data_ranks,
        sequence_len=config.sequence_len,
        packing=config.sample_packing,
        pad_to=_pad_to(config, config.sample_packing),
        pad_id=pad_id,
        seed=config.seed,
        shuffle=config.shuffle_merged_datasets,
        multiple=math.lcm(multiple, config.pad_to_multiple_of),
        mixture=data.mixture,
        group_by_length=config.group_by_length,
        pin_memory=mesh.device.type == "cuda",
    )


def build_eval_loader(
    config: Config, rows: TokenRows, mesh: Mesh, pad_id: int, multiple: int = 1
) -> BatchLoader:
    """Make the loader of evaluation batches: in order, one pass."""
    packing = config.sample_packing
    if config.eval_sample_packing is not None:
        packing = config.eval_sample_packing
    return BatchLoader(
        rows,
        micro_batch_size=config.eval_batch_size or config.micro_batch_size,
        accumulation=1,
        dp_rank=mesh.data_rank,
        dp_size=mesh.layout.data_ranks,
        sequence_len=config.sequence_len,
        packing=packing,
        pad_to=_pad_to(config, packing),
        pad_id=pad_id,
        seed=config.seed,
        shuffle=False,
        multiple=math.lcm(multiple, config.pad_to_multiple_of),
        pin_memory=mesh.device.type == "cuda",
    )


def _pad_to(config: Config, packing: bool) -> int | None:
    pad = packing if config.pad_to_sequence_len is None else config.pad_to_sequence_len
    return config.sequence_len if pad or packing else None


def check_rows(data: Prepared) -> None:
    """Raise a `DataError` if the rows are preference pairs: there is no loss for them here."""
    if data.report.paired:
        raise DataError(
            "datasets: the rows are preference pairs (chosen and rejected), which `preprocess` and "
            "`inspect` can read, but training cannot use yet. To train on the chosen replies alone "
            "use type: chat_template with field_messages: chosen"
        )


def check_ids(model: PreTrainedModel, *parts: TokenRows | None) -> None:
    """Raise a `ModelError` if a token id has no row in the embedding."""
    size = model.config.vocab_size
    for rows in parts:
        # A store knows the highest id of all its rows, those of another part included.
        if rows is None or rows.max_id < size:
            continue
        for i in range(len(rows)):
            highest = max(int(values.max()) for values in rows.row(i))
            if highest >= size:
                raise ModelError(
                    f"{rows.origin(i)}: token id {highest}, but the model's vocabulary has {size} "
                    "rows: the tokenizer does not belong to this model"
                )


def build(config: Config, processes: Processes, reporter: Reporter) -> Job:
    """Turn a configuration into everything that the training loop needs.

    Raises:
        ConfigError: Something in the configuration cannot be.
        DataError: A source, row or template cannot be used, or nothing can be trained.
        ModelError: Tokenizer or model cannot be loaded, or cannot keep packed documents apart.
    """
    check_local(config)
    check_optimizer(config.optimizer)
    mesh = build_mesh(config, processes)
    if mesh.layout.world_size > 1:
        reporter.info(describe_layout(mesh.layout, processes.device_of, processes.backend, TIMEOUT))
    precision = Precision.from_config(config, mesh.device)
    model_config = load_model_config(config)
    check_layout(config, model_config, mesh.layout)
    loss = build_loss(config, mesh, model_config)
    multiple = loss.context.multiple if loss.context else 1
    vocabulary = build_vocabulary(config)
    pad_id = vocabulary.tokenizer.pad_token_id
    data = prepare(config, vocabulary.tokenizer, reporter)
    check_rows(data)
    train_loader = build_loader(config, data, mesh, pad_id, multiple)
    eval_loader = data.eval and build_eval_loader(config, data.eval, mesh, pad_id, multiple)

    with reporter.task("loading the model", None):
        model = build_model(config, vocabulary, precision, mesh)
    check_ids(model, data.train, data.eval)
    loss = fit_loss(loss, model, precision, mesh.layout.world_size == 1)
    if config.sample_packing:
        check_isolation(model, precision, loss)
    job = Job(
        config=config,
        mesh=mesh,
        precision=precision,
        loss=loss,
        vocabulary=vocabulary,
        model=model,
        optimizer=build_optimizer(model, config),
        train_loader=train_loader,
        eval_loader=eval_loader or None,
        data_key=data.key,
        reporter=reporter,
    )
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    reporter.info(
        f"{type(model).__name__}: {total:,} parameters, {trained:,} trained; {precision.compute} "
        f"on {mesh.device}; {train_loader.steps_per_epoch} steps an epoch, "
        f"{job.total_steps} in all, {train_loader.global_batch} "
        f"{'packs' if config.sample_packing else 'rows'} a step"
    )
    return job
