"""Model floor: vocabulary, loading, adapters, attention, numeric types."""

import json

import pytest
import torch
from runs import ALONE, chat_row, run_config, train_lines
from toys import END, EOS, toy_tokenizer, write_model_dir

from tunecli import train
from tunecli.builder import build_model, build_vocabulary
from tunecli.errors import ConfigError, MissingDependencyError, ModelError
from tunecli.model.loading import load_model
from tunecli.model.precision import Precision
from tunecli.model.saving import turn_end_ids

CPU = Precision(torch.float32, torch.device("cpu"))
LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8}


def _model(config):
    return build_model(config, build_vocabulary(config), CPU, ALONE)


# Vocabulary


@pytest.mark.parametrize(("added", "rows"), [(1, 64), (6, 64), (10, 68)])
def test_the_embedding_grows_only_when_it_must(tmp_path, added, rows):
    config = run_config(tmp_path, tokens=[f"new{i}" for i in range(added)])
    model = _model(config)
    assert model.get_input_embeddings().weight.shape[0] == rows
    assert model.get_output_embeddings().weight.shape[0] == rows
    assert model.config.vocab_size == rows


def test_rounding_up_to_32(tmp_path):
    config = run_config(
        tmp_path, tokens=[f"new{i}" for i in range(10)], resize_token_embeddings_to_32x=True
    )
    assert _model(config).config.vocab_size == 96


def test_new_tokens_train_without_error(tmp_path):
    tokens = [f"new{i}" for i in range(10)]
    config = run_config(tmp_path, [chat_row("w0 new9", "new0 w1")], tokens=tokens)
    train(config)
    assert train_lines(config)[0]["loss"] > 0


def test_added_tokens_need_trained_embeddings(tmp_path):
    config = run_config(tmp_path, tokens=["new"], **LORA)
    with pytest.raises(ConfigError, match=r"lora_modules_to_save: \[embed_tokens\]"):
        _model(config)
    untied = run_config(tmp_path / "untied", tokens=["new"], tied=False, **LORA)
    with pytest.raises(ConfigError, match=r"lora_modules_to_save: \[embed_tokens, lm_head\]"):
        _model(untied)


def test_a_new_pad_token_needs_none(tmp_path):
    config = run_config(tmp_path, special_tokens={"pad_token": "<new_pad>"}, **LORA)
    vocabulary = build_vocabulary(config)
    assert vocabulary.tokenizer.pad_token == "<new_pad>"
    assert vocabulary.added == []
    _model(config)


def test_special_tokens_and_missing_pad(tmp_path):
    tokenizer = toy_tokenizer()
    tokenizer.pad_token = None
    write_model_dir(tmp_path / "model", tokenizer=tokenizer)
    config = run_config(
        tmp_path,
        special_tokens={"eos_token": "<|end|>", "additional_special_tokens": ["<tool>"]},
    )
    vocabulary = build_vocabulary(config)
    assert vocabulary.tokenizer.eos_token_id == END
    assert vocabulary.tokenizer.pad_token_id == END
    assert vocabulary.added == ["<tool>"]


def test_neither_pad_nor_eos(tmp_path):
    tokenizer = toy_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    write_model_dir(tmp_path / "model", tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"special_tokens\.pad_token"):
        build_vocabulary(run_config(tmp_path))


def test_a_tokenizer_that_is_not_there(tmp_path):
    config = run_config(tmp_path, tokenizer_config=str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="nowhere cannot be loaded"):
        build_vocabulary(config)


# Loading


def test_overrides_reach_the_model_config(tmp_path):
    config = run_config(tmp_path, overrides_of_model_config={"rms_norm_eps": 0.5})
    assert _model(config).config.rms_norm_eps == 0.5
    wrong = run_config(tmp_path, overrides_of_model_config={"rms_eps": 0.5})
    with pytest.raises(ConfigError, match=r"overrides_of_model_config\.rms_eps"):
        _model(wrong)


def test_model_class_is_checked(tmp_path):
    _model(run_config(tmp_path, model_type="LlamaForCausalLM"))
    with pytest.raises(ConfigError, match="is a LlamaForCausalLM, not a MistralForCausalLM"):
        _model(run_config(tmp_path, model_type="MistralForCausalLM"))


def test_fresh_weights_depend_on_the_seed_alone(tmp_path):
    write_model_dir(tmp_path / "model", weights=False)
    config = run_config(tmp_path, reinit_weights=True)
    torch.manual_seed(1)
    one = _model(config)
    torch.manual_seed(2)
    two = _model(config)
    other = _model(config.model_copy(update={"seed": 7}))
    pairs = zip(one.parameters(), two.parameters(), other.parameters(), strict=True)
    matrices = [(a, b, c) for a, b, c in pairs if a.ndim == 2]
    assert all(torch.equal(a, b) and not torch.equal(a, c) for a, b, c in matrices)


