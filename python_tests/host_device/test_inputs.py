"""Kernels that write what they were only given to read: a finding, and no byte of the caller's or of a file changes."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.tools import mlirc_run

MODEL = """
func.func @main(%x: tensor<5x3xf32> {mlirc.kind = "input", mlirc.name = "x"},
                %w: tensor<5x3xf32> {mlirc.kind = "weight", mlirc.name = "w"}) -> (tensor<5x3xf32>, tensor<5x3xf32>) {
  %0 = call @elementwise_0(%x, %w) : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  %1 = call @elementwise_0(%0, %w) : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  return %0, %1 : tensor<5x3xf32>, tensor<5x3xf32>
}
func.func private @elementwise_0(%x: tensor<5x3xf32>, %w: tensor<5x3xf32>) -> tensor<5x3xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<5x3xf32>
  %r = linalg.add ins(%x, %w : tensor<5x3xf32>, tensor<5x3xf32>) outs(%e : tensor<5x3xf32>) -> tensor<5x3xf32>
  return %r : tensor<5x3xf32>
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "m.mlir").write_text(MODEL)
    compile_model(str(folder / "m.mlir"), folder / "m.ptx", cache=False)
    return folder


@pytest.fixture(params=[0, 1], ids=["input", "weight"])
def model(request, made):
    """The model with a store to the kernel's first or second argument, at the end of its gpu.func; and its arrays."""
    x, w = (np.arange(15, dtype=np.float32).reshape(5, 3) + k for k in range(2))
    save_file({"w": w}, made / "m.safetensors")
    file = made / "m.levels" / "gpu.mlir"
    good = file.read_text()
    store = (
        f"      %bad = arith.constant 7.0 : f32\n      %at = arith.constant 2 : index\n"
        f"      memref.store %bad, %arg{request.param}[%at, %at] : memref<5x3xf32>\n      gpu.return"
    )
    assert good.count("      gpu.return") == 1 and "%arg1: memref<5x3xf32>" in good
    file.write_text(good.replace("      gpu.return", store))
    yield made / "m.ptx", x, w, request.param
    file.write_text(good)


@pytest.mark.parametrize("compare", [True, False])
def test_it_is_a_finding_and_nothing_is_computed_from_it(model, compare):
    path, x, w, number = model
    with mlirc.load(str(path), device="host", verify=False) as loaded:
        loaded.compare = compare
        for tensor in (x, w):
            tensor.flags.writeable = False
        with pytest.raises(MlircError):
            loaded(x)
        (found,) = [f for f in loaded.report.findings if f.kind == "overwritten input"]
        assert f"writes element [2, 2] of argument {number} (memref<5x3xf32>), which is an input" in found.message
        assert found.op == "memref.store" and found.calls == 2 and "gpu.mlir:" in found.location
        assert x[2, 2] == 8 and loaded._arrays["w"][2, 2] == 9
        np.testing.assert_array_equal(loaded.outputs[1][:2], (x + w + w)[:2])


def test_a_weight_in_a_file_is_no_crash(model, ran, tmp_path):
    path, x, _, _ = model
    np.save(tmp_path / "x.npy", x)
    before = path.with_suffix(".safetensors").read_bytes()
    result = ran(mlirc_run.main, path, "--input", tmp_path / "x.npy", "--device", "host", "--no-verify")
    assert result.status == 1 and "overwritten input" in result.err
    assert path.with_suffix(".safetensors").read_bytes() == before
