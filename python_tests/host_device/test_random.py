"""Random small kernels: what has no finding with one seed has none with any, and computes the same bits; what has a
finding with one seed has one with every seed. The log of accesses and the clocks say the same, and so do warps that run
together and apart."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlirc.device import DeviceKernel
from support.kernels.memrefs import SHARED, launch

ROWS = 3  # of shared memory
MANY = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

INDEX = st.sampled_from(["t", "reversed", "neighbour", "other", "shifted", "one"])
PLACE = st.tuples(st.integers(0, ROWS - 1), INDEX)
LEAF = st.one_of(
    st.tuples(st.just("store"), PLACE),
    st.tuples(st.just("load"), PLACE),
    st.tuples(st.just("copy"), PLACE),
    st.sampled_from([("commit",), ("wait", 0), ("wait", 1), ("warp",), ("add",), ("shuffle",)]),
)
BARRIER = st.just(("barrier",))
GUARD = st.sampled_from(["warps", "lanes", "warp", "block"])


def guarded(body) -> st.SearchStrategy:
    return st.tuples(st.just("if"), GUARD, st.lists(body, min_size=1, max_size=4))


INSIDE = st.one_of(LEAF, LEAF, BARRIER)
PAIR = st.tuples(st.just("if"), st.just("warps"), st.lists(st.one_of(LEAF, st.just(("pair",))), min_size=1, max_size=4))
BODY = st.lists(st.one_of(LEAF, LEAF, BARRIER, BARRIER, guarded(INSIDE), PAIR), min_size=2, max_size=10)

HEAD = """
  %s = memref.view %all[%c0][] : memref<?xi8, SHARED> to memref<ROWSxTHREADSxi32, SHARED>
  %full = arith.constant -1 : i32
  %five = arith.constant 5 : i32
  %width = arith.constant 32 : i32
  %half = arith.constant 64 : i32
  %id1 = arith.constant 1 : i32
  %last = arith.constant LAST : index
  %n = arith.constant THREADS : index
  %nine = arith.constant 9 : index
  %r0 = arith.constant 0 : index
  %r1 = arith.constant 1 : index
  %r2 = arith.constant 2 : index
  %base = arith.muli %b, %n : index
  %g = arith.addi %base, %t : index
  %w = arith.divui %t, %c32 : index
  %i_t = arith.addi %t, %c0 : index
  %i_reversed = arith.subi %last, %t : index
  %i_neighbour = arith.xori %t, %c1 : index
  %i_other = arith.xori %t, %c32 : index
  %i_shifted0 = arith.addi %t, %nine : index
  %i_shifted = arith.remui %i_shifted0, %n : index
  %i_one = arith.addi %w, %c0 : index
  %if_warps = arith.cmpi ult, %t, %c64 : index
  %if_lanes = arith.cmpi ult, %t, %nine : index
  %if_warp = arith.cmpi ult, %t, %c32 : index
  %if_block = arith.cmpi eq, %b, %c0 : index
  %acc0 = memref.load %x[%g] : memref<256xi32>"""


class Writer:
    """A kernel's text from its statements. The value that a thread carries along is `acc`."""

    def __init__(self) -> None:
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def block(self, statements: list, acc: str) -> tuple[list[str], str]:
        lines: list[str] = []
        for statement in statements:
            more, acc = getattr(self, f"_{statement[0]}")(acc, *statement[1:])
            lines += more
        return lines, acc

    def _sum(self, lines: list[str], acc: str, value: str) -> tuple[list[str], str]:
        total, times = self.name(), self.name()
        return [
            *lines,
            f"{times} = arith.muli {acc}, %five : i32",
            f"{total} = arith.addi {times}, {value} : i32",
        ], total

    def _store(self, acc: str, place: tuple) -> tuple[list[str], str]:
        return [f"memref.store {acc}, %s[%r{place[0]}, %i_{place[1]}] : memref<ROWSxTHREADSxi32, SHARED>"], acc

    def _load(self, acc: str, place: tuple) -> tuple[list[str], str]:
        v = self.name()
        line = f"{v} = memref.load %s[%r{place[0]}, %i_{place[1]}] : memref<ROWSxTHREADSxi32, SHARED>"
        return self._sum([line], acc, v)

    def _copy(self, acc: str, place: tuple) -> tuple[list[str], str]:
        to = f"%s[%r{place[0]}, %i_{place[1]}], 1"
        kind = "memref<256xi32> to memref<ROWSxTHREADSxi32, SHARED>"
        return [f"{self.name()} = nvgpu.device_async_copy %x[%g], {to} : {kind}"], acc

    def _commit(self, acc: str) -> tuple[list[str], str]:
        return ["nvvm.cp.async.commit.group"], acc

    def _wait(self, acc: str, pending: int) -> tuple[list[str], str]:
        return [f"nvvm.cp.async.wait.group {pending}"], acc

    def _barrier(self, acc: str) -> tuple[list[str], str]:
        return ["gpu.barrier"], acc

    def _pair(self, acc: str) -> tuple[list[str], str]:
        return ["nvvm.barrier id = %id1 number_of_threads = %half"], acc  # of the first two warps

    def _warp(self, acc: str) -> tuple[list[str], str]:
        return ["nvvm.bar.warp.sync %full : i32"], acc

    def _add(self, acc: str) -> tuple[list[str], str]:
        return [f"{self.name()} = memref.atomic_rmw addi {acc}, %z[%c0] : (i32, memref<1xi32>) -> i32"], acc

    def _shuffle(self, acc: str) -> tuple[list[str], str]:
        v = self.name()
        return self._sum([f"{v}, {v}_ok = gpu.shuffle xor {acc}, %five, %width : i32"], acc, v)

    def _if(self, acc: str, guard: str, body: list) -> tuple[list[str], str]:
        lines, inner = self.block(body, acc)
        out = self.name()
        head = f"{out} = scf.if %if_{guard} -> (i32) {{"
        return [head, *lines, f"scf.yield {inner} : i32", "} else {", f"scf.yield {acc} : i32", "}"], out


