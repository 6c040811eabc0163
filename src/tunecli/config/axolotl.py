"""Keys of Axolotl that the schema does not have: what each becomes here, or what to do instead.

Facts only; `translate` applies them, and the reference page prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Rule:
    """What happens to a foreign key.

    `renamed`: read as `target`. `ignored`: accepted without effect. `unsupported`: an error.
    """

    kind: Literal["renamed", "ignored", "unsupported"]
    text: str
    """Why it has no effect, or what to do instead."""
    target: str | None = None
    convert: Callable[[Any], Any] = lambda value: value
    """Turns the value into that of `target`."""
    unused: tuple[Any, ...] = (None, False, "", [], {})
    """Values that mean `not used`: accepted without a word."""


def _to(target: str, text: str = "", value: Any = None) -> Rule:
    """Renamed; with `value`, a switch: `true` sets the target to it, `false` sets nothing."""
    if value is None:
        return Rule("renamed", text, target, unused=(None,))
    return Rule("renamed", text, target, lambda on: value if on is True else on)


def _each(names: str, rule: Rule) -> Iterable[tuple[str, Rule]]:
    return ((name, rule) for name in names.split())


def _ignored(text: str) -> Rule:
    return Rule("ignored", text)


def _unsupported(text: str, unused: tuple[Any, ...] = ()) -> Rule:
    return Rule("unsupported", text, unused=(None, False, "", [], {}, *unused))


_KERNEL = _ignored("the loss and the kernels are chosen here; results are the same without it")
_MOE = _unsupported("no mixture-of-experts kernels here; remove the key")
_PREFERENCE = _unsupported("there is no preference loss yet; without the key `tunecli preprocess` "
                           "reads preference pairs")  # fmt: skip
_MULTIMODAL = _unsupported("only text models are supported")
_QUANTIZED = _unsupported("use `load_in_4bit: true` with `adapter: qlora`")
_PRETRAIN = _unsupported("streaming is not supported yet; use `datasets` with `type: completion`")
_OWN_LAYOUT = _ignored("how processes work together is decided here")

KEYS: Mapping[str, Rule] = dict(
    [
        ("adam_eps", _to("adam_epsilon")),
        ("model_config", _to("overrides_of_model_config")),
        ("sequence_parallel_degree", _to("context_parallel_size")),
        ("bfloat16", _to("bf16", "weights stay float32, computation is bfloat16", True)),
        ("float16", _to("fp16", "weights stay float32, computation is float16", True)),
        ("flash_attention", _to("attn_implementation", value="flash_attention_2")),
        ("sdp_attention", _to("attn_implementation", value="sdpa")),
        ("flex_attention", _to("attn_implementation", value="flex_attention")),
        ("eager_attention", _to("attn_implementation", value="eager")),
        ("xformers_attention", _to("attn_implementation", "sdpa computes the same", "sdpa")),
        # Kernels and the like
        *_each("liger_rms_norm liger_glu_activation liger_layer_norm liger_rope "
               "liger_cross_entropy liger_fused_linear_cross_entropy liger_rms_norm_gated "
               "cut_cross_entropy "
               "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel use_kernels "
               "flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp "
               "flash_attn_fuse_qkv fused_attn_kernel flash_optimum flex_attn_compile_kwargs "
               "tiled_mlp chunked_cross_entropy unsloth_cross_entropy_loss unsloth_lora_mlp "
               "unsloth_lora_qkv unsloth_lora_o unsloth_rms_norm unsloth_rope", _KERNEL),
        ("plugins", _ignored("kernels need no plugin here")),
        ("dataset_processes", _to("dataset_num_proc")),
        ("tokenizer_type", _ignored("the class is read from the tokenizer's own files")),
        *_each("local_rank ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers "
               "ddp_find_unused_parameters accelerator_config world_size", _OWN_LAYOUT),
        *_each("sample_packing_group_size sample_packing_bin_size sample_packing_sequentially "
               "multipack_real_batches sample_packing_eff_est total_num_tokens",
               _ignored("packing needs no tuning here")),
        *_each("dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor "
               "dataloader_drop_last dataset_keep_in_memory gc_steps low_cpu_mem_usage "
               "experimental_skip_move_to_device",
               _ignored("loading needs no tuning here")),
        *_each("is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
               "is_qwen_derived_model", _ignored("the model's own config says what it is")),
        ("strict", _ignored("unknown keys are always errors")),
        ("remove_unused_columns", _ignored("formats read only the fields that they name")),
        ("tokenizer_use_fast", Rule("ignored", "always the fast tokenizer", unused=(None,))),
        ("save_safetensors", Rule("ignored", "always safetensors", unused=(None,))),
        ("tokenizer_legacy", _ignored("the tokenizer's own files decide")),
        ("tokenizer_save_jinja_files", _ignored("the template is always saved")),
        ("hf_use_auth_token", _ignored("`hf auth login`, HF_TOKEN or hub_token are always used")),
        ("debug", _ignored("there is no debug mode")),
        ("skip_prepare_dataset", _ignored("rows are prepared as their format says")),
        ("shuffle_before_merging_datasets", _ignored("see shuffle_merged_datasets")),
        ("lora_fan_in_fan_out", _ignored("found out from the layer's class")),
        *_each("lora_on_cpu torchdistx_path", _ignored("not needed")),
        *_each("include_tokens_per_second include_tkps profiler_steps",
               _ignored("tokens a second are always logged")),
        # What has no counterpart
        *_each("rl trl kto_desirable_weight kto_undesirable_weight dpo_beta rl_beta orpo_alpha "
               "cpo_alpha simpo_gamma vllm ebft", _PREFERENCE),
        *_each("reward_model process_reward_model num_labels",
               _unsupported("reward models and classifiers are not supported")),
        *_each("pretraining_dataset streaming streaming_multipack_buffer_size", _PRETRAIN),
        *_each("gptq gptq_groupsize gptq_model_v1 model_quantization_config "
               "model_quantization_config_kwargs qat quantization", _QUANTIZED),
        ("bnb_4bit_compute_dtype", _unsupported("use `bnb_config_kwargs`")),
        *_each("processor_type freeze_mm_modules image_size image_resize_algorithm is_multimodal",
               _MULTIMODAL),
        *_each("quantize_moe_experts use_scattermoe use_sonicmoe experts_implementation "
               "llama4_linearized_experts dsv4_fp4_grouped_mode lora_target_parameters", _MOE),
        ("expert_parallel_size", _unsupported("experts are not spread over devices; use "
                                              "dp_shard_size", (1,))),
        ("deepspeed", _unsupported("use `dp_shard_size: N` (N devices share the weights), with "
                                   "`fsdp_config: {offload_params: true}` for offloading")),
        ("fsdp", _unsupported("use `dp_shard_size: N` (N devices share the weights); options go "
                              "into `fsdp_config`")),
        ("device_map", _unsupported("use `dp_shard_size` or `tensor_parallel_size` to spread a "
                                    "model over devices", ("auto",))),
        ("gemma4_hybrid_attn_impl", _unsupported("use `attn_implementation`")),
        ("activation_offloading", _unsupported("use `gradient_checkpointing: true`")),
        ("max_packed_sequence_len", _unsupported("use `sample_packing: true` and `sequence_len`")),
        ("push_dataset_to_hub", _unsupported("upload the data with `hf upload`")),
        *_each("hub_model_id hub_strategy hub_revision",
               _unsupported("upload output_dir with `hf upload` after training")),
        ("tokenizer_use_mistral_common", _unsupported("use the Hugging Face tokenizer")),
        ("added_tokens_overrides", _unsupported("use `tokens`")),
        ("use_onebitllms", _unsupported("1-bit models are not supported")),
        ("diffusion", _unsupported("diffusion models are not supported")),
        ("cosine_constant_lr_ratio", _unsupported("use `lr_scheduler: warmup_stable_decay`")),
        ("eta_min", _unsupported("use `cosine_min_lr_ratio`: eta_min / learning_rate")),
        ("lr_quadratic_warmup", _unsupported("warm-up is linear; see `warmup_steps`")),
        *_each("lr_scheduler_kwargs lr_groups relora relora_steps relora_prune_ratio "
               "jagged_restart_steps",
               _unsupported("see `lr_scheduler` for the schedules there are")),
        *_each("embedding_lr embedding_lr_scale loraplus_lr_ratio loraplus_lr_embedding",
               _unsupported("there is one learning rate for all parameters")),
        *_each("optim_target_modules adam_beta3 adam_epsilon2",
               _unsupported("give arguments of the optimizer in `optim_args`")),
        ("noisy_embedding_alpha", _unsupported("remove the key")),
        ("neftune_noise_alpha", _unsupported("remove the key")),
        *_each("peft_layers_to_transform lora_layers_to_transform peft_layer_replication",
               _unsupported("name the modules in `lora_target_modules` by a regular expression")),
        ("peft_trainable_token_indices", _unsupported("use `lora_modules_to_save`")),
        ("peft", _unsupported("options of adapters are the keys `lora_*` and `peft_*`")),
        *_each("eval_table_size eval_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval "
               "do_bench_eval", _unsupported("evaluation measures the loss; see `tunecli chat` for "
                                             "answers")),
        *_each("wandb_watch wandb_log_model hf_mlflow_log_artifacts swanlab_description "
               "swanlab_mode swanlab_log_completions",
               _unsupported("give arguments of a tracker in `tracker_kwargs`")),
        ("base_model_config", _unsupported("a model's config is read from `base_model`; "
                                           "see `overrides_of_model_config`")),
        ("curriculum_sampling", _unsupported("use `shuffle_merged_datasets: false`")),
        ("pretraining_sample_concatenation", _PRETRAIN),
        ("sharing_strategy", _OWN_LAYOUT),
    ]
)  # fmt: skip
"""Keys at the top level."""

_CHAT_FIELD = _unsupported("use `roles` and `message_property_mappings`")

ENTRY_KEYS: Mapping[str, Rule] = dict(
    [
        ("text_column", _to("field")),
        *_each("step_separator max_completion_length train_on_last_step_only field_step",
               _unsupported("reward models are not supported")),
        *_each("field_human field_model conversation", _CHAT_FIELD),
        *_each("format no_input_format system_prompt system_format prompt_format chosen_format "
               "rejected_format", _unsupported("put it into `type`, as a mapping")),
        *_each("shards shards_idx preprocess_shards",
               _unsupported("use `split`, such as `train[:10%]`")),
        ("trust_remote_code", _unsupported("code of a data set is never run")),
        ("skip_prepare_dataset", KEYS["skip_prepare_dataset"]),
    ]
)  # fmt: skip
"""Keys of an entry of `datasets` or `test_datasets`."""

FSDP_KEYS: Mapping[str, Rule] = dict(
    [
        *((f"fsdp_{name}", _to(name)) for name in
          ("offload_params", "reshard_after_forward", "auto_wrap_policy",
           "transformer_layer_cls_to_wrap", "state_dict_type", "mixed_precision_policy")),
        *((prefix + name, rule) for prefix in ("", "fsdp_") for name, rule in [
            ("final_state_dict_type", _ignored("the final model is always whole")),
            ("version", _ignored("only FSDP2 exists here")),
            ("cpu_ram_efficient_loading", _unsupported("every process reads only its own slices: "
                                                       "remove the key")),
            *_each("sync_module_states use_orig_params limit_all_gathers forward_prefetch "
                   "backward_prefetch cpu_offload_pin_memory",
                   _unsupported("FSDP2 has no such option: remove the key")),
            ("activation_checkpointing", _unsupported("use `gradient_checkpointing: true`")),
            ("sharding_strategy", _unsupported("use `reshard_after_forward` (true: FULL_SHARD, "
                                               "false: SHARD_GRAD_OP)")),
        ]),
    ]
)  # fmt: skip
"""Keys of `fsdp_config`."""

PAIR_TYPE = "chat_template.default"
"""Preference pairs where `rl` or `field_chosen` says so, conversations otherwise."""

_OWN_PROMPT = "use a mapping as `type`, with field_instruction, field_output and format"
_REWARD = "reward models are not supported"
_CHAT = "use `type: chat_template` with `chat_template: "

TYPES: Mapping[str, str] = {
    "pretrain": "completion",
    "chat_template.default": "chat_template",
}
"""Types that have another name here."""

FOREIGN_TYPES: Mapping[str, str] = {
    "sharegpt": "use `type: chat_template` with `field_messages: conversations` and "
    "`message_property_mappings: {role: from, content: value}`",
    "llama2_chat": f"{_CHAT}llama2`",
    "pygmalion": f"{_CHAT}jinja` and a template of your own",
    "messages": "use `type: chat_template`",
    "metharme": _OWN_PROMPT,
    "creative_acr.load_critique": _OWN_PROMPT,
    "creative_acr.load_revise": _OWN_PROMPT,
    "user_defined": "use a mapping as `type`",
    "zephyr": "write the better and the worse answer into fields of their own, and use "
    "`type: preference:chat_template`",
    "passthrough": "use `type: preference`",
    "orpo": "use `type: chat_template.argilla`",
    "stepwise_supervised": _REWARD,
    **dict.fromkeys(("rwd", "ebft_opencode", "ebft_pretrain", "ebft_strided_structured"),
                    "reinforcement learning is not supported"),
}  # fmt: skip
"""Types that do not exist here, by their name or what stands before its first `.` or `:`: what to
do instead."""
