"""Conversions from and to 8-bit floats, as arithmetic: every code, every boundary, to the last bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mlirc.device import DeviceKernel
from mlirc.errors import MlircError
from mlirc.host.jit import run_module
from mlirc.host.tensors import to_numpy
from mlirc.mlir import parse
from mlirc.passes.expand_fp8 import FORMATS, expand_fp8
from support import randomness

TORCH = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}
WIDE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def bits(array):
    """The bits of floats; 0 of a NaN, whichever it is."""
    nan = np.isnan(array.astype(np.float32))
    return np.where(nan, 0, np.ascontiguousarray(array).view(f"u{array.itemsize}")) + np.where(nan, 1 << 40, 0)


def run(op, source, target, array):
    """A cast on the CPU, and its expansion on the host device, in vectors of four."""
    count = len(array)
    text = f"""#m = affine_map<(d0) -> (d0)>
    func.func @main(%a: tensor<{count}x{source}>) -> tensor<{count}x{target}> {{
      %e = tensor.empty() : tensor<{count}x{target}>
      %r = linalg.generic {{indexing_maps = [#m, #m], iterator_types = ["parallel"]}}
          ins(%a : tensor<{count}x{source}>) outs(%e : tensor<{count}x{target}>) {{
        ^bb0(%x: {source}, %o: {target}):
          %y = {op} %x : {source} to {target}
          linalg.yield %y : {target}
      }} -> tensor<{count}x{target}>
      return %r : tensor<{count}x{target}>
    }}"""
    (found,) = run_module(parse(text), [array])
    module = parse(f"""module attributes {{gpu.container_module}} {{
      gpu.module @m {{
        gpu.func @k(%a: memref<{count}x{source}>, %r: memref<{count}x{target}>) kernel {{
          %c4 = arith.constant 4 : index
          %b = gpu.block_id x
          %i = arith.muli %b, %c4 : index
          %x = vector.load %a[%i] : memref<{count}x{source}>, vector<4x{source}>
          %y = {op} %x : vector<4x{source}> to vector<4x{target}>
          vector.store %y, %r[%i] : memref<{count}x{target}>, vector<4x{target}>
          gpu.return
        }}
      }}
      func.func @main(%a: memref<{count}x{source}>, %r: memref<{count}x{target}>) {{
        %c1 = arith.constant 1 : index
        %n = arith.constant {count // 4} : index
        gpu.launch_func @m::@k blocks in (%n, %c1, %c1) threads in (%c1, %c1, %c1)
            args(%a : memref<{count}x{source}>, %r : memref<{count}x{target}>)
        return
      }}
    }}""")
    expand_fp8(module.operation)
    assert op not in str(module) or target in ("bf16", "f16")
    on_device = np.zeros_like(found)
    report = DeviceKernel(module).run([array, on_device])
    assert report.ok, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(bits(found), bits(on_device))
    return found


@pytest.mark.parametrize("target", WIDE)
@pytest.mark.parametrize("name", FORMATS)
def test_every_code(name, target):
    codes = torch.arange(256, dtype=torch.uint8).view(TORCH[name])
    wanted = to_numpy(codes.to(WIDE[target]))
    found = run("arith.extf", name, target, to_numpy(codes))
    np.testing.assert_array_equal(bits(found), bits(wanted))


def boundaries(dtype):
    """All numbers, what is half between two, what is beside these, and what is beyond."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values
    edges = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2])
    beside = [torch.nextafter(edges, torch.tensor(end)) for end in (torch.inf, -torch.inf)]
    special = torch.tensor(
        [448.0, 463.9, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 65536.0, 3e38, 1e-30, 1e-45, 0.0]
    )
    special = torch.cat([special, torch.tensor([torch.inf, torch.nan])])
    anything = torch.from_numpy(randomness.generator().integers(0, 2**32, 4096, np.uint32).view(np.float32))
    found = torch.cat([edges, *beside, special, -special, anything])
    return found[: len(found) // 4 * 4]


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_to_the_nearest_even(name):
    numbers = boundaries(TORCH[name])
    found = run("arith.truncf", "f32", name, numbers.numpy())
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = numbers.numpy().astype(getattr(ml_dtypes, f"float8_{name[2:].lower()}"))
    np.testing.assert_array_equal(bits(found), bits(wanted))


def test_two_roundings_are_refused():
    module = parse("func.func @f(%x: f64) -> f8E5M2 { %0 = arith.truncf %x : f64 to f8E5M2\n return %0 : f8E5M2 }")
    with pytest.raises(MlircError, match="would round twice: go through f32"):
        expand_fp8(module.operation)
