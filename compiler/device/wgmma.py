"""wgmma: what a product of a warpgroup reads and computes. Operands lie in shared memory; A may lie in registers.

Layouts follow the PTX ISA, "Asynchronous warpgroup level matrix instructions": "Matrix descriptor" for shared memory,
"Register Fragments" for the rest."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mlirc.device.bulk_copies import check_proxy
from mlirc.device.engine import Engine, engine_of
from mlirc.device.machine import State
from mlirc.device.memory import Buffer
from mlirc.device.tensor_cores import BITS, BITS_FP8_WGMMA, lowest_exponent, multiply_add, tf32, to_f32
from mlirc.device.tensor_maps import swizzled
from mlirc.device.translate import Translator
from mlirc.device.warps import WARPGROUP, warpgroups
from mlirc.mlir import ir

M = 64  # rows of every wgmma's product
DTYPES: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}  # fmt: skip
_RESULTS: dict[str, np.dtype] = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "s32": np.dtype(np.int32)}


@dataclass(frozen=True)
class Product:
    """One wgmma: D [64, n] = sign_a * A [64, k] sign_b * B [n, k]^T (+ D), by the names that PTX has for types.
    `a_major`, `b_major`: whether the operand's rows run along k. `saturate`: 32-bit integers are clamped."""

    n: int
    k: int
    a: str
    b: str
    d: str
    sign_a: int = 1
    sign_b: int = 1
    a_major: bool = True
    b_major: bool = True
    adds: bool = True
    saturate: bool = False

    def problem(self) -> str:
        """Why there is no such wgmma; "" if there is (PTX ISA, "wgmma.mma_async")."""
        if self.a not in DTYPES or self.b not in DTYPES or self.d not in _RESULTS:
            return f"wgmma of {self.a} x {self.b} to {self.d}"
        kinds = [{"e4m3": "f8", "e5m2": "f8", "s8": "i8", "u8": "i8"}.get(x, x) for x in (self.a, self.b)]
        results = {"f16": ("f16", "f32"), "f8": ("f16", "f32"), "i8": ("s32",)}.get(kinds[0], ("f32",))
        if kinds[0] != kinds[1] or self.d not in results:
            return f"wgmma of {self.a} x {self.b} to {self.d}"
        step = 16 if kinds[0] == "i8" and self.n > 32 else 8
        if not 8 <= self.n <= 256 or self.n % step or self.k * self.item != 32:
            return f"wgmma of shape m64n{self.n}k{self.k} on {self.a}"
        if not (self.a_major and self.b_major) and self.item != 2:
            return f"wgmma of a transposed operand of {self.a}: only 16-bit types can be"
        return ""

    @property
    def item(self) -> int:
        """Bytes of an element of A and B."""
        return DTYPES[self.a].itemsize

    @property
    def result(self) -> np.dtype:
        return _RESULTS[self.d]

    @property
    def words(self) -> int:
        """32-bit registers of the accumulator, per thread."""
        return self.n // 2 * self.result.itemsize // 4

    def compute(self, left: np.ndarray, right: np.ndarray, registers: np.ndarray) -> np.ndarray:
        """The product of A [64, k] and B [n, k], added to the accumulator as it lies in the registers of 128 threads
        [128, n / 2]; returned likewise. Register j * 4 + h * 2 + i of lane 4g + q of warp w: row 16w + 8h + g, column
        8j + 2q + i."""
        a, b = self._widen(left) * np.float32(self.sign_a), self._widen(right).T * np.float32(self.sign_b)
        start = np.zeros((M, self.n), a.dtype)
        if self.adds:
            grid = registers.astype(a.dtype).reshape(4, 8, 4, self.n // 8, 2, 2)  # w, g, q, j, h, i
            start[...] = grid.transpose(0, 4, 1, 3, 2, 5).reshape(M, self.n)
        if self.result.kind == "i":
            total = np.matmul(a, b) + start
        else:
            lowest = (lowest_exponent(DTYPES[self.a]), lowest_exponent(DTYPES[self.b]))
            bits = BITS_FP8_WGMMA if self.item == 1 else BITS
            total = multiply_add(a, b, start, lowest, bits, self.result)
        back = self.fragments(total)
        if self.result.kind != "i":
            return back
        if self.saturate:
            return np.clip(back, -(2**31), 2**31 - 1).astype(np.int32)
        return back.astype(np.int64).astype(np.int32)

    def fragments(self, total: np.ndarray) -> np.ndarray:
        """A result [64, n] as it lies in the registers of 128 threads [128, n / 2]."""
        cut = total.reshape(4, 2, 8, self.n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)
        return cut.reshape(WARPGROUP, self.n // 2)

    def _widen(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "iu":  # exact in f64
            return x.astype(np.float64)
        return tf32(x) if self.a == "tf32" else to_f32(x)

    def fragment(self, registers: np.ndarray) -> np.ndarray:
        """A [64, k] from the four registers of 128 threads [128, 4], as words. Element e of register 2c + h of lane 4g
        + q of warp w: row 16w + 8h + g, column (4c + q) * (elements of a register) + e."""
        per = 4 // self.item
        cut = np.ascontiguousarray(registers).view(DTYPES[self.a]).reshape(4, 8, 4, 2, 2, per)  # w, g, q, c, h, e
        return cut.transpose(0, 4, 1, 3, 2, 5).reshape(M, self.k)


def launch(s: State, p: Product, a: np.ndarray | list[np.ndarray], b: np.ndarray, acc: np.ndarray, op,
           late: bool = False) -> np.ndarray:  # fmt: skip
    """Starts a product by all active warpgroups. `a`, `b`: descriptors per thread (`a`: or its four registers); `acc`:
    the accumulator [blocks, threads, words]; `late`: it is made behind the last wgmma.fence. Returns the new
    accumulator, which may be read after a wait."""
    m, engine = s.m, engine_of(s)
    full = m.full(acc)
    result = np.zeros(full.shape, acc.dtype)
    wide = m.full(b)
    parts = a if isinstance(a, list) else [a]
    left = np.stack([m.full(_words(x)) for x in parts], axis=-1)
    for block, t in warpgroups(s, op):
        lanes, where = slice(t, t + WARPGROUP), (block, t, result)
        if m.check:
            engine.check_fence(block, t, acc, late, op)
        if isinstance(a, list):
            first = p.fragment(left[block, lanes])
        else:
            first = _operand(s, engine, int(left[block, t, 0]), p, (M, p.a_major, p.a), where, op)
        second = _operand(s, engine, int(wide[block, t]) & (2**64 - 1), p, (p.n, p.b_major, p.b), where, op)
        before = np.ascontiguousarray(full[block, lanes]).view(p.result)
        result[block, lanes] = p.compute(first, second, before).view(acc.dtype)
        m.computed(p, result, block, lanes)
    engine.results[id(result)] = result
    engine.looked.pop(id(result), None)  # of an array that is gone
    return result


def _words(x: np.ndarray) -> np.ndarray:
    """Registers as unsigned words: vectors of less than 32 bits each are seen as what holds them."""
    flat = np.ascontiguousarray(x)
    return flat.reshape(*flat.shape[:2], -1).view(f"u{flat.itemsize * int(np.prod(flat.shape[2:]))}")[:, :, 0]


def _operand(s: State, engine: Engine, number: int, p: Product, what: tuple[int, bool, str], where, op) -> np.ndarray:
    """Reads an operand, (rows, whether they run along k, type), by its descriptor."""
    rows, major, name = what
    s.m.placed(s.m.dynamic_shared, max(16, 8 * swizzle_of(number)), s.m.one(*where[:2]), op)
    return _matrix(s, engine, (number, rows, p.k * p.item, major, p.item), DTYPES[name], where, op)


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


@functools.lru_cache(maxsize=4096)
def _footprint(key: tuple[int, int, int, bool, int], granule: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a matrix operand (arguments of `descriptor_bytes`) every byte [outer, k, item], and its granules once each."""
    byte = descriptor_bytes(*key)[..., None] + np.arange(key[-1])
    return byte, np.unique(byte // granule)


def _matrix(s: State, engine: Engine, key: tuple[int, int, int, bool, int], dtype: np.dtype, where, op) -> np.ndarray:
    """Reads an operand; its bytes stay in use until the wgmma is waited for."""
    m, (b, t, result) = s.m, where
    buffer, cells = m.dynamic_shared, descriptor_bytes(*key)
    if m.counters is not None:  # a wavefront moves eight rows of 16 bytes; four warps share one request
        chunks = cells[:, :: 16 // dtype.itemsize].T.reshape(-1, 8)
        m.counters.wgmma(chunks)
    assert buffer is not None
    lone = m.one(b, t)
    if cells.max() + dtype.itemsize > buffer.nbytes:
        m.complain(
            "out of bounds",
            lone,
            f"reads byte {int(cells.max())} of {buffer.name}, which has {buffer.nbytes} bytes",
            op,
        )
        return np.zeros(cells.shape, dtype)
    granule = m.races.granule if m.races is not None else 1
    inside, granules = _footprint(key, granule)
    byte = b * buffer.stride + inside
    if m.check:
        if buffer.pending is not None and buffer.pending[byte].any():
            m.complain("unfinished copy", lone, f"reads {buffer.name} while an asynchronous copy writes there", op)
        elif buffer.written is not None and not buffer.written[byte].all():
            hole = buffer.within(int(byte[buffer.written[byte] == 0][0]))
            m.complain("uninitialized read", lone, f"reads byte {hole} of {buffer.name}, where nobody wrote", op)
        touched = b * buffer.stride // granule + granules
        check_proxy(m, buffer, touched, (b, t), op, warps=4)
        engine.barriers.check_access(buffer, touched * granule, granule, np.array([b * m.nt + t]), "reads", op)
        _note_wgmma(engine, buffer, touched, b, t, op)
        engine.reads(b, t, buffer, byte.ravel(), result, op)
        m.taken(buffer, byte, op)
    return buffer.data[byte].reshape(cells.shape[0], -1).view(dtype)


def _note_wgmma(engine: Engine, buffer: Buffer, cells: np.ndarray, b: int, t: int, op) -> None:
    """A wgmma's reads of granules: every warp of the warpgroup must have seen what was written; they end with its
    group."""
    clocks = engine.machine.clocks
    column, epoch = clocks.group(b, t), engine.groups.get((b, t), 0) + 1
    table, unit, row = clocks.table(buffer), clocks.unit(b), clocks.row(b, t)
    known = clocks.now[unit, row : row + 4].min(axis=0)  # by all four
    writer = table.writer[cells]
    if not ((writer >= 0) & (known[writer] < table.epoch[cells])).any():
        table.read[cells, column] = epoch
        return
    for warp in range(4):
        thread = b * engine.machine.nt + t + 32 * warp
        clocks.touch(buffer, cells[:, None], (unit, row + warp), (column, epoch), False, op, thread)


def checked(tr: Translator, p: Product, words: int, op) -> Product:
    """The product, if there is one with so many registers of 32 bits for its accumulator."""
    problem = p.problem()
    if not problem and words != p.words:
        problem = f"wgmma n={p.n} with {words} registers of 32 bits for its {p.d} accumulator, not {p.words}"
    if problem:
        raise tr.refused(op, problem)
    return p


_SAME_REGISTERS = ("llvm.extractvalue", "llvm.bitcast")


def made_late(op, value: ir.Value, carried: bool = True) -> bool:
    """Whether no wgmma.fence lies between what makes a value and a wgmma that has it in registers. `carried`: what a
    loop hands from turn to turn, with no fence in front, is late; else only what comes into the loop is looked at."""
    while True:
        if isinstance(value.owner, ir.Block):
            loop = value.owner.owner.operation
            if carried or loop.name != "scf.for" or value.arg_number == 0:
                break
            value = loop.operands[2 + value.arg_number]
        elif value.owner.operation.name in _SAME_REGISTERS:
            value = value.owner.operation.operands[0]
        else:
            break
    maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
    here = op
    while here.parent is not None and here.name not in ("llvm.func", "gpu.func"):
        before = []
        for other in here.block.operations:
            if other.operation == here:
                break
            before.append(other.operation)
        for other in reversed(before):
            if other.name == "nvvm.wgmma.fence.aligned":
                return False
            if maker is not None and other == maker:
                return True
        if maker is None and value.owner == here.block:
            return carried
        here = here.parent.operation
    return carried
