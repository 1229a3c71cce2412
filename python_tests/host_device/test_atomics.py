"""Atomics, fences and flags, one rule at a time: what they compute, what they order, and what a kernel that breaks a rule
is told."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device import run_kernel
from mlirc.device.direct import run_function
from mlirc.device.report import Report
from support.kernels.instructions import load, module, store
from support.kernels.mbarriers import INIT
from support.kernels.memrefs import launch

RACE, BETWEEN = "race", "race between blocks"


def run(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1, seed: int = 0, attributes: str = "",
        smem: int = 1024, **options) -> Report:  # fmt: skip
    """Runs a kernel of the llvm dialect; %first is whether a thread is number 0, %block0 whether its block is."""
    body = (
        "%first = arith.cmpi eq, %t, %c0 : i32\n%block0 = arith.cmpi eq, %b, %c0 : i32\n"
        "%last = arith.subi %c32, %t : i32\n" + body
    )
    m = module(body, len(arrays), attributes)
    shape = ((blocks, 1, 1), (threads, 1, 1), smem)
    return run_function(m, "k", list(arrays), *shape, seed=seed, **options)


def line_of(report: Report, kind: str) -> str:
    """The first finding of a kind."""
    return next(f"{f.op}: {f.message}" for f in report.findings if f.kind == kind)


def zeros(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def flag(value: str, order: str, scope: str = "device") -> str:
    return f'llvm.store {value}, %p1 atomic syncscope("{scope}") {order} {{alignment = 4 : i64}} : i32, !llvm.ptr<1>\n'


def spin(order: str, scope: str = "device", pointer: str = "%p1", name: str = "seen") -> str:
    return f"""scf.while : () -> () {{
      %{name} = llvm.load {pointer} atomic syncscope("{scope}") {order} {{alignment = 4 : i64}} : !llvm.ptr<1> -> i32
      %{name}_no = arith.cmpi eq, %{name}, %c0 : i32
      scf.condition(%{name}_no) }} do {{ scf.yield }}
