"""Products whose operands a producer warp copies by TMA, on the host device: rings, persistent blocks, clusters, results
that leave by tensor copies; and what is refused."""

from __future__ import annotations

import re

import pytest

from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.mlir import parse
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule, function_name
from support.kernels.payloads import matmul


@pytest.mark.parametrize(
    ("m", "n", "k", "knobs", "layout"),
    [
        (200, 96, 136, "mma=wgmma,block_m=128,block_n=48,stages=2", {}),  # panels of 32 and 16 columns leave
        (256, 224, 192, "mma=wgmma,block_m=128,block_n=112,blocks=3,stages=3", {}),  # four tiles, three blocks
        (512, 64, 192, "mma=wgmma,block_m=128,block_n=64,cluster_size=2,stages=2", {}),
        (512, 72, 129, "mma=wgmma,block_m=128,block_n=64,cluster_size=4,blocks=4", {"left": True, "transposed": False}),
        (136, 120, 264, "mma=wgmma,block_m=64,block_n=128,blocks=1", {"transposed": False}),
        (130, 72, 256, "mma=wgmma,block_m=128,block_n=64,blocks=2", {"gates": True}),  # three operands in a ring
        (70, 40, 200, "mma=wgmma,block_m=64,block_n=48,blocks=4", {"batch": 3}),
        (3, 104, 328, "blocks=2", {}),  # few rows: mma.sync reads what tensor copies bring
        (1, 40, 520, "", {"transposed": False}),  # and of any rows of it
        (64, 80, 256, "mma=mma,copy=tma,block_m=32,block_n=32,block_k=64,warps_m=1,warps_n=2,stages=3", {}),
    ],
)
def test_rings(m: int, n: int, k: int, knobs: str, layout: dict) -> None:
    text = matmul(m, n, k, "bf16", **layout)
    tiles, record = check_schedule(text, (f"matmul:{knobs}",) if knobs else (), 1e-2)
    assert record.knobs["copy"] == "tma" and re.search(r"mlirc.producers = [14]", tiles)
    blocks = re.search(r"blocks=(\d+)", knobs)
    assert not blocks or f"mlirc.persist = {blocks[1]} : i32" in tiles


def test_what_leaves_in_panels_is_computed_panel_by_panel() -> None:
    schedules = Schedules(("matmul:mma=wgmma,block_m=128,block_n=96",))
    tiles, _ = schedules.schedule_kernel(parse(matmul(128, 96, 192, "bf16", gates=True)), get_target("sm_90a"))
    to_gpu(tiles, function_name(tiles), get_target("sm_90a"))
    ops = re.findall(r"bulk.tensor.global.shared.cta|arith.mulf [^:]*: vector", str(tiles))
    assert ["m" if "mulf" in op else "copy" for op in ops] == [*"m" * 8, "copy"] * 3


def test_results_leave_by_either_way() -> None:
    for store in ("tma", "vector"):
        knobs = f"matmul:mma=wgmma,block_m=128,block_n=32,store={store}"
        tiles, _ = check_schedule(matmul(140, 40, 192, "f16"), (knobs,), 1e-2)
        assert f'mlirc.store = "{store}"' in tiles


@pytest.mark.parametrize(
    ("text", "knobs", "says"),
    [
        (matmul(128, 64, 252, "bf16"), "mma=wgmma,copy=tma", "rows of 504 bytes: tensor copies take multiples of 16"),
        (matmul(128, 64, 256, "bf16"), "mma=mma,copy=tma,block_k=128", "slices of 256 bytes along a row"),
        (
            matmul(128, 64, 200, "bf16", left=True, transposed=False),
            "mma=mma,copy=tma,block_m=64,block_n=64,block_k=40,warps_m=2,warps_n=2,stages=2",
            "what lies beyond the slices along k is not zero",  # the next slice: 40 rows of 48 are this one's
        ),
        (matmul(384, 64, 256, "bf16"), "mma=wgmma,block_m=128,cluster_size=2", "it must divide the 3 blocks"),
        (matmul(512, 64, 256, "bf16"), "mma=wgmma,block_m=128,cluster_size=2,blocks=3", "a whole number of clusters"),
        (matmul(128, 64, 256, "bf16"), "mma=wgmma,stages=1", "a ring has mlirc.stages >= 2"),
        (
            matmul(128, 256, 256, "bf16"),
            "mma=wgmma,warps_m=4,warps_n=2,block_n=128,store=tma",
            "do not hold whole rows",
        ),
    ],
)
def test_refusals_say_what_to_do(text: str, knobs: str, says: str) -> None:
    with pytest.raises(MlircError, match=says):
        check_schedule(text, (f"matmul:{knobs}",))


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (4096, 4096, 4096, (128, 256, 8)), (512, 4608, 3584, (128, 144, 8)), (2048, 3584, 3584, (128, 224, 8)),
        (256, 3584, 18944, (64, 112, 4)), (16, 3584, 18944, (16, 32, 4)), (16, 37888, 3584, (16, 96, 4)),
    ],
)  # fmt: skip
def test_tiles_that_were_measured(m: int, n: int, k: int, tile: tuple[int, int, int]) -> None:
    kernel = parse(matmul(m, n, k, "bf16", epilogue=False))
    _, record = Schedules([]).schedule_kernel(kernel, get_target("sm_90a"))
    knobs = record.knobs
    assert (knobs["block_m"], knobs["block_n"], knobs["warps_m"] * knobs["warps_n"]) == tile
    assert knobs["copy"] == knobs["store"] == "tma"


def test_small_products_of_f32_take_what_f32_has() -> None:
    for m in (2, 24, 200):
        _, record = check_schedule(matmul(m, 40, 192), ())
        assert record.knobs["mma"] in ("fma", "tf32x3")
