from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tunecli.config import Config, DatasetEntry, FsdpConfig, PromptFormat, load_config
from tunecli.config.axolotl import ENTRY_KEYS, FSDP_KEYS, KEYS
from tunecli.errors import ConfigError, Problem

Load = Callable[..., Config]
Problems = Callable[..., dict[str, Problem]]

USED_BY_REAL_FILES = """
wandb_watch wandb_log_model plugins strict liger_rms_norm liger_glu_activation
remove_unused_columns liger_layer_norm processor_type skip_prepare_dataset fsdp lora_mlp_kernel
liger_rope lora_qkv_kernel lora_o_kernel rl liger_fused_linear_cross_entropy use_kernels
quantize_moe_experts torchdistx_path activation_offloading deepspeed gptq_groupsize gptq_model_v1
tokenizer_use_mistral_common ddp_find_unused_parameters push_dataset_to_hub
max_packed_sequence_len flash_attention use_scattermoe ebft qat lora_target_parameters
experimental_skip_move_to_device liger_rms_norm_gated group_by_length experts_implementation
llama4_linearized_experts gptq lora_fan_in_fan_out trl torch_compile use_sonicmoe model_config
pretraining_dataset gemma4_hybrid_attn_impl fused_attn_kernel model_quantization_config
model_quantization_config_kwargs flex_attn_compile_kwargs flash_attn_cross_entropy debug
expert_parallel_size num_labels cosine_constant_lr_ratio eta_min flash_optimum float16
flash_attn_fuse_mlp dsv4_fp4_grouped_mode reward_model cut_cross_entropy swanlab_description
swanlab_mode swanlab_log_completions tiled_mlp tokenizer_use_fast tokenizer_legacy
hf_use_auth_token adam_eps lr_quadratic_warmup device_map flash_attn_rms_norm local_rank vllm
use_onebitllms accelerator_config freeze_mm_modules low_cpu_mem_usage diffusion eval_table_size
"""
IN_SCHEMA = """
base_model output_dir sequence_len micro_batch_size learning_rate optimizer bf16 datasets
gradient_accumulation_steps lr_scheduler logging_steps num_epochs tf32 sample_packing warmup_ratio
saves_per_epoch val_set_size attn_implementation gradient_checkpointing weight_decay wandb_name
wandb_project wandb_entity evals_per_epoch adapter lora_r lora_alpha dataset_prepared_path
lora_dropout special_tokens resume_from_checkpoint load_in_4bit load_in_8bit lora_model_dir
lora_target_modules lora_target_linear model_type chat_template tokenizer_type
gradient_checkpointing_kwargs fsdp_config eval_sample_packing pad_to_sequence_len
trust_remote_code fp16 eot_tokens max_steps fsdp_version warmup_steps save_steps
loss_watchdog_threshold loss_watchdog_patience seed lora_modules_to_save adam_beta2
unfrozen_parameters max_grad_norm train_on_inputs save_total_limit dp_shard_size
context_parallel_size early_stopping_patience tokens save_strategy trackio_project_name
trackio_run_name trackio_space_id batch_size eval_batch_size adam_epsilon
resize_token_embeddings_to_32x tensor_parallel_size shuffle_merged_datasets cosine_min_lr_ratio
save_only_model eval_steps dp_replicate_size bnb_config_kwargs use_swanlab swanlab_project
swanlab_experiment_name min_sample_len auto_resume_from_checkpoints wandb_run_id use_tensorboard
adam_beta1 dataset_exact_deduplication revision_of_model reinit_weights
"""
ENTRY_NAMES = """
path type split field_messages message_property_mappings field_chosen field_rejected
field_thinking template_thinking_key roles field data_files message_field_role
message_field_content drop_system_message name step_separator max_completion_length
train_on_last_step_only
"""


def test_every_key_of_real_files_is_known() -> None:
    known = set(KEYS) | set(Config.model_fields)
    assert not set(USED_BY_REAL_FILES.split() + IN_SCHEMA.split()) - known
    assert not set(ENTRY_NAMES.split()) - set(ENTRY_KEYS) - set(DatasetEntry.model_fields)


def test_no_key_is_both_in_the_schema_and_in_a_table() -> None:
    assert not set(KEYS) & set(Config.model_fields)
    assert not set(ENTRY_KEYS) & set(DatasetEntry.model_fields)
    assert not set(FSDP_KEYS) & set(FsdpConfig.model_fields)
    for table, section in ((KEYS, Config), (ENTRY_KEYS, DatasetEntry), (FSDP_KEYS, FsdpConfig)):
        targets = {rule.target for rule in table.values()} - {None}
        assert targets <= set(section.model_fields)


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_are_not_used_are_accepted(name: str) -> None:
    rule = KEYS[name]
    plain = {"base_model": "m", "datasets": [{"path": "d"}], "learning_rate": 1.0}
    for value in [None] if rule.kind == "renamed" else [None, False, "", [], {}]:
        notes: list[str] = []
        assert load_config({**plain, name: value}, note=notes.append) == load_config(plain)
        assert bool(notes) == (rule.kind == "ignored" and value not in rule.unused)