def test_missing_weights_are_named(tmp_path):
    write_model_dir(tmp_path / "model", weights=False)
    with pytest.raises(ModelError, match="cannot be loaded"):
        _model(run_config(tmp_path))


def test_a_config_that_is_not_there(tmp_path):
    config = run_config(tmp_path).model_copy(update={"base_model": str(tmp_path / "nowhere")})
    with pytest.raises(ModelError, match="nowhere"):
        load_model(config, None, CPU)


def test_only_matching_parameters_are_trained(tmp_path):
    config = run_config(tmp_path, unfrozen_parameters=[r"layers\.1\.", "^model.norm"])
    model = _model(config)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.startswith(("model.layers.1.", "model.norm")) for name in trained)
    assert len(trained) == 10
    with pytest.raises(ConfigError, match="matches no parameter"):
        _model(run_config(tmp_path, unfrozen_parameters=["layer9"]))
    with pytest.raises(ConfigError, match="no regular expression"):
        _model(run_config(tmp_path, unfrozen_parameters=["("]))


# Remote code


def _with_remote_code(path, marker, model_type):
    write_model_dir(path)
    settings = json.loads((path / "config.json").read_text())
    settings["auto_map"] = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    settings["model_type"] = model_type
    (path / "config.json").write_text(json.dumps(settings))
    (path / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")


@pytest.mark.parametrize("model_type", ["llama", "unknown_kind"])
def test_code_in_a_model_directory_is_not_run(tmp_path, model_type):
    marker = tmp_path / "marker"
    _with_remote_code(tmp_path / "model", marker, model_type)
    with pytest.raises(ConfigError, match="trust_remote_code"):
        train(run_config(tmp_path))
    assert not marker.exists()
    declined = run_config(tmp_path, trust_remote_code=False)
    if model_type == "llama":
        train(declined)
    else:
        with pytest.raises(ModelError, match="trust_remote_code"):
            train(declined)
    assert not marker.exists()


# Adapters


def test_targets(tmp_path):
    names = [n for n, _ in _model(run_config(tmp_path, **LORA)).named_parameters() if "lora_A" in n]
    assert len(names) == 14
    assert not any("lm_head" in name for name in names)
    some = run_config(tmp_path, lora_target_modules=["q_proj"], **LORA)
    assert sum("lora_A" in n for n, _ in _model(some).named_parameters()) == 2
    with pytest.raises(ConfigError, match="lora_target_modules"):
        _model(run_config(tmp_path, lora_target_modules=["nothing"], **LORA))


def test_adapter_masters_are_float32_over_a_bf16_base(tmp_path):
    config = run_config(tmp_path, lora_modules_to_save=["lm_head"], tied=False, **LORA)
    precision = Precision(torch.bfloat16, torch.device("cpu"))
    model = build_model(config, build_vocabulary(config), precision, ALONE)
    for _, parameter in model.named_parameters():
        wanted = torch.float32 if parameter.requires_grad else torch.bfloat16
        assert parameter.dtype == wanted


@pytest.mark.parametrize("option", ["peft_use_dora", "peft_use_rslora"])
def test_variants_train(tmp_path, option):
    config = run_config(tmp_path, **LORA, **{option: True})
    train(config)
    assert train_lines(config)[-1]["loss"] > 0


def test_an_adapter_is_continued(tmp_path):
    config = run_config(tmp_path, learning_rate=1e-2, **LORA)
    train(config)
    more = run_config(
        tmp_path, lora_model_dir=str(tmp_path / "out"), adapter="lora",
        output_dir=str(tmp_path / "more"),
    )  # fmt: skip
    train(more)
    assert train_lines(more)[0]["loss"] < train_lines(config)[0]["loss"] + 0.5
    with pytest.raises(ModelError, match="lora_model_dir"):
        train(more.model_copy(update={"lora_model_dir": str(tmp_path / "prepared")}))


def test_quantized_bases_name_the_missing_package(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = run_config(tmp_path, adapter="qlora", load_in_4bit=True, lora_r=4, lora_alpha=8)
    with pytest.raises(MissingDependencyError, match=r"tunecli\[quant\]"):
        _model(config)


def test_precision(tmp_path):
    device = torch.device("cpu")
    assert Precision.from_config(run_config(tmp_path), device).compute == torch.float32
    assert Precision.from_config(run_config(tmp_path, bf16=True), device).compute == torch.bfloat16
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        Precision.from_config(run_config(tmp_path, fp16=True), device)


# Turn ends


def test_generation_stops_at_the_end_of_the_turn():
    assert turn_end_ids(toy_tokenizer()) == [END, EOS]
    assert turn_end_ids(toy_tokenizer(template=None)) == [EOS]
    eos = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert turn_end_ids(toy_tokenizer(template=eos)) == [EOS]
    broken = toy_tokenizer(template="{{ raise_exception('no') }}")
    with pytest.raises(ModelError, match="chat template"):
        turn_end_ids(broken)
