"""wgmma: what a product of a warpgroup reads and computes. Operands lie in shared memory; A may lie in registers.

Layouts follow the PTX ISA, "Asynchronous warpgroup level matrix instructions": "Matrix descriptor" for shared memory,
"Register Fragments" for the rest."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mlirc.device.bulk_copies import check_proxy
from mlirc.device.engine import Engine, engine_of
from mlirc.device.machine import Machine, State
from mlirc.device.memory import Buffer
from mlirc.device.order.clocks import Clocks
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
        """The products of A [..., 64, k] and B [..., n, k], added to the accumulators as they lie in the registers of
        128 threads [..., 128, n / 2]; returned likewise. Register j * 4 + h * 2 + i of lane 4g + q of warp w: row 16w +
        8h + g, column 8j + 2q + i."""
        a = self._widen(left) * np.float32(self.sign_a)
        b = self._widen(right).swapaxes(-1, -2) * np.float32(self.sign_b)
        many = left.shape[:-2]
        start = np.zeros((*many, M, self.n), a.dtype)
        if self.adds:
            grid = registers.astype(a.dtype).reshape(-1, 4, 8, 4, self.n // 8, 2, 2)  # w, g, q, j, h, i
            start[...] = grid.transpose(0, 1, 5, 2, 4, 3, 6).reshape(start.shape)
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
        """Results [..., 64, n] as they lie in the registers of 128 threads [..., 128, n / 2]."""
        cut = total.reshape(-1, 4, 2, 8, self.n // 8, 4, 2).transpose(0, 1, 3, 5, 4, 2, 6)
        return cut.reshape(*total.shape[:-2], WARPGROUP, self.n // 2)

    def _widen(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "iu":  # exact in f64
            return x.astype(np.float64)
        return tf32(x) if self.a == "tf32" else to_f32(x)

    def fragment(self, registers: np.ndarray) -> np.ndarray:
        """A [..., 64, k] from the four registers of 128 threads [..., 128, 4], as words. Element e of register 2c + h
        of lane 4g + q of warp w: row 16w + 8h + g, column (4c + q) * (elements of a register) + e."""
        per, many = 4 // self.item, registers.shape[:-2]
        cut = np.ascontiguousarray(registers).view(DTYPES[self.a]).reshape(-1, 4, 8, 4, 2, 2, per)  # w, g, q, c, h, e
        return cut.transpose(0, 1, 5, 2, 4, 3, 6).reshape(*many, M, self.k)


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
    who = list(warpgroups(s, op))
    if who:
        blocks, lanes = _lanes(who)
        for block, t in who if m.check else ():
            engine.check_fence(block, t, acc, late, op)
        if isinstance(a, list):
            first = p.fragment(left[blocks, lanes])
        else:
            numbers = left[blocks[:, 0], lanes[:, 0], 0]
            first = _operands(s, engine, numbers, p, (M, p.a_major, p.a), (who, result), op)
        numbers = wide[blocks[:, 0], lanes[:, 0]]
        second = _operands(s, engine, numbers, p, (p.n, p.b_major, p.b), (who, result), op)
        before = np.ascontiguousarray(full[blocks, lanes]).view(p.result)
        result[blocks, lanes] = p.compute(first, second, before).view(acc.dtype)
        m.computed(p, result, blocks, lanes)
    engine.results[id(result)] = result
    engine.looked.pop(id(result), None)  # of an array that is gone
    return result


def _words(x: np.ndarray) -> np.ndarray:
    """Registers as unsigned words: vectors of less than 32 bits each are seen as what holds them."""
    flat = np.ascontiguousarray(x)
    return flat.reshape(*flat.shape[:2], -1).view(f"u{flat.itemsize * int(np.prod(flat.shape[2:]))}")[:, :, 0]


def _lanes(who: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The registers of warpgroups (block, first thread), as an index: [n, 1] blocks and [n, 128] threads."""
    block, first = np.array(who).T
    return block[:, None], first[:, None] + np.arange(WARPGROUP)


