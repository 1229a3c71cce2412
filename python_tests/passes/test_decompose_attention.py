"""`mlirc-decompose-attention` against PyTorch, on the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mlirc.dialects.mlirc_dialect import AttentionInfo, attention
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.mlir import context, func, ir, parse

PLAIN = ("bhsd",) * 4


def build(q, k, v, mask=None, **options) -> ir.Module:
    """A module whose main applies attention to arguments like these logical torch tensors (mask: torch tensor)."""
    layouts = options.get("layouts", PLAIN)
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f64", torch.float16: "f16", torch.bool: "i1"}
    with context(), ir.Location.unknown():
        types = []
        for tensor, layout in zip((q, k, v, mask), (*layouts[:3], "bhsd"), strict=True):
            if tensor is not None:
                shape = [tensor.shape["bhsd".index(c)] for c in layout]
                types.append(ir.RankedTensorType.get(shape, ir.Type.parse(names[tensor.dtype])))
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(*types, name="main")
            def main(*args):
                return attention(*args, **options)

    return module


def expected(q, k, v, mask, *, scale, causal=False, window=0, softcap=0.0, **_) -> torch.Tensor:
    """The same in float64, straight from the definition."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    x = q @ k.transpose(-1, -2) * scale
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    if mask is not None:
        x = x.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else x + mask.double()
    sq, sk = x.shape[-2:]
    last = torch.arange(sq)[:, None] + sk - sq
    if causal:
        x = x.masked_fill(torch.arange(sk) > last, float("-inf"))
    if window:
        x = x.masked_fill(torch.arange(sk) <= last - window, float("-inf"))
    return torch.nan_to_num(torch.softmax(x, -1), nan=0.0) @ v


def to_numpy(x: torch.Tensor, layout: str) -> np.ndarray:
    x = x.permute(*["bhsd".index(c) for c in layout]).contiguous()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def check(shape, dtype=torch.float32, mask=None, tolerance=2e-6, **options):
    b, hq, hkv, sq, sk, d, dv = shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(*s).to(dtype) for s in ((b, hq, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv)))
    options.setdefault("scale", d**-0.5)
    layouts = options.get("layouts", PLAIN)
    args = [to_numpy(x, layout) for x, layout in zip((q, k, v), layouts[:3], strict=True)]
    if mask is not None:
        args.append(to_numpy(mask, "bhsd"))
    (found,) = run_module(build(q, k, v, mask, **options), args)
    out = torch.from_numpy(found.astype(np.float64)).permute(*[layouts[3].index(c) for c in "bhsd"])
    want = expected(q, k, v, mask, **options)
    assert out.shape == want.shape
    assert (out - want).abs().max() <= tolerance * max(1.0, want.abs().max())


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1, 1, 1), (2, 4, 2, 5, 7, 8, 8), (1, 6, 1, 17, 17, 16, 3), (1, 3, 3, 1, 13, 4, 5)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_heads_and_lengths(shape, causal):
    check(shape, causal=causal)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_window(window):
    check((1, 4, 2, 9, 11, 4, 4), causal=True, window=window)


def test_softcap_and_scale():
    check((1, 2, 1, 5, 6, 4, 4), softcap=1.5, scale=3.0)


def test_causal_with_fewer_keys_than_queries_gives_zero_rows():
    check((1, 2, 2, 7, 3, 4, 4), causal=True)


@pytest.mark.parametrize("size", [(2, 4, 5, 7), (2, 1, 1, 7), (1, 4, 5, 1), (1, 1, 1, 1)])
def test_masks_broadcast(size):
    torch.manual_seed(1)
    check((2, 4, 2, 5, 7, 4, 4), mask=torch.rand(size) > 0.4)
    check((2, 4, 2, 5, 7, 4, 4), mask=torch.randn(size), causal=True)


def test_fully_masked_rows_give_zero():
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 2, :] = False
    check((1, 2, 2, 4, 4, 4, 4), mask=mask)


def test_layouts():
    check((2, 4, 2, 5, 7, 3, 6), layouts=("bshd", "bshd", "bhds", "bshd"), causal=True)


def test_other_dtypes():
    check((1, 4, 2, 5, 7, 8, 8), dtype=torch.bfloat16, tolerance=8e-3, mask=torch.randn(1, 1, 5, 7))
    check((1, 4, 2, 5, 7, 8, 8), dtype=torch.float64, tolerance=1e-14)


VALID = """func.func @main(%q: tensor<1x4x3x8xf32>, %k: tensor<1x2x5x8xf32>) -> tensor<1x4x3x8xf32> {
  %o = "mlirc.attention"(%q, %k, %k) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x4x3x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>) -> tensor<1x4x3x8xf32>
  return %q : tensor<1x4x3x8xf32>
}"""


def test_op_reads_back():
    module = parse(VALID)
    again = parse(str(module))
    op = again.body.operations[0].regions[0].blocks[0].operations[0]
    info = AttentionInfo.of(op)
    assert (info.q_heads, info.kv_heads, info.q_len, info.kv_len, info.head_dim) == (4, 2, 3, 5, 8)
    assert info.causal and info.scale == 0.5 and info.mask_shape is None


@pytest.mark.parametrize(
    "change, message",
    [
        (("1x2x5x8", "1x3x5x8"), "no multiple of 3 key heads"),
        (('["bhsd", ', '["bhss", '), "permutations"),
        (("window = 0", "window = -1"), "window"),
        (("scale = 0.5 : f64", "scale = 1 : i64"), "scale"),
        (("1x2x5x8xf32>) -> tensor<1x4x3x8", "1x2x5x8xf32>) -> tensor<1x4x2x8"), "the result has sizes"),
    ],
)
def test_verifier_names_the_broken_rule(change, message):
    with pytest.raises(MlircError, match=message):
        parse(VALID.replace(*change))


CACHED = """func.func @main(%q: tensor<2x4x3x8xf32>, %k: tensor<7x2x5x8xf32>, %t: tensor<2x6xi64>, %n: tensor<2xi64>)
    -> tensor<2x4x3x8xf32> {
  %o = "mlirc.cached_attention"(%q, %k, %k, %t, %n) {scale = 0.5 : f64, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<2x4x3x8xf32>, tensor<7x2x5x8xf32>, tensor<7x2x5x8xf32>, tensor<2x6xi64>, tensor<2xi64>)
    -> tensor<2x4x3x8xf32>
  return %o : tensor<2x4x3x8xf32>
}"""


def test_attention_over_a_cache_reads_back():
    again = parse(str(parse(CACHED)))
    info = AttentionInfo.of(again.body.operations[0].regions[0].blocks[0].operations[0])
    assert (info.q_heads, info.kv_heads, info.q_len, info.kv_len, info.head_dim) == (4, 2, 3, 30, 8)
    assert info.causal and info.pages is not None and (info.pages.pool, info.pages.size, info.pages.count) == (7, 5, 6)


@pytest.mark.parametrize(
    "change, message",
    [
        (("tensor<2xi64>", "tensor<2xi32>"), "pages and lengths of i64"),
        (("tensor<2x6xi64>", "tensor<3x6xi64>"), "of 2 sequences"),
        (("tensor<2xi64>", "tensor<3xi64>"), "of 2 sequences"),
        (("tensor<2x6xi64>", "tensor<2x0xi64>"), "of which a sequence has 0"),
        (("7x2x5x8", "7x3x5x8"), "no multiple of 3 key heads"),
    ],
)
def test_verifier_names_the_broken_rule_of_a_cache(change, message):
    with pytest.raises(MlircError, match=message):
        parse(CACHED.replace(*change))
