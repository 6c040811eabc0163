"""Checkpoints: exact resume, pruning, damage, a full disk."""

import pickle
import resource
from pathlib import Path

import pytest
import torch
from runs import build_job, chat_rows, metrics, run_config, train_lines
from safetensors.torch import load_file
from toys import ROW2, ROW2_IDS, write_model_dir

from tunecli import train
from tunecli.errors import CheckpointError
from tunecli.reporter import Reporter
from tunecli.training import checkpoint as ckpt
from tunecli.training.loop import Trainer

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.1}
TIMES = ("tokens_per_second", "memory_gib", "seconds", "data_wait")


def _without_times(lines):
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


class _Stop(Exception):
    pass


def _train_until(config, step):
    """Train, and die right after `step` updates: what is on disk then is all that is left."""

    class Dying(Trainer):
        def _step(self, batch):
            if self.state.step == step:
                raise _Stop
            return super()._step(batch)

    with pytest.raises(_Stop):
        Dying(build_job(config)).run()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"sample_packing": True},
        {"optimizer": "adamw_torch_fused", "lr_scheduler": "cosine", "warmup_steps": 2},
        {**LORA, "optimizer": "adamw_torch", "learning_rate": 1e-2},
        {"val_set_size": 2, "eval_steps": 2, "logging_steps": 4},
    ],
    ids=["plain", "accumulation", "packing", "adamw", "lora-dropout", "evaluation"],
)
def test_resume_repeats_the_uninterrupted_run(tmp_path, values):
    if "adapter" not in values:
        write_model_dir(tmp_path / "model", attention_dropout=0.1)
    common = {
        "micro_batch_size": 2, "num_epochs": 3, "save_steps": 3, "save_strategy": "steps", **values,
    }  # fmt: skip
    whole = run_config(tmp_path, output_dir=str(tmp_path / "whole"), **common)
    train(whole)
    cut = run_config(
        tmp_path, output_dir=str(tmp_path / "cut"), resume_from_checkpoint="auto", **common
    )
    total = train_lines(whole)[-1]["step"]
    _train_until(cut, total - 1)
    assert len(ckpt.list_checkpoints(tmp_path / "cut")) >= 1
    train(cut)
    assert _without_times(metrics(cut)) == _without_times(metrics(whole))
    name = "adapter_model.safetensors" if "adapter" in values else "model.safetensors"
    one, two = load_file(tmp_path / "whole" / name), load_file(tmp_path / "cut" / name)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_resume_from_a_path_and_from_a_finished_run(tmp_path):
    config = run_config(tmp_path, save_steps=4, save_strategy="steps", optimizer="adamw_torch")
    train(config)
    before = load_file(tmp_path / "out" / "model.safetensors")
    path = tmp_path / "out" / "checkpoint-4"
    train(config.model_copy(update={"resume_from_checkpoint": str(path)}))
    train(config.model_copy(update={"resume_from_checkpoint": "auto"}))
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert [line["step"] for line in train_lines(config)] == list(range(1, 11))


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    values = {"save_steps": 2, "save_strategy": "steps", "resume_from_checkpoint": "auto"}
    train(run_config(tmp_path, **values))
    with pytest.raises(CheckpointError, match=r"belongs to another run.*steps_per_epoch: 10 -> 4"):
        train(run_config(tmp_path, chat_rows(4), **values))


def test_auto_skips_what_is_damaged_and_says_so(tmp_path, capsys):
    config = run_config(tmp_path, save_steps=4, save_strategy="steps", max_steps=8)
    train(config)
    (file,) = (tmp_path / "out" / "checkpoint-8" / "model").glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "out" / "checkpoint-9").mkdir()
    found = ckpt.find_checkpoint(tmp_path / "out", Reporter())
    assert found.path.name == "checkpoint-4"
    said = capsys.readouterr().err
    assert "checkpoint-9 is no complete checkpoint" in said
    assert "bytes instead of" in said


def test_auto_without_checkpoints_starts_anew(tmp_path):
    config = run_config(tmp_path, resume_from_checkpoint="auto")
    assert train(config).steps == 10


def test_without_optimizer_state_training_cannot_resume(tmp_path):
    config = run_config(tmp_path, save_steps=5, save_strategy="steps", save_only_model=True)
    train(config)
    again = config.model_copy(update={"resume_from_checkpoint": "auto"})
    with pytest.raises(CheckpointError, match="save_only_model"):
        train(again)


def test_an_index_that_names_foreign_code_is_not_run(tmp_path):
    config = run_config(tmp_path, save_steps=5, save_strategy="steps")
    train(config)
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (marker,))

    index = tmp_path / "out" / "checkpoint-5" / "model" / ".metadata"
    index.write_bytes(pickle.dumps(Evil()))
    job = build_job(config)
    with pytest.raises(CheckpointError):
        ckpt.load_weights(index.parent.parent, job.model, adapter=False)
    assert not marker.exists()


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    config = run_config(tmp_path, save_steps=5, save_strategy="steps", **LORA)
    train(config)
    other = build_job(config.model_copy(update={"lora_r": 8}))
    with pytest.raises(CheckpointError, match="does not fit"):
        ckpt.load_weights(tmp_path / "out" / "checkpoint-5", other.model, adapter=True)


def test_a_full_disk_leaves_the_last_checkpoint_good(tmp_path):
    config = run_config(
        tmp_path, save_steps=1, save_strategy="steps", save_total_limit=1, max_steps=3
    )
    job = build_job(config)

    class Limited(Trainer):
        def _save(self):
            if self.state.step == 2:
                soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
                try:
                    super()._save()
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            else:
                super()._save()

    with pytest.raises(CheckpointError, match=r"checkpoint-2 could not be written: .*large"):
        Limited(job).run()
    assert [path.name for path in ckpt.list_checkpoints(tmp_path / "out")] == ["checkpoint-1"]
    ckpt.read_checkpoint(tmp_path / "out" / "checkpoint-1")
    assert not list((tmp_path / "out").glob(".checkpoint-2*"))


def test_the_best_and_the_newest_survive_pruning(tmp_path):
    for step in (1, 2, 3, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
    ckpt.prune(tmp_path, 1, best_step=1)
    assert [p.name for p in ckpt.list_checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-4"]
    ckpt.prune(tmp_path, None, best_step=None)
    assert len(ckpt.list_checkpoints(tmp_path)) == 2


def test_a_checkpoint_carries_tokenizer_and_template(tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    config = run_config(tmp_path, save_steps=5, save_strategy="steps")
    train(config)
    path = tmp_path / "out" / "checkpoint-5"
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = tokenizer.apply_chat_template(ROW2["messages"], tokenize=True, return_dict=False)
    assert ids == ROW2_IDS
    assert GenerationConfig.from_pretrained(path).eos_token_id == [6, 2]


def test_lora_resume_adds_no_second_adapter(tmp_path):
    config = run_config(
        tmp_path, learning_rate=1e-2, max_steps=6, save_steps=3, save_strategy="steps", **LORA
    )
    train(config)
    names = set(load_file(tmp_path / "out" / "adapter_model.safetensors"))
    again = config.model_copy(
        update={"resume_from_checkpoint": str(tmp_path / "out" / "checkpoint-3")}
    )
    train(again)
    assert set(load_file(tmp_path / "out" / "adapter_model.safetensors")) == names
