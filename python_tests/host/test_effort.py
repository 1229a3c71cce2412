"""What runs longer than LLVM takes to optimize it is optimized, what does not is not; both are right."""

import numpy as np
import pytest

from mlirc.host import HostFunction
from mlirc.host.effort import OPTIMIZED, PLAIN
from mlirc.mlir import parse

PRODUCT = """
func.func @main(%a: tensor<{m}x{k}x{t}>, %b: tensor<{k}x{n}x{t}>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %r = linalg.matmul ins(%a, %b : tensor<{m}x{k}x{t}>, tensor<{k}x{n}x{t}>) outs(%f : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %r : tensor<{m}x{n}xf32>
}}
"""
STEPS = """
func.func private @step(%x: tensor<512xf32>) -> tensor<512xf32> {{
  %e = tensor.empty() : tensor<512xf32>
  %y = linalg.generic {{indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}}
      ins(%x : tensor<512xf32>) outs(%e : tensor<512xf32>) {{
  ^bb0(%a: f32, %b: f32):
    %half = arith.constant 0.5 : f32
    %m = arith.mulf %a, %half : f32
    %s = arith.addf %m, %half : f32
    linalg.yield %s : f32
  }} -> tensor<512xf32>
  return %y : tensor<512xf32>
}}
func.func @main(%x: tensor<512xf32>) -> tensor<512xf32> {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant {count} : index
  %r = scf.for %i = %zero to %count step %one iter_args(%c = %x) -> tensor<512xf32> {{
    %y = func.call @step(%c) : (tensor<512xf32>) -> tensor<512xf32>
    scf.yield %y : tensor<512xf32>
  }}
  return %r : tensor<512xf32>
}}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("m", "n", "k", "effort"), [(3, 5, 7, PLAIN), (61, 1, 64, PLAIN), (67, 509, 512, OPTIMIZED)])
def test_a_product(m, n, k, effort, dtype):
    function = HostFunction(parse(PRODUCT.format(m=m, n=n, k=k, t=dtype)))
    assert function.effort == effort
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(s.shape).astype(s.dtype) for s in function.inputs)
    (got,) = function(a, b)
    np.testing.assert_allclose(got, a.astype("f8") @ b.astype("f8"), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("count", "effort"), [(1, PLAIN), (1000, PLAIN), (100_000, OPTIMIZED)])
def test_a_step_counts_as_often_as_it_is_called(count, effort):
    function = HostFunction(parse(STEPS.format(count=count)))
    assert function.effort == effort
    (got,) = function(np.zeros(512, np.float32))
    np.testing.assert_array_equal(got, np.float32(1 - 0.5 ** min(count, 60)))


@pytest.mark.parametrize(("length", "effort"), [(2047, PLAIN), (86_932, OPTIMIZED)])
def test_a_long_sum_is_optimized_for_the_sake_of_its_accuracy(length, effort):
    text = f"""
    func.func @main(%x: tensor<1x{length}xf32>) -> tensor<1xf32> {{
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<1xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1xf32>) -> tensor<1xf32>
      %r = linalg.reduce ins(%x : tensor<1x{length}xf32>) outs(%f : tensor<1xf32>) dimensions = [1]
        (%a: f32, %b: f32) {{
          %s = arith.addf %a, %b : f32
          linalg.yield %s : f32
        }}
      return %r : tensor<1xf32>
    }}"""
    function = HostFunction(parse(text))
    assert function.effort == effort
    x = np.random.default_rng(0).uniform(1, 2, (1, length)).astype(np.float32)
    (got,) = function(x)
    np.testing.assert_allclose(got, x.sum(1, dtype=np.float64), rtol=1e-6)
