"""Kernels with Hopper's instructions, whose mutants are tried: bulk copies in a ring, blocks of a cluster that use each
other's shared memory, cp.async that tells mbarriers, tensor stores from two buffers, multicast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlirc import mlir
from mlirc.device import Report
from mlirc.device.direct import run_function
from mlirc.device.reference import Reference
from mlirc.device.tensor_maps import TensorMap

NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 63, 64, 127, 128, 256, 384, 512, 1024)
MAP = "!llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}"
S, G, C = "!llvm.ptr<3>", "!llvm.ptr<1>", "!llvm.ptr<7>"
FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}"
COMMIT, MEET = "nvvm.cp.async.bulk.commit.group", "nvvm.cluster.arrive\nnvvm.cluster.wait"
TILES = 3


def at(name: str, base: str, index: str, t: str = "i32", space: str = S) -> str:
    """A pointer %name to an element of an array, or for a number to a byte of it."""
    if index.isdigit():
        return f"%{name} = llvm.getelementptr {base}[{index}] : ({space}) -> {space}, i8\n"
    return f"%{name} = llvm.getelementptr {base}[{index}] : ({space}, i32) -> {space}, {t}\n"


def load(name: str, base: str, index: str, space: str = G) -> str:
    return at(f"{name}_p", base, index, "i32", space) + f"%{name} = llvm.load %{name}_p : {space} -> i32\n"


def store(value: str, name: str, base: str, index: str, space: str = G) -> str:
    return at(name, base, index, "i32", space) + f"llvm.store {value}, %{name} : i32, {space}\n"


def op(name: str, kind: str, *operands: str, t: str = "i32") -> str:
    return f"%{name} = arith.{kind} {', '.join(operands)} : {t}\n"


def wait(bar: str, parity: str) -> str:
    return f"nvvm.mbarrier.try_wait.parity {bar}, {parity}, %patience : {S}, i32, i32\n"


def until(bar: str, parity: str, name: str) -> str:
    """The same as a loop that asks."""
    return f"""scf.while : () -> () {{
      %{name} = nvvm.mbarrier.test.wait {bar}, {parity} : {S}, i32 -> i1
      %{name}_no = arith.xori %{name}, %true : i1
      scf.condition(%{name}_no)
    }} do {{ scf.yield }}\n"""


def arrive(name: str, bar: str) -> str:
    return f"%{name} = nvvm.mbarrier.arrive {bar} : {S} -> i64\n"


def inits(first: int, counts: Sequence[str]) -> str:
    """mbarriers from a byte on, by thread 0."""
    made = "".join(
        at(f"init{i}", "%smem", str(first + 8 * i)) + f"nvvm.mbarrier.init %init{i}, {count} : {S}, i32\n"
        for i, count in enumerate(counts)
    )
    return f"scf.if %first {{ {made} nvvm.fence.mbarrier.init }}\n"


def ring(first: int, slots: int = 2) -> str:
    """Of turn %i: its slot %s, the parities %odd (of what is full) and %free, the mbarriers %full and %empty."""
    return (
        op("s", "remui", "%i", f"%c{slots}") + op("round", "divui", "%i", f"%c{slots}") + op("odd", "andi", "%round", "%c1")
        + op("free", "xori", "%odd", "%c1") + at("fulls", "%smem", str(first)) + at("full", "%fulls", "%s", "i64")
        + at("empties", "%smem", str(first + 8 * slots)) + at("empty", "%empties", "%s", "i64")
    )  # fmt: skip


def module(body: str, pointers: int, maps: int = 0, cluster: bool = False) -> str:
    """The text of a kernel @k, one operation a line."""
    names = ", ".join([f"%p{i}: {G}" for i in range(pointers)] + [f"%map{i}: {MAP}" for i in range(maps)])
    constants = "".join(f"%c{n} = arith.constant {n} : i32\n" for n in NUMBERS)
    attributes = ", nvvm.cluster_dim = array<i32: 2, 1, 1>" if cluster else ""
    return str(
        mlir.parse(f"""
