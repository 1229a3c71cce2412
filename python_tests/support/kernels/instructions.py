"""Kernels of pointers around a body of the nvvm and llvm dialects, and what the host device says to one."""

from __future__ import annotations

import zlib

import ml_dtypes
import numpy as np

from mlirc import mlir
from mlirc.device.direct import run_function
from mlirc.device.numbers import different
from mlirc.device.ptx import run_entry
from mlirc.device.tensor_maps import Im2colMap, TensorMap
from support.kernels.by_hand import ptx_of
from support.randomness import generator

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
MAP = "!llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}"


def module(body: str, arguments: int, attributes: str = "", maps: int = 0) -> mlir.ir.Module:
    """A kernel @k of pointers %p0, %p1, ... to global memory and tensor maps %map0, ...; %t is the thread, %smem the
    shared memory, %all -1."""
    names = ", ".join([f"%p{i}: !llvm.ptr<1>" for i in range(arguments)] + [f"%map{i}: {MAP}" for i in range(maps)])
    constants = "".join(f"%c{n} = arith.constant {n} : i32\n" for n in (0, 1, 2, 3, 4, 8, 16, 32, 64, 128))
    return mlir.parse(f"""
module {{ gpu.module @m {{
llvm.mlir.global external @smem() {{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<0 x i8>
llvm.func @k({names}) attributes {{gpu.kernel, nvvm.kernel{attributes}}} {{
  %smem = llvm.mlir.addressof @smem : !llvm.ptr<3>
  %t = nvvm.read.ptx.sreg.tid.x : i32
  %b = nvvm.read.ptx.sreg.ctaid.x : i32
  %all = arith.constant -1 : i32
  {constants}
  {body}
  llvm.return
}} }} }}""")


def at(name: str, pointer: str, index: str, t: str = "i32", space: str = "<1>") -> str:
    return f"%{name} = llvm.getelementptr {pointer}[{index}] : (!llvm.ptr{space}, i32) -> !llvm.ptr{space}, {t}\n"


def load(name: str, pointer: str, index: str, t: str = "i32", space: str = "<1>") -> str:
    return at(f"{name}_at", pointer, index, t, space) + f"%{name} = llvm.load %{name}_at : !llvm.ptr{space} -> {t}\n"


def store(value: str, pointer: str, index: str, t: str = "i32", space: str = "<1>") -> str:
    tag = f"to{zlib.crc32(f'{value} {pointer} {index}'.encode())}"
    return at(tag, pointer, index, t, space) + f"llvm.store {value}, %{tag} : {t}, !llvm.ptr{space}\n"


def run(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1, smem: int = 0, attributes: str = "",
        seed: int = 0, ptx: bool = False) -> set[str]:  # fmt: skip
    """Runs a kernel's body; returns the kinds of what was found. With `ptx` its PTX must compute the same bits."""
    m = module(body, len(arrays), attributes)
    shape = (blocks, 1, 1), (threads, 1, 1), smem
    again = [a.copy() for a in arrays] if ptx else []
    found = run_function(m, "k", list(arrays), *shape, seed=seed).kinds()
    if ptx:
        run_entry(ptx_of(str(m)), "k", again, *shape)
        assert not any(different(a, b).any() for a, b in zip(arrays, again, strict=True))
    return found


def places(body: str, *arrays: np.ndarray | TensorMap | Im2colMap, threads: int = 32, blocks: int = 1, smem: int = 0,
           attributes: str = "", seed: int = 0, ptx: bool = False) -> set[tuple[str, str]]:  # fmt: skip
    """The same, tensor maps being inputs, with the operation of each finding, whose name must be on the line that it gives."""
    maps = sum(not isinstance(a, np.ndarray) for a in arrays)
    text = str(module(body, len(arrays) - maps, attributes, maps))
    shape = (blocks, 1, 1), (threads, 1, 1), smem
    again = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
    report = run_function(mlir.parse(text), "k", arrays, *shape, seed=seed)
    if ptx:
        run_entry(ptx_of(text), "k", again, *shape)
        for a, b in zip(arrays, again, strict=True):
            assert not isinstance(a, np.ndarray) or not different(a, b).any()
    for f in report.findings:
        assert f.op in text.split("\n")[int(f.location.split(":")[-2]) - 1]
    return {(f.kind, f.op) for f in report.findings}


def ints(*shape: int, low: int = -50, high: int = 50) -> np.ndarray:
    return generator().integers(low, high, shape).astype(np.int32)


def fragments(a: np.ndarray, per: int, column_major: bool = False) -> np.ndarray:
    """A [16, k] (or B [k, 8], column_major) as registers [32 lanes, registers] of 4 bytes."""
    if column_major:
        k = a.shape[0]
        cut = a.reshape(k // (4 * per), 4, per, 8).transpose(3, 1, 0, 2)  # g, t, half, j
    else:
        k = a.shape[1]
        cut = a.reshape(2, 8, k // (4 * per), 4, per).transpose(1, 3, 2, 0, 4)  # g, t, column half, row half, j
    return np.ascontiguousarray(cut).reshape(32, -1).view(np.int32)


CLUSTER = ", nvvm.cluster_dim = array<i32: 2, 1, 1>"
NEIGHBOUR = """%rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
  %other = arith.xori %rank, %c1 : i32
  %far = nvvm.mapa %smem, %other : !llvm.ptr<3> -> !llvm.ptr<7>
  %mul = arith.muli %b, %c32 : i32
  %g = arith.addi %mul, %t : i32\n"""
MEET = "nvvm.cluster.arrive\nnvvm.cluster.wait\n"


def exchange(first: str, second: str) -> str:
    """Every block writes its own shared memory and reads its neighbour's."""
    return (NEIGHBOUR + load("x", "%p0", "%g") + store("%x", "%smem", "%t", "i32", "<3>") + first
            + load("y", "%far", "%t", "i32", "<7>") + store("%y", "%p1", "%g") + second)  # fmt: skip


WAIT = """%bar = llvm.getelementptr %smem[1024] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
  %first = arith.cmpi eq, %t, %c0 : i32
  %patience = arith.constant 1000 : i32
  %n = arith.constant 512 : i32
  scf.if %first { nvvm.mbarrier.init %bar, %c1 : !llvm.ptr<3>, i32
    nvvm.fence.mbarrier.init
    %token = nvvm.mbarrier.arrive.expect_tx %bar, %n : !llvm.ptr<3>, i32 -> i64 }
  START
  nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32\n"""
MULTICAST_COPY = (
    MEET
    + """%rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
  %leader = arith.cmpi eq, %rank, %c0 : i32
  %mine = arith.andi %leader, %first : i1
  %both = arith.constant 3 : i16
  scf.if %mine { %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
    nvvm.cp.async.bulk.tensor.shared.cluster.global %to, %map0, %bar, box[%c0, %c0] multicast_mask = %both :
      !llvm.ptr<7>, !llvm.ptr }"""
)
MULTICAST = (
    WAIT.replace("START", MULTICAST_COPY)
    + """%mul = arith.muli %b, %c128 : i32
  %g = arith.addi %mul, %t : i32\n"""
    + load("v", "%smem", "%t", "i32", "<3>")
    + store("%v", "%p0", "%g")
    + MEET
)