def text_of(statements: list, threads: int) -> str:
    lines, acc = Writer().block(statements, "%acc0")
    text = "\n  ".join([HEAD, *lines, f"memref.store {acc}, %y[%g] : memref<256xi32>"])
    for name, value in (("ROWS", ROWS), ("THREADS", threads), ("LAST", threads - 1), ("SHARED", SHARED)):
        text = text.replace(name, str(value))
    return text


def outcome(kernel: DeviceKernel, seed: int) -> tuple[list[bytes], set[str], str]:
    x = np.random.default_rng(0).integers(-1000, 1000, 256).astype(np.int32)
    y, z = np.zeros(256, np.int32), np.zeros(1, np.int32)
    report = kernel.run([x, y, z], seed=seed)
    kinds = report.kinds() - {"unwritten result", "uninitialized read"}  # of z, which atomics add to
    return [y.tobytes(), z.tobytes()], kinds, "\n".join(map(str, report.findings))


@MANY
@given(
    body=BODY,
    threads=st.sampled_from([32, 64, 96, 128]),
    runs=st.lists(st.tuples(st.integers(0, 1000), st.booleans(), st.booleans()), min_size=4, max_size=4),
)
def test_the_verdict_does_not_depend_on_how_a_kernel_is_run(body, threads, runs):
    text = text_of(body, threads)
    arguments = "%x: memref<256xi32>, %y: memref<256xi32>, %z: memref<1xi32>"
    kernel = DeviceKernel(launch(text, arguments, threads=threads, blocks=2, smem=4 * threads * ROWS))
    right, kinds, _ = outcome(kernel, 0)
    (program,) = kernel.programs.values()
    needs = program.waits, program.clocks
    for seed, apart, clocks in runs:
        program.waits, program.clocks = needs[0] or apart, needs[1] or clocks
        found, others, findings = outcome(kernel, seed)
        how = f"{text}\nseed {seed}, warps apart: {program.waits}, clocks: {program.clocks}"
        assert bool(others) == bool(kinds), f"{how}: {others}, else {kinds}\n{findings}"
        if not kinds:
            assert found == right, how
