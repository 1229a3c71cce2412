"""Parts that the last block of a tile combines, in the launch that computed them: right on the host device in every order
of blocks, the same bits in each, and refused where one launch cannot do it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device import DeviceKernel
from mlirc.device.ptx.run import run_kernel
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule, check_tiles
from support.kernels.launched import launches
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import inputs_of, matmul

SMALL = (5, 17, 133, "f32")  # 2 x 2 tiles with edges
KNOBS = "parts=3,block_m=4,block_n=16,block_k=16,combine=last"


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout"),
    [
        (
            33,
            20,
            1001,
            "f32",
            "parts=16,mma=fma,block_m=16,block_n=32,block_k=32",
            {},
        ),  # an empty share of the last row
        (67, 24, 520, "bf16", "parts=2,through=memory,mma=wgmma,copy=tma,block_m=64,block_n=16,stages=2", {}),
        (16, 40, 1000, "bf16", "parts=5,stages=2", {"transposed": False}),
        (5, 17, 133, "i32", "parts=3,block_m=4,block_n=16,block_k=16", {"batch": 2}),
        (1, 1, 257, "f32", "parts=7,block_k=16", {"epilogue": False}),  # one tile
    ],
)
def test_products(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict) -> None:
    tolerance = {"f32": 1e-5, "i32": 0}.get(dtype, 1e-2)
    schedule = (f"matmul_0=matmul:{knobs},combine=last",)
    tiles, _ = check_schedule(matmul(m, n, k, dtype, **layout), schedule, tolerance)
    assert tiles.count("scf.forall (") == 2 and "mlirc.last_block" in tiles


def test_rows_times_a_vector() -> None:
    text = matmul(1, 7, 1000, "bf16", batch=3)
    check_schedule(text, ("matmul_0=matvec:part=96,rows=2,combine=last",), 1e-2)


def kernel_of(knobs: str = KNOBS) -> tuple[str, list, list]:
    """A product whose parts its last blocks add, at the `gpu` level: text, arguments, room for results."""
    text, arguments, specs = lowered(matmul(*SMALL), f"matmul:{knobs}")
    assert text.count("gpu.launch_func") == 1
    return text, arguments, [np.zeros(s.shape, s.dtype) for s in specs]


def test_every_run_gives_the_same_bits() -> None:
    text, arguments, results = kernel_of()
    kernel, runs = DeviceKernel(mlir.parse(text)), set()
    for seed in range(4):
        report = kernel.run([*arguments, *results], seed=seed)
        assert report.ok, "\n".join(map(str, report.findings))
        runs.add(results[0].tobytes())
    assert len(runs) == 1


def test_two_runs_of_the_ptx() -> None:
    """Each begins with counters of zeros, as a file that is loaded, and ends with the same result as two launches."""
    made = []
    for knobs in (KNOBS, KNOBS.replace("=last", "=launch")):
        text, arguments, specs = lowered(matmul(*SMALL), f"matmul:{knobs}")
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        run_kernel(compile_kernel(mlir.parse(text), get_target("sm_90a")), [*arguments, *results])
        made.append(results)
    assert_close(*made, 1e-6)


ATOMIC = re.compile(r'llvm\.atomicrmw uinc_wrap (\S+), (\S+) syncscope\("device"\) acq_rel')
METS = re.compile(r"\n *gpu\.barrier(?=\n(?:(?!gpu\.barrier).|\n)*?atomicrmw)")  # in front of the counter
MUTANTS = {
    "no release": (lambda t: t.replace("acq_rel :", "acquire :"), "race between blocks"),
    "no acquire": (lambda t: t.replace("acq_rel :", "release :"), "race between blocks"),
    "no order": (lambda t: t.replace("acq_rel :", "monotonic :"), "race between blocks"),
    "a scope too narrow": (lambda t: t.replace('syncscope("device") acq_rel', 'syncscope("block") acq_rel'), "race"),
    "no barrier in front": (lambda t: METS.sub("", t, count=1), "race between blocks"),
    "a counter that goes on": (lambda t: t.replace("uinc_wrap", "add"), "changed memory"),
    "the first block": (lambda t: re.sub(r"(cmpi eq, %\d+, )%c2_i32", r"\1%c1_i32", t), ""),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_reported(name: str) -> None:
    spoil, kind = MUTANTS[name]
    text, arguments, results = kernel_of()
    assert ATOMIC.search(text)
    spoiled = spoil(text)
    if name == "the first block":
        spoiled = spoiled.replace("%c2_i32 = arith.constant 2 : i32", "%c2_i32 = arith.constant 2 : i32\n      "
                                  "%c1_i32 = arith.constant 1 : i32" * ("%c1_i32 = " not in spoiled))  # fmt: skip
    assert spoiled != text
    report = DeviceKernel(mlir.parse(spoiled)).run([*arguments, *results])
    assert not report.ok and any(kind in f.kind for f in report.findings), report.findings


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ("parts=2,through=memory,copy=tma,blocks=2,combine=last", "mlirc.persist"),
        (
            "parts=2,through=memory,mma=wgmma,copy=tma,store=tma,combine=last",
            "by the threads' own stores: leave store out",
        ),
        ("parts=2,through=cluster,combine=last", "combine=last: of parts of K that go through memory"),
        ("parts=1,combine=launch", "combine=launch: of parts of K that go through memory"),
    ],
)
def test_what_does_not_go_together_is_refused(knobs: str, says: str) -> None:
    with pytest.raises(MlircError) as error:
        check_schedule(matmul(64, 64, 256, "f16"), (f"matmul:{knobs}",), 1e-2)
    assert says in str(error.value)


def tiles_of(knobs: str = KNOBS) -> str:
    return str(Schedules([f"matmul:{knobs}"]).schedule_kernel(mlir.parse(matmul(*SMALL)), get_target("sm_90a"))[0])


FROM_ITS_TILE = re.compile(r"(tensor\.extract_slice %\d+\[)(%arg\d+), (%arg\d+), (0, )")


def test_parts_of_another_tile_take_a_second_launch() -> None:
    """Nobody knows then whether its blocks are done: what is demanded is refused, what is offered is left."""
    tiles = tiles_of()
    assert launches(tiles) == 1
    other = FROM_ITS_TILE.sub(r"\1\3, \2, \4", tiles, count=1)
    assert other != tiles
    with pytest.raises(MlircError, match="mlirc.last_block = .*: it reads more than the parts of its own tile"):
        launches(other)
    offered = re.sub(r"mlirc\.demands = \[[^\]]*\], ", "", other)
    assert offered != other and launches(offered) == 2


def test_blocks_of_one_tile_are_computed_in_turn() -> None:
    """Where the second program has several for each tile, the last block has a loop over them."""
    knobs = "matmul:parts=3,through=memory,block_m=16,block_n=128,block_k=16"
    tiles = str(Schedules([knobs]).schedule_kernel(mlir.parse(matmul(13, 120, 64, "f32")), get_target("sm_90a"))[0])
    grids = re.findall(r"scf\.forall \(.*?\) in \((.*?)\)", tiles)
    assert grids[0].endswith("1, 3") and grids[1].endswith("1, 2")
    warps = re.search(r"mlirc\.warps = (\d+)", tiles)
    assert warps
    first, second = tiles.rsplit("{mapping = ", 1)
    merged = f"{first}{{mlirc.last_block = {warps[1]} : i32, mapping = {second}"
    assert launches(merged) == 1
    check_tiles(merged, 1e-5)


def test_the_cpu_runs_both_in_order() -> None:
    tiles = mlir.parse(tiles_of())
    two = mlir.parse(tiles_of(KNOBS.replace("=last", "=launch")))
    arguments = inputs_of(tiles, 0)
    assert_close(run_module(tiles, arguments, "matmul_0"), run_module(two, arguments, "matmul_0"), 1e-6)