def _operands(s: State, engine: Engine, numbers: np.ndarray, p: Product, what: tuple[int, bool, str], where: tuple, op
              ) -> np.ndarray:  # fmt: skip
    """Reads operands, (rows, whether they run along k, type), by the descriptors of the warpgroups that `where` names:
    [n, rows, k]."""
    (rows, major, name), (who, result) = what, where
    out, taken = np.zeros((len(who), rows, p.k), DTYPES[name]), []
    for number in np.unique(numbers):
        chosen = np.flatnonzero(numbers == number)
        some, descriptor = [who[i] for i in chosen], int(number) & (2**64 - 1)
        key = (descriptor, rows, p.k * p.item, major, p.item)
        for one in some if s.m.dynamic_shared.align < _alignment(descriptor) else ():
            s.m.placed(s.m.dynamic_shared, _alignment(descriptor), s.m.one(*one), op)
        byte = _places(s, engine, key, (some, result), op)
        if byte is not None:
            out[chosen] = s.m.dynamic_shared.data[byte].reshape(len(some), rows, -1).view(DTYPES[name])
            taken.append((chosen, byte))
    if s.m.check:
        s.m.taken(s.m.dynamic_shared, out.shape, taken, op)
    return out


def _alignment(descriptor: int) -> int:
    """Of what a matrix descriptor reads, in bytes."""
    return max(16, 8 * swizzle_of(descriptor))


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


