"""Attention: documents of a pack are alone with every backend, and the numbers are the same."""

import pytest
import torch
from runs import ALONE, run_config
from torch.nn import functional as F
from toys import toy_model

from tunecli.builder import build_model, build_vocabulary
from tunecli.data import Batch, Documents
from tunecli.errors import MissingDependencyError, ModelError
from tunecli.model.attention import (
    VARLEN,
    check_isolation,
    resolve_attention,
    settle_attention,
    varlen_attention,
)
from tunecli.model.loss import TokenLoss
from tunecli.model.precision import Precision

CPU = Precision(torch.float32, torch.device("cpu"))
BACKENDS = ["sdpa", "eager", "varlen"]
LENGTHS = [6, 1, 9, 4]


def model_with(tmp_path, backend):
    """The toy model as a run with `attn_implementation: backend` loads it."""
    config = run_config(tmp_path, attn_implementation=backend, sample_packing=True)
    return build_model(config, build_vocabulary(config), CPU, ALONE)


def pack(lengths, padding=0, weights=False):
    """Documents of such lengths as one pack, and each as a batch of its own."""
    ids = [torch.randint(8, 58, (n,)) for n in lengths]
    labels = [torch.cat([d[1:], torch.tensor([-100])]) for d in ids]
    scale = [torch.rand(n) for n in lengths] if weights else [None] * len(ids)
    tail = torch.zeros(padding, dtype=torch.long)
    packed = Batch(
        torch.cat([*ids, tail])[None],
        torch.cat([*labels, tail - 100])[None],
        torch.cat([torch.arange(n) for n in [*lengths, padding]])[None],
        torch.cat([*scale, tail.float()])[None] if weights else None,
    )
    alone = [
        Batch(d[None], t[None], torch.arange(len(d))[None], w if w is None else w[None])
        for d, t, w in zip(ids, labels, scale, strict=True)
    ]
    return packed, alone


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_packs_loss_is_the_sum_of_its_documents(tmp_path, backend, padding, weights):
    torch.manual_seed(0)
    model = model_with(tmp_path, backend).eval()
    packed, alone = pack(LENGTHS, padding, weights)
    total = TokenLoss()(model, packed)
    assert total.item() == pytest.approx(sum(TokenLoss()(model, b).item() for b in alone), abs=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_document_sees_another(tmp_path, backend):
    torch.manual_seed(0)
    model = model_with(tmp_path, backend).eval()
    packed, _ = pack(LENGTHS, padding=2)
    rows = packed.input_ids.repeat(len(LENGTHS) + 1, 1)
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    for row, start in enumerate(starts, 1):
        rows[row, start] = 8 + (rows[row, start] - 7) % 50
    positions = packed.position_ids.repeat(len(rows), 1)
    logits, _ = TokenLoss().logits(model, Batch(rows, rows, positions))
    logits = logits.unflatten(0, rows.shape)
    for row, (start, length) in enumerate(zip(starts, LENGTHS, strict=True), 1):
        moved = (logits[row] - logits[0]).abs().amax(-1) > 1e-6
        inside = torch.zeros_like(moved)
        inside[start : start + length] = True
        assert moved[start]
        assert not (moved & ~inside).any()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about itself
def test_flex_attention_keeps_documents_apart(tmp_path):
    # Once, and forward only: on a CPU it must be compiled first, and knows no backward.
    torch.manual_seed(0)
    model = model_with(tmp_path, "flex_attention").eval()
    packed, alone = pack(LENGTHS, padding=3)
    total = TokenLoss()(model, packed)
    model.set_attn_implementation("sdpa")
    assert total.item() == pytest.approx(sum(TokenLoss()(model, b).item() for b in alone), abs=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_varlen_is_masked_attention(kv_heads):
    torch.manual_seed(0)
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]])
    shapes = [(2, 4, 8, 16), (2, kv_heads, 8, 16), (2, kv_heads, 8, 16)]
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    out, _ = varlen_attention(
        torch.nn.Identity(), *given, None, scaling=0.3, documents=Documents.of(positions)
    )
    document = (positions == 0).cumsum(1)
    mask = (document[:, :, None] == document[:, None, :]) & torch.ones(8, 8).tril().bool()
    truth = F.scaled_dot_product_attention(
        *given, attn_mask=mask[:, None], scale=0.3, enable_gqa=True
    ).transpose(1, 2)  # fmt: skip
    assert torch.allclose(out, truth, atol=1e-12)
    weight = torch.randn_like(truth)
    ours = torch.autograd.grad((out * weight).sum(), given)
    theirs = torch.autograd.grad((truth * weight).sum(), given)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))


def test_a_model_called_from_outside_keeps_documents_apart(tmp_path):
    model = model_with(tmp_path, "varlen").eval()
    packed, _ = pack(LENGTHS)
    told, _ = TokenLoss().logits(model, packed)
    found = model(input_ids=packed.input_ids, position_ids=packed.position_ids).logits[0]
    assert torch.equal(told, found)
    plain = model(input_ids=packed.input_ids).logits[0]
    model.set_attn_implementation("sdpa")
    assert torch.allclose(plain, model(input_ids=packed.input_ids).logits[0], atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "packing", "settled"),
    [
        ("auto", True, VARLEN),
        ("auto", False, "sdpa"),
        ("varlen", False, VARLEN),
        ("sdpa", True, "sdpa"),
        ("eager", True, "eager"),
    ],
)
def test_which_backend_is_taken(tmp_path, backend, packing, settled):
    config = run_config(tmp_path, attn_implementation=backend, sample_packing=packing)
    model = build_model(config, build_vocabulary(config), CPU, ALONE)
    assert model.config._attn_implementation == settled


def test_windows_need_a_mask(tmp_path):
    model = toy_model(attn_implementation="sdpa")
    model.config.sliding_window = 8
    config = run_config(tmp_path, attn_implementation="varlen", sequence_len=8)
    settle_attention(model, config)
    assert model.config._attn_implementation == VARLEN
    model.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match=r"windows of 8 tokens\. Use auto"):
        settle_attention(model, config.model_copy(update={"sequence_len": 9}))
    auto = {"sequence_len": 9, "attn_implementation": "auto", "sample_packing": True}
    settle_attention(model, config.model_copy(update=auto))
    assert model.config._attn_implementation == "sdpa"


def test_a_leak_is_refused():
    check_isolation(toy_model(), CPU, TokenLoss())
    leaking = toy_model()
    forward = leaking.forward
    # What an attention backend does that looks at no positions:
    leaking.forward = lambda position_ids, **arguments: forward(**arguments)
    with pytest.raises(ModelError, match="see each other"):
        check_isolation(leaking, CPU, TokenLoss())


def test_backends_by_name():
    assert resolve_attention("auto") is None
    assert resolve_attention("eager") == "eager"
    with pytest.raises(MissingDependencyError, match="flash-attn"):
        resolve_attention("flash_attention_2")


def test_documents_of_positions():
    documents = Documents.of(torch.tensor([[0, 1, 2, 0], [0, 1, 5, 6]]))
    assert documents.bounds.tolist() == [0, 3, 4, 6, 8]
    assert documents.bounds.dtype == torch.int32
    assert documents.lengths == [3, 1, 2, 2]
    assert documents.longest == 4
