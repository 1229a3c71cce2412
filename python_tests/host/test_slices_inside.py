"""A slice that leaves its tensor in any iteration is refused at its line, at every level that runs on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.tools.mlirc import main

TILES = """func.func @main(%a: tensor<64x48xf32>) -> tensor<64x48xf32> {
  %e = tensor.empty() : tensor<64x48xf32>
  %c7 = arith.constant 7 : index
  %r = scf.forall (%i, %j) in (BLOCKS, 3) shared_outs(%o = %e) -> (tensor<64x48xf32>) {
    %row = affine.apply affine_map<(d0) -> (d0 * FACTOR)>(%i)
    %column = affine.apply affine_map<(d0) -> (d0 * 16)>(%j)
    %size = affine.min affine_map<(d0) -> (13, EXTENT - d0)>(%row)
    %s = tensor.extract_slice %a[%row, %column] [%size, 16] [1, STRIDE] : tensor<64x48xf32> to tensor<?x16xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%row, %column] [%size, 16] [1, 1] : tensor<?x16xf32> into tensor<64x48xf32>
    }
  }
  return %r : tensor<64x48xf32>
}
"""
RIGHT = {"BLOCKS": "5", "FACTOR": "13", "EXTENT": "64", "STRIDE": "1"}


def text(**changes: str) -> str:
    filled = TILES
    for name, value in (RIGHT | changes).items():
        filled = filled.replace(name, value)
    return filled


def test_the_slices_of_odd_tiles_are_inside():
    x = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    np.testing.assert_array_equal(run_module(mlir.parse(text()), [x])[0], x)


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"FACTOR": "160"}, "-96 elements from 160 on"),
        ({"EXTENT": "70"}, "13 elements from 52 on, of dimension 0, which has 64"),
        ({"STRIDE": "3"}, "16 elements from 16 on, of dimension 1, which has 48"),
    ],
)
def test_a_slice_that_leaves_its_tensor_is_refused_at_its_line(changes, found, tmp_path, capsys):
    wrong = text(**changes)
    with pytest.raises(MlircError, match="extract_slice leaves its tensor|insert_slice leaves its tensor"):
        run_module(mlir.parse(wrong), [np.zeros((64, 48), np.float32)])
    file = tmp_path / "tiles.mlir"
    file.write_text(wrong)
    assert main([str(file), "-o", str(tmp_path / "out.ptx")]) == 1
    error = capsys.readouterr().err
    assert f"{file}:8:" in error and found in error


def test_a_slice_whose_place_depends_on_data_is_left_to_the_run():
    data = """func.func @main(%a: tensor<8xf32>, %n: tensor<1xi64>) -> tensor<2xf32> {
  %c0 = arith.constant 0 : index
  %x = tensor.extract %n[%c0] : tensor<1xi64>
  %i = arith.index_cast %x : i64 to index
  %s = tensor.extract_slice %a[%i] [2] [1] : tensor<8xf32> to tensor<2xf32>
  return %s : tensor<2xf32>
}
"""
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run_module(mlir.parse(data), [x, np.array([3])])[0], x[3:5])
