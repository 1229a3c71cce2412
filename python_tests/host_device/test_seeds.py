"""The seed: other orders of blocks, warps and atomics give the same numbers where a kernel orders what it does, other
ones where it does not, and the same verdict either way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc.device import DeviceKernel, run_kernel
from mlirc.device.numbers import bits_of, different
from support.kernels.instructions import load, run, store
from support.kernels.memrefs import SHARED, launch

SEEDS = range(20)
ARGUMENTS = "%x: memref<256xf32>, %y: memref<256xf32>"
EXCHANGE = f"""
  %c128 = arith.constant 128 : index
  %c127 = arith.constant 127 : index
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<128xf32, {SHARED}>
  %base = arith.muli %b, %c128 : index
  %g = arith.addi %base, %t : index
  %v = memref.load %x[%g] : memref<256xf32>
  memref.store %v, %s[%t] : memref<128xf32, {SHARED}>
  BARRIER
  %o = arith.subi %c127, %t : index
  %w = memref.load %s[%o] : memref<128xf32, {SHARED}>
  memref.store %w, %y[%g] : memref<256xf32>"""


def outcome(body: str, seed: int) -> tuple[np.ndarray, set[str]]:
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    module = launch(body, ARGUMENTS, threads=128, blocks=2, smem=512)
    return y, run_kernel(module, [x, y], seed=seed).kinds()


def test_a_missing_barrier_shows_in_the_numbers_too():
    found = [outcome(EXCHANGE.replace("BARRIER", ""), seed) for seed in SEEDS]
    assert all("race" in kinds for _, kinds in found)
    assert len({y.tobytes() for y, _ in found}) > 5
    right = np.arange(256, dtype=np.float32).reshape(2, 128)[:, ::-1].ravel()
    np.testing.assert_array_equal(found[0][0], right)  # seed 0: all threads together


def test_bits_of_a_nan_are_no_difference():
    one, other = np.array([np.nan, 1.0, -0.0], np.float32), np.array([-np.nan, 1.0, 0.0], np.float32)
    assert different(one, other).tolist() == [False, False, True]
    assert bits_of(one[:2]) == bits_of(other[:2]) and bits_of(one) != bits_of(other)
    short = np.array([0x7FC0, 0xFFC1, 0x3F80], np.uint16).view(ml_dtypes.bfloat16)
    assert bits_of(short[:1]) == bits_of(short[1:2]) and not different(short[:1], short[1:2]).any()


def test_with_the_barrier_every_order_is_right():
    right = np.arange(256, dtype=np.float32).reshape(2, 128)[:, ::-1].ravel()
    for seed in SEEDS:
        y, kinds = outcome(EXCHANGE.replace("BARRIER", "gpu.barrier"), seed)
        assert not kinds
        np.testing.assert_array_equal(y, right)


def test_counters_do_not_depend_on_the_seed():
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    body = EXCHANGE.replace("BARRIER", "gpu.barrier")
    kernel = DeviceKernel(launch(body, ARGUMENTS, threads=128, blocks=2, smem=512), count=True)
    assert all(kernel.run([x, y], seed=seed).counters == kernel.run([x, y]).counters for seed in SEEDS)


# -- blocks at different barriers

BY_BLOCK = """%odd = arith.andi %b, %c1 : i32
  %is = arith.cmpi eq, %odd, %c1 : i32
  %other = arith.xori %t, %c64 : i32
  WRITE
  scf.if %is { nvvm.barrier }
  READ
  MORE"""


@pytest.mark.parametrize("late", ["nvvm.barrier", ""])
def test_a_barrier_of_one_block_orders_nothing_in_another(late):
    """Odd blocks have a barrier between write and read, even ones have not."""
    body = BY_BLOCK.replace("WRITE", store("%t", "%smem", "%t", "i32", "<3>"))
    body = body.replace("READ", load("y", "%smem", "%other", "i32", "<3>") + store("%y", "%p0", "%t"))
    for seed in range(4):
        assert "race" in run(
            body.replace("MORE", late), np.zeros(128, np.int32), threads=128, blocks=2, smem=512, seed=seed
        )
    both = body.replace("scf.if %is { nvvm.barrier }", "nvvm.barrier").replace("MORE", late)
    for seed in range(4):
        assert run(both, np.zeros(128, np.int32), threads=128, smem=512, seed=seed) == set()


# -- atomics


@pytest.mark.parametrize("kind, t", [("add", "i32"), ("fadd", "f32")])
def test_atomics_go_in_an_order_of_the_seed(kind, t):
    """Sums of floats depend on their order, sums of integers do not; either way no finding."""
    dtype = np.float32 if t == "f32" else np.int32
    values = np.random.default_rng(0).standard_normal(256) * 1000
    body = load("v", "%p0", "%t", t) + f"%old = llvm.atomicrmw {kind} %p1, %v monotonic : !llvm.ptr<1>, {t}\n"
    sums = set()
    for seed in SEEDS:
        x, y = values.astype(dtype), np.zeros(1, dtype)
        assert not run(body, x, y, threads=256, seed=seed)
        sums.add(y.tobytes())
    assert len(sums) > 3 if t == "f32" else len(sums) == 1


# -- the asynchronous proxy

FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}"
BULK = f"""%n = arith.constant 1024 : i32
  %role = arith.cmpi ult, %t, %c128 : i32
  %first = arith.cmpi eq, %t, %c0 : i32
  {load("x", "%p0", "%t")} {store("%x", "%smem", "%t", "i32", "<3>")}
  BEFORE
  nvvm.barrier
  scf.if %first {{
    AFTER
    nvvm.cp.async.bulk.global.shared.cta %p1, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
    nvvm.cp.async.bulk.commit.group
    nvvm.cp.async.bulk.wait_group 0
  }}"""


@pytest.mark.parametrize(
    "before, after, kinds",
    [
        (FENCE, "", set()),
        ("", FENCE, set()),
        (f"scf.if %role {{ {FENCE} }}", "", {"missing proxy fence"}),
        ("", "", {"missing proxy fence"}),
    ],
)
def test_a_proxy_fence_covers_its_threads_writes_only(before, after, kinds):
    """Half of the block fences what all of it wrote: the other half's writes are not covered."""
    body = BULK.replace("BEFORE", before).replace("AFTER", after)
    for seed in range(6):
        x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
        assert run(body, x, y, threads=256, smem=1024, seed=seed) == kinds
        np.testing.assert_array_equal(x, y)


# -- which block comes last


def test_the_later_of_two_blocks_depends_on_the_seed():
    """Both write the same element: a race for every seed, and the number is that of the later one."""
    found = set()
    for seed in SEEDS:
        y = np.zeros(1, np.int32)
        assert run(store("%b", "%p0", "%c0"), y, threads=1, blocks=9, seed=seed) == {"race between blocks"}
        found.add(int(y[0]))
    assert len(found) > 3


def test_a_part_of_a_warp_is_refused_for_every_seed():
    """Blocks of 48 threads: what whole warps execute cannot run there."""
    body = "%r = nvvm.movmatrix %t {shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, layout = #nvvm.mma_layout<col>, "
    body += "eltType = #nvvm.ld_st_matrix_elt_type<b16>} : i32\n"
    for seed in range(3):
        assert run(body, np.zeros(1, np.int32), threads=48, blocks=2, smem=512, seed=seed) == {"stopped"}
