import sys

import pytest
import torch
from toys import toy_model

from tunecli import register_optimizer
from tunecli.config import Config
from tunecli.errors import ConfigError, MissingDependencyError
from tunecli.training.optimizer import build_optimizer


def _config(**values):
    return Config(base_model="m", datasets=[{"path": "x"}], learning_rate=0.1, **values)


BITSANDBYTES = [
    "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
    "lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit",
]  # fmt: skip


def _descend(model, optimizer, steps=30):
    """Fit a fixed target; return the first and the last loss."""
    torch.manual_seed(0)
    given, wanted = torch.randn(64, 64), torch.randn(64, 64)
    losses = []
    for _ in range(steps):
        loss = (model(given) - wanted).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses[0], losses[-1]


def _model():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))


def test_matrices_decay_and_vectors_do_not():
    optimizer = build_optimizer(_model(), _config(weight_decay=0.5))
    decay = {group["kind"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decay == {"matrix": 0.5, "vector": 0.0}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
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


@pytest.mark.filterwarnings("ignore")  # of torch's compiler, and of paged states on a CPU
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("adafactor", "torch"),
        ("muon", "torch"),
        ("lion_pytorch", "lion_pytorch"),
        ("adamw_torch_8bit", "torchao"),
        *((name, "bitsandbytes") for name in BITSANDBYTES),
    ],
)
def test_every_optimizer_descends(name, module):
    pytest.importorskip(module)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    config = _config(optimizer=name).model_copy(update={"learning_rate": 0.01})
    optimizer = build_optimizer(model, config)
    before, after = _descend(model, optimizer)
    assert after < 0.8 * before


def test_muon_takes_the_matrices_of_the_layers_alone():
    model = toy_model()
    optimizer = build_optimizer(model, _config(optimizer="muon", weight_decay=0.5))
    muon, adamw = optimizer.parts
    names = {id(p): n for n, p in model.named_parameters()}
    first = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert first == {n for n in names.values() if "_proj" in n}
    rest = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert rest == set(names.values()) - first
    # The loop sets rates on the whole, and checkpoints read its state.
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    model(input_ids=torch.arange(8)[None]).logits.sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    assert len(optimizer.state) == len(names)
    copy = build_optimizer(model, _config(optimizer="muon"))
    copy.load_state_dict(optimizer.state_dict())
    copy.step()
    assert copy.parts[0].state is copy.state
    assert copy.parts[1].param_groups[0] is copy.param_groups[1]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MissingDependencyError, match="pip install torchao"):
        build_optimizer(_model(), _config(optimizer="adamw_torch_8bit"))
