"""Warpgroup products on the host device: edges, batches, two products in one loop, and what they refuse."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.payloads import matmul

WGMMA = "matmul:mma=wgmma"


@pytest.mark.parametrize(
    ("m", "n", "k", "knobs"),
    [
        (64, 64, 192, "block_m=64,block_n=64,warps_m=4,warps_n=1,stages=3"),
        (128, 256, 256, "block_m=128,block_n=256,warps_m=8,warps_n=1,stages=4"),
        (128, 128, 256, "block_m=128,block_n=128,warps_m=4,warps_n=2,stages=4"),
        (256, 64, 192, "block_m=256,block_n=64,warps_m=8,warps_n=1,stages=3"),
        (101, 77, 202, "block_m=64,block_n=64,warps_m=4,warps_n=1,stages=5"),
        (1, 9, 330, "block_m=64,block_n=32,warps_m=4,warps_n=1,stages=3"),
        (127, 97, 264, "block_m=128,block_n=96,warps_m=8,warps_n=1,stages=4"),
    ],
)
@pytest.mark.parametrize(("dtype", "copy"), [("bf16", "tma"), ("f16", "cp_async")])
def test_tiles_and_edges(m: int, n: int, k: int, knobs: str, dtype: str, copy: str) -> None:
    if k % 8:
        copy = "cp_async"  # tensor copies take rows of multiples of 16 bytes
    tiles, record = check_schedule(matmul(m, n, k, dtype), ("matmul_0=matmul", f"{WGMMA},{knobs},copy={copy}"), 1e-2)
    assert record.knobs["copy"] == copy
    assert record.knobs["mma"] == "wgmma" and 'mlirc.mma = "wgmma"' in tiles


# Rows of both operands along k or not: [M, K] or [K, M], [N, K] or [K, N].
@pytest.mark.parametrize(("left", "transposed"), [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize(
    ("m", "n", "k", "knobs"),
    [
        (64, 64, 192, "block_m=64,block_n=64,warps_m=4,warps_n=1,stages=3"),
        (128, 256, 200, "block_m=128,block_n=256,warps_m=8,warps_n=1,stages=4"),
        (130, 134, 258, "block_m=128,block_n=128,warps_m=4,warps_n=2,stages=4"),
        (200, 88, 264, "block_m=128,block_n=96,warps_m=8,warps_n=1,stages=4"),
    ],
)
def test_rows_along_m_and_n(m: int, n: int, k: int, knobs: str, left: bool, transposed: bool) -> None:
    text = matmul(m, n, k, "bf16", left=left, transposed=transposed)
    tiles, record = check_schedule(text, (f"{WGMMA},{knobs}",), 1e-2)
    assert record.knobs["mma"] == "wgmma"


def test_large_products_of_any_layout_take_warpgroups() -> None:
    for left, transposed in ((False, False), (True, True), (True, False)):
        text = matmul(1024, 1024, 192, "f16", epilogue=False, left=left, transposed=transposed)
        _, record = Schedules([]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
        assert record.knobs["mma"] == "wgmma"


def test_rows_of_an_odd_length_are_read_ahead_where_there_are_steps_enough() -> None:
    _, record = check_schedule(matmul(64, 64, 255, "bf16"), (f"{WGMMA},stages=4",), 1e-2)
    assert record.knobs["mma"] == "wgmma"


def test_batches_and_two_products_in_one_loop() -> None:
    check_schedule(matmul(70, 40, 200, "bf16", batch=3), (f"{WGMMA},block_m=64,block_n=64",), 1e-2)
    check_schedule(matmul(130, 72, 256, "bf16", gates=True), (f"{WGMMA},block_m=128,block_n=64,warps_m=8",), 1e-2)


def test_large_products_take_warpgroups_by_themselves() -> None:
    _, record = check_schedule(matmul(1024, 1024, 192, "bf16", epilogue=False), (), 1e-2)
    assert record.knobs["mma"] == "wgmma"


@pytest.mark.parametrize("knobs", ["block_k=32,stages=3", "block_k=96,copy=cp_async,stages=3"])
def test_panels_that_a_slice_does_not_fill(knobs: str) -> None:
    check_schedule(matmul(65, 70, 200, "bf16"), (f"matmul:mma=wgmma,{knobs}",), 1e-2)


@pytest.mark.parametrize(
    ("text", "knobs", "says"),
    [
        (matmul(64, 64, 256, "bf16"), "stages=2,copy=cp_async", "stages >= 3"),
        (matmul(64, 64, 256, "bf16"), "warps_m=2,warps_n=2", "multiples of 4"),
        (matmul(64, 192, 256, "bf16", transposed=False), "block_n=192,warps_m=4,warps_n=2,stages=4", "multiples of 64"),
        (matmul(64, 64, 127, "bf16"), "stages=4", "asynchronously"),
        (matmul(64, 64, 256, "f32"), "stages=4", "not operands of f32"),
        (matmul(64, 1024, 256, "bf16"), "block_n=512,warps_m=4,warps_n=1,stages=3", "256 columns"),
    ],
)
def test_refusals_say_what_to_do(text: str, knobs: str, says: str) -> None:
    with pytest.raises(MlircError, match=says):
        check_schedule(text, (f"{WGMMA},{knobs}",))
