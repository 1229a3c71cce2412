"""Steps of random programs that move, write, multiply and normalize; see `random_ops.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from support.models.random_ops import Draw, Step, Value, kind


def _has_dims(value: Value) -> bool:
    return value.tensor.dim() > 0 and value.tensor.numel() > 0


def _matrix(value: Value) -> bool:
    return value.is_float and value.tensor.dim() >= 2 and value.tensor.numel() > 0


@kind
def move(d: Draw) -> Step | None:
    i = d.pick(_has_dims)
    if i is None:
        return None
    t = d.tensor(i)
    dim, other = d.dim(t), d.dim(t)
    size = t.shape[dim]
    start = d.randrange(size)
    stop, step = d.randint(start + 1, size), d.randint(1, 3)
    order = d.sample(range(t.dim()), t.dim())
    shift, times = d.randint(-3, 3), d.randint(1, 3)
    ops = [
        lambda x: x.permute(order), lambda x: x.transpose(dim, other), lambda x: x.flip(dim), lambda x: x.roll(shift, dim),
        lambda x: x.flatten(), lambda x: x.unsqueeze(dim), lambda x: x.select(dim, start), lambda x: x.narrow(dim, start, stop - start),
        lambda x: x.movedim(dim, other), lambda x: x.squeeze(), lambda x: x.reshape(-1, x.shape[-1]), lambda x: x.chunk(2, dim)[0],
        lambda x: x.unfold(dim, min(2, size), 1), lambda x: x.repeat_interleave(times, dim), lambda x: x.unsqueeze(0).expand(times, *x.shape),
        lambda x: x.tile((times,)), lambda x: x.index_select(dim, torch.tensor([start, stop - 1, start])), lambda x: x.mT if x.dim() > 1 else x,
        lambda x: x[..., ::step], lambda x: x[None, ..., -1:], lambda x: x.diagonal() if x.dim() > 1 else x.diag(), lambda x: x.tril(shift) if x.dim() > 1 else x,
        lambda x: torch.cat([x, x.flip(dim)], dim), lambda x: torch.stack([x, x], dim), lambda x: x.view(x.shape), lambda x: x.T if x.dim() == 2 else x,
    ]  # fmt: skip
    return d.choice(ops), [i]


@kind
def join(d: Draw) -> Step | None:
    i = d.pick(_has_dims)
    if i is None:
        return None
    t = d.tensor(i)
    j = d.pick(lambda v: v.tensor.dim() == t.dim() and v.tensor.shape[1:] == t.shape[1:])
    return None if j is None else ((lambda x, y: torch.cat([x, y, x])), [i, j])


@kind
def pad(d: Draw) -> Step | None:
    i = d.pick(lambda v: 2 <= v.tensor.dim() <= 4 and v.is_float and v.tensor.shape[-1] > 2)
    if i is None:
        return None
    mode = d.choice(["constant", "constant", "reflect", "replicate", "circular"])
    widths = (d.randint(0, 2), d.randint(0, 2))
    return (lambda x: F.pad(x, widths, mode=mode)), [i]


@kind
def gather(d: Draw) -> Step | None:
    i = d.pick(_has_dims)
    if i is None:
        return None
    t = d.tensor(i)
    dim = d.dim(t)
    size = t.shape[dim]
    j = d.pick(lambda v: not v.is_float and v.tensor.dtype != torch.bool and v.exact and v.tensor.numel() > 0)
    if j is None:
        return None
    ops = [
        lambda x, i: x.index_select(dim, i.flatten()[:5].long().remainder(size)),
        lambda x, i: x[i.flatten()[:4].long().remainder(x.shape[0])],
        lambda x, i: torch.take_along_dim(x, torch.argsort(torch.arange(size).expand_as(x.movedim(dim, -1)), -1).movedim(-1, dim), dim),
        lambda x, i: x.flatten().take(i.long().remainder(x.numel())),
    ]  # fmt: skip
    return d.choice(ops), [i, j]


@kind
def write(d: Draw) -> Step | None:
    i = d.pick(_has_dims)
    if i is None:
        return None
    t = d.tensor(i)
    dim = d.dim(t)
    at, s = d.randrange(t.shape[dim]), d.scalar(t)

    def fill(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.select(dim, at).fill_(s)
        return y

    def add(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.narrow(dim, at, 1).add_(1)
        return y

    def assign(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[..., :1] = x[..., -1:]
        return y

    def at_mask(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x != x] = 0
        return y

    def accumulate(x: torch.Tensor) -> torch.Tensor:
        return x.index_add(dim, torch.tensor([at, at]), x.narrow(dim, at, 1).repeat_interleave(2, dim))

    def scatter(x: torch.Tensor) -> torch.Tensor:
        return x.index_fill(dim, torch.tensor([at]), s) + x.index_copy(dim, torch.tensor([at]), x.narrow(dim, 0, 1))

    ops = [fill, assign, at_mask] if t.dtype == torch.bool else [fill, add, assign, at_mask, accumulate, scatter]
    return d.choice(ops), [i]


@kind
def product(d: Draw) -> Step | None:
    i = d.pick(_matrix)
    if i is None:
        return None
    t = d.tensor(i)
    j = d.pick(lambda v: v.is_float and v.tensor.dtype == t.dtype and v.tensor.dim() == 2)
    if j is not None and d.tensor(j).shape[1] == t.shape[-1] and d.random() < 0.5:
        return F.linear, [i, j]
    ops = [lambda x: x @ x.mT, lambda x: x.mT @ x, lambda x: torch.einsum("...ij,...ij->...i", x, x)]
    ops += [
        lambda x: x @ x[..., 0, :].unsqueeze(-1),
        lambda x: torch.baddbmm(x.flatten(0, -2)[None], *_ones(x), alpha=0.3),
    ]
    return d.choice(ops), [i]


def _ones(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.flatten(0, -2).shape
    return x.new_ones(1, rows, 3), x.new_ones(1, 3, columns)


@kind
def layer(d: Draw) -> Step | None:
    i = d.pick(lambda v: v.is_float and v.tensor.dim() in (3, 4) and v.tensor.numel() > 0)
    if i is None:
        return None
    t = d.tensor(i)
    flat = t.dim() == 3
    groups = d.choice([g for g in (1, 2, 3, t.shape[1]) if t.shape[1] % g == 0])
    weight = torch.linspace(-1, 1, 2 * groups * (t.shape[1] // groups) * 3, dtype=torch.float64)
    weight = weight.reshape(2 * groups, t.shape[1] // groups, 3, *([] if flat else [1]))
    conv, pool, average = (F.conv1d, F.max_pool1d, F.avg_pool1d) if flat else (F.conv2d, F.max_pool2d, F.avg_pool2d)
    stride, factor = d.randint(1, 2), d.choice([0.5, 1.1, 2.0, 1.7])
    mode = d.choice(["nearest", "linear" if flat else "bilinear", "nearest-exact"])
    ops = [
        lambda x: conv(x, weight.to(x.dtype), stride=stride, padding=1, groups=groups), lambda x: pool(x, 2, stride, 1),
        lambda x: average(x, 2, stride, 1), lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: F.group_norm(x, groups),
        lambda x: F.rms_norm(x, x.shape[-1:]), lambda x: F.interpolate(x, scale_factor=factor, mode=mode),
        lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: F.instance_norm(x), lambda x: F.glu(torch.cat([x, x], -1)),
    ]  # fmt: skip
    return d.choice(ops), [i]
