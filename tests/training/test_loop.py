"""The loop against a simpler truth: plain torch, one row at a time."""

import json
from pathlib import Path

import pytest
import torch
from runs import build_job, chat_row, chat_rows, metrics, run_config, train_lines, words
from toys import ROW2, toy_model, write_model_dir

from tunecli import train
from tunecli.errors import DataError, ModelError, TrainingError
from tunecli.parallel.gradients import clip_gradients
from tunecli.training.loop import Trainer


def _plain_loss_and_norm(model, rows):
    """Sum of token losses over rows of (ids, labels), the number of targets, gradient norm."""
    total, count = 0.0, 0
    for ids, labels in rows:
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
        targets = torch.tensor(labels[1:])
        total = total + torch.nn.functional.cross_entropy(
            logits, targets, ignore_index=-100, reduction="sum"
        )
        count += int((targets != -100).sum())
    (total / count).backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    return (total / count).item(), count, norm.item()


def _rows_of(config):
    job = build_job(config)
    rows = job.train_loader.rows
    return [tuple(part.tolist() for part in rows.row(i)) for i in range(len(rows))]


@pytest.mark.parametrize("packing", [False, True])
def test_first_step_is_that_of_plain_torch(tmp_path, packing):
    config = run_config(
        tmp_path, micro_batch_size=2, gradient_accumulation_steps=50, sample_packing=packing,
        max_grad_norm=0,
    )  # fmt: skip
    train(config)
    loss, count, norm = _plain_loss_and_norm(toy_model(), _rows_of(config))
    (line,) = train_lines(config)
    assert line["loss"] == pytest.approx(loss, abs=1e-6)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert line["trained_tokens"] == count
    assert line["tokens"] == sum(len(ids) for ids, _ in _rows_of(config))


@pytest.mark.parametrize(("micro", "steps"), [(2, 1), (1, 2)])
def test_tokens_weigh_alike_however_the_step_is_cut(tmp_path, micro, steps):
    rows = [chat_row("w0", ""), chat_row("w1", words(2, 8))]
    config = run_config(tmp_path, rows, micro_batch_size=micro, gradient_accumulation_steps=steps)
    train(config)
    loss, count, norm = _plain_loss_and_norm(toy_model(), _rows_of(config))
    assert count == 1 + 9
    (line,) = train_lines(config)
    assert line["loss"] == pytest.approx(loss, abs=1e-5)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_short_last_window_is_a_full_step(tmp_path):
    rows = [chat_row("w0", "w1 w2"), chat_row("w3", "w4"), chat_row("w5", "w6 w7 w8")]
    config = run_config(
        tmp_path, rows, gradient_accumulation_steps=2, learning_rate=1e-12,
        shuffle_merged_datasets=False, max_grad_norm=0,
    )  # fmt: skip
    train(config)
    _, _, norm = _plain_loss_and_norm(toy_model(), _rows_of(config)[2:])
    lines = train_lines(config)
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_learning_rates(tmp_path, accumulation):
    config = run_config(
        tmp_path, chat_rows(4), lr_scheduler="linear", max_steps=4,
        gradient_accumulation_steps=accumulation,
    )  # fmt: skip
    train(config)
    rates = [line["learning_rate"] for line in train_lines(config)]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4], abs=1e-15)


def test_bf16_keeps_float32_masters(tmp_path):
    config = run_config(
        tmp_path, bf16=True, learning_rate=1e-5, max_steps=20, optimizer="adamw_torch"
    )
    job = build_job(config)
    norms = [p for name, p in job.model.named_parameters() if "norm" in name]
    assert all(p.dtype == torch.float32 for p in job.model.parameters())
    Trainer(job).run()
    # An element whose updates cancel may come back to exactly 1.
    assert all((p != 1.0).float().mean() > 0.9 for p in norms)
    assert all(line["loss"] > 0 for line in train_lines(config))


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_lora_learns_with_checkpointing(tmp_path, reentrant):
    values = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "learning_rate": 1e-2}
    if reentrant is not None:
        values |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
        }
    config = run_config(tmp_path, max_steps=3, **values)
    job = build_job(config)
    Trainer(job).run()
    b = [p for name, p in job.model.named_parameters() if "lora_B" in name]
    assert len(b) == 14
    assert all(p.norm() > 0 for p in b)
    plain = tmp_path / "plain.json"
    losses = [line["loss"] for line in train_lines(config)]
    reference = run_config(
        tmp_path, max_steps=3, adapter="lora", lora_r=4, lora_alpha=8, learning_rate=1e-2,
        output_dir=str(plain),
    )  # fmt: skip
    train(reference)
    assert losses == pytest.approx([line["loss"] for line in train_lines(reference)], abs=1e-5)


