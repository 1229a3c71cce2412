"""Products whose K is divided among the blocks of a cluster: on the CPU at the `tiles` level, and on the host device."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import assert_same, matmul


def divided(text: str, dtype: str, knobs: str) -> str:
    """The tiles of a product, right on the CPU and on the host device."""
    schedule, tolerance = (f"matmul_0=matmul:{knobs}",), {"f32": 1e-5, "i32": 0}.get(dtype, 1e-2)
    assert_same(text, schedule, tolerance)
    return check_schedule(text, schedule, tolerance)[0]


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout"),
    [
        (37, 40, 200, "bf16", "parts=4,mma=mma,block_m=32,block_n=16,block_k=32,copy=cp_async", {}),  # 7 steps, edges
        (3, 40, 520, "bf16", "parts=2,stages=2", {}),  # a ring; fewer rows than two for each
        (16, 40, 1000, "bf16", "parts=8,stages=2", {"transposed": False}),
        (67, 24, 520, "bf16", "parts=2,mma=wgmma,copy=tma,block_m=64,block_n=16,stages=2", {}),
        (67, 20, 264, "bf16", "parts=2,mma=wgmma,copy=cp_async,block_m=64,block_n=16,warps_m=4,warps_n=1", {}),
        (130, 72, 328, "f16", "parts=2,mma=wgmma,copy=tma,block_m=128,block_n=64,stages=2", {"gates": True}),
        (33, 40, 256, "f32", "parts=2,mma=tf32x3,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=1,warps_k=2", {}),
        (33, 35, 137, "f32", "parts=4,mma=fma,block_m=32,block_n=32,block_k=16", {"left": True}),
        (2, 5, 64, "f32", "parts=2,block_k=16", {"prologue": True}),  # a row for each
        (5, 17, 133, "f32", "parts=2,block_m=4,block_n=16,block_k=16", {"batch": 2}),
        (1, 1, 257, "f32", "parts=8,block_k=16", {"epilogue": False}),  # one block of eight has something to store
        (13, 9, 70, "i32", "parts=4,block_k=16", {}),
    ],
)
def test_parts_of_k(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict) -> None:
    tiles = divided(matmul(m, n, k, dtype, **layout), dtype, knobs)
    assert tiles.count("scf.forall (") == 3


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout"),
    [
        (37, 40, 200, "bf16", "parts=3,mma=mma,block_m=32,block_n=16,block_k=32,copy=cp_async", {}),
        (16, 40, 1000, "bf16", "parts=5,stages=2", {"transposed": False}),
        (
            33,
            20,
            4001,
            "f32",
            "parts=16,mma=fma,block_m=16,block_n=32,block_k=64",
            {},
        ),  # an empty share of the last row
        (67, 24, 520, "bf16", "parts=2,through=memory,mma=wgmma,copy=tma,block_m=64,block_n=16,stages=2", {}),
        (33, 35, 137, "f32", "parts=7,mma=fma,block_m=32,block_n=32,block_k=16", {"gates": True}),
        (5, 17, 133, "i32", "parts=3,block_m=4,block_n=16,block_k=16", {"batch": 2}),
        (70, 40, 200, "f16", "parts=4,through=memory,blocks=2,copy=tma", {}),  # rings run on from part to part
    ],
)
def test_a_second_launch_adds_the_parts(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict) -> None:
    tiles = divided(matmul(m, n, k, dtype, **layout), dtype, knobs)
    assert tiles.count("scf.forall (") == 2


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout"),
    [
        (1, 5, 40000, "bf16", "", {}),
        (3, 1, 36007, "f32", "", {"epilogue": False}),
        (1, 1, 40960, "f32", "", {}),
        (1, 7, 1000, "f32", "part=96,rows=2", {"gates": True}),
        (1, 7, 1000, "bf16", "part=96,rows=2", {"batch": 3}),
    ],
)
def test_long_rows_times_a_vector(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict) -> None:
    text, tolerance = matmul(m, n, k, dtype, **layout), {"f32": 1e-5}.get(dtype, 1e-2)
    tiles, record = check_schedule(text, (f"matmul_0=matvec:{knobs}",) if knobs else (), tolerance)
    assert record.script == "matvec" and tiles.count("scf.forall (") == 2


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "parts"),
    [
        (16, 2048, 5632, "bf16", 4), (1, 512, 3584, "bf16", 8), (16, 3584, 3584, "bf16", 1), (64, 3584, 18944, "bf16", 2),
        (256, 3584, 18944, "bf16", 1), (128, 3584, 18944, "bf16", 2), (256, 256, 524288, "f32", 33),
        (9, 20, 34001, "f32", 33),  # rows that tensor copies do not take
    ],
)  # fmt: skip
def test_parts_that_were_measured(m: int, n: int, k: int, dtype: str, parts: int) -> None:
    kernel = mlir.parse(matmul(m, n, k, dtype, transposed=False, epilogue=False))
    _, record = Schedules([]).schedule_kernel(kernel, get_target("sm_90a"))
    assert record.knobs["parts"] == parts and record.knobs.get("through", "cluster") == (
        "memory" if parts > 8 else "cluster"
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "layout"),
    [
        (7, 72, 776, "bf16", {"transposed": False}),  # a cluster of four
        (29, 40, 2056, "bf16", {}),  # warpgroups; rows that are no tile
        (17, 23, 1031, "bf16", {"left": True}),  # rows of which single elements can be copied
        (17, 23, 1531, "f32", {}),
    ],
)
def test_products_divide_k_by_themselves(m: int, n: int, k: int, dtype: str, layout: dict) -> None:
    _, record = check_schedule(matmul(m, n, k, dtype, **layout), (), 1e-2)
    assert record.knobs["parts"] > 1


def chosen(m: int, n: int, k: int, dtype: str, target: str = "sm_90a", **layout: bool) -> dict:
    kernel = mlir.parse(matmul(m, n, k, dtype, epilogue=False, **layout))
    _, record = Schedules([]).schedule_kernel(kernel, get_target(target))
    return dict(record.knobs)


def test_what_tensor_copies_do_not_take_is_divided() -> None:
    """Rows that are no multiples of 16 bytes: 25 tiles with 33 steps, each of which waits for its slices."""
    for m, n, k in ((129, 136, 4104), (131, 201, 4097), (33, 47, 9001)):
        for dtype in ("bf16", "f16"):
            knobs = chosen(m, n, k, dtype, left=True, transposed=False)
            aligned = knobs.get("align_rows", False)
            assert knobs["parts"] > 4 and knobs["copy"] == ("tma" if aligned else "cp_async"), (m, n, k)


def test_long_rows_of_few_tiles_are_divided_among_all_multiprocessors() -> None:
    for m, n, k in ((130, 200, 4096), (32, 352, 18792), (312, 344, 13992)):
        knobs = chosen(m, n, k, "bf16", left=m % 8 == 0)
        tiles = -(-m // knobs["block_m"]) * -(-n // knobs["block_n"])
        assert 48 <= tiles * knobs["parts"] <= 2 * 132, (m, n, k)


def test_products_whose_tiles_fill_the_machine_are_not_divided() -> None:
    for m, n, k in ((512, 3584, 3584), (2048, 512, 3584), (512, 4608, 3584), (1000, 1288, 520), (333, 1032, 520)):
        assert chosen(m, n, k, "bf16")["parts"] == 1, (m, n, k)
    assert chosen(1001, 1289, 521, "bf16")["parts"] == 1


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89"])
def test_parts_go_through_memory_where_there_are_no_clusters(target: str) -> None:
    """Products that clusters of sm_90 divide: in parts for a second launch, or not at all."""
    for m, n, k in ((64, 64, 1024), (17, 16, 1024), (64, 1000, 2048), (129, 136, 4104)):
        for dtype in ("f32", "bf16"):
            knobs = chosen(m, n, k, dtype, target)
            assert knobs["parts"] == 1 or knobs["through"] == "memory", (m, n, k, dtype)
    assert chosen(64, 64, 1024, "f32", target)["parts"] > 1


def test_a_part_of_one_slice_is_copied_through_two_slots() -> None:
    """A producer's ring has no fewer: such products of f32 were refused."""
    _, record = check_schedule(matmul(32, 64, 1024, "f32", epilogue=False), (), 1e-5)
    assert (record.knobs["parts"], record.knobs["copy"], record.knobs["stages"]) == (8, "tma", 2)