"""


# -- between plain and atomic accesses

COUNT = 'llvm.atomicrmw add %p0, %c1 syncscope("device") monotonic : !llvm.ptr<1>, i32\n'


def test_relaxed_atomics_of_many_blocks_do_not_race():
    x = zeros(1)
    for seed in range(4):
        x[:] = 0
        assert run(f"%r = {COUNT}", x, blocks=5, threads=64, seed=seed).ok
        assert x[0] == 5 * 64


@pytest.mark.parametrize(
    "plain, verb",
    [(load("v", "%p0", "%c0") + store("%v", "%p1", "%b"), "reads"), (store("%c0", "%p0", "%c0"), "writes")],
    ids=["read", "write"],
)
@pytest.mark.parametrize("atomic_first", [True, False])
def test_a_plain_access_beside_an_atomic_of_another_block_is_a_race(plain, verb, atomic_first):
    then, other = (f"%r = {COUNT}", plain) if atomic_first else (plain, f"%r = {COUNT}")
    body = f"scf.if %block0 {{ scf.if %first {{ {then} }} }} else {{ scf.if %first {{ {other} }} }}"
    assert run(body, zeros(1), zeros(2), blocks=2).kinds() == {BETWEEN}
    lone = f"scf.if %block0 {{ scf.if %first {{ {then} {other} }} }}"
    assert run(lone.replace("%r =", "%q =", 1), zeros(1), zeros(2), blocks=2).ok


@pytest.mark.parametrize("space, pointer", [("global", "%p0"), ("shared", "%smem")])
def test_within_a_block_a_barrier_orders_plain_and_atomic_accesses(space, pointer):
    mark = "<3>" if space == "shared" else "<1>"
    count = f"%r = llvm.atomicrmw add {pointer}, %c1 monotonic : !llvm.ptr{mark}, i32\n"
    zero = f"scf.if %first {{ {store('%c0', pointer, '%c0', 'i32', mark)} }}\n"
    read = load("n", pointer, "%c0", "i32", mark) + store("%n", "%p1", "%t")
    n = zeros(64)
    assert run(f"{zero} nvvm.barrier\n {count} nvvm.barrier\n {read}", zeros(1), n, threads=64).ok
    assert (n == 64).all()
    for body in (f"{zero} {count}", f"{zero} nvvm.barrier\n {count} {read}"):
        assert RACE in run(body, zeros(1), n, threads=64).kinds()


def test_atomics_of_a_block_s_scope_race_with_those_of_other_blocks():
    count = f"%r = {COUNT}"
    fence = 'llvm.fence syncscope("device") acq_rel\n'
    assert run(fence + count, zeros(1), blocks=3).ok
    report = run(fence + count.replace("device", "block"), zeros(1), blocks=3)
    assert report.kinds() == {BETWEEN} and "too narrow a scope" in line_of(report, BETWEEN)
    assert run(fence + count.replace("device", "block"), zeros(1), blocks=1, threads=96).ok


def test_a_generic_atomic_runs_its_region_for_one_thread_at_a_time():
    body = """
      %one = arith.constant 1.0 : f32
      %z = arith.constant 0.0 : f32
      %first = arith.cmpi eq, %t, %c0 : index
      scf.if %first { memref.store %z, %y[%c0] : memref<64xf32> }
      gpu.barrier
      %old = memref.generic_atomic_rmw %y[%c0] : memref<64xf32> {
      ^bb0(%was: f32):
        %sum = arith.addf %was, %one : f32
        memref.atomic_yield %sum : f32
      }
      %other = arith.addi %t, %c1 : index
      %mine = arith.remui %other, %c64 : index
      %below = arith.cmpi ult, %mine, %c1 : index
      scf.if %below { memref.store %old, %y[%c1] : memref<64xf32> }"""
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    for seed in range(3):
        report = run_kernel(launch(body, "%x: memref<64xf32>, %y: memref<64xf32>"), [x, y], seed=seed)
        assert report.kinds() == {"unwritten result"}
        assert y[0] == 64 and 0 <= y[1] < 64
    bad = body.replace("gpu.barrier", "")
    assert RACE in run_kernel(launch(bad, "%x: memref<64xf32>, %y: memref<64xf32>"), [x, y]).kinds()


# -- flags between blocks: every spelling of release and acquire

PUBLISH = {
    "release": flag("%c1", "release"),
    "fence": 'llvm.fence syncscope("device") release\n' + flag("%c1", "monotonic"),
    "sequential": flag("%c1", "seq_cst"),
    "membar, volatile": "nvvm.memory.barrier <gpu>\nllvm.store volatile %c1, %p1 : i32, !llvm.ptr<1>\n",
    "exchange": '%x = llvm.atomicrmw xchg %p1, %c1 syncscope("device") acq_rel : !llvm.ptr<1>, i32\n',
    "release, then relaxed": flag("%c1", "release") + flag("%c2", "monotonic"),
    "membar.sys": "nvvm.memory.barrier <sys>\n" + flag("%c1", "monotonic"),
}
OBSERVE = {
    "acquire": spin("acquire"),
    "fence": spin("monotonic") + 'llvm.fence syncscope("device") acquire\n',
    "sequential": spin("seq_cst"),
    "volatile, membar": """scf.while : () -> () {
      %seen = llvm.load volatile %p1 : !llvm.ptr<1> -> i32
      %no = arith.cmpi eq, %seen, %c0 : i32
      scf.condition(%no) } do { nvvm.nanosleep %c64
        scf.yield }
      nvvm.memory.barrier <gpu>\n""",
    "compare and swap": """scf.while : () -> () {
      %try = llvm.cmpxchg %p1, %c1, %c2 syncscope("device") acquire acquire : !llvm.ptr<1>, i32
      %seen = llvm.extractvalue %try[0] : !llvm.struct<(i32, i1)>
      %no = arith.cmpi eq, %seen, %c0 : i32
      scf.condition(%no) } do { scf.yield }\n""",
    "acquire, again": spin("monotonic") + spin("acquire", name="again"),
}


def handover(publish: str, observe: str, blocks: int = 2, seed: int = 0, **options) -> tuple[Report, np.ndarray]:
    """Block 0 writes 7 to x, block 1 waits for the flag and copies x to y."""
    y = zeros(1)
    body = f"""%c7 = arith.constant 7 : i32
      scf.if %first {{ scf.if %block0 {{ {store("%c7", "%p0", "%c0")} {publish} }} else {{
        {observe} {load("v", "%p0", "%c0")} {store("%v", "%p2", "%c0")} }} }}"""
    return run(body, zeros(1), zeros(1), y, blocks=blocks, seed=seed, **options), y


@pytest.mark.parametrize("publish", PUBLISH)
@pytest.mark.parametrize("observe", OBSERVE)
def test_every_spelling_of_release_and_acquire_hands_over(publish, observe):
    for seed in range(2):
        report, y = handover(PUBLISH[publish], OBSERVE[observe], seed=seed)
        assert report.ok, "\n".join(map(str, report.findings))
        assert y[0] == 7


@pytest.mark.parametrize(
    "publish, observe, why",
    [
        (flag("%c1", "monotonic"), OBSERVE["acquire"], "no release behind that"),
        (flag("%c1", "monotonic") + 'llvm.fence syncscope("device") release\n', OBSERVE["acquire"], "no release behind that"),
        ('llvm.fence syncscope("device") acquire\n' + flag("%c1", "monotonic"), OBSERVE["acquire"], "no release behind"),
        (PUBLISH["release"], spin("monotonic"), "does not acquire"),
        (PUBLISH["release"], 'llvm.fence syncscope("device") acquire\n' + spin("monotonic"), "does not acquire"),
        (PUBLISH["release"], spin("monotonic") + 'llvm.fence syncscope("device") release\n', "does not acquire"),
        (PUBLISH["release"].replace("device", "block"), OBSERVE["acquire"], "scope"),
        (PUBLISH["release"], spin("acquire", "block"), "scope"),
        (PUBLISH["fence"].replace("device", "block", 1), OBSERVE["acquire"], "scope of the release is too narrow"),
        (PUBLISH["release"], OBSERVE["fence"].replace('fence syncscope("device")', 'fence syncscope("block")'),
         "scope of the acquire is too narrow"),
        ("nvvm.memory.barrier <cta>\n" + flag("%c1", "monotonic"), OBSERVE["acquire"], "scope of the release"),
    ],
)  # fmt: skip
def test_half_a_handover_is_a_race_whoever_comes_first(publish, observe, why):
    for seed in range(3):
        report, _ = handover(publish, observe, seed=seed)
        assert BETWEEN in report.kinds()
        assert any(why in f.message for f in report.findings), "\n".join(map(str, report.findings))


def test_clusters_are_ordered_by_their_scope():
    publish, observe = flag("%c1", "release", "cluster"), spin("acquire", "cluster")
    report, y = handover(publish, observe, attributes=", nvvm.cluster_dim = array<i32: 2, 1, 1>")
    assert report.ok and y[0] == 7
    assert BETWEEN in handover(publish, observe)[0].kinds()


def test_without_checks_flags_are_waited_for_too():
    for seed in range(3):
        report, y = handover(PUBLISH["release"], OBSERVE["acquire"], seed=seed, check=False)
        assert report.ok and y[0] == 7


def test_a_flag_that_nobody_raises_is_a_deadlock_that_names_it():
    report, _ = handover("", OBSERVE["acquire"])
    assert report.kinds() == {"deadlock"} and "byte 0 of argument 1 to change" in report.findings[0].message
    assert "sees 0 (nothing else writes atomically)" in report.findings[0].message
    report, _ = handover(flag("%c0", "release"), OBSERVE["acquire"])
    assert report.kinds() == {"deadlock"} and "(others write atomically: llvm.store at " in report.findings[0].message


# -- lanes of a warp

LANES = f"""scf.if %block0 {{
    {store("%t", "%p0", "%t")} SYNC
    scf.if %first {{ {PUBLISH["fence"]} }} }} else {{
    scf.if %first {{ {OBSERVE["acquire"]} }} MEET
    {load("v", "%p0", "%t")} {store("%v", "%p2", "%t")} }}"""
MEET = "nvvm.bar.warp.sync %all : i32"


@pytest.mark.parametrize("sync, meet", [(True, True), (False, True), (True, False)])
def test_a_lane_releases_and_acquires_for_its_warp_only_where_the_warp_meets(sync, meet):
    body = LANES.replace("SYNC", MEET if sync else "").replace("MEET", MEET if meet else "")
    y = zeros(32)
    for seed in range(2):
        report = run(body, zeros(32), zeros(1), y, blocks=2, seed=seed)
        if sync and meet:
            assert report.ok, "\n".join(map(str, report.findings))
            np.testing.assert_array_equal(y, np.arange(32))
        else:
            why = "thread 0 has acquired that, and no barrier follows" if sync else "no release covers that"
            assert report.kinds() == {BETWEEN} and why in line_of(report, BETWEEN)


def take(lock: str, space: str) -> str:
    return f"""%try = llvm.cmpxchg {lock}, %c0, %c1 syncscope("device") acquire monotonic : !llvm.ptr{space}, i32
    %got = llvm.extractvalue %try[1] : !llvm.struct<(i32, i1)>
