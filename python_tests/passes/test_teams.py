"""Teams of warps: a tile program is the same whichever warps of a block run it, and teams do not wait for each other."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.mlir import ir, nested
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, function_name, run_tiles
from support.kernels.payloads import attention, generic, inputs_of, kernel, matmul, norm, row_reduction

TARGET = get_target("sm_90a")


def divided(text: str, knobs: str, teams: int, producers: int = 0) -> ir.Module:
    """A kernel's `tiles` level whose blocks compute a block of the forall for each of their teams."""
    tiles, _ = Schedules([knobs] if knobs else []).schedule_kernel(mlir.parse(text), TARGET)
    with mlir.context(), ir.Location.unknown():
        number = ir.IntegerType.get_signless(32)
        for op in nested(tiles.operation):
            if op.name == "scf.forall":
                op.attributes["mlirc.teams"] = ir.IntegerAttr.get(number, teams)
            if producers and "mlirc.producers" in op.attributes:
                op.attributes["mlirc.producers"] = ir.IntegerAttr.get(number, producers)
    return tiles


def check(text: str, knobs: str, teams: int, tolerance: float, producers: int = 0) -> str:
    """Runs a divided kernel on the host device; it gives what one team a block gives, to the last bit. Returns its
    `gpu` level."""
    alone, tiles = divided(text, knobs, 1, producers), divided(text, knobs, teams, producers)
    with mlir.context():
        arguments = inputs_of(mlir.parse(text), 3)
    expected, _ = run_tiles(alone, arguments)
    found, report = run_tiles(tiles, arguments)
    assert report.ok, "\n".join(map(str, report.findings))
    assert_close(found, expected, tolerance)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f.view(np.uint8), e.view(np.uint8))
    return gpu_level(tiles)


def gpu_level(tiles: ir.Module) -> str:
    with mlir.context(), ir.Location.unknown():
        to_gpu(tiles, function_name(tiles), TARGET)
    return str(tiles)


def launches(text: str) -> list[tuple[int, int]]:
    """(blocks, threads) of each launch."""
    found = re.findall(r"blocks in \(%c(\d+)\w*, .*?threads in \(%c(\d+)\w*,", text)
    return [(int(blocks), int(threads)) for blocks, threads in found]


@pytest.mark.parametrize("rows, columns", [(1, 1), (7, 33), (13, 1000), (130, 257)])
@pytest.mark.parametrize("teams, warps", [(2, 4), (3, 2), (5, 1)])
def test_reductions_of_rows(rows: int, columns: int, teams: int, warps: int) -> None:
    text, knobs = row_reduction(rows, columns, "f32", "0.0", "addf"), f"reduction:warps={warps}"
    blocks, threads = launches(gpu_level(divided(text, knobs, 1)))[0]
    assert launches(check(text, knobs, teams, 1e-5))[0] == (-(-blocks // teams), threads * teams)


def test_each_team_meets_at_a_barrier_of_its_own() -> None:
    text = check(norm(11, 1003), "reduction:warps=4", 2, 1e-5)
    assert set(re.findall(r"nvvm.barrier id = (%\w+) number_of_threads = (%\w+)", text)) == {
        ("%c1_i32", "%c128_i32"), ("%c2_i32", "%c128_i32")
    }  # fmt: skip
    assert "gpu.barrier" not in text and launches(text) == [(6, 256)]


def test_what_one_team_gives_back_no_other_takes() -> None:
    """Loops by cp.async give their slots back; the other team's are still in use."""
    knobs = "matmul:mma=mma,block_m=32,block_n=32,warps_m=2,warps_n=2,stages=3"
    one, two = (shared_bytes(gpu_level(divided(matmul(64, 64, 200, "f16"), knobs, n))) for n in (1, 2))
    assert two >= 2 * one


def shared_bytes(text: str) -> int:
    found = re.search(r"mlirc.smem = (\d+)", text)
    assert found
    return int(found[1])


PRODUCTS = {
    "mma": (matmul(70, 41, 200, "bf16"), "matmul:mma=mma,block_m=32,block_n=32,warps_m=2,warps_n=2,stages=3,copy=cp_async"),
    "fma": (matmul(37, 61, 50, "f32"), "matmul:mma=fma,block_m=16,block_n=32,warps_m=2,warps_n=1"),
    "wgmma": (matmul(130, 72, 192, "f16"), "matmul:mma=wgmma,block_m=64,block_n=32,warps_m=4,warps_n=1,stages=3,copy=cp_async"),
    "attention": (
        attention(lengths=(33, 70), dims=(32, 32), heads=(2, 1), dtype="bf16", causal=False),
        "attention:mma=mma,block_q=32,block_kv=32,warps=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("teams", [2, 3])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, teams: int) -> None:
    check(*PRODUCTS[name], teams, 1e-2)


WGMMA = "matmul:mma=wgmma,copy=tma,block_m=64,block_n=32,warps_m=4,warps_n=1,stages=2,producers=4"
FED = {
    "one product": (matmul(130, 72, 192, "bf16"), WGMMA),
    "few tiles": (matmul(30, 30, 70 * 8, "bf16", epilogue=False), WGMMA),
    "two products": (matmul(130, 72, 136, "bf16", gates=True), WGMMA.replace("block_n=32", "block_n=64")),
    "block after block": (matmul(200, 200, 136, "bf16"), f"{WGMMA},blocks=2"),
    "attention": (
        attention(lengths=(130, 200), dims=(64, 64), heads=(3, 1), dtype="bf16"),
        "attention:block_q=64,block_kv=64,stages=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FED)
def test_teams_with_producers(name: str) -> None:
    """Each team has rings of its own, which a producer of its own fills."""
    text = check(*FED[name], 2, 1e-2, producers=4)
    _, threads = launches(text)[0]
    assert threads == 32 * (2 * 4 + 4)
    alone = gpu_level(divided(*FED[name], 1, 4))
    busy = min(2, launches(alone)[0][0])  # the second team of a launch of one block has nothing to do
    assert text.count("nvvm.mbarrier.arrive.expect_tx") == busy * alone.count("nvvm.mbarrier.arrive.expect_tx")


@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (64, 130)])
def test_elementwise(shape: tuple[int, int]) -> None:
    x = f"tensor<{shape[0]}x{shape[1]}xf32>"
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b")], ("%e", x, "a, b"), "%y = arith.mulf %x0, %x0 : f32"
    )
    check(kernel("elementwise_0", "elementwise", {"x": x}, x, body), "elementwise:warps=2", 3, 0)


@pytest.mark.parametrize(
    "text, knobs, teams, says",
    [
        (norm(8, 64), "reduction:warps=16", 3, "16 warps in each of 3 teams: a block has at most 32 warps"),
        (
            matmul(512, 512, 192, "bf16"),
            "matmul:mma=wgmma,block_m=128,block_n=128,stages=2,copy=tma,producers=1",
            2,
            "each team has a producer, and 1 are too few: specialize(loop, producers=4)",
        ),
        (
            matmul(256, 256, 192, "bf16"),
            "matmul:mma=mma,block_m=32,block_n=32,copy=cp_async,parts=2",
            2,
            "K is split among blocks",
        ),
    ],
)
def test_what_is_refused(text: str, knobs: str, teams: int, says: str) -> None:
    with pytest.raises(MlircError, match=re.escape(says)):
        gpu_level(divided(text, knobs, teams))
