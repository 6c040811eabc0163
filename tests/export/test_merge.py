"""Merging: types, added tokens, templates, and what is refused."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from runs import chat_row, run_config
from safetensors.torch import load_file
from toys import ROW2, ROW2_IDS, toy_model, toy_template, toy_tokenizer, write_model_dir
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tunecli import merge, train
from tunecli.errors import ConfigError, ModelError
from tunecli.reporter import Reporter

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "learning_rate": 0.1}


def _write_base(path: Path, dtype: torch.dtype, **overrides) -> None:
    write_model_dir(path, **overrides)
    toy_model(**overrides).to(dtype).save_pretrained(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("option", [{}, {"peft_use_dora": True}, {"peft_use_rslora": True}])
def test_merged_model_is_base_and_adapter_in_the_base_type(tmp_path, dtype, option):
    _write_base(tmp_path / "model", dtype)
    config = run_config(tmp_path, optimizer="adamw_torch", **LORA, **option)
    train(config)
    merged = AutoModelForCausalLM.from_pretrained(merge(config), dtype="auto")
    assert merged.dtype == dtype
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    ids = torch.arange(8, 24)[None]
    difference = (merged(input_ids=ids).logits - adapted(input_ids=ids).logits).abs().max()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    moved = (merged(input_ids=ids).logits - plain(input_ids=ids).logits).abs().max()
    assert difference < (1e-5 if dtype == torch.float32 else 0.05)
    assert moved > 5 * difference
    sizes = [
        (directory / "model.safetensors").stat().st_size
        for directory in (tmp_path / "model", tmp_path / "out" / "merged")
    ]
    assert abs(sizes[1] / sizes[0] - 1) < 0.05


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("tied", [True, False])
def test_trained_rows_of_added_tokens_survive(tmp_path, count, tied):
    tokens = [f"new{i}" for i in range(count)]
    saved = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
    config = run_config(
        tmp_path, [chat_row("w0 new0", "new0 w1")], tokens=tokens, tied=tied, max_steps=4,
        lora_modules_to_save=saved, **LORA,
    )  # fmt: skip
    train(config)
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    (trained,) = (t for name, t in adapter.items() if "embed_tokens" in name)
    model = AutoModelForCausalLM.from_pretrained(merge(config))
    assert model.config.vocab_size == max(64, 58 + count)
    assert torch.equal(model.get_input_embeddings().weight[58], trained[58])
    assert model.config.tie_word_embeddings == tied
    if tied:
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        assert head.weight.data_ptr() == embedding.weight.data_ptr()


def test_template_tokens_and_stops_travel(tmp_path):
    write_model_dir(tmp_path / "model", tokenizer=toy_tokenizer(template="{{ messages }}"))
    config = run_config(tmp_path, chat_template="jinja", chat_template_jinja=toy_template, **LORA)
    train(config)
    for directory in (merge(config), tmp_path / "out"):
        tokenizer = AutoTokenizer.from_pretrained(directory)
        ids = tokenizer.apply_chat_template(ROW2["messages"], tokenize=True, return_dict=False)
        assert ids == ROW2_IDS
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
        assert GenerationConfig.from_pretrained(directory).eos_token_id == [6, 2]


def test_full_model_is_plain_and_keeps_its_type(tmp_path):
    _write_base(tmp_path / "model", torch.bfloat16)
    config = run_config(tmp_path)
    train(config)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert model.config.use_cache is True
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    with pytest.raises(ConfigError, match="no adapter to merge"):
        merge(config)


def test_what_cannot_be_merged(tmp_path, capsys):
    config = run_config(tmp_path, **LORA)
    with pytest.raises(ModelError, match="holds no adapter"):
        merge(config)
    train(config.model_copy(update={"learning_rate": 1e-30}))
    merge(config, Reporter())
    assert "does not change the model" in capsys.readouterr().err
    write_model_dir(tmp_path / "other", hidden_size=64)
    other = config.model_copy(update={"base_model": str(tmp_path / "other")})
    with pytest.raises(ModelError, match="does not fit"):
        merge(other, adapter=tmp_path / "out", output=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_merge_from_lora_model_dir(tmp_path):
    config = run_config(tmp_path, **LORA)
    train(config)
    elsewhere = config.model_copy(
        update={"output_dir": str(tmp_path / "new"), "lora_model_dir": str(tmp_path / "out")}
    )
    assert merge(elsewhere) == tmp_path / "new" / "merged"
    assert (tmp_path / "new" / "merged" / "config.yaml").exists()


def test_an_adapter_trained_on_four_bits_merges_into_the_original_base(tmp_path):
    pytest.importorskip("bitsandbytes")
    write_model_dir(tmp_path / "model", hidden_size=64, intermediate_size=128)
    config = run_config(
        tmp_path,
        **{**LORA, "adapter": "qlora"},
        load_in_4bit=True,
        optimizer="adamw_torch",
        val_set_size=2,
        eval_steps=1,
    )
    result = train(config)
    assert result.loss > 0
    merged = AutoModelForCausalLM.from_pretrained(merge(config))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    ids = torch.arange(8, 24)[None]
    difference = (merged(input_ids=ids).logits - adapted(input_ids=ids).logits).abs().max()
    assert difference < 1e-5
