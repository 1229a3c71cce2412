"""What the tests of the command-line programs share: a model, its files."""

from __future__ import annotations

PAYLOAD = """
func.func @main(%a: tensor<5x7xf32> {mlirc.name = "a", mlirc.kind = "input"},
                %w: tensor<7xf32> {mlirc.name = "w", mlirc.kind = "input"}) -> (tensor<5x7xf32> {mlirc.name = "y"}) {
  %e = tensor.empty() : tensor<5x7xf32>
  %s = linalg.generic {
    indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]
  } ins(%a, %w : tensor<5x7xf32>, tensor<7xf32>) outs(%e : tensor<5x7xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %m = arith.mulf %x, %y : f32
    %t = math.tanh %m : f32
    linalg.yield %t : f32
  } -> tensor<5x7xf32>
  return %s : tensor<5x7xf32>
}
"""


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


LEVEL = """
func.func @main(%w: tensor<1x37xf32> {mlirc.kind = "weight", mlirc.name = "m.w"},
                %x: tensor<37xf32> {mlirc.kind = "input", mlirc.name = "x"}) -> (tensor<37x1xf32>, tensor<37xf32>) {
  %w1 = tensor.collapse_shape %w [[0, 1]] : tensor<1x37xf32> into tensor<37xf32>
  %0 = tensor.empty() : tensor<37xf32>
  %1 = linalg.add ins(%x, %w1 : tensor<37xf32>, tensor<37xf32>) outs(%0 : tensor<37xf32>) -> tensor<37xf32>
  %2 = linalg.add ins(%1, %1 : tensor<37xf32>, tensor<37xf32>) outs(%0 : tensor<37xf32>) -> tensor<37xf32>
  %3 = tensor.expand_shape %2 [[0, 1]] output_shape [37, 1] : tensor<37xf32> into tensor<37x1xf32>
  return %3, %x : tensor<37x1xf32>, tensor<37xf32>
}
"""
