"""What memory must be a multiple of on the card: an address is as aligned as its declaration and its offset promise, not
as it happens to be."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.direct import run_function
from mlirc.device.report import Report
from mlirc.device.tensor_maps import TensorMap
from mlirc.errors import MlircError
from support.kernels.instructions import CLUSTER, MULTICAST, WAIT, ints, load, module, store
from support.kernels.product import BARRIERS, STAGES, product


def found_at(report: Report, text: str, op: str) -> set[tuple[str, bool]]:
    """The kinds of the findings, and whether the line of each has the operation's name."""
    lines = text.split("\n")
    return {(f.kind, op in lines[int(re.search(r":(\d+):\d+", f.location)[1]) - 1]) for f in report.findings}


def multicast(text: str) -> Report:
    arguments = [np.zeros((4, 8, 16), np.int32), TensorMap(ints(8, 16), (8, 16))]
    return run_function(mlir.parse(text), "k", arguments, (4, 1, 1), (128, 1, 1), 1040)


def wide_product(text: str) -> Report:
    a, b = (np.ones((64, 64), ml_dtypes.bfloat16) for _ in range(2))
    arguments = [TensorMap(a, (64, 64), 128), TensorMap(b, (64, 64), 128), np.zeros((64, 64), np.float32)]
    return run_function(mlir.parse(text), "product", arguments, (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES)


PARAMETER = "llvm.align = 64 : i64"


@pytest.mark.parametrize(
    "run, text", [(multicast, str(module(MULTICAST, 1, CLUSTER, maps=1))), (wide_product, product(1))]
)
def test_tensor_maps_by_value_are_declared_at_multiples_of_64(run, text):
    assert PARAMETER in text and run(text).ok
    for less in ("llvm.align = 16 : i64", "llvm.noundef"):
        spoiled = text.replace(PARAMETER, less)
        assert found_at(run(spoiled), spoiled, "llvm.func") == {("misaligned", True)}
    spoiled = text.replace(", nvvm.grid_constant", "")
    assert found_at(run(spoiled), spoiled, "llvm.func") == {("bad tensor map", True)}


def test_tensor_copies_need_the_declared_alignment_of_their_swizzle():
    text = str(module(MULTICAST, 1, CLUSTER, maps=1))
    assert multicast(text.replace("alignment = 1024", "alignment = 128")).ok
    spoiled = text.replace("alignment = 1024", "alignment = 64")
    assert found_at(multicast(spoiled), spoiled, "cp.async.bulk.tensor") == {("misaligned", True)}
    text = product(1)
    spoiled = text.replace("alignment = 1024", "alignment = 512")
    report = wide_product(spoiled)
    assert report.kinds() == {"misaligned"}
    assert {f.op for f in report.findings} == {
        "nvvm.cp.async.bulk.tensor.shared.cluster.global", "nvvm.wgmma.mma_async"}  # fmt: skip


def test_tensor_copies_go_to_multiples_of_128():
    text = str(module(MULTICAST.replace("%to = llvm.addrspacecast %smem", "%to = llvm.addrspacecast %odd").replace(
        "START", "").replace("%first =", "%odd = llvm.getelementptr %smem[64] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8\n"
        "%first =", 1), 1, CLUSTER, maps=1))  # fmt: skip
    assert ("misaligned", True) in found_at(multicast(text), text, "cp.async.bulk.tensor")


@pytest.mark.parametrize("align, kinds", [("1024", set()), ("16", set()), ("8", {"misaligned"}), ("", {"misaligned"})])
def test_shared_arrays_are_aligned_as_declared(align, kinds):
    body = """%v = llvm.load %smem {alignment = 16 : i64} : !llvm.ptr<3> -> vector<4xi32>
      %x = vector.extract %v[0] : i32 from vector<4xi32>\n"""
    text = str(module(store("%t", "%smem", "%t", "i32", "<3>") + "nvvm.barrier\n" + body + store("%x", "%p0", "%t"), 1))
    text = text.replace(", alignment = 1024 : i64", f", alignment = {align} : i64" if align else "")
    text = text.replace("<0 x i8>", "<32 x i32>")
    report = run_function(mlir.parse(text), "k", [np.zeros(32, np.int32)], (1, 1, 1), (32, 1, 1))
    assert found_at(report, text, "llvm.load") == {(k, True) for k in kinds}


def test_mbarriers_need_the_declared_alignment_of_8():
    text = str(module(WAIT.replace("START", "") + load("x", "%p0", "%t"), 1)).replace(
        "alignment = 1024", "alignment = 4"
    )
    report = run_function(mlir.parse(text), "k", [ints(32)], (1, 1, 1), (32, 1, 1), 1040)
    assert ("misaligned", True) in found_at(report, text, "mbarrier.init")


@pytest.mark.parametrize(
    "shape, box, swizzle, message",
    [
        ((8, 13), (8, 8), 0, "strides"),
        ((8, 16), (8, 6), 0, "multiple of 16"),
        ((512, 16), (257, 16), 0, "1 to 256"),
        ((8, 64), (8, 64), 128, "no longer"),
        ((8, 16), (16,), 0, "dimensions"),
    ],
)
def test_tensor_maps_that_the_driver_refuses(shape, box, swizzle, message):
    with pytest.raises(MlircError, match=message):
        TensorMap(np.zeros(shape, np.int32), box, swizzle)


SHARED = "memref<32xf32, #gpu.address_space<workgroup>>"
PRIVATE = "memref<1xf32, #gpu.address_space<private>>"
OWN = f"""module {{ gpu.module @m {{ gpu.func @k(%x: memref<32xf32>, %y: memref<32xf32>)
    workgroup(%w: {SHARED} {{llvm.align = 16 : i64}}) private(%p: {PRIVATE}) kernel {{
  %t = gpu.thread_id x
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c31 = arith.constant 31 : index
  %first = arith.divui %t, %c4 : index
  %v = memref.load %x[%t] : memref<32xf32>
  memref.store %v, %p[%c0] : {PRIVATE}
  memref.store %v, %w[%t] : {SHARED}
  gpu.barrier
  %four = arith.muli %first, %c4 : index
  %q = vector.load %w[%four] {{alignment = 16 : i64}} : {SHARED}, vector<4xf32>
  %s = vector.reduction <add>, %q : vector<4xf32> into f32
  %mine = memref.load %p[%c0] : {PRIVATE}
  %r = arith.addf %s, %mine : f32
  memref.store %r, %y[%t] : memref<32xf32>
  gpu.return }} }} }}"""


def own(text: str) -> set[tuple[str, bool]]:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    report = run_function(mlir.parse(text), "k", [x, y], (1, 1, 1), (32, 1, 1))
    assert not report.ok or (y == np.repeat(x.reshape(8, 4).sum(axis=1), 4) + x).all()
    return found_at(report, text, "vector.load")


def test_arrays_of_a_function_are_memory_of_their_own_and_aligned_as_declared():
    assert not own(OWN)
    assert own(OWN.replace(" {llvm.align = 16 : i64}", "")) == {("misaligned", True)}
    assert ("race", True) in own(OWN.replace("gpu.barrier", ""))
    assert ("out of bounds", True) in own(OWN.replace("%w[%four]", "%w[%c31]"))
