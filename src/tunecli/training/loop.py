"""The training loop, top to bottom.

A step reads one global batch, adds up the losses of its tokens, divides once by their number,
clips, and updates. Everything else (metrics, evaluation, checkpoints) happens between steps.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..config import dump_config
from ..errors import CheckpointError, TrainingError
from ..files import write_json, write_text
from ..model.saving import save_model, save_tokenizer
from ..parallel.gradients import clip_gradients
from . import checkpoint as ckpt
from .evaluate import Evaluation, evaluate
from .job import Job, TrainResult
from .metrics import MetricsLog, Reading, peak_memory_gib
from .schedule import Calendar, Schedule
from .state import TrainState
from .trackers import Trackers

if TYPE_CHECKING:
    from ..data import StepBatch

RESULT = "result.json"


class Trainer:
    """Runs one job from its start, or from a checkpoint, to its end."""

    def __init__(self, job: Job) -> None:
        config, total = job.config, job.total_steps
        epoch = job.train_loader.steps_per_epoch
        self.job = job
        self.total = total
        self.schedule = Schedule.from_config(config, total)
        self.saves = Calendar.from_keys(
            config.save_strategy,
            config.save_steps,
            config.saves_per_epoch,
            total=total,
            epoch=epoch,
        )
        self.evaluations = Calendar.from_keys(
            "no" if job.eval_loader is None else config.eval_strategy,
            config.eval_steps,
            config.evals_per_epoch,
            total=total,
            epoch=epoch,
        )
        self.scaler = torch.amp.GradScaler(
            job.precision.device.type, enabled=job.precision.compute == torch.float16
        )
        self.state = TrainState()
        self.last_loss: float | None = None
        self.last_evaluation: Evaluation | None = None
        self.metrics: MetricsLog | None = None
        self._reading: Reading | None = None
        self._norm = self._rate = self._waited = 0.0
        self.trackers = Trackers([])
        self._depends_on: dict[str, Any] = {
            "data": job.data_key,
            "seed": config.seed,
            "steps_per_epoch": epoch,
            "rows_per_step": job.train_loader.global_batch,
            "adapter": config.adapter,
        }

    def run(self) -> TrainResult:
        """Train to the end and return how it ended. The final model is not written here.

        Raises:
            TrainingError: The loss is no number, or stays above the watchdog's threshold.
            CheckpointError: A checkpoint cannot be read or written.
        """
        job = self.job
        # Dropout must not depend on how much randomness loading and probing used up. Processes
        # that share a layer's matrices must drop the same values, others should not.
        torch.manual_seed(job.config.seed + job.mesh.rank // job.mesh.layout.tp)
        self._resume()
        if job.mesh.is_main:
            job.output_dir.mkdir(parents=True, exist_ok=True)
            write_text(job.output_dir / "config.yaml", dump_config(job.config))
            self.metrics = MetricsLog(job.output_dir, self.state.step)
            self.trackers = Trackers.start(job.config, job.precision.device)
        stopped_early = False
        try:
            with job.reporter.task("training", self.total, "steps") as task:
                task.advance(self.state.step)
                for batch in job.train_loader.iterate(self.state.step, self.total):
                    self._step(batch)
                    status = ""
                    if self.state.step % job.config.logging_steps == 0 or self._at_end:
                        status = self._log()
                    task.advance(1, status)
                    better = self.evaluations.due(self.state.step) and self._evaluate()
                    if self.saves.due(self.state.step) or (better and self._saves_best):
                        self._save()
                    patience = job.config.early_stopping_patience
                    if patience is not None and self.state.stale_evaluations >= patience:
                        stopped_early = not self._at_end
                        break
        finally:
            self.trackers.finish()
        if stopped_early:
            job.reporter.info(
                f"stopped early: {self.state.stale_evaluations} evaluations without a better "
                f"loss than {self.state.best_loss:.6g} (step {self.state.best_step})"
            )
        if job.config.load_best_model_at_end and self.state.best_step is not None:
            self._load_best()
        result = self._result(stopped_early)
        if job.mesh.is_main:
            write_json(job.output_dir / RESULT, result.__dict__)
        return result

    @property
    def _at_end(self) -> bool:
        return self.state.step == self.total

    @property
    def _saves_best(self) -> bool:
        config = self.job.config
        return config.save_strategy == "best" or config.load_best_model_at_end

    def _step(self, batch: StepBatch) -> None:
        """Make one optimizer step. What came of the one before is looked at on the way."""
        job = self.job
        start = time.perf_counter()
        rate = job.config.learning_rate * self.schedule.factor(self.state.step)
        for group in job.optimizer.param_groups:
            group["lr"] = rate
        loss_sum = torch.zeros((), device=job.precision.device)
        for micro_batch in batch.micro_batches:
            micro_batch = micro_batch.to(job.precision.device)
            with job.precision.autocast():
                loss = job.loss(job.model, micro_batch)
            # One division by the count of the whole step: a mean of means would weigh the
            # tokens of short rows, short windows and lightly loaded ranks more than others.
            # Sharding averages gradients over its ranks; times their number that is the sum.
            scale = job.mesh.layout.token_ranks / batch.loss_weight
            torch.autograd.backward(self.scaler.scale(loss * scale))
            loss_sum += loss.detach()
        self.scaler.unscale_(job.optimizer)
        norm = clip_gradients(job.model.parameters(), job.config.max_grad_norm)
        job.mesh.sum_over_tokens(loss_sum)
        self._settle()
        read = torch.stack([loss_sum.double(), norm.to(loss_sum.device).double()])
        self._reading = Reading(self.state.step + 1, read, ("loss_sum", "grad_norm"))
        if self._reading.here:
            self._settle()
        self.scaler.step(job.optimizer)
        self.scaler.update()
        job.optimizer.zero_grad(set_to_none=True)
        waited, self._waited = job.train_loader.waited - self._waited, job.train_loader.waited

        state = self.state
        state.step += 1
        state.epoch = job.train_loader.epochs_at(state.step)
        state.tokens += batch.tokens
        state.trained_tokens += batch.trained_tokens
        self._rate = rate
        seconds = waited + time.perf_counter() - start
        self._add(
            loss_weight=batch.loss_weight, tokens=batch.tokens, waited=waited, seconds=seconds
        )

    def _add(self, **sums: float) -> None:
        for name, value in sums.items():
            self.state.interval[name] = self.state.interval.get(name, 0) + value
        self.state.seconds += sums.get("seconds", 0)

    def _settle(self) -> None:
        """Take in the numbers of the last step; stop if they are none.

        On a GPU its update may have been made already. Nothing is logged, evaluated or saved
        before this was called, so the damage stays in this process.
        """
        if self._reading is None:
            return
        reading, self._reading = self._reading, None
        values = reading.values()
        self._check_finite(values, reading.step)
        self._add(loss_sum=values["loss_sum"])
        self._norm = values["grad_norm"]

    def _wait(self) -> None:
        """Settle outside a step: what the device still has to do for it is part of its time."""
        start = time.perf_counter()
        self._settle()
        self._add(seconds=time.perf_counter() - start)

    def _check_finite(self, values: dict[str, float], step: int) -> None:
        bad = [name for name in ("loss_sum", "grad_norm") if not math.isfinite(values[name])]
        if self.scaler.is_enabled() and "loss_sum" not in bad:
            # With fp16 an overflow of the scaled gradients is ordinary: the scaler skips the step.
            return
        if bad:
            name = bad[0].removesuffix("_sum").replace("grad_norm", "gradient norm")
            raise TrainingError(
                f"the {name} of step {step} is {values[bad[0]]}: stopped before anything was saved "
                "of it, so checkpoints before it are good. Usual causes: learning_rate "
                f"{self.job.config.learning_rate:g} too high, no warm-up, fp16 instead of bf16, "
                "or damaged base weights"
            )

    def _log(self) -> str:
        """Write a line of metrics over the steps since the last one; return it for the screen."""
        self._wait()
        state, sums = self.state, self.state.interval
        loss = sums["loss_sum"] / sums["loss_weight"]
        line = {
            "step": state.step,
            "epoch": state.epoch,
            "loss": loss,
            "grad_norm": self._norm,
            "learning_rate": self._rate,
            "tokens": state.tokens,
            "trained_tokens": state.trained_tokens,
            "tokens_per_second": sums["tokens"] / max(sums["seconds"], 1e-9),
            "data_wait": sums["waited"] / max(sums["seconds"], 1e-9),
            "memory_gib": peak_memory_gib(self.job.precision.device),
            "seconds": state.seconds,
        }
        state.interval = {}
        self.last_loss = loss
        self._record(line, {f"train/{k}": v for k, v in line.items() if k != "step"})
        self._watch(loss)
        return (
            f"loss {loss:.4f}, lr {line['learning_rate']:.2e}, grad {line['grad_norm']:.3g}, "
            f"{line['tokens_per_second']:,.0f} tok/s, {line['memory_gib']:.2f} GiB"
        )

    def _record(self, line: dict[str, Any], tracked: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(line)
        self.trackers.log(tracked, self.state.step)

    def _watch(self, loss: float) -> None:
        threshold = self.job.config.loss_watchdog_threshold
        if threshold is None:
            return
        self.state.high_losses = self.state.high_losses + 1 if loss > threshold else 0
        if self.state.high_losses >= self.job.config.loss_watchdog_patience:
            raise TrainingError(
                f"the loss stood above loss_watchdog_threshold {threshold:g} for "
                f"{self.state.high_losses} logged steps, up to step {self.state.step}"
            )

    def _evaluate(self) -> bool:
        """Evaluate, log, and return whether the loss is the best so far."""
        self._wait()
        job, state = self.job, self.state
        assert job.eval_loader is not None
        result = evaluate(
            job.model, job.eval_loader, job.loss, job.mesh, job.precision, job.reporter
        )
        self.last_evaluation = result
        line = {
            "step": state.step,
            "epoch": state.epoch,
            "eval_loss": result.loss,
            "eval_trained_tokens": result.trained_tokens,
        }
        self._record(line, {"eval/loss": result.loss})
        better = state.best_loss is None or result.loss < state.best_loss
        if better:
            state.best_loss, state.best_step, state.stale_evaluations = result.loss, state.step, 0
        else:
            state.stale_evaluations += 1
        job.reporter.info(
            f"step {state.step}: evaluation loss {result.loss:.4f} "
            f"({result.trained_tokens:,} tokens)" + (", the best so far" if better else "")
        )
        return better

    def _save(self) -> None:
        self._wait()
        job, state = self.job, self.state
        if self.scaler.is_enabled():
            state.scaler = self.scaler.state_dict()

        def extras(directory: Path) -> None:
            tokenizer = job.vocabulary.tokenizer
            if job.config.fsdp_config.state_dict_type == "FULL_STATE_DICT":
                save_model(job.model, tokenizer, directory)
            if job.mesh.is_main:
                write_text(directory / "config.yaml", dump_config(job.config))
                save_tokenizer(tokenizer, job.model, directory)

        path = ckpt.save_checkpoint(
            job.output_dir,
            job.model,
            None if job.config.save_only_model else job.optimizer,
            state,
            self._depends_on,
            adapter=job.config.adapter is not None,
            extras=extras,
            rank=job.mesh.rank,
            peers=job.mesh.layout.tp,
        )
        if job.mesh.is_main:
            ckpt.prune(job.output_dir, job.config.save_total_limit, state.best_step)
        job.reporter.info(f"step {state.step}: saved {path}")

    def _load_best(self) -> None:
        job, step = self.job, self.state.best_step
        if step == self.state.step:
            return
        path = job.output_dir / f"checkpoint-{step}"
        ckpt.read_checkpoint(path)
        ckpt.load_weights(path, job.model, adapter=job.config.adapter is not None)
        job.reporter.info(f"the final model is that of the best evaluation, step {step}")

    def _resume(self) -> None:
        job = self.job
        found = _resume_from(job)
        if found is None:
            return
        changed = {
            name: (saved, self._depends_on[name])
            for name, saved in found.depends_on.items()
            if saved != self._depends_on.get(name)
        }
        if changed:
            lines = ", ".join(f"{name}: {old} -> {new}" for name, (old, new) in changed.items())
            raise CheckpointError(
                f"{found.path} belongs to another run ({lines}). Resuming would repeat or skip "
                "rows. Restore those settings, or start anew in another output_dir"
            )
        self.state = ckpt.restore(
            found,
            job.model,
            job.optimizer,
            adapter=job.config.adapter is not None,
            rank=job.mesh.rank,
            peers=job.mesh.layout.tp,
        )
        if self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)
        job.reporter.info(f"resumed from {found.path}, step {self.state.step} of {self.total}")

    def _result(self, stopped_early: bool) -> TrainResult:
        state = self.state
        best = self.job.output_dir / f"checkpoint-{state.best_step}"
        return TrainResult(
            output_dir=str(self.job.output_dir),
            steps=state.step,
            loss=self.last_loss,
            eval_loss=self.last_evaluation.loss if self.last_evaluation else None,
            best_step=state.best_step,
            best_checkpoint=str(best) if best.is_dir() else None,
            stopped_early=stopped_early,
            tokens=state.tokens,
            trained_tokens=state.trained_tokens,
            seconds=state.seconds,
        )


def _resume_from(job: Job) -> ckpt.Checkpoint | None:
    """Find the checkpoint that the configuration asks to resume from, if any."""
    wanted = job.config.resume_from_checkpoint
    if isinstance(wanted, str) and wanted != "auto":
        return ckpt.read_checkpoint(Path(wanted).expanduser())
    if wanted or job.config.auto_resume_from_checkpoints:
        found = ckpt.find_checkpoint(job.output_dir, job.reporter)
        if found is None:
            job.reporter.info(f"no checkpoint in {job.output_dir}: training starts at step 0")
        return found
    return None