module {{ gpu.module @m {{
llvm.mlir.global external @smem() {{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<0 x i8>
llvm.func @k({names}) attributes {{gpu.kernel, nvvm.kernel{attributes}}} {{
  %smem = llvm.mlir.addressof @smem : {S}
  %t = nvvm.read.ptx.sreg.tid.x : i32
  %b = nvvm.read.ptx.sreg.ctaid.x : i32
  %true = arith.constant true
  %patience = arith.constant 1000 : i32
  {constants}
  %first = arith.cmpi eq, %t, %c0 : i32
  {body}
  llvm.return
}} }} }}""")
    )


def bulk_ring() -> str:
    """Warpgroup 0 computes y = x + 3 in global memory, and one of its threads copies it in bulk to a ring of two slots;
    warpgroup 1 doubles each tile of 128, turned around, and stores it in bulk; then the memory of the mbarriers is used
    for data: w[0..7] = z[7..0]."""
    produce = f"""scf.if %first {{ scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {ring(2048)} {wait("%empty", "%free")}
      %token = nvvm.mbarrier.arrive.expect_tx %full, %c512 : {S}, i32 -> i64
      {op("elements", "muli", "%i", "%c128")} {at("from", "%p1", "%elements", "i32", G)}
      {op("bytes", "muli", "%s", "%c512")} {at("slot", "%smem", "%bytes", "i8")}
      %to = llvm.addrspacecast %slot : {S} to {C}
      nvvm.cp.async.bulk.shared.cluster.global %to, %from, %full, %c512 : {C}, {G}
    }} }}"""
    consume = f"""{op("lane", "subi", "%t", "%c128")} %leads = arith.cmpi eq, %lane, %c0 : i32
    scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {ring(2048)} {wait("%full", "%odd")}
      {op("row", "muli", "%s", "%c128")} {op("back", "subi", "%c127", "%lane")} {op("theirs", "addi", "%row", "%back")}
      {load("v", "%smem", "%theirs", S)} {arrive("gone", "%empty")} {op("w", "addi", "%v", "%v")}
      scf.if %leads {{ nvvm.cp.async.bulk.wait_group 1 {{read}} }}
      nvvm.barrier id = %c1 number_of_threads = %c128
      {at("outs", "%smem", "1024")} {op("mine", "addi", "%row", "%lane")} {store("%w", "put", "%outs", "%mine", S)}
      {FENCE}
      nvvm.barrier id = %c1 number_of_threads = %c128
      scf.if %leads {{
        {op("elements", "muli", "%i", "%c128")} {at("there", "%p2", "%elements", "i32", G)}
        {at("source", "%outs", "%row")}
        nvvm.cp.async.bulk.global.shared.cta %there, %source, %c512 : {G}, {S}
        {COMMIT} }}
    }}
    scf.if %leads {{ nvvm.cp.async.bulk.wait_group 0 }}"""
    ends = "".join(at(f"end{i}", "%smem", str(2048 + 8 * i)) + f"nvvm.mbarrier.inval %end{i} : {S}\n" for i in range(4))
    return module(
        f"""{inits(2048, ["%c1", "%c1", "%c128", "%c128"])}
    scf.for %j = %t to %c384 step %c256 : i32 {{
      {load("x", "%p0", "%j")} {op("more", "addi", "%x", "%c3")} {store("%more", "y_p", "%p1", "%j")} }}
    nvvm.fence.proxy {{kind = #nvvm.proxy_kind<async.global>}}
    nvvm.barrier
    %produces = arith.cmpi ult, %t, %c128 : i32
    scf.if %produces {{ {produce} }} else {{ {consume} }}
    nvvm.barrier
    scf.if %first {{ {ends} }}
    nvvm.barrier
    %few = arith.cmpi ult, %t, %c8 : i32
    {at("data", "%smem", "2048")}
    scf.if %few {{ {load("z", "%p2", "%t")} {store("%z", "z_s", "%data", "%t", S)} }}
    nvvm.barrier
    scf.if %few {{ {op("other", "subi", "%c7", "%t")} {load("r", "%data", "%other", S)} {store("%r", "w_p", "%p3", "%t")}
    }}""",
        4,
    )


def bulk_ring_right(x: np.ndarray) -> list[np.ndarray]:
    z = 2 * (x + 3).reshape(TILES, 128)[:, ::-1].ravel()
    return [x + 3, z, z[:8][::-1]]


def pair() -> str:
    """Two blocks of a cluster exchange: copies of each other's data in bulk, stores and arrivals, and loads."""
    return module(
        f"""%rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
    {op("other", "xori", "%rank", "%c1")} {at("bar", "%smem", "768")} {at("bar2", "%smem", "776")}
    {at("in", "%smem", "256")} {at("box", "%smem", "512")}
    {inits(768, ["%c1", "%c64"])}
    nvvm.cluster.arrive.relaxed
    {op("base", "muli", "%b", "%c64")} {op("g", "addi", "%base", "%t")}
    {load("x", "%p0", "%g")} {store("%x", "mine", "%smem", "%t", S)}
    {FENCE}
    nvvm.cluster.wait
    nvvm.barrier
    %far = nvvm.mapa %smem, %other : {S} -> {C}
    %far_in = nvvm.mapa %in, %other : {S} -> {C}
    %far_box = nvvm.mapa %box, %other : {S} -> {C}
    %far_bar7 = nvvm.mapa %bar, %other : {S} -> {C}
    %far_bar = llvm.addrspacecast %far_bar7 : {C} to {S}
    %far_bar2 = nvvm.mapa %bar2, %other : {S} -> {C}
    scf.if %first {{
      %token = nvvm.mbarrier.arrive.expect_tx %bar, %c256 : {S}, i32 -> i64
      nvvm.cp.async.bulk.shared.cluster.shared.cta %far_in, %smem, %far_bar, %c256 : {C}, {S} }}
    {op("next", "addi", "%x", "%c1")} {store("%next", "there", "%far_box", "%t", C)}
    nvvm.mbarrier.arrive %far_bar2 {{scope = #nvvm.mem_scope<cluster>}} : {C}
    {wait("%bar", "%c0")} {wait("%bar2", "%c0")}
    {op("back", "subi", "%c63", "%t")} {load("v", "%in", "%back", S)} {load("u", "%box", "%back", S)}
    {load("w", "%far", "%t", C)}
    {op("sum", "addi", "%v", "%u")} {store("%sum", "y_p", "%p1", "%g")} {store("%w", "z_p", "%p2", "%g")}
    {MEET}""",
        3, cluster=True,
    )  # fmt: skip


def pair_right(x: np.ndarray) -> list[np.ndarray]:
    theirs = x.reshape(-1, 2, 64)[:, ::-1]
    return [(2 * theirs[:, :, ::-1] + 1).ravel(), theirs.ravel()]


def copy_ring() -> str:
    """Warps 0 and 1 copy tiles by cp.async, whose arrivals follow the copies; warps 2 and 3 turn them around."""
    produce = f"""scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {ring(2048)} {until("%empty", "%free", "gone")}
      {op("tile", "muli", "%i", "%c256")} {op("words", "muli", "%t", "%c4")} {op("g", "addi", "%tile", "%words")}
      {op("slot", "muli", "%s", "%c256")} {op("l", "addi", "%slot", "%words")}
      {at("from", "%p0", "%g", "i32", G)} {at("to", "%smem", "%l", "i32")}
      nvvm.cp.async.shared.global %to, %from, 16, cache = cg : {S}, {G}
      nvvm.cp.async.mbarrier.arrive %full {{noinc = true}} : {S} }}"""
    consume = f"""{op("lane", "subi", "%t", "%c64")} scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {ring(2048)} {until("%full", "%odd", "come")}
      {op("tile", "muli", "%i", "%c256")} {op("slot", "muli", "%s", "%c256")} {op("words", "muli", "%lane", "%c4")}
      {op("back", "subi", "%c63", "%lane")} {op("theirs", "muli", "%back", "%c4")}
      {op("l", "addi", "%slot", "%theirs")} {op("g", "addi", "%tile", "%words")}
      {load("v", "%smem", "%l", S)} {store("%v", "y_p", "%p1", "%g")} {arrive("done", "%empty")} }}"""
    return module(
        f"""{inits(2048, ["%c64"] * 4)}
    nvvm.barrier
    %produces = arith.cmpi ult, %t, %c64 : i32
    scf.if %produces {{ {produce} }} else {{ {consume} }}""",
        2,
    )


def copy_ring_right(x: np.ndarray) -> list[np.ndarray]:
    y = np.zeros((TILES, 64, 4), np.int32)
    y[:, :, 0] = x.reshape(TILES, 64, 4)[:, ::-1, 0]
    return [y.ravel()]


def tensor_stores() -> str:
    """Boxes of [8, 16], stored from two buffers in turn, and added to a second tensor."""
    return module(
        f"""scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {op("s", "remui", "%i", "%c2")} {op("tile", "muli", "%i", "%c128")} {op("g", "addi", "%tile", "%t")}
      {load("x", "%p0", "%g")}
      scf.if %first {{ nvvm.cp.async.bulk.wait_group 1 {{read}} }}
      nvvm.barrier
      {op("slot", "muli", "%s", "%c128")} {op("l", "addi", "%slot", "%t")} {store("%x", "put", "%smem", "%l", S)}
      {FENCE}
      nvvm.barrier
      scf.if %first {{
        {at("source", "%smem", "%slot")} {op("row", "muli", "%i", "%c8")}
        nvvm.cp.async.bulk.tensor.global.shared.cta %map0, %source, box[%c0, %row] : !llvm.ptr, {S}
        nvvm.cp.async.bulk.tensor.reduce %map1, %source, box[%c0, %c0] {{redKind = #nvvm.tma_redux_kind<add>}} :
          !llvm.ptr, {S}
        {COMMIT} }}
    }}
    scf.if %first {{ nvvm.cp.async.bulk.wait_group 0 {{read}} }}""",
        1, maps=2,
    )  # fmt: skip


def tensor_stores_right(x: np.ndarray) -> list[np.ndarray]:
    boxes = x.reshape(TILES, 8, 16)
    return [boxes.reshape(TILES * 8, 16), boxes.sum(axis=0).astype(np.int32)]


def multicast() -> str:
    """Block 0 of a cluster copies boxes of [8, 16] to both blocks, each of which tells it when its slot is free."""
    return module(
        f"""%rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
    %leads = arith.cmpi eq, %rank, %c0 : i32
    %both = arith.constant 3 : i16
    {inits(512, ["%c1", "%c2"])}
    nvvm.cluster.arrive.relaxed
    nvvm.cluster.wait
    {at("full", "%smem", "512")} {at("empty", "%smem", "520")}
    %far = nvvm.mapa %empty, %c0 : {S} -> {C}
    {op("base", "muli", "%b", "%c384")}
    scf.for %i = %c0 to %c3 step %c1 : i32 {{
      {op("odd", "andi", "%i", "%c1")} {op("free", "xori", "%odd", "%c1")}
      scf.if %first {{
        %token = nvvm.mbarrier.arrive.expect_tx %full, %c512 : {S}, i32 -> i64
        scf.if %leads {{
          {wait("%empty", "%free")} {op("row", "muli", "%i", "%c8")}
          %to = llvm.addrspacecast %smem : {S} to {C}
          nvvm.cp.async.bulk.tensor.shared.cluster.global %to, %map0, %full, box[%c0, %row] multicast_mask = %both :
            {C}, !llvm.ptr }}
      }}
      {wait("%full", "%odd")}
      {op("back", "subi", "%c127", "%t")} {load("v", "%smem", "%back", S)}
      {op("tile", "muli", "%i", "%c128")} {op("l", "addi", "%tile", "%t")} {op("g", "addi", "%base", "%l")}
      {store("%v", "y_p", "%p0", "%g")}
      nvvm.barrier
      scf.if %first {{ nvvm.mbarrier.arrive %far {{scope = #nvvm.mem_scope<cluster>}} : {C} }}
    }}
    {MEET}""",
        1, maps=1, cluster=True,
    )  # fmt: skip


def multicast_right(x: np.ndarray) -> list[np.ndarray]:
    return [np.tile(x.reshape(TILES, 128)[:, ::-1].ravel(), 2)]


@dataclass(frozen=True)
class Hand:
    """A kernel by hand: its text, what it computes of x [384], the launch; `given`: x is the n-th of its arguments, as a
    tensor map or an array, and the results are the others."""

    text: Callable[[], str]
    right: Callable[[np.ndarray], list[np.ndarray]]
    threads: int
    smem: int
    blocks: int = 1
    size: int = TILES * 128
    boxes: tuple[int, ...] = ()  # the arguments that are tensor maps

    @property
    def reference(self) -> Reference:
        return Reference([("kernels", self.right)], 1)

    def inputs(self, seed: int) -> list[np.ndarray]:
        return [np.random.default_rng(seed).integers(-99, 99, self.size).astype(np.int32)]

    def run(self, text: str, arguments: list[np.ndarray], seed: int, **options) -> tuple[list[np.ndarray], Report]:
        (x,) = arguments
        results = [np.zeros(r.shape, np.int32) for r in self.right(x)]
        parameters = [x.reshape(-1, 16) if 0 in self.boxes else x, *results]
        given = [TensorMap(a, (8, 16)) if i in self.boxes else a for i, a in enumerate(parameters)]
        given.sort(key=lambda a: not isinstance(a, np.ndarray))  # maps come last
        shape = ((self.blocks, 1, 1), (self.threads, 1, 1), self.smem)
        return results, run_function(mlir.parse(text), "k", given, *shape, seed=seed, **options)


HANDS = {
    "bulk ring": Hand(bulk_ring, bulk_ring_right, 256, 2080),
    "cluster, exchange": Hand(pair, pair_right, 64, 784, blocks=4, size=256),
    "ring of cp.async": Hand(copy_ring, copy_ring_right, 128, 2080, size=TILES * 256),
    "tensor stores": Hand(tensor_stores, tensor_stores_right, 128, 1024, boxes=(1, 2)),
    "cluster, multicast": Hand(multicast, multicast_right, 128, 528, blocks=2, boxes=(0,)),
}
