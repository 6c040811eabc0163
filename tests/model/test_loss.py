"""The loss against plain torch: weights, parts of the vocabulary, families that scale logits."""

import pytest
import torch
from runs import ALONE, chat_row, run_config
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig

from tunecli.builder import build_model, build_vocabulary
from tunecli.data import Batch
from tunecli.model.linear_loss import linear_cross_entropy
from tunecli.model.loss import TokenLoss, fit_loss
from tunecli.model.precision import Precision

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8}
CPU = Precision(torch.float32, torch.device("cpu"))


def batch(rows=2, length=12, weights=False):
    torch.manual_seed(1)
    ids = torch.randint(8, 58, (rows, length))
    labels = ids.roll(-1, 1).masked_fill(torch.rand(rows, length) < 0.6, -100)
    labels[:, -1] = -100
    positions = torch.arange(length).repeat(rows, 1)
    return Batch(ids, labels, positions, torch.rand(rows, length) if weights else None)


def plain_loss(model, given):
    """The definition, in the plainest words."""
    logits = model(input_ids=given.input_ids, position_ids=given.position_ids).logits.double()
    losses = F.cross_entropy(
        logits.flatten(0, 1), given.labels.flatten(), ignore_index=-100, reduction="none"
    )
    return (losses if given.weights is None else losses * given.weights.flatten()).sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("elements", [1, 7 * 50, 10**6])
def test_linear_cross_entropy_is_plain_torch(elements, weighted):
    torch.manual_seed(0)
    hidden = torch.randn(23, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(50, (23,))
    weights = torch.rand(23) if weighted else None
    scale = 1.0 if weights is None else weights.double()
    truth = (F.cross_entropy(hidden @ weight.T, labels, reduction="none") * scale).sum() * 0.7
    ours = linear_cross_entropy(hidden, weight, labels, weights, elements) * 0.7
    assert ours.item() == pytest.approx(truth.item(), rel=1e-6)
    expected = torch.autograd.grad(truth, [hidden, weight])
    actual = torch.autograd.grad(ours, [hidden, weight])
    # Logits are float32 whatever the products are.
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(actual, expected, strict=True))


def test_a_frozen_output_embedding_gets_no_gradient():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(50, 8)
    linear_cross_entropy(hidden, weight, torch.arange(5)).backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_no_tokens_still_reach_every_parameter():
    hidden = torch.randn(0, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("head", ["all", "kept", "parts"])
@pytest.mark.parametrize("options", [{}, LORA])
def test_every_way_gives_the_same_loss_and_gradients(tmp_path, head, weights, rows, options):
    config = run_config(tmp_path, **options)
    model = build_model(config, build_vocabulary(config), CPU, ALONE)
    given = batch(rows, weights=weights)
    trained = [p for p in model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(plain_loss(model, given), trained)
    loss = TokenLoss(head=head)(model, given)
    assert loss.item() == pytest.approx(plain_loss(model, given).item(), rel=1e-5)
    for a, b in zip(torch.autograd.grad(loss, trained), expected, strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "head"),
    [
        (Gemma2Config(final_logit_softcapping=5.0), "kept"),
        (GraniteConfig(logits_scaling=4.0), "kept"),
        (Gemma2Config(final_logit_softcapping=None), "parts"),
    ],
)
def test_families_that_change_logits_keep_their_own_head(config, head):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
    for name, value in sizes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    loss = fit_loss(TokenLoss(), model, CPU, alone=True)
    assert loss.head == head
    assert fit_loss(TokenLoss(), model, CPU, alone=False).head == "kept"
    given = batch()
    assert loss(model, given).item() == pytest.approx(plain_loss(model, given).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, "parts"),
        (LORA, "parts"),
        ({**LORA, "lora_modules_to_save": ["embed_tokens", "lm_head"], "tied": False}, "kept"),
    ],
)  # fmt: skip
def test_heads_under_adapters(tmp_path, options, head):
    config = run_config(tmp_path, [chat_row("w0", "w1")], **options)
    model = build_model(config, build_vocabulary(config), CPU, ALONE)
    assert fit_loss(TokenLoss(), model, CPU, alone=True).head == head


def test_half_precision_gradients_are_scaled_before_they_are_made(tmp_path):
    config = run_config(tmp_path)
    model = build_model(config, build_vocabulary(config), CPU, ALONE)
    half = Precision(torch.float16, torch.device("cpu"))
    assert fit_loss(TokenLoss(), model, half, alone=True).head == "kept"
