"""Single operators: what they compute, and the suites of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mlirc.bench.cases import Case, tensor

if TYPE_CHECKING:
    from torch import Tensor

OPERATORS: dict[str, Callable[..., Any]] = {}


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    OPERATORS[function.__name__] = function
    return function


# torch is imported inside the functions: listing the cases has to be quick.


@_operator
def matmul(x: Tensor, w: Tensor) -> Tensor:
    """x [..., M, K] times w [K, N]."""
    return x @ w


@_operator
def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] times the transpose of w [N, K], as in nn.Linear."""
    from torch.nn import functional as F

    return F.linear(x, w)


@_operator
def matmul_add(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    """A product and a residual."""
    return x @ w + r


@_operator
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU's element-wise half."""
    from torch.nn import functional as F

    return F.silu(gate) * up


@_operator
def silu_mul_matmul(gate: Tensor, up: Tensor, w: Tensor) -> Tensor:
    """SwiGLU with the down projection."""
    from torch.nn import functional as F

    return (F.silu(gate) * up) @ w


@_operator
def rmsnorm(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm over the last dimension, PyTorch's own."""
    from torch.nn import functional as F

    return F.rms_norm(x, (x.shape[-1],), w, eps=1e-6)


@_operator
def rmsnorm_written_out(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm as transformers writes it, computed in f32."""
    import torch

    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * wide.to(x.dtype)


@_operator
def add_rmsnorm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Residual add and norm; both results."""
    total = x + r
    return rmsnorm_written_out(total, w), total


@_operator
def layernorm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """LayerNorm over the last dimension."""
    from torch.nn import functional as F

    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


@_operator
def softmax(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return x.softmax(-1)


@_operator
def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, q [B, Hq, S, D], k and v [B, Hkv, S, D]."""
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


@_operator
def sdpa_full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without a mask; also one query against a cache."""
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


@_operator
def naive_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as people write it, with the scores in memory."""
    import torch

    hidden = torch.ones(q.shape[-2], k.shape[-2], device=q.device, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -1e9)
    return scores.softmax(-1) @ v


@_operator
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows."""
    from torch.nn import functional as F

    return F.cross_entropy(logits, labels)


@_operator
def row_sum(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return x.sum(-1)


@_operator
def cumsum(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return x.cumsum(-1)


@_operator
def transpose(x: Tensor) -> Tensor:
    """A copy of the transpose."""
    return x.transpose(-2, -1).contiguous()


@_operator
def mlp_block(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """RMSNorm, gate, up, SwiGLU, down, residual; weights [out, in]."""
    from torch.nn import functional as F

    y = rmsnorm_written_out(x, norm)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def _case(suite: str, name: str, op: str, dtype: str, shapes: Sequence[tuple[int, ...]], **kinds: dict) -> Case:
    names = OPERATORS[op].__code__.co_varnames[: OPERATORS[op].__code__.co_argcount]
    inputs = {n: tensor(dtype, *shape) for n, shape in zip(names, shapes, strict=True)}
    inputs |= {n: {**inputs[n], **kind} for n, kind in kinds.items()}
    return Case(name, suite, "operator", {"operator": op}, inputs, dtype)


# hidden, intermediate, query heads, key heads, head dimension
_SHAPES = {"tinyllama": (2048, 5632, 32, 4, 64), "qwen2.5-7b": (3584, 18944, 28, 4, 128)}


def fp32() -> Iterator[Case]:
    """The f32 operators of two language models, batch 1, weights as [K, N]."""
    for model, (h, i, hq, hkv, d) in _SHAPES.items():
        for s in (32, 128, 512):
            where = f"{model}.s{s}"
            products = {"q_proj": (h, h), "kv_proj": (h, hkv * d), "o_proj": (h, h), "gate_proj": (h, i)}
            products |= {"up_proj": (h, i), "down_proj": (i, h)}

            def case(op: str, *shapes: tuple[int, ...], name: str = "", where: str = where) -> Case:
                return _case("fp32", f"{op}.{name}{where}", op, "f32", shapes)

            for name, (k, n) in products.items():
                yield case("matmul", (1, s, k), (k, n), name=f"{name}.")
            yield case("rmsnorm", (1, s, h), (h,))
            yield case("softmax", (1, hq, s, s))
            yield case("silu_mul", (1, s, i), (1, s, i))
            yield case("sdpa_causal", (1, hq, s, d), (1, hkv, s, d), (1, hkv, s, d))
            yield case("naive_attention", *[(1, hq, s, d)] * 3)
            for name, k in (("o_proj", h), ("down_proj", i)):
                yield case("matmul_add", (1, s, k), (k, h), (1, s, h), name=f"{name}.")
            yield case("silu_mul_matmul", (1, s, i), (1, s, i), (i, h))


def basics() -> Iterator[Case]:
    """One large shape of each of the four operators that decide the speed of a language model."""
    yield _linear("bf16-basics", "bf16", 4096, 4096, 4096)
    yield _case("bf16-basics", "matmul.4096x4096x4096", "matmul", "bf16", [(4096, 4096)] * 2)
    rows = (8192, 4096)
    yield _case("bf16-basics", "rmsnorm.8192x4096", "rmsnorm_written_out", "bf16", [rows, (4096,)])
    yield _case("bf16-basics", "softmax.8192x4096", "softmax", "bf16", [rows])
    yield _case("bf16-basics", "attention.causal.b4h32s4096d128", "sdpa_causal", "bf16", [(4, 32, 4096, 128)] * 3)


def _linear(suite: str, dtype: str, m: int, n: int, k: int) -> Case:
    return _case(suite, f"linear.{dtype}.{m}x{n}x{k}", "linear", dtype, [(m, k), (n, k)])


def anchors() -> Iterator[Case]:
    """The shapes at which the peers' speed is known."""
    for size in (4096, 8192):
        yield _linear("anchors", "bf16", size, size, size)
    yield _linear("anchors", "bf16", 16384, 8192, 4096)
    for m in (512, 2048):
        for n, k in ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)):
            yield _linear("anchors", "bf16", m, n, k)
    for m, n, k in ((16, 37888, 3584), (16, 3584, 18944), (64, 37888, 3584), (128, 37888, 3584), (256, 3584, 18944)):
        yield _linear("anchors", "bf16", m, n, k)
    for m, n, k in ((512, 37888, 3584), (4096, 4096, 4096)):
        yield _linear("anchors", "f32", m, n, k)
    for m in (1, 16, 512, 2048):
        shapes = [(m, 3584), (3584,), (18944, 3584), (18944, 3584), (3584, 18944)]
        yield _case("anchors", f"mlp_block.qwen2.5-7b.m{m}", "mlp_block", "bf16", shapes)
    yield from _attention_anchors()
    yield from _memory_anchors()


def _attention_anchors() -> Iterator[Case]:
    for op, b, hq, hkv, s, d in (
        ("sdpa_causal", 4, 32, 32, 4096, 128),
        ("sdpa_causal", 1, 32, 32, 16384, 128),
        ("sdpa_full", 4, 32, 32, 4096, 128),
        ("sdpa_causal", 4, 32, 32, 4096, 64),
        ("sdpa_causal", 1, 28, 4, 2048, 128),
        ("sdpa_causal", 1, 28, 4, 512, 128),
    ):
        name = f"attention.{op[5:]}.b{b}h{hq}kv{hkv}s{s}d{d}"
        yield _case("anchors", name, op, "bf16", [(b, hq, s, d), (b, hkv, s, d), (b, hkv, s, d)])
    for b, hq, hkv, s in ((1, 32, 8, 4096), (1, 28, 4, 32768), (64, 32, 8, 4096)):
        shapes = [(b, hq, 1, 128), (b, hkv, s, 128), (b, hkv, s, 128)]
        yield _case("anchors", f"attention.decode.b{b}h{hq}kv{hkv}s{s}d128", "sdpa_full", "bf16", shapes)


def _memory_anchors() -> Iterator[Case]:
    rows, wide, n = (8192, 4096), (4096, 32000), (4096,)
    for dtype in ("f32", "bf16"):

        def case(op: str, *shapes: tuple[int, ...], dtype: str = dtype, **kinds: dict) -> Case:
            size = "x".join(map(str, shapes[0]))
            return _case("anchors", f"{op}.{dtype}.{size}", op, dtype, shapes, **kinds)

        yield case("rmsnorm_written_out", rows, n)
        yield case("add_rmsnorm", rows, rows, n)
        yield case("softmax", rows)
        yield case("layernorm", rows, n, n)
        yield case("silu_mul", rows, rows)
        yield case("cross_entropy", wide, n, labels={"dtype": "i64", "kind": "ids", "upper": wide[1]})
        yield case("row_sum", wide)
        yield case("cumsum", wide)
        yield case("transpose", wide)
