"""x / y and 1 / y without branches, run on the CPU, where the approximation is the division."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.host.jit import HostFunction
from mlirc.passes.expand_divisions import expand_divisions
from support.divisions import operands, same

COUNT = 5000
TEXT = f"""
#map = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<{COUNT}xf32>, %y: tensor<{COUNT}xf32>) -> tensor<{COUNT}xf32> {{
  %one = arith.constant 1.0 : f32
  %empty = tensor.empty() : tensor<{COUNT}xf32>
  %r = linalg.generic {{indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]}}
      ins(%x, %y : tensor<{COUNT}xf32>, tensor<{COUNT}xf32>) outs(%empty : tensor<{COUNT}xf32>) {{
    ^bb0(%v: f32, %w: f32, %o: f32):
      %q = arith.divf NUMERATOR, %w : f32
      linalg.yield %q : f32
  }} -> tensor<{COUNT}xf32>
  return %r : tensor<{COUNT}xf32>
}}"""


@pytest.mark.parametrize("numerator", ["%one", "%v"])
def test_every_quotient_takes_the_same_way_and_ends_right(numerator: str) -> None:
    module = mlir.parse(TEXT.replace("NUMERATOR", numerator))
    expand_divisions(module.operation)
    assert str(module).count("arith.divf") == str(module).count("fastmath<afn>") == 1
    x, y = operands(COUNT)
    (got,) = HostFunction(module)(x, y)
    same(got, np.ones_like(x) if numerator == "%one" else x, y)
