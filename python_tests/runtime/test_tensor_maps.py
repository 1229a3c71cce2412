"""Tensor maps at run time: made for where the tensors are now, and handed to kernels by value."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver as cu

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.cuda import Driver, pack
from mlirc.runtime.plan import Plan
from mlirc.runtime.plan_file import embed
from mlirc.runtime.plan_json import from_json, to_json
from mlirc.runtime.tensor_map import Im2col, TensorMapSpec
from support.devices.fake_gpu import CudaArray, FakeDriver
from support.plans import forged
from support.plans.tiny import KERNELS, N, W, make_plan, randn, ref

SPEC = TensorMapSpec("f32", (N,), (4,))


def mapped_plan() -> Plan:
    """Of `twice`, which takes a tensor map of what it reads: y = 2 x in the end."""
    plan = make_plan("sm_90a")
    plan.steps[1] = replace(plan.steps[1], maps={0: SPEC})
    plan.steps.append(replace(plan.steps[1], args=(ref("input"), ref("output"))))
    return plan


@pytest.mark.parametrize("graph", [True, False])
def test_tensor_maps_are_of_where_tensors_are_now(graph):
    driver = FakeDriver(KERNELS)
    model = load_text(embed(forged.TEXT, mapped_plan()), {"m.w": W}, driver=driver, graph=graph)
    one, two = CudaArray(randn(1)), CudaArray(randn(2))
    for x in (one, two, one):
        got, _ = model(x)
        np.testing.assert_array_equal(got.numpy()[:, 0], 2 * x.array)
    arena = driver.maps[0]
    assert [m for m in driver.maps if m != arena] == [(SPEC, x.array.ctypes.data) for x in (one, two, one)]


def test_parameters_lie_where_their_types_ask():
    one, two = bytes(range(128)), bytes(range(128, 256))
    for values in ([], [7], [one], [1, one, 2, two, 2**64 - 1], [one, two, 3]):
        table, memory = pack(values)
        for address, value in zip(table, values, strict=False):
            wanted = value if isinstance(value, bytes) else value.to_bytes(8, "little")
            assert address % (64 if len(wanted) == 128 else 8) == 0
            assert ctypes.addressof(memory) <= address <= ctypes.addressof(memory) + len(memory) - len(wanted)
            assert ctypes.string_at(address, len(wanted)) == wanted


def encoded(spec: TensorMapSpec, pointer: int, status=cu.CUresult.CUDA_SUCCESS) -> tuple[bytes, list]:
    """What a driver's encoding of a map gives, and what the driver was asked for."""
    asked: list = []

    def encode(*arguments):
        asked.append(arguments)
        return status, cu.CUtensorMap()

    driver = Driver.__new__(Driver)
    names = ("CUresult", "CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion")
    real = {name: getattr(cu, name) for name in (*names, "CUtensorMapFloatOOBfill", "cuuint32_t", "cuuint64_t")}
    driver.cu = SimpleNamespace(cuTensorMapEncodeTiled=encode, cuTensorMapEncodeIm2col=encode, **real)
    return driver._encode(spec, pointer), asked


@pytest.mark.parametrize(
    ("spec", "kind", "swizzle"),
    [
        (TensorMapSpec("bf16", (7, 5, 64), (2, 3, 64), 128), "BFLOAT16", "SWIZZLE_128B"),
        (TensorMapSpec("i1", (16,), (16,)), "UINT8", "SWIZZLE_NONE"),
        (TensorMapSpec("f64", (3, 4), (1, 4), 32), "FLOAT64", "SWIZZLE_32B"),
    ],
)
def test_the_driver_is_asked_with_the_innermost_dimension_first(spec, kind, swizzle):
    made, [asked] = encoded(spec, 4096)
    assert len(made) == 128
    assert asked[0].name.endswith(f"_TYPE_{kind}") and asked[1:3] == (len(spec.shape), 4096)
    shape, strides, box, steps = ([int(n) for n in numbers] for numbers in asked[3:7])
    assert shape == list(spec.shape[::-1]) and box == list(spec.box[::-1]) and steps == [1] * len(shape)
    running, wanted = spec.item, []
    for extent in shape[:-1]:
        running *= extent
        wanted.append(running)
    assert strides == (wanted or [16])  # of one dimension none counts, but there must be an array
    assert [e.name.removeprefix("CU_TENSOR_MAP_") for e in asked[7:]] == [
        "INTERLEAVE_NONE", swizzle, "L2_PROMOTION_L2_256B", "FLOAT_OOB_FILL_NONE",
    ]  # fmt: skip


def test_a_map_that_the_driver_refuses_is_named():
    with pytest.raises(MlircError, match=r"making a tensor map of f32\[37\] by \[4\] failed: CUDA_ERROR_INVALID_VALUE"):
        encoded(SPEC, 4096, cu.CUresult.CUDA_ERROR_INVALID_VALUE)


IM2COL = TensorMapSpec("f32", (2, 9, 11, 8), (128, 4), 0, Im2col((-1, -2), (-1, 0), (2, 3)))


def test_an_im2col_map_has_corners_pixels_and_channels():
    spec = replace(IM2COL, box=(128, 8), swizzle=32)
    _, [asked] = encoded(spec, 4096)
    shape, strides, lower, upper = ([int(n) for n in numbers] for numbers in asked[3:7])
    assert (shape, strides) == ([8, 11, 9, 2], [32, 352, 3168])
    assert (lower, upper, asked[7:9]) == ([-2, -1], [0, -1], (8, 128))
    assert [int(n) for n in asked[9]] == [1, 3, 2, 1]
    assert spec.im2col.counts((9, 11)) == (5, 5)


def test_a_plan_says_im2col_as_it_was():
    plan = mapped_plan()
    shape = (1, N // 4, 4)
    spec = TensorMapSpec("f32", shape, (16, 4), 0, Im2col((-1,), (1,), (3,)))
    plan.steps[1] = replace(plan.steps[1], maps={0: spec})
    assert from_json(to_json(plan)).steps[1].maps == {0: spec}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(im2col=Im2col((-129, 0), (0, 0), (1, 1))), "corner of -129: from -128 to 127"),
        (dict(im2col=Im2col((0, 0), (0, 0), (1, 9))), "stride of 9: it is 1 to 8"),
        (dict(im2col=Im2col((0, 0), (-9, 0), (1, 1))), "leave nothing"),
        (dict(im2col=Im2col((0,), (0,), (1,))), "as many dimensions"),
        (dict(box=(1025, 4)), "1 to 1024 pixels"),
        (dict(box=(1, 128, 4)), "they must be 2"),
        (dict(box=(128, 2)), "multiple of 16"),
    ],
)
def test_im2col_maps_that_the_driver_would_refuse(change, message):
    assert message in replace(IM2COL, **change).problem() and IM2COL.problem() == ""