"""


def patient(lock: str, counter: str, space: str) -> str:
    """Every lane adds 1 to a counter while it holds a lock, and lets go inside of the loop."""
    add = load("n", counter, "%c0", "i32", space) + "%more = arith.addi %n, %c1 : i32\n"
    add += store("%more", counter, "%c0", "i32", space)
    release = (
        f'llvm.store %c0, {lock} atomic syncscope("device") release {{alignment = 4 : i64}} : i32, !llvm.ptr{space}'
    )
    return f"""%yes = arith.constant true
      %no = arith.constant false
      scf.while (%done = %no) : (i1) -> () {{
        {take(lock, space)}
        %out = scf.if %got -> i1 {{ {add} {release}
          scf.yield %yes : i1 }} else {{ scf.yield %no : i1 }}
        %again = arith.xori %out, %yes : i1
        scf.condition(%again) }} do {{ scf.yield %no : i1 }}"""


PATIENT = patient("%p1", "%p0", "<1>")
ADD = load("n", "%p0", "%c0") + "%more = arith.addi %n, %c1 : i32\n" + store("%more", "%p0", "%c0")
GREEDY = f"""%yes = arith.constant true
  scf.while : () -> () {{ {take("%p1", "<1>")} %again = arith.xori %got, %yes : i1
    scf.condition(%again) }} do {{ scf.yield }}
  {ADD} {flag("%c0", "release")}"""


def test_lanes_take_a_lock_in_turn_where_each_lets_go_inside_of_the_loop():
    for threads, blocks in ((32, 1), (48, 3)):
        x = zeros(1)
        report = run(PATIENT, x, zeros(1), threads=threads, blocks=blocks)
        assert report.ok, "\n".join(map(str, report.findings))
        assert x[0] == threads * blocks
    relaxed = PATIENT.replace("acquire monotonic", "monotonic monotonic")
    assert run(relaxed, zeros(1), zeros(1)).kinds() == {RACE}


def test_lanes_that_wait_for_a_lane_behind_the_loop_are_a_deadlock():
    report = run(GREEDY, zeros(1), zeros(1))
    assert report.kinds() == {"deadlock"}
    assert "lanes 1 to 31 of warp 0 (threads 1 to 31) of block 0" in report.findings[0].message
    assert "1 lane of the same warp left the loop before" in report.findings[0].message
    assert run(GREEDY, zeros(1), zeros(1), threads=1, blocks=3).ok


# -- within a block


def test_a_lock_in_shared_memory_orders_warps():
    body = f"""%lock = llvm.getelementptr %smem[64] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      scf.if %first {{ llvm.store %c0, %lock : i32, !llvm.ptr<3>
        llvm.store %c0, %smem : i32, !llvm.ptr<3> }}
      nvvm.barrier
      WORK
      nvvm.barrier
      scf.if %first {{ {load("sum", "%smem", "%c0", "i32", "<3>")} {store("%sum", "%p0", "%c0")} }}"""
    work = f"scf.if %lead {{ {patient('%lock', '%smem', '<3>')} }}"
    lead = "%lane = arith.remui %t, %c32 : i32\n%lead = arith.cmpi eq, %lane, %c0 : i32\n"
    x = zeros(1)
    report = run(lead + body.replace("WORK", work), x, threads=128)
    assert report.ok, "\n".join(map(str, report.findings))
    assert x[0] == 4
    weak = work.replace("acquire monotonic", "monotonic monotonic")
    assert run(lead + body.replace("WORK", weak), x, threads=128).kinds() == {RACE}


HAND = f"""%c33 = arith.constant 33 : i32
  %patience = arith.constant 1000 : i32
  scf.if %first {{ {INIT.split("nvvm.mbarrier.init")[0]} nvvm.mbarrier.init %b0, %c32 : !llvm.ptr<3>, i32 }}
  nvvm.barrier
  %bar = llvm.getelementptr %smem[BASE] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
  %low = arith.cmpi ult, %t, %c32 : i32
  %back = arith.xori %t, %c32 : i32
  scf.if %low {{ {store("%t", "%p0", "%t")} ARRIVE }} else {{
    WAIT
    {load("v", "%p0", "%back")} {store("%v", "%p1", "%back")} }}"""
BASE = INIT.split("[")[1].split("]")[0]
BY_MBARRIER = (
    "%f = nvvm.mbarrier.arrive %bar : !llvm.ptr<3> -> i64",
    "nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32",
)
BY_NAME = (
    "nvvm.barrier.arrive id = %c1 number_of_threads = %c64",
    "nvvm.barrier id = %c1 number_of_threads = %c64",
)


@pytest.mark.parametrize("arrive, wait", [BY_MBARRIER, BY_NAME])
def test_mbarriers_and_named_barriers_order_warps_in_global_memory(arrive, wait):
    body = HAND.replace("BASE", BASE)
    y = zeros(32)
    for seed in range(4):
        report = run(
            body.replace("ARRIVE", arrive).replace("WAIT", wait), zeros(64), y, threads=64, smem=2048, seed=seed
        )
        assert report.ok, "\n".join(map(str, report.findings))
        np.testing.assert_array_equal(y, np.arange(32))
        if wait == BY_MBARRIER[1]:
            spoiled = body.replace("ARRIVE", arrive).replace("WAIT", "")
            report = run(spoiled, zeros(64), y, threads=64, smem=2048, seed=seed)
            assert RACE in report.kinds() and "no barrier orders them" in line_of(report, RACE)


def test_a_named_barrier_of_some_warps_orders_only_those_in_global_memory():
    body = f"""%half = arith.cmpi ult, %t, %c64 : i32
      scf.if %half {{ {store("%t", "%p0", "%t")}
        nvvm.barrier id = %c1 number_of_threads = %c64 }}
      %other = arith.xori %t, WHO : i32
      READS"""
    mine = f"scf.if %half {{ {load('y', '%p0', '%other')} {store('%y', '%p1', '%t')} }}"
    y = zeros(128)
    assert run(body.replace("WHO", "%c32").replace("READS", mine), zeros(128), y, threads=128).ok
    late = "%late = arith.cmpi uge, %t, %c64 : i32\n" + mine.replace("%half", "%late")
    for seed in range(3):
        report = run(body.replace("WHO", "%c64").replace("READS", late), zeros(128), y, threads=128, seed=seed)
        assert report.kinds() == {RACE} and "no barrier orders them" in line_of(report, RACE)


@pytest.mark.parametrize("arrive, wait, right", [("all", "all", True), ("one", "all", False), ("all", "one", False)])
def test_a_lane_arrives_and_waits_for_itself_in_global_memory(arrive, wait, right):
    body = HAND.replace("BASE", BASE).replace("%b0, %c32", "%b0, %c1" if arrive == "one" else "%b0, %c32")
    body = "%lane = arith.remui %t, %c32 : i32\n%lead = arith.cmpi eq, %lane, %c0 : i32\n" + body
    body = body.replace("ARRIVE", BY_MBARRIER[0] if arrive == "all" else f"scf.if %lead {{ {BY_MBARRIER[0]} }}")
    body = body.replace("WAIT", BY_MBARRIER[1] if wait == "all" else f"scf.if %lead {{ {BY_MBARRIER[1]} }}")
    for seed in range(3):
        report = run(body, zeros(64), zeros(32), threads=64, smem=2048, seed=seed)
        assert report.ok == right, "\n".join(map(str, report.findings))
        assert right or report.kinds() == {RACE}
    if not right:  # the same, with the warp's barrier in front of the arrival, or behind the wait
        meet = body.replace(f"scf.if %lead {{ {BY_MBARRIER[0]}", f"{MEET}\nscf.if %lead {{ {BY_MBARRIER[0]}")
        meet = meet.replace(f"{BY_MBARRIER[1]} }}", f"{BY_MBARRIER[1]} }}\n{MEET}")
        assert run(meet, zeros(64), zeros(32), threads=64, smem=2048).ok


@pytest.mark.parametrize("kind, f", [
    ("addi", np.add), ("maxs", np.maximum), ("mins", np.minimum), ("maxu", None), ("minu", None), ("muli", np.multiply),
    ("andi", np.bitwise_and), ("ori", np.bitwise_or), ("xori", np.bitwise_xor), ("assign", lambda old, new: new),
    ("addf", np.add), ("mulf", np.multiply), ("maximumf", np.maximum), ("minimumf", np.minimum),
    ("maxnumf", np.fmax), ("minnumf", np.fmin),
])  # fmt: skip
def test_kinds_of_memref_atomics(kind, f):
    t, dtype = ("f32", np.float32) if kind.endswith("f") else ("i32", np.int32)
    types = f"%x: memref<2x{t}>, %y: memref<1x{t}>"
    body = f"""%first = memref.load %x[%c0] : memref<2x{t}>
      memref.store %first, %y[%c0] : memref<1x{t}>
      %second = memref.load %x[%c1] : memref<2x{t}>
      %r = memref.atomic_rmw {kind} %second, %y[%c0] : ({t}, memref<1x{t}>) -> {t}"""
    for pair in ((6, -3), (-7, 5), (3, 3)):
        x, y = np.array(pair, dtype), np.zeros(1, dtype)
        assert run_kernel(launch(body, types, threads=1), [x, y]).ok
        unsigned = {"maxu": np.maximum, "minu": np.minimum}.get(kind)
        old, new = (v.view(np.uint32) if unsigned else v for v in (x[:1], x[1:]))
        np.testing.assert_array_equal(y, (unsigned or f)(old, new).view(dtype))