def test_every_run_gives_the_same_bits() -> None:
    text, arguments, specs = lowered(matmul(7, 40, 520, "bf16"), "matmul:parts=4,stages=2")
    kernel, runs = DeviceKernel(mlir.parse(text)), set()
    for seed in range(4):
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        report = kernel.run([*arguments, *results], seed=seed)
        assert report.ok, "\n".join(map(str, report.findings))
        runs.add(results[0].tobytes())
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ("parts=5,through=memory", "parts 5: the loop has 4 steps of 64"),
        ("parts=3,through=cluster", "schedule.split_k: parts 3: a cluster has 2, 4 or 8 blocks"),
        ("parts=8", "parts 8: the loop has 4 steps of 64: fewer parts or steps"),
        ("parts=2,cluster_size=2,copy=tma", "mlirc.cluster: K is split among blocks"),
        ("parts=2,blocks=2,copy=tma", "mlirc.persist: K is split among blocks: each block computes one tile"),
        ("parts=2,mma=wgmma,store=tma", "shares of a tile leave by the threads' own stores: leave it out"),
    ],
)
def test_what_does_not_go_together_is_refused(knobs: str, says: str) -> None:
    with pytest.raises(MlircError) as error:
        check_schedule(matmul(70, 40, 200, "f16"), (f"matmul:{knobs}",), 1e-2)
    assert "scripts/matmul.py:" in str(error.value) and says in str(error.value)


def test_an_edited_script_with_another_word_is_refused(tmp_path) -> None:
    kernel = mlir.parse(matmul(70, 40, 200, "f16"))
    schedules = Schedules(["matmul:parts=2"])
    schedules.schedule_kernel(kernel, get_target("sm_90a"))
    (tmp_path / "edited.mlir").write_text(schedules.printed().replace('through = "cluster"', 'through = "disk"'))
    with pytest.raises(MlircError, match='through "disk": choose "cluster" or "memory"'):
        Schedules([str(tmp_path / "edited.mlir")]).schedule_kernel(kernel, get_target("sm_90a"))
