"""wgmma: products of a warpgroup whose operands lie in shared memory.

Shared-memory layouts follow the PTX ISA, "Asynchronous warpgroup level matrix instructions: Matrix descriptor"."""

from __future__ import annotations

import functools

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.engine import Engine
from mlirc.host.device.hopper_rules import WARPGROUP, engine_of, warpgroups
from mlirc.host.device.machine import Machine, State
from mlirc.host.device.memory import Buffer
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.nvgpu_rules import tf32, to_f32
from mlirc.host.device.pointer_rules import struct_fields
from mlirc.host.device.tensor_copy_rules import check_proxy
from mlirc.host.device.tensor_maps import swizzled
from mlirc.host.device.translate import Translator, rule
from mlirc.mlir import ir


def swizzle_of(descriptor: int) -> int:
    """The bytes of a row of a matrix descriptor's swizzle; 0 for none."""
    return {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]


@functools.lru_cache(maxsize=4096)
def descriptor_bytes(descriptor: int, outer: int, inner_bytes: int, k_major: bool, item: int) -> np.ndarray:
    """Shared memory addresses of a matrix operand [outer (m or n), k], from its 64-bit descriptor."""
    start = (descriptor & 0x3FFF) << 4
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    swizzle = swizzle_of(descriptor)
    if descriptor >> 49 & 7:
        raise ValueError("a matrix descriptor with a base offset: begin operands where the swizzle's pattern does")
    row = np.arange(outer)[:, None]
    k = np.arange(inner_bytes // item)[None, :]
    if k_major:
        if swizzle:
            byte = row // 8 * stride + row % 8 * swizzle + k * item
        else:  # core matrices of 8 rows of 16 bytes
            byte = row // 8 * stride + row % 8 * 16 + k * item // 16 * leading + k * item % 16
    else:
        width = swizzle or 16
        per = width // item  # elements along m or n in one row of the pattern
        byte = row // per * leading + k // 8 * stride + k % 8 * width + row % per * item
    return swizzled(start + byte, swizzle)


def _word(op, attribute: str) -> str:
    """The last word of an enumeration attribute, as in `#nvvm.wgmma_type<bf16>`."""
    return str(op.attributes[attribute]).rstrip(">").replace("<", " ").split()[-1]


@rule("nvvm.wgmma.mma_async")
def _wgmma(tr: Translator, op):
    tr.proxies, tr.unit = True, WARPGROUP
    inputs = [v for v in op.operands if "struct" not in str(v.type)]
    (acc,) = [v for v in op.operands if "struct" in str(v.type)]
    if len(inputs) != 2:
        raise MlircError(f"host device: {tr.where}: wgmma with A in registers at {op.location}")
    a, b, c, out = tr.reg(inputs[0]), tr.reg(inputs[1]), tr.reg(acc), tr.reg(op.results[0])
    count, out_type = struct_fields(acc.type)
    numbers = dict(
        p.split("=") for p in str(op.attributes["shape"]).split("<")[-1].rstrip(">").replace(" ", "").split(",")
    )
    n, k = int(numbers["n"]), int(numbers["k"])
    name = _word(op, "typeA")
    names = {"tf32": "f32", "e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "s8": "i8", "u8": "i8"}
    dtype = dtype_of(ir.Type.parse(names.get(name, name), op.context))
    if name == "u8" or name != _word(op, "typeB"):
        raise MlircError(f"host device: {tr.where}: wgmma of {name} x {_word(op, 'typeB')} at {op.location}")
    major = ["row" in str(op.attributes["layoutA"]), "col" in str(op.attributes["layoutB"])]
    scales = [_word(op, s) for s in ("scaleA", "scaleB", "scaleD")]
    signs = [-1.0 if s == "neg" else 1.0 for s in scales[:2]]
    whole = dtype.kind == "i"  # exact in f64
    widen = (lambda x: x.astype(np.float64)) if whole else tf32 if dtype == np.float32 else to_f32
    if count != n // 2:
        raise MlircError(f"host device: {tr.where}: wgmma n={n} with {count} accumulators per thread at {op.location}")

    def step(s: State) -> None:
        m, engine, r = s.m, engine_of(s), s.r
        full = np.broadcast_to(r[c], (m.nb, m.nt, count)).astype(np.float64 if whole else np.float32)
        result = np.empty((m.nb, m.nt, count), dtype=out_type)
        descriptors = [np.broadcast_to(r[x], (m.nb, m.nt)) for x in (a, b)]
        for block, t in warpgroups(s, op):
            if m.check:
                engine.check_fence(block, t, r[c], op)
            operands = []
            for d, rows, is_major in zip(descriptors, (64, n), major, strict=True):
                number = int(d[block, t]) & (2**64 - 1)
                cells = descriptor_bytes(number, rows, k * dtype.itemsize, is_major, dtype.itemsize)
                operands.append(_matrix(s, engine, cells, dtype, (block, t, result), op))
                s.m.placed(m.dynamic_shared, max(16, 8 * swizzle_of(number)), _lane(m, block, t), op)
            total = np.matmul(signs[0] * widen(operands[0]), (signs[1] * widen(operands[1])).T)
            lanes = slice(t, t + WARPGROUP)
            if scales[2] != "zero":
                # Register j * 4 + h * 2 + i of lane 4g + q of warp w: row 16w + 8h + g, column 8j + 2q + i.
                grid = full[block, lanes].reshape(4, 8, 4, n // 8, 2, 2)  # w, g, q, j, h, i
                total += grid.transpose(0, 4, 1, 3, 2, 5).reshape(64, n)
            back = total.reshape(4, 2, 8, n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)
            result[block, lanes] = back.reshape(WARPGROUP, count)
        engine.results[id(result)] = result
        r[out] = result

    return step


def _lane(m: Machine, b: int, t: int) -> np.ndarray:
    """A mask with one thread."""
    lone = np.zeros((m.nb, m.nt), bool)
    lone[b, t] = True
    return lone


def _matrix(s: State, engine: Engine, cells: np.ndarray, dtype: np.dtype, where, op) -> np.ndarray:
    """Reads an operand; its bytes stay in use until the wgmma is waited for."""
    m, (b, t, result) = s.m, where
    buffer = m.dynamic_shared
    if m.counters is not None:  # a wavefront moves eight rows of 16 bytes; four warps share one request
        chunks = cells[:, :: 16 // dtype.itemsize].T.reshape(-1, 8)
        m.counters.wgmma(chunks)
    assert buffer is not None
    lone = _lane(m, b, t)
    if cells.max() + dtype.itemsize > buffer.nbytes:
        m.complain("out of bounds", lone, f"reads byte {int(cells.max())} of {buffer.name}", op)
        return np.zeros(cells.shape, dtype)
    address = b * buffer.stride + cells
    byte = address[..., None] + np.arange(dtype.itemsize)
    if m.check:
        check_proxy(s, buffer, byte, lone, op)
        if buffer.pending is not None and buffer.pending[byte].any():
            m.complain("unfinished copy", lone, f"reads {buffer.name} while an asynchronous copy writes there", op)
        elif buffer.written is not None and not buffer.written[byte].all():
            m.complain("uninitialized read", lone, f"reads {buffer.name}, where nobody wrote", op)
        if m.clocks is not None:
            _note_wgmma(engine, buffer, byte, b, t, op)
        elif m.races is not None:
            m.races.note_bytes(buffer, address.ravel(), dtype.itemsize, b * m.nt + t, op)
        engine.reads(b, t, buffer, byte.ravel(), result)
    return buffer.data[byte].reshape(cells.shape[0], -1).view(dtype)


def _note_wgmma(engine: Engine, buffer: Buffer, byte: np.ndarray, b: int, t: int, op) -> None:
    """A wgmma's reads: every warp of the warpgroup must have seen what was written; they end with its group."""
    clocks, granule = engine.machine.clocks, engine.machine.races.granule  # type: ignore[union-attr]
    cells = np.unique(byte // granule)[:, None]
    agent = (clocks.group(b, t), engine.groups.get((b, t), 0) + 1)
    for warp in range(4):
        row = clocks.row(b, t) + warp
        clocks.touch(buffer, cells, (clocks.unit(b), row), agent, False, op, b * engine.machine.nt + t + 32 * warp)


@rule("nvvm.wgmma.fence.aligned")
def _wgmma_fence(tr: Translator, op):
    return lambda s: engine_of(s).fenced.update(warpgroups(s, op))


@rule("nvvm.wgmma.commit.group.sync.aligned")
def _commit(tr: Translator, op):
    def step(s: State) -> None:
        for b, t in warpgroups(s, op):
            engine_of(s).commit(b, t)

    return step


@rule("nvvm.wgmma.wait.group.sync.aligned")
def _wait(tr: Translator, op):
    pending = ir.IntegerAttr(op.attributes["group"]).value

    def step(s: State) -> None:
        for b, t in warpgroups(s, op):
            engine_of(s).wait(b, t, pending)

    return step
