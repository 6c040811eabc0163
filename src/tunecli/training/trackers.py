"""Experiment trackers, through Accelerate's classes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import torch

from ..config import redact_tree
from ..errors import MissingDependencyError

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

    from ..config import Config

PROJECT = "tunecli"
"""Project name where the configuration gives none."""


class Trackers:
    """The trackers of a run; none of them is a valid number."""

    def __init__(self, trackers: list[GeneralTracker]) -> None:
        self._trackers = trackers

    @classmethod
    def start(cls, config: Config, device: torch.device) -> Self:
        """Start each tracker that `config` asks for and tell it the settings, secrets left out.

        Raises:
            MissingDependencyError: A tracker's package is not installed.
        """
        wanted = _wanted(config)
        if not wanted:
            return cls([])
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

        # The trackers ask this object which process they run in.
        PartialState(cpu=device.type == "cpu")
        available = {str(name) for name in get_available_trackers()}
        for name in wanted:
            if name not in available:
                raise MissingDependencyError(name.removesuffix("_ml"), f"the tracker {name}")
        trackers = []
        for name, (project, arguments) in wanted.items():
            tracker_class = LOGGER_TYPE_TO_CLASS[name]
            if tracker_class.requires_logging_directory:
                arguments = {"logging_dir": config.output_dir, **arguments}
            trackers.append(tracker_class(project, **arguments))
        settings = _plain(config)
        for tracker in trackers:
            tracker.start()
            tracker.store_init_configuration(settings)
        return cls(trackers)

    def log(self, values: dict[str, Any], step: int) -> None:
        """Report metrics of a step."""
        for tracker in self._trackers:
            tracker.log(values, step=step)

    def finish(self) -> None:
        """Flush and close."""
        for tracker in self._trackers:
            tracker.finish()


def _plain(config: Config) -> dict[str, Any]:
    settings = redact_tree(config.model_dump(mode="json", exclude={"hub_token"}))
    # TensorBoard takes plain values only.
    return {
        name: value if isinstance(value, (int, float, str)) else json.dumps(value)
        for name, value in settings.items()
        if value is not None
    }


def _wanted(config: Config) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return project and arguments of each tracker asked for, by Accelerate's name for it."""
    # name: (use it?, project, arguments); None for "use it?" means: if there is a project.
    choices: dict[str, tuple[bool | None, str | None, dict[str, Any]]] = {
        "tensorboard": (config.use_tensorboard, None, {}),
        "wandb": (
            config.use_wandb,
            config.wandb_project,
            {
                "entity": config.wandb_entity,
                "name": config.wandb_name,
                "id": config.wandb_run_id,
                "resume": "allow" if config.wandb_run_id else None,
                "mode": config.wandb_mode,
            },
        ),
        "mlflow": (
            config.use_mlflow,
            config.mlflow_experiment_name,
            {"run_name": config.mlflow_run_name, "logging_dir": config.mlflow_tracking_uri},
        ),
        "trackio": (
            config.use_trackio,
            config.trackio_project_name,
            {"name": config.trackio_run_name, "space_id": config.trackio_space_id},
        ),
        "swanlab": (
            config.use_swanlab,
            config.swanlab_project,
            {"experiment_name": config.swanlab_experiment_name},
        ),
        "comet_ml": (
            config.use_comet,
            config.comet_project_name,
            {"workspace": config.comet_workspace},
        ),
    }
    return {
        name: (
            project or PROJECT,
            {key: value for key, value in arguments.items() if value is not None}
            | config.tracker_kwargs.get(name, {}),
        )
        for name, (use, project, arguments) in choices.items()
        if use or (use is None and project is not None)
    }
