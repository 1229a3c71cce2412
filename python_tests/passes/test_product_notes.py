"""What `mlirc -vv` says of products and layouts: the instruction, the registers, the shared memory that were chosen."""

from __future__ import annotations

import pytest

from mlirc.passes.distribute.layouts.registers import Layout, mma_accumulator, reg
from mlirc.tools import mlirc
from support.kernels.payloads import attention, matmul


@pytest.mark.parametrize("text, schedule, wanted", [
    (matmul(33, 40, 72), "matmul:block_m=32,block_n=32,block_k=16,stages=2,mma=fma", [
        "fma 32x32x16 on 1x4 warps; sums (r8 l4:8) x (w4 l8): 8 registers; A f32 in 2 slots of 32x16, "
        "rows swizzled over 64 bytes; B f32 in 2 slots of 32x16, rows swizzled over 64 bytes",
        "shared memory f32 in 2 slots of 32x16, atoms of 8x64 bytes: cp.async without bank conflicts, reads without bank "
        "conflicts",
    ]),
    (matmul(33, 40, 72), "matmul:block_m=32,block_n=64,block_k=64,warps_m=2,warps_n=1,warps_k=2,stages=2,mma=tf32x3", [
        "tf32x3 32x40x64 on 2x1 warps x 2 along k; sums (w2 l8:4 r2) x (r5 l4 r2): 20 registers; A f32 in 2 slots of "
        "2 panels of 32x32, rows swizzled over 128 bytes; B f32 in 2 slots of 2 panels of 40x32, rows swizzled over 128 bytes",
        "shared memory f32 in 2 slots of 2 panels of 32x32, atoms of 8x128 bytes: cp.async without bank conflicts, reads in "
        "1.11 times the fewest wavefronts",
        "shared memory f32 in 2 slots of 2 panels of 40x32, atoms of 8x128 bytes: cp.async without bank conflicts, reads in "
        "1.8 times the fewest wavefronts",
    ]),
    (attention(lengths=(40, 70), dims=(16, 16), dtype="bf16"), "attention:block_q=32,block_kv=32,mma=mma", [
        "mma 32x32x16 on 2x1 warps; sums (w2 r2 l8:4) x (r4 l4 r2): 16 registers; A bf16 in registers; "
        "B bf16 in 2 slots of 32x16, rows swizzled over 32 bytes",
        "mma 32x16x32 on 2x1 warps; sums (w2 r2 l8:4) x (r2 l4 r2): 8 registers; A bf16 in registers; "
        "B bf16 in 2 slots of 32x16, rows swizzled over 32 bytes",
        "shared memory bf16 in 2 slots of 32x16, atoms of 8x32 bytes: cp.async without bank conflicts, ldmatrix without "
        "bank conflicts",
        "shared memory bf16 in 1 slot of 32x16, atoms of 8x32 bytes: stores without bank conflicts, ldmatrix without bank "
        "conflicts",
    ]),
])  # fmt: skip
def test_products_and_layouts_are_told(ran, tmp_path, text, schedule, wanted):
    kernel = tmp_path / "kernel.mlir"
    kernel.write_text(text)
    for _ in range(2):  # the second time from the cache
        said = ran(mlirc.main, kernel, "-vv", "--schedule", schedule).err.split("\n")
        name = schedule.split(":")[0]
        assert [line for line in said if line.startswith(f"{name}_0: ")] == [f"{name}_0: {line}" for line in wanted]


def test_a_kernel_without_products_says_nothing(ran, tmp_path):
    from support.kernels.payloads import norm

    kernel = tmp_path / "kernel.mlir"
    kernel.write_text(norm(3, 64))
    result = ran(mlirc.main, kernel, "-vv")
    assert result.status == 0 and "reduction_0: " not in result.err and "mlirc.products" not in result.out


def test_layouts_print_as_the_page_writes_them():
    assert str(mma_accumulator(16, 8, 1, 1)) == "(r2 l8:4) x (l4 r2)"
    assert str(Layout.of((reg(1),), (reg(8),))) == "(1) x (r8)"
