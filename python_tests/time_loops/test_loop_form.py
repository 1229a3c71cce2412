"""A loop over time steps has one form; a file with another is refused before it is run or planned."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.host.jit import run_module
from mlirc.ir.loops import Loop, Source, read_loop
from mlirc.mlir import parse

GOOD = """
func.func @main(%h: tensor<3xf32>, %xs: tensor<4x3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>) {
  %r:2 = call @loop_0(%h, %xs) : (tensor<3xf32>, tensor<4x3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>)
  return %r#0, %r#1 : tensor<3xf32>, tensor<4x3xf32>
}
func.func private @loop_0(%h: tensor<3xf32>, %xs: tensor<4x3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>)
    attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 4 : index
  %last = arith.constant 3 : index
  %ys = tensor.empty() : tensor<4x3xf32>
  %r:2 = scf.for %t = %first to %count step %one iter_args(%c = %h, %y = %ys) -> (tensor<3xf32>, tensor<4x3xf32>) {
    %i = arith.subi %last, %t : index
    %x = tensor.extract_slice %xs[%i, 0] [1, 3] [1, 1] : tensor<4x3xf32> to tensor<3xf32>
    %n:2 = func.call @step_0(%c, %x) : (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    %z = tensor.insert_slice %n#1 into %y[%t, 0] [1, 3] [1, 1] : tensor<3xf32> into tensor<4x3xf32>
    scf.yield %n#0, %z : tensor<3xf32>, tensor<4x3xf32>
  }
  return %r#0, %r#1 : tensor<3xf32>, tensor<4x3xf32>
}
func.func private @step_0(%h: tensor<3xf32>, %x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    attributes {mlirc.step} {
  %e = tensor.empty() : tensor<3xf32>
  %s = linalg.add ins(%h, %x : tensor<3xf32>, tensor<3xf32>) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  return %s, %s : tensor<3xf32>, tensor<3xf32>
}
"""


def loop_of(text: str):
    """The module, which must stay alive, and the loop's function."""
    module = parse(text)
    return module, list(module.body.operations)[1]


def test_a_loop_is_read_and_runs():
    module, function = loop_of(GOOD)
    assert read_loop(function) == Loop(
        4, "step_0", (0, None), (Source("carry", 0), Source("slice", 1, True)),
        (Source("result", 0), Source("result", 1)), (None, False), (0, 1),
    )  # fmt: skip
    xs = np.arange(12, dtype=np.float32).reshape(4, 3)
    last, ys = run_module(module, [np.ones(3, np.float32), xs])
    np.testing.assert_array_equal(ys, 1 + np.cumsum(xs[::-1], 0))
    np.testing.assert_array_equal(last, ys[-1])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("%count = arith.constant 4", "%count = arith.constant 5", "as long as the loop"),
        ("%count = arith.constant 4", "%count = arith.constant -1", "to a constant"),
        ("%first = arith.constant 0", "%first = arith.constant 1", "count from 0 by 1"),
        ("%one = arith.constant 1", "%one = arith.constant 2", "count from 0 by 1"),
        ("%last = arith.constant 3", "%last = arith.constant 7", "count it from the end"),
        ("%i = arith.subi %last, %t", "%i = arith.addi %last, %t", "count it from the end"),
        ("into %y[%t, 0]", "into %y[2, 0]", "one index of the first dimension"),
        ("into %y[%t, 0]", "into %ys[%t, 0]", "something else than its call's results"),
        ("scf.yield %n#0, %z", "scf.yield %x, %z", "something else than its call's results"),
        ("@step_0(%c, %x)", "@step_0(%c, %k)", "what tensor.empty makes"),
        ("return %r#0, %r#1", "return %h, %r#1", "what the scf.for makes"),
    ],
)
def test_another_form_is_refused(old, new, why):
    at = GOOD.index("attributes {mlirc.loop}")
    text = GOOD[:at] + GOOD[at:].replace(old, new, 1)
    text = text.replace("    %n:2", "    %k = tensor.empty() : tensor<3xf32>\n    %n:2")
    module, function = loop_of(text)
    with pytest.raises(MlircError, match=f"^loop loop_0: .*{why}"):
        read_loop(function)
    with pytest.raises(MlircError, match="^loop loop_0: "):
        run_module(module, [np.ones(3, np.float32), np.ones((4, 3), np.float32)])