@pytest.mark.parametrize("name", [name for name, rule in KEYS.items() if rule.kind != "renamed"])
def test_keys_that_are_used_get_a_note_or_an_error(name: str) -> None:
    notes: list[str] = []
    value = ["a.LigerPlugin"] if name == "plugins" else "x"
    tree = {"base_model": "m", "datasets": [{"path": "d"}], "learning_rate": 1.0, name: value}
    if KEYS[name].kind == "ignored":
        load_config(tree, note=notes.append)
        assert notes == [f"<dict>: {name}: has no effect: {KEYS[name].text}"]
    else:
        with pytest.raises(ConfigError) as caught:
            load_config(tree)
        [found] = caught.value.problems
        assert (found.key, found.message) == (name, "is not supported")
        assert found.remedy


@pytest.mark.parametrize(
    ("line", "expression", "value"),
    [
        ("adam_eps: 1e-9", "c.adam_epsilon", 1e-9),
        ("model_config: {rope_theta: 1}", "c.overrides_of_model_config", {"rope_theta": 1}),
        ("sequence_parallel_degree: 2", "c.context_parallel_size", 2),
        ("bfloat16: true", "c.bf16", True),
        ("float16: true", "c.fp16", True),
        ("flash_attention: true", "c.attn_implementation", "flash_attention_2"),
        ("sdp_attention: true", "c.attn_implementation", "sdpa"),
        ("flex_attention: true", "c.attn_implementation", "flex_attention"),
        ("eager_attention: true", "c.attn_implementation", "eager"),
        ("xformers_attention: true", "c.attn_implementation", "sdpa"),
        ("attn_implementation: xformers", "c.attn_implementation", "sdpa"),
    ],
)
def test_renamed_keys(load: Load, line: str, expression: str, value: object) -> None:
    notes: list[str] = []
    config = load(line + "\n", note=notes.append)
    assert eval(expression, {"c": config}) == value
    [note] = notes
    assert f"c.yaml:5:1: {line.partition(':')[0]}: " in note
    assert "read as" in note


def test_switches_that_are_off_set_nothing(load: Load) -> None:
    notes: list[str] = []
    text = "flash_attention: false\nsdp_attention: true\nbfloat16: false\nexpert_parallel_size: 1\n"
    config = load(text, note=notes.append)
    assert (config.attn_implementation, config.bf16) == ("sdpa", "auto")
    assert len(notes) == 1


def test_two_names_for_one_key(problems: Problems) -> None:
    found = problems("adam_eps: 1e-9\nadam_epsilon: 1e-8\nflash_attention: true\n"
                     "sdp_attention: true\n")  # fmt: skip
    assert set(found) == {"adam_eps", "sdp_attention"}
    assert "is set, too" in found["adam_eps"].message
    assert "flash_attention sets, too" in found["sdp_attention"].message


def test_a_wrong_value_is_reported_under_the_name_in_the_file(problems: Problems) -> None:
    found = problems("adam_eps: -1\nmodel_config: 3\n")
    assert set(found) == {"adam_eps", "model_config"}
    assert (found["adam_eps"].line, found["adam_eps"].column) == (5, 11)


def test_plugins(load: Load, problems: Problems) -> None:
    kernels = "axolotl.integrations.liger.LigerPlugin, x.cut_cross_entropy.CutCrossEntropyPlugin"
    load(f"plugins: [{kernels}]\n")
    found = problems(f"plugins: [{kernels}, a.SpectrumPlugin]\n")
    assert "a.SpectrumPlugin" in found["plugins.2"].message
    assert set(problems("plugins: x\n")) == {"plugins"}


def test_keys_of_entries(load: Load, problems: Problems) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n"
    notes: list[str] = []
    text = "    train_on_eot: true\n    field_chosen:\n    type: chat_template.default\n"
    config = load(text, base=base, note=notes.append)
    assert config.datasets == [DatasetEntry(path="d", train_on_eot="turn")]
    assert notes == []
    found = problems("    system_format: x\n    step_separator: y\n    trust_remote_code: true\n",
                     base=base)  # fmt: skip
    assert {problem.line for problem in found.values()} == {5, 6, 7}
    assert "never run" in str(found["datasets.0.trust_remote_code"].remedy)
    assert "as a mapping" in str(found["datasets.0.system_format"].remedy)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sharegpt", "field_messages: conversations"),
        ("stepwise_supervised", "reward models"),
        ("rwd.gsm8k_transform", "reinforcement learning"),
        ("metharme", "as `type`"),
        ("creative_acr.load_revise", "as `type`"),
        ("user_defined.default", "a mapping"),
    ],
)
def test_types_of_axolotl_that_do_not_exist(problems: Problems, kind: str, words: str) -> None:
    base = f"base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n    type: {kind}\n"
    found = problems(base=base)
    assert list(found) == ["datasets.0.type"]
    assert words in str(found["datasets.0.type"].remedy)
    assert found["datasets.0.type"].line == 5


