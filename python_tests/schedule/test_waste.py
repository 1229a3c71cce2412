"""What a schedule wastes is said in a line of `-v`: MMAs on padding, wide slots, clusters that share nothing."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.passes.distribute.products.notes import noted_waste
from mlirc.targets import get_target
from mlirc.tools.mlirc import main
from support.kernels import payloads


def waste(knobs: str, **sizes: int) -> list[str]:
    job = Compilation("kernel", get_target("sm_90a"), [f"matmul:{knobs}"], helpers=0)
    extents = {"m": 256, "n": 256, "k": 256} | sizes
    job.modules["kernels"] = mlir.parse(payloads.matmul(**extents, dtype="bf16", epilogue=False))
    job.lower("gpu")
    (build,) = job.builds.values()
    return noted_waste(build.gpu)


def test_mmas_on_padding_are_counted():
    (line,) = waste("block_m=64,block_n=64,warps_m=8,warps_n=1,mma=mma")
    assert line.startswith("50% of the MMAs multiply padding: a tile of 64x64x") and "8x1 warps" in line


def test_slots_that_are_wider_than_a_slice_are_said():
    lines = waste("block_m=64,block_n=64,warps_m=4,warps_n=1,mma=wgmma,copy=tma,block_k=16,stages=3")
    assert any("75% of A's shared memory is never used" in line for line in lines), lines


def test_a_cluster_without_a_copy_in_common_is_said():
    knobs = "block_m=64,block_n=64,warps_m=4,warps_n=1,mma=wgmma,copy=tma,cluster_size=2,block_k=64"
    assert waste(knobs) == []  # they share the right operand
    (line,) = waste(knobs, m=64, n=64, batch=4)
    assert line.startswith("the 2 blocks of a cluster share no copy")


@pytest.mark.parametrize("knobs", ["block_m=64,block_n=64", "block_m=128,block_n=128,copy=tma,mma=wgmma"])
def test_tiles_of_whole_instructions_waste_nothing(knobs):
    assert waste(knobs) == []


def test_the_table_of_kernels_has_the_lines(tmp_path, capsys):
    file = tmp_path / "kernel.mlir"
    file.write_text("""
func.func @main(%a: tensor<64x64xbf16>, %b: tensor<64x64xbf16>) -> tensor<64x64xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%c : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = linalg.matmul ins(%a, %b : tensor<64x64xbf16>, tensor<64x64xbf16>) outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
""")
    knobs = "matmul:block_m=64,block_n=64,warps_m=8,warps_n=1,mma=mma"
    assert main([str(file), "-o", str(tmp_path / "kernel.ptx"), "-v", "--schedule", knobs]) == 0
    assert ": 50% of the MMAs multiply padding" in capsys.readouterr().err
