"""Ring attention (arXiv:2310.01889) over rows dealt in zigzag: no process ever has all keys.

Keys and values travel round the ring while each process works on the block that it has; partial
results are merged by their logarithmic sums. Process i holds parts i and 2c-1-i of a row, so that
every block is either whole or the ordinary causal one, and all processes have equal work:

- its own block: causal;
- a block from a process before it: all its queries see the first half of those keys;
- a block from a process behind it: its later queries see all of those keys.

Masks are not needed and not possible: no packed documents, no sliding windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

aten = torch.ops.aten
Pair = tuple[torch.Tensor, torch.Tensor]


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: dist.ProcessGroup,
    scaling: float,
) -> torch.Tensor:
    """Causal attention of the whole row for this process's queries.

    Args:
        query: `[batch, heads, sequence / c, head]`, the process's two zigzag parts in order.
        key: `[batch, kv_heads, sequence / c, head]`.
        value: Like `key`.
        group: The processes that share the row, in the order of their parts.
        scaling: Factor of the scores.
    """
    return _Ring.apply(query, key, value, group, scaling)  # type: ignore[no-untyped-call]


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        group: dist.ProcessGroup,
        scaling: float,
    ) -> torch.Tensor:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        half = query.shape[2] // 2
        travelling = torch.stack([key, value])
        coming, requests = _pass_on(travelling, group)
        out, sums = _attend(query, key, value, True, scaling)
        out = out.float()
        for step in range(1, size):
            _wait(requests)
            travelling = coming
            if step < size - 1:
                coming, requests = _pass_on(travelling, group)
            k, v = travelling
            if (rank - step) % size < rank:
                part = _attend(query, k[:, :, :half], v[:, :, :half], False, scaling)
                out, sums = _merge((out, sums), part)
            else:
                part = _attend(query[:, :, half:], k, v, False, scaling)
                later = _merge((out[:, :, half:], sums[:, :, half:]), part)
                out = torch.cat([out[:, :, :half], later[0]], dim=2)
                sums = torch.cat([sums[:, :, :half], later[1]], dim=2)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.group, ctx.scaling = group, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        group, scaling = ctx.group, ctx.scaling
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        half = query.shape[2] // 2
        grad = grad.contiguous()
        travelling = torch.stack([key, value])
        coming, requests = _pass_on(travelling, group)
        d_query, d_key, d_value = _attend_backward(
            grad, query, key, value, out, sums, True, scaling
        )
        d_query = d_query.float()
        # Gradients of keys travel with them, and so come home after a whole round.
        gathered = torch.stack([d_key, d_value]).float()
        for step in range(1, size):
            _wait(requests)
            travelling = coming
            if step < size - 1:
                coming, requests = _pass_on(travelling, group)
            k, v = travelling
            arriving, moving = _pass_on(gathered, group)
            if (rank - step) % size < rank:
                parts = _attend_backward(
                    grad, query, k[:, :, :half], v[:, :, :half], out, sums, False, scaling
                )
                d_query += parts[0]
                keys = slice(0, half)
            else:
                later = (x[:, :, half:].contiguous() for x in (grad, query, out, sums))
                g, q, o, s = later
                parts = _attend_backward(g, q, k, v, o, s, False, scaling)
                d_query[:, :, half:] += parts[0]
                keys = slice(None)
            _wait(moving)
            gathered = arriving
            gathered[0][:, :, keys] += parts[1]
            gathered[1][:, :, keys] += parts[2]
        gathered, moving = _pass_on(gathered, group)
        _wait(moving)
        d_key, d_value = gathered.to(key.dtype)
        return d_query.to(query.dtype), d_key, d_value, None, None


def _pass_on(x: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, list[Any]]:
    """Send `x` to the next process; return where the previous one's arrives, and what to await."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = x.contiguous()
    received = torch.empty_like(x)
    after = dist.get_global_rank(group, (rank + 1) % size)
    before = dist.get_global_rank(group, (rank - 1) % size)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, after, group),
            dist.P2POp(dist.irecv, received, before, group),
        ]
    )
    return received, requests


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.wait()


def _merge(one: Pair, two: Pair) -> Pair:
    """Join attention over two sets of keys: outputs and logarithms of their sums."""
    (out, sums), (other, others) = one, two
    total = torch.logaddexp(sums, others)
    weigh = (sums - total).exp().unsqueeze(-1), (others - total).exp().unsqueeze(-1)
    return out * weigh[0] + other * weigh[1], total


def _repeated(query: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    groups = query.shape[1] // tensors[0].shape[1]
    return [x.repeat_interleave(groups, dim=1).contiguous() for x in tensors]


def _flash(query: torch.Tensor) -> bool:
    """Whether the GPU's flash kernel takes these; the CPU's takes everything."""
    return query.is_cuda and query.dtype != torch.float32 and query.shape[-1] % 8 == 0


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scaling: float
) -> Pair:
    """Attention over one block, and the logarithms of its sums `[batch, heads, queries]`."""
    query = query.contiguous()
    key, value = _repeated(query, key, value)
    if _flash(query):
        found = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scaling
        )
        return found[0], found[1]
    if not query.is_cuda:
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scaling
        )
        return out, sums
    scores = _scores(query, key, causal, scaling)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _attend_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    causal: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of one block's queries, keys and values; `out` and `sums` are of all blocks."""
    kv_heads = key.shape[1]
    key, value = _repeated(query, key, value)
    if _flash(query):
        # Not varlen, no dropout: the sequence offsets and the random state are not read.
        none = torch.empty(0, dtype=torch.uint64, device=query.device)
        parts = aten._scaled_dot_product_flash_attention_backward(
            grad, query, key, value, out, sums, None, None, query.shape[2], key.shape[2],
            0.0, causal, none, none, scale=scaling,
        )  # fmt: skip
    elif not query.is_cuda:
        parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, out, sums, 0.0, causal, scale=scaling
        )
    else:
        weights = (_scores(query, key, causal, scaling) - sums.unsqueeze(-1)).exp()
        inner = (grad * out).sum(-1, keepdim=True)
        d_scores = weights * (grad @ value.transpose(2, 3) - inner) * scaling
        d_key = d_scores.transpose(2, 3) @ query
        parts = (d_scores @ key, d_key, weights.transpose(2, 3) @ grad)
    d_query, d_key, d_value = parts
    # Heads that share a key add up.
    d_key, d_value = (x.unflatten(1, (kv_heads, -1)).sum(2) for x in (d_key, d_value))
    return d_query, d_key, d_value


def _scores(query: torch.Tensor, key: torch.Tensor, causal: bool, scaling: float) -> torch.Tensor:
    scores = query @ key.transpose(2, 3) * scaling
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores
