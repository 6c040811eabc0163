"""What a run writes, when it evaluates and saves, and who is told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .base import Amount, Count, Section


def _no(value: Any) -> Any:
    """YAML reads `no` and `off` as false; for a strategy they mean the word `no`."""
    return "no" if value is False else value


Strategy = Annotated[Literal["no", "steps", "epoch"], BeforeValidator(_no)]
SaveStrategy = Annotated[Literal["no", "steps", "epoch", "best"], BeforeValidator(_no)]


class RunConfig(Section):
    """Outputs, evaluation, checkpoints and trackers."""

    output_dir: str = "outputs/out"
    """Directory of the final model, the checkpoints and the metrics."""
    logging_steps: Count = 1
    """Steps between two lines of metrics."""

    eval_strategy: Strategy | None = None
    """When to evaluate. Left out: as the keys below say, else at the end of each epoch. `no`
    switches it off, whatever they say."""
    eval_steps: Amount | None = None
    """Steps between evaluations; below 1 a share of the run."""
    evals_per_epoch: Count | None = None
    """Evaluations in each epoch."""
    save_strategy: SaveStrategy | None = None
    """When to save a checkpoint. `best`: after each evaluation that beats all before it.
    Left out: as the keys below say, else at the end of each epoch. `no` switches it off."""
    save_steps: Amount | None = None
    """Steps between checkpoints; below 1 a share of the run."""
    saves_per_epoch: Count | None = None
    """Checkpoints in each epoch."""
    save_total_limit: Count | None = None
    """Checkpoints kept; the best one and the newest are never removed."""
    save_only_model: bool = False
    """Checkpoints without optimizer state: smaller, and training cannot resume from them."""
    load_best_model_at_end: bool = False
    """Write the model of the best evaluation as the final one."""
    resume_from_checkpoint: str | bool | None = None
    """`auto` (newest complete checkpoint, or a fresh start), or the path of one."""
    auto_resume_from_checkpoints: bool = False
    """The same as `resume_from_checkpoint: auto`."""

    use_tensorboard: bool = False
    """Write TensorBoard events to `output_dir`."""
    use_wandb: bool | None = None
    """Report to Weights & Biases. Left out: where `wandb_project` is set."""
    wandb_project: str | None = None
    """Weights & Biases project."""
    wandb_entity: str | None = None
    """Weights & Biases team or user."""
    wandb_name: str | None = None
    """Name of the run."""
    wandb_run_id: str | None = None
    """Id of the run, to continue an earlier one."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """Whether Weights & Biases sends at once."""
    use_mlflow: bool | None = None
    """Report to MLflow. Left out: where `mlflow_experiment_name` is set."""
    mlflow_tracking_uri: str | None = None
    """MLflow server or folder."""
    mlflow_experiment_name: str | None = None
    """MLflow experiment."""
    mlflow_run_name: str | None = None
    """MLflow run."""
    use_trackio: bool | None = None
    """Report to Trackio. Left out: where `trackio_project_name` is set."""
    trackio_project_name: str | None = None
    """Trackio project."""
    trackio_run_name: str | None = None
    """Trackio run."""
    trackio_space_id: str | None = None
    """Hub Space of the Trackio dashboard."""
    use_swanlab: bool | None = None
    """Report to SwanLab. Left out: where `swanlab_project` is set."""
    swanlab_project: str | None = None
    """SwanLab project."""
    swanlab_experiment_name: str | None = None
    """SwanLab experiment."""
    use_comet: bool | None = None
    """Report to Comet. Left out: where `comet_project_name` is set."""
    comet_project_name: str | None = None
    """Comet project."""
    comet_workspace: str | None = None
    """Comet workspace."""
    tracker_kwargs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """More arguments for a tracker's start, by its name: `{wandb: {tags: [a]}}`."""
