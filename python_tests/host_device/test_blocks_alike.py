"""Blocks of a batch that do the same are watched once (order/clocks.py); as much is found as where each block
runs by itself, also where blocks begin to differ on the way."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.direct import run_function
from support.kernels.instructions import load, module, store

BLOCKS = 5
ALL, SOME, NONE = "arith.cmpi sge, %b, %c0 : i32", "arith.cmpi ne, %b, %c3 : i32", "arith.cmpi slt, %b, %c0 : i32"


def kernel(synced: str, waited: str, freed: str) -> str:
    """Warp 0 writes, and its first lane arrives; warp 1 waits, reads, and arrives elsewhere; warp 0 waits for that, and
    writes again. Whether warp 0 meets before its lane arrives, and whether each wait is made, depends on the block."""
    wait = "nvvm.mbarrier.try_wait.parity {0}, %c0, %patience : !llvm.ptr<3>, i32, i32"
    lane = (
        "%lead = arith.cmpi eq, %lane, %c0 : i32\nscf.if %lead {{ nvvm.mbarrier.arrive {0} : !llvm.ptr<3> -> i64 }}\n"
    )
    return f"""%patience = arith.constant 1000 : i32
      %first = arith.cmpi eq, %t, %c0 : i32
      %full = llvm.getelementptr %smem[1024] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      %free = llvm.getelementptr %smem[1032] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      scf.if %first {{
        nvvm.mbarrier.init %full, %c1 : !llvm.ptr<3>, i32
        nvvm.mbarrier.init %free, %c1 : !llvm.ptr<3>, i32
      }}
      nvvm.barrier
      %lane = arith.remui %t, %c32 : i32
      %writes = arith.cmpi ult, %t, %c32 : i32
      %base = arith.muli %b, %c32 : i32
      %g = arith.addi %base, %lane : i32
      %synced = {synced}
      %waited = {waited}
      %freed = {freed}
      scf.if %writes {{
        {store("%t", "%smem", "%lane", space="<3>")}
        scf.if %synced {{ nvvm.bar.warp.sync %all : i32 }}
        {lane.format("%full")}
        scf.if %freed {{ {wait.format("%free")} }}
        {store("%b", "%smem", "%lane", space="<3>").replace("%to", "%again")}
      }} else {{
        scf.if %waited {{ {wait.format("%full")} }}
        {load("v", "%smem", "%lane", space="<3>")}
        {store("%v", "%p0", "%g")}
        nvvm.bar.warp.sync %all : i32
        {lane.format("%free")}
      }}"""


def races(text: str, blocks: list[int] | None, seed: int) -> int:
    """How many accesses race. Which of two it is depends on the order of warps, which is drawn for the batch."""
    y = np.zeros(32 * BLOCKS, np.int32)
    shape = (BLOCKS, 1, 1), (64, 1, 1), 1040
    report = run_function(module(text, 1), "k", [y], *shape, blocks=blocks, seed=seed)
    return sum(f.count for f in report.findings if f.kind == "race")


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "conditions, racing",
    [
        ((ALL, ALL, ALL), 0),
        ((ALL, SOME, ALL), 1),
        ((ALL, ALL, SOME), 1),
        ((SOME, ALL, ALL), 1),
        ((ALL, NONE, ALL), BLOCKS),
        ((ALL, ALL, NONE), BLOCKS),
        ((NONE, ALL, ALL), BLOCKS),
        ((SOME, NONE, ALL), BLOCKS),
    ],
)
def test_a_batch_finds_what_its_blocks_find(conditions, racing, seed):
    text = kernel(*conditions)
    alone = [races(text, [b], seed) for b in range(BLOCKS)]
    assert sum(n > 0 for n in alone) == racing
    assert races(text, None, seed) == sum(alone)
