"""A model of two kernels, a schedule script for one of them, and how it is compiled."""

from __future__ import annotations

from pathlib import Path

from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target

# a product, and a sum over the exponentials of its rows: two kernels
MODEL = """
#two = affine_map<(i, j) -> (i, j)>
#one = affine_map<(i, j) -> (i)>
func.func @main(%x: tensor<7x33xf32> {mlirc.name = "x", mlirc.kind = "input"},
                %w: tensor<33x13xf32> {mlirc.name = "w", mlirc.kind = "input"}) -> (tensor<7xf32> {mlirc.name = "y"}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<7x13xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<7x13xf32>) -> tensor<7x13xf32>
  %a = linalg.matmul ins(%x, %w : tensor<7x33xf32>, tensor<33x13xf32>) outs(%f : tensor<7x13xf32>)
      -> tensor<7x13xf32>
  %z = linalg.generic {indexing_maps = [#two, #two], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<7x13xf32>) outs(%e : tensor<7x13xf32>) {
  ^bb0(%in: f32, %out: f32):
    %t = math.exp %in : f32
    linalg.yield %t : f32
  } -> tensor<7x13xf32>
  %r = tensor.empty() : tensor<7xf32>
  %s = linalg.fill ins(%zero : f32) outs(%r : tensor<7xf32>) -> tensor<7xf32>
  %y = linalg.generic {indexing_maps = [#two, #one], iterator_types = ["parallel", "reduction"]}
      ins(%z : tensor<7x13xf32>) outs(%s : tensor<7xf32>) {
  ^bb0(%in: f32, %out: f32):
    %u = arith.addf %in, %out : f32
    linalg.yield %u : f32
  } -> tensor<7xf32>
  return %y : tensor<7xf32>
}
"""
SCRIPT = """
from mlirc.schedule import register
from mlirc.scripts.reduction import is_row_reduction
from mlirc.schedule.verbs import annotate, collapse_dims, generalize, match, match_root, script, tidy, tile_to_blocks
{imports}

@register(matches=is_row_reduction)
def wide_rows(kernel, target, *, warps: int = {warps}):
    with script(warps=warps) as (module, function):
        generalize(function)
        collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=[1, 0], keep=[0], order=[])
        annotate(match(forall, "linalg.generic"), vector=1)
        annotate(function, warps={used})
        tidy(function, forall)
    return module
"""


def script(path: Path, warps: int = 2, imports: str = "", used: str = "warps") -> str:
    path.write_text(SCRIPT.format(warps=warps, imports=imports, used=used))
    return str(path)


def compiled(model: Path, *schedules: str) -> Compilation:
    """A compilation of its own, without the cache."""
    job = Compilation("model", get_target("sm_90a"), schedules, helpers=0)
    job.open(str(model))
    job.lower("ptx")
    return job