def _places(s: State, engine: Engine, key: tuple[int, int, int, bool, int], where: tuple, op) -> np.ndarray | None:
    """The bytes [n, rows, k, item] of the storage that hold the operands of n warpgroups, all by one descriptor; None
    if they do not lie in shared memory. They stay in use until the wgmma is waited for."""
    m, (who, result) = s.m, where
    buffer, cells = m.dynamic_shared, descriptor_bytes(*key)
    if m.counters is not None:  # a wavefront moves eight rows of 16 bytes; four warps share one request
        chunks = cells[:, :: 16 // key[-1]].T.reshape(-1, 8)
        for _ in who:
            m.counters.wgmma(chunks)
    assert buffer is not None
    if cells.max() + key[-1] > buffer.nbytes:
        message = f"reads byte {int(cells.max())} of {buffer.name}, which has {buffer.nbytes} bytes"
        for one in who:
            m.complain("out of bounds", m.one(*one), message, op)
        return None
    inside, granules = _footprint(key, m.races.granule if m.races is not None else 1)
    blocks = np.array([b for b, _ in who])
    byte = (blocks * buffer.stride)[:, None, None, None] + inside
    if m.check:
        _check_bytes(s, buffer, byte, who, op)
        _check_order(engine, buffer, granules, who, op)
        for (b, t), mine in zip(who, byte, strict=True):
            engine.reads(b, t, buffer, mine.ravel(), result, op)
    return byte


def _check_bytes(s: State, buffer: Buffer, byte: np.ndarray, who: list[tuple[int, int]], op) -> None:
    """Complains about bytes [n, ...] that copies under way write, and about those that nobody wrote, which n
    warpgroups read."""
    busy = None if buffer.pending is None else buffer.pending[byte]
    known = None if buffer.written is None else buffer.written[byte]
    if (busy is None or not busy.any()) and (known is None or known.all()):
        return
    for i, one in enumerate(who):
        if busy is not None and busy[i].any():
            message = f"reads {buffer.name} while an asynchronous copy writes there"
            s.m.complain("unfinished copy", s.m.one(*one), message, op)
        elif known is not None and not known[i].all():
            hole = buffer.within(int(byte[i][known[i] == 0][0]))
            s.m.complain(
                "uninitialized read", s.m.one(*one), f"reads byte {hole} of {buffer.name}, where nobody wrote", op
            )


def _check_order(engine: Engine, buffer: Buffer, granules: np.ndarray, who: list[tuple[int, int]], op) -> None:
    """Checks and notes that warpgroups read granules of the shared memory of their blocks."""
    m = engine.machine
    clocks = m.clocks
    granule = m.races.granule  # type: ignore[union-attr]
    start = np.array([b for b, _ in who]) * buffer.stride // granule
    touched = start[:, None] + granules
    threads = np.array([b * m.nt + t for b, t in who])
    engine.barriers.check_access(
        buffer, touched.ravel() * granule, granule, np.repeat(threads, len(granules)), "reads", op
    )
    groups = [engine.groups.get(one, 0) + 1 for one in who]
    same = clocks.table(buffer).alike and _one_of_each_block(m, who) and len(set(groups)) == 1 and clocks.alike()
    if same and not _trouble(clocks, buffer, touched[0], *who[0]):  # nor in the others
        cells = clocks.table(buffer).at(touched[0])
        clocks.table(buffer).note_read(cells[:, None], clocks.group(*who[0]), groups[0])
        return
    clocks.table(buffer).divide()
    for one, mine, epoch in zip(who, touched, groups, strict=True):
        check_proxy(m, buffer, mine, one, op, warps=4)
        _note_wgmma(engine, buffer, mine, one, epoch, op)


def _one_of_each_block(m: Machine, who: list[tuple[int, int]]) -> bool:
    """Whether these are the same warpgroup of every block of the batch, which are no clusters."""
    return m.cluster_size == 1 and len(who) == m.nb and len({t for _, t in who}) == 1


def _trouble(clocks: Clocks, buffer: Buffer, cells: np.ndarray, b: int, t: int) -> bool:
    """Whether a warpgroup may not read granules: a write that one of its warps has not seen, or that is not fenced."""
    return _unseen(clocks, buffer, cells, b, t) or clocks.proxies.unfenced(buffer, cells, b, b, t, 4)


def _unseen(clocks: Clocks, buffer: Buffer, cells: np.ndarray, b: int, t: int) -> bool:
    """Whether one of a warpgroup's warps has not seen the last write of one of some granules."""
    table, row = clocks.table(buffer), clocks.row(b, t)
    known = clocks.now[clocks.unit(b), row : row + 4].min(axis=0)
    cells = table.at(cells)
    writer = table.writer[cells]
    return bool(((writer >= 0) & (known[writer] < table.epoch[cells])).any())


def _note_wgmma(engine: Engine, buffer: Buffer, cells: np.ndarray, who: tuple[int, int], epoch: int, op) -> None:
    """A wgmma's reads of granules: every warp of the warpgroup must have seen what was written; they end with its
    group."""
    clocks, (b, t) = engine.machine.clocks, who
    column, unit, row = clocks.group(b, t), clocks.unit(b), clocks.row(b, t)
    if not _unseen(clocks, buffer, cells, b, t):
        clocks.table(buffer).note_read(cells[:, None], column, epoch)
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


def any_made_late(op, values: Iterable[ir.Value], carried: bool = True) -> bool:
    """Whether `made_late` is true of any of the values. An accumulator's hundred registers are mostly parts of one."""
    before: dict[int, list[ir.Operation]] = {}
    return any(made_late(op, value, carried, before) for value in {_root(value, carried) for value in values})


def _in_front(op: ir.Operation) -> list[ir.Operation]:
    """The operations in front of one in its block, up to the nearest wgmma.fence, the nearest first."""
    found: list[ir.Operation] = []
    for other in op.block.operations:
        if other.operation == op:
            break
        if other.operation.name == "nvvm.wgmma.fence.aligned":
            found = []
        found.append(other.operation)
    return found[::-1]


def _root(value: ir.Value, carried: bool) -> ir.Value:
    """What a value is a part of, or is handed into a loop as where what the loop hands on does not matter."""
    while True:
        if isinstance(value.owner, ir.Block):
            loop = value.owner.owner.operation
            if carried or loop.name != "scf.for" or value.arg_number == 0:
                return value
            value = loop.operands[2 + value.arg_number]
        elif value.owner.operation.name in _SAME_REGISTERS:
            value = value.owner.operation.operands[0]
        else:
            return value


def made_late(op, value: ir.Value, carried: bool = True, before: dict[int, list[ir.Operation]] | None = None) -> bool:
    """Whether no wgmma.fence lies between what makes a value and a wgmma that has it in registers. `carried`: what a
    loop hands from turn to turn, with no fence in front, is late; else only what comes into the loop is looked at.
    `before`: kept for the other values of the same op."""
    before = {} if before is None else before
    value = _root(value, carried)
    maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
    here = op
    while here.parent is not None and here.name not in ("llvm.func", "gpu.func"):
        for other in before.get(hash(here)) or before.setdefault(hash(here), _in_front(here)):
            if other.name == "nvvm.wgmma.fence.aligned":
                return False
            if maker is not None and other == maker:
                return True
        if maker is None and value.owner == here.block:
            return carried
        here = here.parent.operation
    return carried
