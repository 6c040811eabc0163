import pytest
import torch

from tunecli import register_optimizer
from tunecli.config import Config
from tunecli.errors import ConfigError
from tunecli.training.optimizer import build_optimizer


def _config(**values):
    return Config(base_model="m", datasets=[{"path": "x"}], learning_rate=0.1, **values)


def _model():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))


def test_matrices_decay_and_vectors_do_not():
    optimizer = build_optimizer(_model(), _config(weight_decay=0.5))
    decay = {group["weight_decay"]: len(group["params"]) for group in optimizer.param_groups}
    assert decay == {0.5: 1, 0.0: 3}
    assert optimizer.param_groups[0]["fused"] is True


def test_frozen_parameters_are_left_out():
    model = _model()
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model, _config(optimizer="sgd", optim_args={"momentum": 0.9}))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_unknown_name_gives_the_nearest():
    with pytest.raises(ConfigError, match="did you mean adamw_torch"):
        build_optimizer(_model(), _config(optimizer="adamw_torhc"))


def test_arguments_that_do_not_exist_are_named():
    with pytest.raises(ConfigError, match="betaz"):
        build_optimizer(_model(), _config(optimizer="adamw_torch", optim_args={"betaz": 1}))


def test_a_registered_optimizer_is_used():
    @register_optimizer("test_plain")
    def plain(groups, config):
        return torch.optim.SGD(groups, lr=config.learning_rate, nesterov=False)

    optimizer = build_optimizer(_model(), _config(optimizer="test_plain"))
    assert isinstance(optimizer, torch.optim.SGD)
