"""Floats that become integers: PyTorch's where those are defined, and the same at every level where they are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc.check import check_torch
from mlirc.check.levels import level_runner
from mlirc.check.undefined import Undefined, depending
from mlirc.driver.compilation import Compilation, compile_model
from mlirc.targets import get_target
from support.models.together import Calls

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
VALUES = [
    300.0,
    -300.0,
    3e9,
    -3e9,
    math.nan,
    70000.0,
    math.inf,
    -1.5,
    1e20,
    255.9,
    -math.inf,
    -0.0,
    -(2.0**31),
    2.0**63,
]


class Casts(nn.Module):
    def forward(self, *tensors):
        return tuple(x.to(dtype) for x in tensors for dtype in INTEGERS)


def values():
    x = torch.tensor(VALUES, dtype=torch.float64)
    return x.float(), x, x.half(), x.bfloat16()


def test_casts_at_every_level(tmp_path):
    xs = values()
    with Undefined(0):
        zeros = Casts()(*xs)
    with Undefined(1):
        ones = Casts()(*xs)
    defined = [z == o for z, o in zip(zeros, ones, strict=True)]
    job = Compilation("model", get_target("sm_90a"), ())
    job.import_module(Casts(), xs, {})
    job.lower("gpu")
    gpu = level_runner(job, "gpu", job.tensors())(xs)
    for level in ("linalg", "kernels", "tiles"):
        for a, b in zip(level_runner(job, level, job.tensors())(xs), gpu, strict=True):
            assert torch.equal(a.long(), b.long()), level
    for found, wanted, mask in zip(gpu, zeros, defined, strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found[mask], wanted[mask])


def test_casts_in_ptx(tmp_path):
    text = """
func.func @main(%x: tensor<14xf32>, %d: tensor<14xf64>) -> (tensor<14xi8>, tensor<14xi64>, tensor<14xi32>) {
  %0 = tensor.empty() : tensor<14xi8>
  %1 = tensor.empty() : tensor<14xi64>
  %2 = tensor.empty() : tensor<14xi32>
  %r:3 = linalg.generic {indexing_maps = [MAP, MAP, MAP, MAP, MAP], iterator_types = ["parallel"]}
      ins(%x, %d : tensor<14xf32>, tensor<14xf64>) outs(%0, %1, %2 : tensor<14xi8>, tensor<14xi64>, tensor<14xi32>) {
  ^bb0(%a: f32, %b: f64, %o0: i8, %o1: i64, %o2: i32):
    %p = arith.fptosi %a : f32 to i8
    %q = arith.fptosi %a : f32 to i64
    %s = arith.fptosi %b : f64 to i32
    linalg.yield %p, %q, %s : i8, i64, i32
  } -> (tensor<14xi8>, tensor<14xi64>, tensor<14xi32>)
  return %r#0, %r#1, %r#2 : tensor<14xi8>, tensor<14xi64>, tensor<14xi32>
}""".replace("MAP", "affine_map<(a) -> (a)>")
    (tmp_path / "casts.mlir").write_text(text)
    compile_model(str(tmp_path / "casts.mlir"), tmp_path / "casts.ptx", cache=False)
    model = mlirc.load(tmp_path / "casts.ptx", device="host")
    model.execute_ptx = True
    x = np.array(VALUES)
    narrow, wide, word = model(x.astype(np.float32), x)  # a difference between the level and the PTX is an error
    assert narrow.tolist() == [44, -44, -1, 0, 0, 112, -1, -1, -1, -1, 0, 0, 0, -1]
    assert wide[4] == wide[10] == -(2**63) and wide[6] == wide[8] == 2**63 - 1 and wide[2] == 3000000000
    assert word[4] == word[3] == -(2**31) and word[6] == 2**31 - 1


def test_what_depends_on_undefined():
    x = torch.tensor([1.5, math.nan, 3e9])
    for function, wanted in (
        (lambda x: x.int(), [False, True, True]),
        (lambda x: torch.where(x == x, x.long(), 7), [False, False, False]),
        (lambda x: x.int().float() * 0 + x[0], [False, False, False]),
        (lambda x: torch.empty(3, dtype=torch.int32).copy_(x), [False, True, True]),
        (lambda x: torch.arange(5)[x.int().clamp(0, 4)], [False, True, True]),
    ):
        run = lambda f=function: [f(x)]  # noqa: E731
        assert [m.tolist() for m in depending(run, run())] == [wanted]
    for function, found in ((torch.Tensor.bool, False), (torch.Tensor.int, True)):
        with Undefined() as casts:
            function(x)
        assert casts.found == found


def test_quantized_numbers_are_checked_where_they_are_defined():
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    def quantized(x):
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor.default(x, 0.031, 129, 0, 255, torch.uint8)
        y = ops.dequantize_per_tensor.default(q, 0.031, 129, 0, 255, torch.uint8)
        return q, y @ y.t(), x.long() + 1

    result = check_torch(Calls(quantized), (torch.randn(4, 6),), levels=["tiles", "gpu"])
    assert result.ok, result.table()
    lost = check_torch(Calls(lambda x: (torch.where(x == x, x, 0).int() + (x.isnan() * 1))), (torch.randn(4, 6),),
                       levels=["tiles"], kinds=["one NaN"])  # fmt: skip
    assert lost.ok, lost.table()


@pytest.mark.parametrize("count", [1, 5, 8])
def test_padding_that_is_cast(count):
    """It is NaN at the bound, and no part of a result."""
    model = mlirc.compile(Calls(lambda x: x.long() + 1), (torch.randn(5),), device="host", sizes={"input_0": "s<=8"})
    x = torch.randn(count) * 9
    assert torch.equal(model(x), x.long() + 1)