def test_types_of_axolotl_with_another_name(load: Load, problems: Problems) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n    type: "
    assert load(base=f"{base}chat_template.default\n").datasets[0].type == "chat_template"
    entry = load(base=f"{base}pretrain\n    text_column: body\n").datasets[0]
    assert (entry.type, entry.field) == ("completion", "body")
    notes: list[str] = []
    text = f"{base}chat_template.default\n    field_chosen: good\n    field_messages: talk\n"
    entry = load(base=text, note=notes.append).datasets[0]
    assert (entry.type, entry.field_prompt, entry.field_chosen) == (
        "preference:chat_template", "talk", "good",
    )  # fmt: skip
    assert "c.yaml:5:5: datasets.0.type:" in notes[0]
    assert list(problems("rl: dpo\n", base=f"{base}chat_template.default\n")) == ["rl"]


def test_a_mapping_as_type(load: Load, problems: Problems) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n    type:\n"
    entry = load(
        base=base + "      system_prompt:\n      field_instruction: q\n"
        "      format: '{{x}} {instruction} {input}'\n      no_input_format: '{instruction}'\n"
    ).datasets[0]
    assert entry.type == PromptFormat(
        field_instruction="q", format="{{x}} {instruction} {input}", no_input_format="{instruction}"
    )
    assert entry.format_name == "alpaca"
    found = problems(
        base=base + "      format: 'a {instrction}'\n      no_input_format: '{input'\n"
        "      system_format: '{a!r}'\n      prompt: x\n"
    )
    # An unknown key hides the rules between keys.
    assert list(found) == ["datasets.0.type.prompt"]
    found = problems(
        base=base + "      format: 'a {instrction}'\n      no_input_format: '{input'\n"
        "      system_format: '{a!r}'\n    field_input: x\n"
    )
    assert [(key, problem.line) for key, problem in found.items()] == [
        ("datasets.0.type.format", 6), ("datasets.0.type.no_input_format", 7),
        ("datasets.0.type.system_format", 8), ("datasets.0.field_input", 9),
    ]  # fmt: skip
    unknown = found["datasets.0.type.format"]
    assert "{instrction}" in unknown.message
    assert "known: instruction, input, system" in str(unknown.remedy)
    assert "fields: [instrction]" in str(unknown.remedy)


def test_a_mapping_for_pairs(load: Load, problems: Problems) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - path: d\n    type:\n"
    entry = load(base=base + "      prompt_format: '{system}{prompt}'\n").datasets[0]
    assert entry.format_name == "preference"
    found = problems(base=base + "      field_chosen: a\n      field_output: b\n"
                     "      chosen_format: '{rejected}'\n")  # fmt: skip
    assert set(found) == {"datasets.0.type.field_output", "datasets.0.type.chosen_format"}
    assert "known: chosen" in str(found["datasets.0.type.chosen_format"].remedy)


def test_registered_types_pass(load: Load) -> None:
    base = "base_model: m\nlearning_rate: 1\ndatasets:\n  - {path: d, type: my.own}\n"
    assert load(base=base).datasets[0].type == "my.own"


def test_fsdp_config(load: Load, problems: Problems) -> None:
    notes: list[str] = []
    config = load(
        "fsdp_config:\n  fsdp_offload_params: true\n  state_dict_type: FULL_STATE_DICT\n"
        "  transformer_layer_cls_to_wrap: LlamaDecoderLayer\n",
        note=notes.append,
    )
    assert config.fsdp_config.offload_params
    assert config.fsdp_config.transformer_layer_cls_to_wrap == ["LlamaDecoderLayer"]
    assert config.fsdp_config.state_dict_type == "FULL_STATE_DICT"
    assert len(notes) == 1
    found = problems("fsdp_config: {activation_checkpointing: true, fsdp_use_orig_params: true}\n")
    assert "gradient_checkpointing" in str(found["fsdp_config.activation_checkpointing"].remedy)
    assert "no such option" in str(found["fsdp_config.fsdp_use_orig_params"].remedy)


def test_a_typical_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(
        """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
lora_model_dir:
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [gate_proj, down_proj]
wandb_project:
wandb_watch:
wandb_log_model:
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
attn_implementation: flash_attention_2
loss_watchdog_threshold: 5.0
loss_watchdog_patience: 3
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
strict: false
"""
    )
    notes: list[str] = []
    assert load_config(path, note=notes.append).lora_alpha == 32
    assert not notes
