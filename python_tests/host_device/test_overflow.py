"""Infinities by overflow: what another order of a sum or a product, or a fused multiply-add, would make of them decides
whether they are certain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.host.jit import HostFunction
from support.models.together import Calls

INF, NAN, BIG = np.inf, np.nan, 3e38


def bounds(body: str, *columns: list[float], t: str = "f32") -> list[float]:
    """The error bounds of %r, which `body` makes of %x, %y, ... element by element."""
    names = "xyzw"[: len(columns)]
    n = len(columns[0])
    arrays = [np.array(c, {"f32": np.float32, "f16": np.float16}[t]) for c in columns]
    maps = ", ".join(["affine_map<(d) -> (d)>"] * (len(columns) + 1))
    text = f"""func.func @f({", ".join(f"%{k}s: tensor<{n}x{t}>" for k in names)}) -> tensor<{n}x{t}> {{
      %e = tensor.empty() : tensor<{n}x{t}>
      %s = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
        ins({", ".join(f"%{k}s" for k in names)} : {", ".join([f"tensor<{n}x{t}>"] * len(columns))})
        outs(%e : tensor<{n}x{t}>) {{
      ^bb0({", ".join(f"%{k}: {t}" for k in names)}, %o: {t}):
        {body.replace(": T", f": {t}")}
        linalg.yield %r : {t}
      }} -> tensor<{n}x{t}>
      return %s : tensor<{n}x{t}> }}"""
    return HostFunction(mlir.parse(text), "f", bounds=True).run(*arrays)[1].tolist()


def reduced(op: str, start: float, *rows: list[float], operands: str = "%o, %a") -> list[float]:
    """The error bounds of the reductions of rows."""
    x = np.array(rows, np.float32)
    m, n = x.shape
    text = f"""func.func @f(%x: tensor<{m}x{n}xf32>) -> tensor<{m}xf32> {{
      %c = arith.constant {start} : f32
      %e = tensor.empty() : tensor<{m}xf32>
      %f = linalg.fill ins(%c : f32) outs(%e : tensor<{m}xf32>) -> tensor<{m}xf32>
      %s = linalg.generic {{indexing_maps = [affine_map<(d, k) -> (d, k)>, affine_map<(d, k) -> (d)>],
        iterator_types = ["parallel", "reduction"]}} ins(%x : tensor<{m}x{n}xf32>) outs(%f : tensor<{m}xf32>) {{
      ^bb0(%a: f32, %o: f32):
        %r = arith.{op} {operands} : f32
        linalg.yield %r : f32
      }} -> tensor<{m}xf32>
      return %s : tensor<{m}xf32> }}"""
    return HostFunction(mlir.parse(text), "f", bounds=True).run(x)[1].tolist()


def test_sums_whose_order_decides():
    *certain, small = reduced("addf", 0.0, [BIG, BIG, BIG], [-BIG, -BIG, -1.0], [INF, 1.0, -BIG], [INF, -INF, 1.0],
                              [NAN, BIG, -BIG], [1e37, -1e37, 2e37])  # fmt: skip
    assert certain == [0.0] * 5 and 0 < small < 1e32
    doubtful = reduced("addf", 0.0, [BIG, BIG, -BIG], [BIG, -BIG, BIG], [BIG, BIG, -INF], [INF, -BIG, -BIG])
    assert doubtful == [INF] * 4


@pytest.mark.parametrize("operands", ["%o, %a", "%a, %o"])
def test_products_whose_order_decides(operands):
    found = reduced("mulf", 1.0, [1e20, 1e20, 3.0], [1e20, 1e20, 1e-9], [1e20, 1e20, 0.0], [1e18, 2.0, 0.5],
                    [INF, 1e-9, 2.0], [0.0, 1e20, 1e20], [1e20, 0.0, 1e20], [0.0, 2.0, 3.0],
                    operands=operands)  # fmt: skip
    assert found[0] == 0.0 and found[1] == found[2] == found[4] == found[5] == found[6] == INF
    assert found[3] < 1e12 and found[7] < 1e-5


@pytest.mark.parametrize("t, big", [("f32", 1e20), ("f16", 300.0)])
def test_products_that_a_fused_multiply_add_does_not_round(t, big):
    body = "%p = arith.mulf %x, %y : T\n%r = arith.addf %p, %z : T"
    most = float(np.finfo({"f32": np.float32, "f16": np.float16}[t]).max)
    found = bounds(body, [big, big, big, 1.0], [big, big, -big, 1.0], [1.0, -most, INF, INF], t=t)
    assert found == [0.0, INF, INF, 0.0]
    minus = "%p = arith.mulf %x, %y : T\n%r = arith.subf %p, %z : T"
    assert bounds(minus, [big, big], [big, big], [most, -1.0], t=t) == [INF, 0.0]


def test_overflows_of_functions_and_what_becomes_of_infinities():
    grown = "%p = math.exp %x : T\n%r = arith.mulf %p, %y : T"
    assert bounds(grown, [100.0, 100.0], [0.5, -2.0]) == [0.0, 0.0]
    divided = "%p = arith.mulf %x, %x : T\n%r = arith.divf %p, %y : T"
    assert bounds(divided, [1e20, 1e20, 1e20], [4.0, 0.5, INF]) == [INF, 0.0, INF]
    larger = "%p = arith.mulf %x, %x : T\n%m = arith.maximumf %p, %y : T\n%r = arith.subf %m, %z : T"
    assert bounds(larger, [1e20, 1e20, 1.0], [1.0, 1.0, 5.0], [-1.0, 2.0, 2.0])[:2] == [0.0, INF]


@pytest.mark.parametrize("function", ["rsqrt", "sqrt", "exp", "log"])
def test_functions_of_what_another_order_makes_a_number(function):
    """Of infinity less a square that overflows: NaN, where an fma gives infinity. Of NaN it is certain."""
    body = f"%p = arith.mulf %x, %x : T\n%d = arith.subf %y, %p : T\n%r = math.{function} %d : T"
    assert bounds(body, [1e20, 1e20, 1.0], [INF, NAN, NAN]) == [INF, 0.0, 0.0]


def test_right_kernels_of_numbers_that_overflow():
    """Matrix products, sums, products and rotations, whose kernels take other orders and fuse."""
    rng = np.random.default_rng(7)

    def pick(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.choice([BIG, -BIG, 2e38, 1.0, -1e38, 0.0], shape).astype(np.float32))

    def rotated(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.shape[-1] // 2
        turned = torch.cat((-x[..., h:], x[..., :h]), -1)
        s = torch.exp(x[:, :, None] - x[:, None]) * (a[:, None] * b[:, None])[None]
        return x * a + turned * b, s.sum(2), x.flatten(1) @ b.flatten()[:48].reshape(48, 1), x.prod(-1), x.sum(-1)

    x, a, b = pick(2, 3, 16), pick(3, 16), pick(3, 16)
    model = mlirc.compile(Calls(rotated), (x, a, b), device="host")
    for factor in (1.0, 1e-36, 1e-30):
        model(x, a * factor, b * factor)
        assert model.report.ok, model.report.findings
    model(x * 1e-36, a, b)
    assert model.report.ok, model.report.findings
