"""Random small torch functions of odd shapes, for tests that compare every level with PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mlirc.frontend.attention import attention_op

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
SIZES = (1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33)
SMALL = (1, 2, 3, 5, 7, 8)
INTEGERS = (torch.int64, torch.int32, torch.int8)


@dataclass
class Case:
    """A function with its inputs, and how far from PyTorch's f64 results its own may be, relative to the largest."""

    function: Callable
    inputs: tuple[torch.Tensor, ...]
    tolerance: float


class Chooser(random.Random):
    """Random choices, and tensors of them."""

    def size(self) -> int:
        return self.choice(SIZES)

    def shape(self, rank: int, sizes: Sequence[int] = SMALL) -> list[int]:
        return [self.choice(sizes) for _ in range(rank)]

    def floats(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator(), dtype=torch.float64).to(dtype)

    def integers(self, low: int, high: int, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, tuple(shape), generator=self.generator()).to(dtype)

    def distinct(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Values without ties, so that sorting has one answer."""
        count = 1
        for n in shape:
            count *= n
        return (torch.randperm(count, generator=self.generator()).reshape(tuple(shape)) - count // 2).to(dtype)

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.randrange(1 << 30))

    def dtype(self) -> tuple[torch.dtype, float]:
        name = self.choice(["f32", "f32", "bf16", "bf16", "f16", "f64"])
        return DTYPES[name], {"f32": 2e-5, "bf16": 4e-2, "f16": 6e-3, "f64": 1e-9}[name]


# Continuous functions, without poles: rounding must not decide.
UNARY: list[Callable] = [
    torch.tanh, torch.sigmoid, F.silu, F.gelu, F.relu, torch.neg, torch.abs, torch.sin, torch.cos, torch.square,
    lambda x: F.gelu(x, approximate="tanh"), lambda x: torch.rsqrt(x.abs() + 0.5), lambda x: x.clamp(-0.5, 0.75),
    lambda x: torch.exp(-x.abs()), lambda x: torch.log1p(x.abs()), lambda x: x * 2 - 1, F.softplus, torch.erf,
    lambda x: torch.where(x > 0, x, 0.5 * x), F.elu, F.hardswish, lambda x: (x + 3).pow(2.0), lambda x: 1 / (2 + x.abs()),
]  # fmt: skip
BINARY: list[Callable] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.where(x > y, x - y, (y - x) * 0.5), lambda x, y: torch.atan2(x, y.abs() + 1),
]  # fmt: skip


def chain(r: Chooser) -> Callable:
    """A few elementwise functions, one after the other."""
    steps = r.sample(UNARY, r.randint(1, 3))

    def function(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x

    return function


def elementwise(r: Chooser) -> Case:
    dtype, tolerance = r.dtype()
    shape = r.shape(r.randint(1, 4))
    other = [n if r.random() < 0.6 else 1 for n in shape][r.randint(0, len(shape) - 1) :]
    order = r.sample(range(len(shape)), len(shape))
    before, after, join, turn = chain(r), chain(r), r.choice(BINARY), r.random() < 0.5

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = join(before(x), y)
        return after(z.permute(order) if turn else z)

    return Case(function, (r.floats(shape, dtype), r.floats(other, dtype)), tolerance)


def reduction(r: Chooser) -> Case:
    dtype, tolerance = r.dtype()
    shape = r.shape(r.randint(1, 4), SIZES[:9])
    shape[r.randrange(len(shape))] = r.choice([1, 63, 64, 65, 257, 1031])
    dims = r.sample(range(len(shape)), r.randint(1, len(shape)))
    keep = r.random() < 0.5
    reduce = r.choice([
        lambda x: x.sum(dims, keepdim=keep), lambda x: x.mean(dims, keepdim=keep), lambda x: x.amax(dims, keepdim=keep),
        lambda x: x.amin(dims, keepdim=keep), lambda x: x.square().mean(dims, keepdim=keep).sqrt(),
        lambda x: torch.logsumexp(x, dims, keepdim=keep), lambda x: x.var(dims, correction=0, keepdim=keep),
    ])  # fmt: skip
    before = chain(r)
    return Case(lambda x: reduce(before(x)), (r.floats(shape, dtype),), tolerance)


def long_reduction(r: Chooser) -> Case:
    """Reductions too long for one block, and of everything to a scalar."""
    dtype, tolerance = r.choice([(torch.float32, 2e-5), (torch.bfloat16, 4e-2), (torch.float64, 1e-9)])
    length = r.choice([513, 1031, 4096, 5003, 33000, 40009])
    shape, dims = r.choice([([length], [0]), ([length, 3], [0]), ([2, length], [1]), ([3, length // 3], [0, 1]),
                            ([7, 3, length // 7], [0, 2]), ([length // 5, 5], [0, 1])])  # fmt: skip
    function = r.choice([
        lambda x: x.sum(dims), lambda x: x.square().mean(dims, keepdim=True), lambda x: x.amax(dims) - x.amin(dims),
        lambda x: ((x.int() * 10).sum(dims), x.int().amax(dims)), lambda x: x.softmax(dims[-1]),
        lambda x: x / x.square().sum(dims, keepdim=True).sqrt(), lambda x: (x > 3).sum(dims),
    ])  # fmt: skip
    return Case(function, (r.floats(shape, dtype),), tolerance)


def norm(r: Chooser) -> Case:
    dtype, tolerance = r.dtype()
    shape = [*r.shape(r.randint(0, 2)), r.choice([1, 2, 31, 64, 65, 127, 257]), r.size()]
    if r.random() < 0.6:
        shape[-2:] = shape[:-3:-1]
    dim, n = r.randrange(len(shape)), shape[-1]
    weight, bias = r.floats([n], dtype), r.floats([n], dtype)
    function = r.choice([
        lambda x, w, b: (x * w).softmax(dim) + b, lambda x, w, b: F.layer_norm(x + b, (n,), w, b),
        lambda x, w, b: F.rms_norm(x, (n,), w, 1e-5) * b, lambda x, w, b: (x + w).log_softmax(-1) * b,
        lambda x, w, b: F.layer_norm(x, (n,)) * w + b, lambda x, w, b: F.normalize(x * w + b, dim=dim),
    ])  # fmt: skip
    return Case(function, (r.floats(shape, dtype), weight, bias), tolerance)


def matmul(r: Chooser) -> Case:
    dtype, tolerance = r.dtype()
    m, n, k = (r.choice([*SIZES, 63, 65]) for _ in range(3))
    after = chain(r)
    kind = r.choice(["linear", "linear", "matmul", "bmm", "transposed", "residual", "gated", "broadcast"])
    scale = k**-0.5
    x, w, b = r.floats([m, k], dtype), r.floats([n, k], dtype) * scale, r.floats([n], dtype)
    if kind == "linear":
        lead = r.shape(r.randint(0, 2), (1, 2, 3))
        return Case(lambda x, w, b: after(F.linear(x, w, b)), (r.floats([*lead, m, k], dtype), w, b), tolerance)
    if kind == "bmm":
        batch = r.choice([1, 2, 3])
        first, second = r.floats([batch, m, k], dtype) * scale, r.floats([batch, k, n], dtype)
        return Case(lambda x, y: after(torch.bmm(x, y)), (first, second), tolerance)
    if kind == "broadcast":
        first, second = r.floats([2, 1, m, k], dtype) * scale, r.floats([3, k, n], dtype)
        return Case(lambda x, y: after(x @ y), (first, second), tolerance)
    if kind == "residual":
        return Case(lambda x, w, y: x @ w.T + y, (x, w, r.floats([m, n], dtype)), tolerance)
    if kind == "gated":
        return Case(lambda x, w, v: F.silu(x @ w.T) * (x @ v.T), (x, w, r.floats([n, k], dtype) * scale), tolerance)
    if kind == "transposed":
        return Case(lambda x, w: (w @ x.T).T.sum(-1), (x, w), tolerance)
    return Case(lambda x, w: after(x) @ w.T, (x, w), tolerance)


def attention(r: Chooser) -> Case:
    dtype = r.choice([torch.float32, torch.bfloat16, torch.float16])
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}[dtype]
    batch, kv_heads, group, size = r.choice([1, 2]), r.choice([1, 2]), r.choice([1, 2, 3]), r.choice([1, 7, 8, 16, 20])
    queries, keys = r.size(), r.size()
    causal = r.random() < 0.5
    window = r.choice([0, 0, 1, 3]) if causal else 0
    softcap = r.choice([0.0, 0.0, 2.0])
    q = r.floats([batch, kv_heads * group, queries, size], dtype)
    k, v = (r.floats([batch, kv_heads, keys, size], dtype) for _ in range(2))
    mask_shape = [n if r.random() < 0.5 else 1 for n in (batch, kv_heads * group, queries, keys)]
    style = r.choice(["none", "bool", "float", "sdpa"])
    if style == "sdpa":
        turned = q.transpose(1, 2).contiguous()
        return Case(lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2), k, v, enable_gqa=True) * 2,
                    (turned, k, v), tolerance)  # fmt: skip
    if style == "none":
        return Case(lambda q, k, v: attention_op(q, k, v, None, None, [], 0.3, causal, window, softcap),
                    (q, k, v), tolerance)  # fmt: skip
    if style == "bool":
        mask = r.integers(0, 3, mask_shape) > 0
        return Case(lambda q, k, v, m: attention_op(q, k, v, m, None, [], 0.3, causal, window, softcap),
                    (q, k, v, mask), tolerance)  # fmt: skip
    bias = r.floats(mask_shape, dtype)
    return Case(lambda q, k, v, b: attention_op(q, k, v, None, b, [], 0.3, causal, window, softcap),
                (q, k, v, bias), tolerance)  # fmt: skip


def rearrangement(r: Chooser) -> Case:
    """Embeddings, concatenations, slices, rotations: what moves data."""
    dtype, tolerance = r.dtype()
    rows, length, half = r.choice(SMALL), r.choice(SIZES), r.choice([1, 3, 4])
    x = r.floats([2, rows, length, 2 * half], dtype)
    start, step = r.randrange(length), r.choice([1, 1, 2, 3])
    kind = r.choice(["rope", "embedding", "cat", "slice", "split", "pad", "stack", "expand"])
    if kind == "rope":
        angles = torch.outer(torch.arange(length), torch.rand(half, generator=r.generator()))
        cos, sin = angles.cos().repeat(1, 2).to(dtype), angles.sin().repeat(1, 2).to(dtype)
        return Case(
            lambda x, c, s: x * c + torch.cat([-x[..., half:], x[..., :half]], -1) * s, (x, cos, sin), tolerance
        )
    if kind == "embedding":
        table, ids = r.floats([11, length], dtype), r.integers(0, 11, [2, rows], r.choice([torch.int64, torch.int32]))
        return Case(lambda w, i: F.embedding(i, w) * 3 + w[:1], (table, ids), tolerance)
    if kind == "cat":
        other, dim = r.floats([2, rows, r.choice(SMALL), 2 * half], dtype), r.choice([2, -2])
        return Case(lambda x, y: torch.cat([x, y.tanh(), x[:, :, :1]], dim), (x, other), tolerance)
    if kind == "slice":
        return Case(lambda x: (x[:, :, start::step] * 2, x[:, -1:].flatten(1)), (x,), tolerance)
    if kind == "split":
        return Case(lambda x: [F.silu(a) * b for a, b in [x.chunk(2, -1)]], (x,), tolerance)
    if kind == "pad":
        return Case(lambda x: F.pad(x, (1, 2, 0, 3), value=0.5).flip(2), (x,), tolerance)
    if kind == "stack":
        return Case(lambda x: torch.stack([x, x + 1], 1).transpose(2, 3).reshape(4, -1), (x,), tolerance)
    return Case(lambda x: x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(2, rows * 3, -1).tril(), (x,), tolerance)


def convolution(r: Chooser) -> Case:
    dtype, tolerance = r.dtype()
    rank, groups, stride = r.choice([1, 2, 2]), r.choice([1, 1, 2]), r.choice([1, 2, 3])
    padding, size, inner, outer = (
        r.choice([0, 1]),
        r.choice([1, 2, 3]),
        groups * r.choice([1, 3]),
        groups * r.choice([1, 4]),
    )
    image = [r.choice([5, 7, 8, 13]) for _ in range(rank)]
    x = r.floats([r.choice([1, 2]), inner, *image], dtype)
    w, b = r.floats([outer, inner // groups, *[size] * rank], dtype), r.floats([outer], dtype)
    kind = r.choice(["conv", "conv", "max", "average", "adaptive", "depthwise"])
    convolve, dilation = {1: F.conv1d, 2: F.conv2d}[rank], r.choice([1, 2])
    if kind == "conv":
        return Case(lambda x, w, b: F.relu(convolve(x, w, b, stride, padding, dilation, groups)), (x, w, b), tolerance)
    if kind == "depthwise":
        w = r.floats([inner, 1, *[size] * rank], dtype)
        return Case(lambda x, w: F.silu(convolve(x, w, None, stride, padding, 1, inner)), (x, w), tolerance)
    pool = {1: F.max_pool1d, 2: F.max_pool2d}[rank] if kind == "max" else {1: F.avg_pool1d, 2: F.avg_pool2d}[rank]
    if kind == "adaptive":
        adaptive = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d}[rank]
        return Case(lambda x: adaptive(x, 1) * 2, (x,), tolerance)
    return Case(lambda x: pool(x, 3, stride, padding), (x,), tolerance)


def ordering(r: Chooser) -> Case:
    """What finds, sorts, accumulates and scatters."""
    dtype = r.choice([torch.float32, torch.int64, torch.int32])
    shape = [r.choice([1, 3, 5]), r.choice([1, 2, 7, 17, 33])]
    x, dim = r.distinct(shape, dtype), r.choice([0, 1])
    count = r.randint(1, shape[1])
    kind = r.choice(["argmax", "argmin", "cumsum", "sort", "topk", "scatter", "index_add", "gather", "max", "select"])
    index = r.integers(0, shape[1], shape)
    if kind == "scatter":
        return Case(lambda x, i: x.scatter_add(1, i, x * 2), (x, index), 1e-6)
    if kind == "index_add":
        return Case(lambda x, i: x.index_put((i,), x, accumulate=True), (x, r.integers(0, shape[0], [shape[0]])), 1e-6)
    if kind == "gather":
        return Case(lambda x, i: x.gather(1, i) + x, (x, index), 1e-6)
    if kind == "select":
        return Case(lambda x, i: x.index_select(1, i[0]), (x, index), 1e-6)
    functions: dict[str, Callable] = {
        "argmax": lambda x: x.argmax(dim), "argmin": lambda x: x.argmin(dim, keepdim=True),
        "cumsum": lambda x: x.cumsum(dim), "sort": lambda x: torch.sort(x, dim, descending=bool(dim)),
        "topk": lambda x: torch.topk(x, count), "max": lambda x: x.max(dim),
    }  # fmt: skip
    return Case(functions[kind], (x,), 1e-6)


def integers(r: Chooser) -> Case:
    first, second = r.choice(INTEGERS), r.choice(INTEGERS)
    shape = r.shape(r.randint(1, 3))
    x, y = r.integers(-20, 20, shape, first), r.integers(1, 9, [n if r.random() < 0.6 else 1 for n in shape], second)
    function = r.choice([
        lambda x, y: (x + y, x * y, x - y), lambda x, y: (x // y, x % y), lambda x, y: (x > y, (x == y) | (x < 0)),
        lambda x, y: (x & y, x ^ y, ~x), lambda x, y: ((x > y).sum(-1), x.sum(-1), x.amax(0)),
        lambda x, y: (x.float() / y, x.bool(), y.to(torch.int8)), lambda x, y: torch.where(x > y, x, y),
        lambda x, y: ((x > 0).any(-1), (x > -19).all(0)), lambda x, y: (x.abs(), x.clamp(-3, 5), (x > 0).int() * 3),
    ])  # fmt: skip
    return Case(function, (x, y), 1e-6)


def empty(r: Chooser) -> Case:
    """A dimension of no elements somewhere."""
    dtype, tolerance = r.dtype()
    shape = r.shape(r.randint(1, 3))
    shape[r.randrange(len(shape))] = 0
    function = r.choice([
        lambda x: x.exp() + 1, lambda x: x.sum(-1), lambda x: (x.tanh().mean(tuple(range(x.dim()))) * 0).nan_to_num() + x.sum(),
        lambda x: torch.cat([x, x], 0), lambda x: x.transpose(0, -1) * 2, lambda x: x.reshape(-1).sum() + 1,
        lambda x: x.unsqueeze(-1) @ x.new_ones(1, 3), lambda x: x.unsqueeze(-2) @ x.unsqueeze(-1),
    ])  # fmt: skip
    return Case(function, (r.floats(shape, dtype),), tolerance)


KINDS: dict[str, Callable[[Chooser], Case]] = {
    f.__name__: f
    for f in (
        elementwise, reduction, long_reduction, norm, matmul, attention, rearrangement, convolution, ordering, integers,
        empty,
    )
}  # fmt: skip
