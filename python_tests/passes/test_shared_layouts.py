"""Tiles in shared memory: one map, and what is derived from it: descriptors, boxes, addresses, bank conflicts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc import mlir
from mlirc.device.launch import DeviceKernel
from mlirc.driver.kernel_build import to_gpu
from mlirc.mlir import ir
from mlirc.passes.distribute.layouts import banks
from mlirc.passes.distribute.layouts.registers import fma_accumulator, lane, mma_accumulator, row_layout
from mlirc.passes.distribute.layouts.shared import SharedLayout
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import function_name
from support.kernels.payloads import attention, inputs_of, matmul

MASKS = {0: 0, 32: 1, 64: 3, 128: 7}  # of the bits 7 to 9 of a byte's number, which are XORed into bits 4 to 6


def places(shared: SharedLayout) -> np.ndarray:
    """The byte of every element of every slot."""
    at = np.indices((shared.stages, *shared.extents))
    found = shared.map(slot=at[0], **{f"d{d}": x for d, x in enumerate(at[1:])})
    return found.get("byte", np.zeros(at[0].shape, np.int64))


@given(
    st.sampled_from([0, 32, 64, 128]), st.sampled_from([1, 2, 4]), st.integers(1, 40), st.integers(1, 3),
    st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_it_is_the_hardwares_swizzle(swizzle, size, rows, panels, stages):
    """Of atoms whose rows are as wide as the swizzle, bits of the address are XORed (PTX ISA, "Swizzling Modes")."""
    rows = -(-rows // 8) * 8  # slots and panels begin with an atom
    width = (swizzle or 128) // size
    shared = SharedLayout((1, rows, panels * width), size, swizzle, width, stages)
    slot, _, row, column = np.indices((stages, *shared.extents))
    byte = ((slot * panels + column // width) * rows + row) * width * size + column % width * size
    np.testing.assert_array_equal(places(shared), byte ^ (byte >> 7 & MASKS[swizzle]) << 4)


@given(st.integers(1, 40), st.integers(1, 200), st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_every_element_has_bytes_of_its_own(rows, columns, size, panels, stages):
    shared = SharedLayout.of_tile([rows, columns], size, panels, stages)
    byte = places(shared).ravel()
    assert len(np.unique(byte)) == len(byte) and not (byte % size).any()
    assert byte.max() < shared.slot_bytes * stages == np.prod(shared.memory_shape) * size
    row, column = rows // 2, columns // 2
    if shared.swizzle in (
        0,
        shared.row_bytes,
    ):  # what descriptors count in is the same, but for the permutation of chunks
        phase = row // shared.rows_per_line % shared.chunks * 16
        assert shared.offset(row, column) ^ phase == shared.map(d0=row, d1=column).get("byte", 0)


@given(st.integers(0, 6), st.integers(1, 24), st.sampled_from([1, 2, 4]), st.booleans(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_inverse_finds_the_element_of_a_byte(rows, columns, size, panels, stages):
    shared = SharedLayout.of_tile([1 << rows, columns * 8], size, panels, stages)
    found = shared.map.inverse()(byte=places(shared))
    at = dict(zip(("slot", "d0", "d1"), np.indices((stages, *shared.extents)), strict=True))
    for axis, numbers in at.items():
        np.testing.assert_array_equal(found.get(axis, np.zeros_like(numbers)), numbers)


def test_descriptors_of_both_majors():
    """K-major: eight rows are an atom of 1,024 bytes. MN-major: panels follow each other, each with all rows of k."""
    k_major = SharedLayout((192, 128), 2, 128, 64, 4)
    assert k_major.descriptor(True).bits == 1 << 62 | 64 << 32 | 1 << 16
    assert [k_major.offset(0, k) for k in (0, 16, 48, 64, 80)] == [0, 32, 96, 192 * 128, 192 * 128 + 32]
    assert k_major.offset(64, 0) == 64 * 128
    mn_major = SharedLayout((64, 256), 2, 128, 64, 4)
    assert mn_major.descriptor(False).bits == 1 << 62 | 64 << 32 | (64 * 128 >> 4) << 16
    assert [mn_major.offset(16, 0), mn_major.offset(0, 128)] == [16 * 128, 2 * 64 * 128]
    assert SharedLayout((8, 64), 2, 128, 64, 1).descriptor(False).leading == 8 * 128
    assert [SharedLayout((64, w // 2), 2, w).descriptor(True).bits >> 62 for w in (128, 64, 32)] == [1, 2, 3]


def test_boxes_and_slots():
    shared = SharedLayout((1, 128, 128), 2, 128, 64, 3)
    assert shared.box() == (128, 64) and shared.box(4) == (32, 64)
    assert shared.memory_shape == [3, 1, 2, 128, 64] and shared.memory_dims == [1, 3, 4]
    assert (shared.slot_bytes, shared.panel_bytes, shared.atom) == (32768, 16384, (8, 128))
    assert str(shared) == "3 slots of 2 panels of 128x64, rows swizzled over 128 bytes"


# -- bank conflicts


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("row", [32, 64, 128, 256])
def test_rows_that_are_swizzled_are_read_without_conflicts(row, size):
    swizzled = SharedLayout.of_tile([64, row // size], size, panels=False)
    assert swizzled.swizzle == min(row, 128) and banks.of_matrix(swizzled) == (1, 1)
    plain = SharedLayout((64, row // size), size)
    assert banks.of_matrix(plain) == (min(row, 128) // 16, 1)


def test_a_product_of_registers_reads_without_conflicts():
    layout = fma_accumulator(32, 64, 1, 2)
    for swizzle, wanted in ((64, True), (0, False)):
        rows = SharedLayout((64, 16), 4, swizzle)
        columns = layout.project([1, None])
        taken, least = banks.of_registers(rows, columns, 1, 2)
        assert (taken == least) is wanted


def test_the_first_of_copies_writes():
    """Four lanes with one element write it once: as many wavefronts as if the others were not there."""
    alone = row_layout((8, 4), 1, 1)
    shared = SharedLayout((8, 4), 4)
    assert banks.of_registers(shared, alone, 1, 1, writes=True) == (1, 1)
    few = type(alone).of((lane(8, 4),), ())
    assert banks.of_registers(SharedLayout((8, 1), 4), few, 1, 1, writes=True) == (1, 1)
    assert banks.of_registers(SharedLayout((64, 32), 4), mma_accumulator(64, 32, 1, 1), 1, 1)[0] > 64


SHIPPED = {
    "bf16": (matmul(256, 512, 256, "bf16"), ()),
    "bf16, weights [K, N]": (matmul(256, 512, 256, "bf16", transposed=False), ()),
    "bf16, x [K, M]": (matmul(256, 512, 256, "bf16", left=True), ()),
    "f32": (matmul(64, 256, 256), ()),
    "f32, weights [K, N]": (matmul(64, 256, 256, transposed=False), ()),
    "attention": (attention(lengths=(256, 256), dims=(64, 64), dtype="bf16"), ()),
    "attention, f32": (attention(lengths=(64, 128), dims=(64, 64)), ()),
}


def gpu_level(text: str, overrides: tuple[str, ...], target: str) -> ir.Module:
    """A kernel that is scheduled for a target."""
    tiles, _ = Schedules(list(overrides)).schedule_kernel(mlir.parse(text), get_target(target))
    with mlir.context(), ir.Location.unknown():
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, function_name(tiles), get_target(target))
    return tiles


def layouts_of(module: ir.Module) -> list[str]:
    """What is told of a kernel's layouts."""
    (listed,) = re.findall(r"mlirc.layouts = \[(.*?)\]", str(module))
    return re.findall(r'"(.*?)"', listed)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", SHIPPED)
def test_what_the_shipped_kernels_read_is_free_of_conflicts(name, target):
    text, overrides = SHIPPED[name]
    told = [line for line in layouts_of(gpu_level(text, overrides, target)) if line.startswith("shared memory")]
    assert told
    for line in told:
        for verb in ("ldmatrix", "wgmma", "cp.async"):
            assert f"{verb} in" not in line, line


def test_the_host_device_counts_as_many():
    """Of a kernel by ldmatrix: no conflict by the map, and none of what is executed."""
    text = matmul(64, 64, 64, "bf16")
    knobs = ("matmul:block_m=64,block_n=64,block_k=32,warps_m=2,warps_n=1,stages=2,mma=mma",)
    module = gpu_level(text, knobs, "sm_80")
    assert all("ldmatrix without bank conflicts" in x for x in layouts_of(module))
    with mlir.context():
        arguments = inputs_of(mlir.parse(text), 0)
    report = DeviceKernel(module, count=True).run([*arguments, np.zeros((64, 64), arguments[0].dtype)])
    (counted,) = report.counters.values()
    assert counted["shared matrix requests"] > 0 and counted["shared matrix bank conflicts"] == 0
