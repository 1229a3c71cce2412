"""Inputs stay as they are, results are written whole, and no array of the caller's is read or written behind his back."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import mlirc
from mlirc.device import DeviceKernel, DeviceModel, run_kernel
from mlirc.device.arguments import stored_parameters
from mlirc.device.direct import run_function
from mlirc.device.reference import Reference
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from support.kernels.memrefs import SHARED, X, launch

COPY = "%v = memref.load %x[%t] : memref<64xf32>\nmemref.store %v, %y[%t] : memref<64xf32>"
SWAPPED = "%v = memref.load %y[%t] : memref<64xf32>\nmemref.store %v, %x[%t] : memref<64xf32>"
SAME_VALUE = f"{COPY}\nmemref.store %v, %x[%t] : memref<64xf32>"  # bytes that do not change this time
ATOMIC = (
    f"{COPY}\n%z = arith.subf %v, %v : f32\n%old = memref.atomic_rmw addf %z, %x[%c63] : (f32, memref<64xf32>) -> f32"
)
CHOSEN = """
  %v = memref.load %x[%t] : memref<64xf32>
  %p = memref.extract_aligned_pointer_as_index %x : memref<64xf32> -> index
  %i = arith.index_cast %p : index to i64
  %four = arith.constant 4 : i64
  %j = arith.addi %i, %four : i64
  %q = llvm.inttoptr %j : i64 to !llvm.ptr
  llvm.store %v, %q : f32, !llvm.ptr
  memref.store %v, %y[%t] : memref<64xf32>"""
SAME = Reference([("kernels", lambda x: [x.copy()])], 1)


def arrays() -> list[np.ndarray]:
    return [np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)]


@pytest.mark.parametrize(
    "body", [SWAPPED, SAME_VALUE, ATOMIC, CHOSEN], ids=["swapped", "same value", "atomic", "pointer"]
)
@pytest.mark.parametrize("how", ["inputs", "reference", "read-only", "function"])
def test_a_kernel_that_writes_its_input(body, how):
    x, y = arrays()
    x.flags.writeable = how not in ("read-only", "function")
    module = launch(body, X)
    if how == "function":
        report = run_function(module, "k", [x, y], (1, 1, 1), (64, 1, 1))
    else:
        options = {"inputs": dict(inputs=1), "reference": dict(reference=SAME), "read-only": {}}[how]
        report = run_kernel(module, [x, y], **options)
    found = [f for f in report.findings if f.kind == "overwritten input"]
    assert len(found) == 1 and "argument 0" in found[0].message and "which is an input" in found[0].message
    assert "wrong result" not in report.kinds() and (x == arrays()[0]).all()
    assert ("unwritten result" in report.kinds()) == (body is SWAPPED and how in ("inputs", "reference"))


@pytest.mark.parametrize("check", [True, False])
def test_an_input_is_left_alone_even_where_nothing_is_checked(check):
    x, y = arrays()
    assert run_kernel(launch(SWAPPED, X), [x, y], inputs=1, check=check).ok is not check
    assert (x == arrays()[0]).all()


def test_the_words_for_what_nobody_wrote():
    half = f"%few = arith.cmpi ult, %t, %c32 : index\nscf.if %few {{\n{COPY}\n}}"
    for body, threads, message in (
        (half, 64, "32 of 64 elements of argument 1 (memref<64xf32>) are never written, the first at [32]: the launch "
         "has 64 threads, a grid of [1, 1, 1] blocks of [64, 1, 1]"),
        (COPY, 32, "blocks of [32, 1, 1]: too few, where each writes 1 element"),
        ("", 64, "64 of 64 elements"),
    ):  # fmt: skip
        (finding,) = run_kernel(launch(body, X, threads=threads), arrays(), reference=SAME).findings
        assert finding.kind == "unwritten result" and finding.message.endswith(message) or message in finding.message


def test_what_is_written_and_wrong_is_told_beside_what_is_not_written():
    body = f"%few = arith.cmpi ult, %t, %c32 : index\nscf.if %few {{\n{COPY.replace('%x[%t]', '%x[%c0]')}\n}}"
    report = run_kernel(launch(body, X), arrays(), reference=SAME)
    assert report.kinds() == {"unwritten result", "wrong result"}
    (wrong,) = [f for f in report.findings if f.kind == "wrong result"]
    assert wrong.count == 31 and "thread 1 writes 1 as element [1], which level kernels says is 2" in wrong.message


def test_some_blocks_only_leave_the_rest_unjudged():
    body = COPY.replace("%v =", "%j = arith.muli %b, %c32 : index\n%i = arith.addi %j, %t : index\n%v =", 1)
    module = launch(body.replace("%t]", "%i]"), X, threads=32, blocks=2)
    x, y = arrays()
    y[:] = 5
    assert run_kernel(module, [x, y], blocks=[1], reference=SAME).ok
    assert (y[:32] == 5).all() and (y[32:] == x[32:]).all()


def test_arguments_that_share_memory():
    x, y = arrays()
    both = np.zeros(96, np.float32)
    for pair in ([x, x], [both[:64], both[32:]], [both[32:], both[:64]]):
        with pytest.raises(
            MlircError, match="argument 1, which it writes, shares memory with argument 0: give it memory"
        ):
            run_kernel(launch(COPY, X), pair)
    with pytest.raises(MlircError, match="share memory in part"):
        run_function(launch(COPY, X), "k", [both[:64], both[32:]], (1, 1, 1), (64, 1, 1))
    assert run_kernel(launch(COPY, X), [np.stack([x, y], 1)[:, 0], np.stack([x, y], 1)[:, 1]]).ok  # strided
    shifted = COPY.replace("%y[%t]", "%y[%o]").replace("%v =", "%o = arith.subi %c63, %t : index\n%v =", 1)
    report = run_function(launch(shifted, X), "k", [x, x], (1, 1, 1), (64, 1, 1))  # one array twice is one memory
    assert "race" in report.kinds() and (x == arrays()[0][::-1]).all()


def test_results_that_cannot_be_written():
    x, y = arrays()
    y.flags.writeable = False
    with pytest.raises(MlircError, match="writes argument 1, an array that is read-only: copy it"):
        run_kernel(launch(COPY, X), [x, y], inputs=1)
    (finding,) = run_kernel(launch(COPY, X), [x, y]).findings
    assert finding.kind == "overwritten input" and "argument 1" in finding.message


def test_a_kernel_object_runs_with_and_without_a_reference():
    kernel = DeviceKernel(launch(COPY, X))
    for options in ({}, dict(reference=SAME), {}):
        x, y = arrays()
        assert kernel.run([x, y], **options).ok and (x == y).all()


ADDRESSES = {
    "a view": ("%w = memref.subview %y[1] [32] [1] : memref<64xf32> to memref<32xf32, strided<[1], offset: 1>>\n"
               "memref.store %one, %w[%c0] : memref<32xf32, strided<[1], offset: 1>>", {1}),
    "a choice": ("%yes = arith.cmpi ult, %t, %c32 : index\n%w = arith.select %yes, %x, %y : memref<64xf32>\n"
                 "memref.store %one, %w[%t] : memref<64xf32>", {0, 1}),
    "a branch": ("%yes = arith.cmpi ult, %t, %c32 : index\n%w = scf.if %yes -> memref<64xf32> {\n"
                 "scf.yield %x : memref<64xf32>\n} else {\nscf.yield %x : memref<64xf32>\n}\n"
                 "memref.store %one, %w[%t] : memref<64xf32>", {0}),
    "a loop": ("%w = scf.for %i = %c0 to %c1 step %c1 iter_args(%a = %y) -> memref<64xf32> {\n"
               "memref.store %one, %a[%t] : memref<64xf32>\nscf.yield %a : memref<64xf32>\n}", {1}),
    "an index that was read": ("%i = memref.load %n[%t] : memref<64xindex>\n"
                               "memref.store %one, %y[%i] : memref<64xf32>", {1}),
    "its own buffer": (f"%w = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>\n"
                       f"memref.store %one, %w[%t] : memref<64xf32, {SHARED}>", set()),
}  # fmt: skip


@pytest.mark.parametrize("body, stored", ADDRESSES.values(), ids=ADDRESSES)
def test_which_arguments_a_kernel_may_store_to(body, stored):
    arguments = f"{X}, %n: memref<64xindex>"
    module = launch("%one = arith.constant 1.0 : f32\n" + body, arguments)
    function = module.body.operations[0].operation.regions[0].blocks[0].operations[0]
    assert stored_parameters(function.operation) == stored


MODEL = """
func.func @main(%x: tensor<5x3xf32> {mlirc.kind = "input", mlirc.name = "x"},
                %z: tensor<0x3xf32> {mlirc.kind = "input", mlirc.name = "z"},
                %w: tensor<5x3xf32> {mlirc.kind = "weight", mlirc.name = "w"})
    -> (tensor<5x3xf32>, tensor<15xf32>, tensor<5x3xf32>, tensor<5x3xf32>, tensor<5x3xf32>, tensor<0x3xf32>) {
  %0 = call @elementwise_0(%x, %w) : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  %2 = tensor.collapse_shape %x [[0, 1]] : tensor<5x3xf32> into tensor<15xf32>
  return %x, %2, %w, %0, %0, %z
    : tensor<5x3xf32>, tensor<15xf32>, tensor<5x3xf32>, tensor<5x3xf32>, tensor<5x3xf32>, tensor<0x3xf32>
}
func.func private @elementwise_0(%x: tensor<5x3xf32>, %w: tensor<5x3xf32>) -> tensor<5x3xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<5x3xf32>
  %r = linalg.add ins(%x, %w : tensor<5x3xf32>, tensor<5x3xf32>) outs(%e : tensor<5x3xf32>) -> tensor<5x3xf32>
  return %r : tensor<5x3xf32>
}
"""


def test_outputs_are_the_callers_own(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    compile_model(str(tmp_path / "m.mlir"), tmp_path / "m.ptx", cache=False)
    save_file({"w": np.arange(1, 16, dtype=np.float32).reshape(5, 3)}, tmp_path / "m.safetensors")
    x, w = (np.arange(15, dtype=np.float32).reshape(5, 3) + k for k in range(2))
    z = np.zeros((0, 3), np.float32)
    for tensor in (x, w):
        tensor.flags.writeable = False
    right = [x, x.reshape(15), w, x + w, x + w, z]
    with mlirc.load(str(tmp_path / "m.ptx"), device="host") as model:
        for _ in range(2):
            outputs = model(x, z)
            for i, output in enumerate(outputs):
                np.testing.assert_array_equal(output, right[i])
                assert not any(np.may_share_memory(output, other) for other in (x, w, *outputs[:i]))
                output[...] = 7  # nobody else's
    text = (tmp_path / "m.levels" / "gpu.mlir").read_text()
    outputs, report = DeviceModel.parse(text).run([x, z, w])
    assert report.ok and all(o.flags.writeable for o in outputs) and outputs[2] is not w