def test_metrics_have_what_scripts_rely_on(tmp_path):
    config = run_config(
        tmp_path, val_set_size=2, num_epochs=2, logging_steps=3, evals_per_epoch=1,
    )  # fmt: skip
    result = train(config)
    lines = metrics(config)
    steps = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in steps] == [3, 6, 9, 12, 15, 16]
    assert [line["step"] for line in evaluations] == [8, 16]
    assert set(steps[0]) >= {
        "step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "trained_tokens",
        "tokens_per_second", "memory_gib", "seconds", "data_wait",
    }  # fmt: skip
    assert all(0 <= line["data_wait"] < 1 for line in steps)
    assert set(evaluations[0]) >= {"step", "eval_loss", "eval_trained_tokens"}
    assert steps[-1]["epoch"] == 2.0
    tokens = [line["tokens"] for line in steps]
    assert tokens == sorted(tokens)
    assert result.steps == 16
    assert json.loads((Path(config.output_dir) / "result.json").read_text())["steps"] == 16


def test_evaluation_is_token_weighted_and_free_of_dropout(tmp_path):
    write_model_dir(tmp_path / "model", attention_dropout=0.5)
    rows = [chat_row("w0", "w1"), chat_row("w2", words(3, 9))]
    values = {"test_datasets": [{"path": str(tmp_path / "rows.jsonl")}], "learning_rate": 1e-12}
    losses = []
    for batch in (1, 2):
        config = run_config(
            tmp_path, rows, eval_batch_size=batch, output_dir=str(tmp_path / f"o{batch}"), **values
        )
        losses.append(train(config).eval_loss)
    expected, _, _ = _plain_loss_and_norm(toy_model(), _rows_of(config))
    assert losses == pytest.approx([expected, expected], abs=1e-5)


def test_early_stop_and_best_model(tmp_path):
    config = run_config(
        tmp_path, learning_rate=5.0, max_grad_norm=0, eval_steps=1, save_steps=1, max_steps=6,
        save_strategy="steps", val_set_size=3, early_stopping_patience=2,
        load_best_model_at_end=True, save_total_limit=1,
    )  # fmt: skip
    result = train(config)
    evaluations = [line["eval_loss"] for line in metrics(config) if "eval_loss" in line]
    best = 1 + evaluations.index(min(evaluations))
    assert result.best_step == best
    assert result.stopped_early == (result.steps < 6)
    assert Path(result.best_checkpoint).is_dir()
    kept = sorted(path.name for path in Path(config.output_dir).glob("checkpoint-*"))
    assert kept == sorted({f"checkpoint-{best}", f"checkpoint-{result.steps}"})


def test_loss_that_is_no_number_stops_before_the_update(tmp_path):
    write_model_dir(tmp_path / "model")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(TrainingError, match=r"loss of step 1 is nan.*learning_rate"):
        train(run_config(tmp_path))


def test_watchdog(tmp_path):
    config = run_config(tmp_path, loss_watchdog_threshold=0.1, loss_watchdog_patience=2)
    with pytest.raises(TrainingError, match="up to step 2"):
        train(config)


def test_nothing_to_train_stops_before_the_model_is_read(tmp_path):
    config = run_config(tmp_path, [ROW2], sequence_len=5, excess_length_strategy="truncate")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no trainable tokens"):
        train(config)


def test_a_row_without_target_is_dropped_and_losses_stay_finite(tmp_path):
    rows = [chat_row(words(0, 10), "w1"), chat_row("w0", "w1")]
    config = run_config(tmp_path, rows, sequence_len=7, excess_length_strategy="truncate")
    train(config)
    lines = train_lines(config)
    assert len(lines) == 1
    assert lines[0]["loss"] > 0


def test_ids_beyond_the_vocabulary_are_named(tmp_path):
    rows = [{"input_ids": [8, 9, 70], "labels": [8, 9, 70]}]
    config = run_config(tmp_path, rows)
    config = config.model_copy(
        update={"datasets": [config.datasets[0].model_copy(update={"type": "tokenized"})]}
    )
    with pytest.raises(ModelError, match=r"rows.jsonl:1: token id 70.* 64 rows"):
        train(config)


def test_clipping_scales_to_the_norm():
    model = torch.nn.Linear(4, 4)
    (model(torch.ones(1, 4)).sum() * 10).backward()
    norm = clip_gradients(model.parameters(), 1.0)
    after = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    assert norm > 1.0
    assert after.item() == pytest.approx(1.0, rel=1e-5)


def test_an_earlier_run_is_moved_aside(tmp_path):
    config = run_config(tmp_path)
    train(config)
    train(config)
    assert len(train_lines(config)) == 10
    aside = [path for path in tmp_path.glob("out.*") if path.is_dir()]
    assert len(aside) == 1
    assert (aside[0] / "model.safetensors").exists()
