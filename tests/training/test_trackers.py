"""Trackers through Accelerate: what they are told, and what is missing."""

import pytest
import torch
from runs import run_config

from tunecli import train
from tunecli.errors import MissingDependencyError
from tunecli.training.trackers import Trackers, _wanted


def test_tensorboard_gets_metrics_and_settings(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = run_config(tmp_path, use_tensorboard=True, max_steps=3, val_set_size=2)
    train(config)
    events = EventAccumulator(str(tmp_path / "out" / "tunecli"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert events.Scalars("eval/loss")


def test_keys_choose_trackers_and_their_arguments(tmp_path):
    config = run_config(
        tmp_path,
        wandb_project="p",
        wandb_name="n",
        wandb_run_id="r",
        mlflow_experiment_name="e",
        mlflow_tracking_uri="file:x",
        trackio_project_name="t",
        use_swanlab=True,
        comet_project_name="c",
        use_comet=False,
        tracker_kwargs={"wandb": {"tags": ["a"]}},
    )
    wanted = _wanted(config)
    assert set(wanted) == {"wandb", "mlflow", "trackio", "swanlab"}
    assert wanted["wandb"] == (
        "p",
        {"name": "n", "id": "r", "resume": "allow", "tags": ["a"]},
    )
    assert wanted["mlflow"][1] == {"logging_dir": "file:x"}
    assert wanted["swanlab"][0] == "tunecli"


def test_a_missing_package_is_named_before_training(tmp_path):
    config = run_config(tmp_path, use_comet=True)
    with pytest.raises(MissingDependencyError, match="pip install comet"):
        Trackers.start(config, torch.device("cpu"))
