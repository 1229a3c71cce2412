"""ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions"), of nvgpu
(fragments as vectors) and of nvvm (register by register).

`fragments.py` says which lane has what."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlirc.device.addresses import address_of, element_of
from mlirc.device.attributes import flag, integers, number, segments_of, sizes_of, word
from mlirc.device.declare import rule, stateful
from mlirc.device.fragments import matrices, registers
from mlirc.device.machine import WARP, Machine, State
from mlirc.device.memory import MemRef
from mlirc.device.numbers import dtype_of, vector_shape
from mlirc.device.tensor_cores import multiply
from mlirc.device.translate import Translator
from mlirc.device.warps import of_warps, to_threads, whole_warps
from mlirc.mlir import ir

_ELEMENTS = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip


def _b16_8x8(tr: Translator, op) -> bool:
    """Whether the matrices are transposed; raises MlircError for other shapes."""
    shape, element = str(op.attributes["shape"]).replace(" ", ""), word(op, "eltType")
    if "m=8,n=8" not in shape or element != "b16":
        raise tr.refused(op, f"{element} {shape} is not supported: 8x8 of b16 only")
    return "layout" in op.attributes and word(op, "layout") == "col"


def load_matrices(s: State, ref: MemRef, index: list, item: int, tiles: int, transpose: bool, op) -> np.ndarray:
    """ldmatrix: `tiles` matrices of 8 rows of 16 bytes, whose addresses lanes give, as 32-bit registers
    [blocks, threads, tiles]."""
    m = s.m
    whole_warps(s, op)
    first = m.lane < 8 * tiles  # the lanes whose addresses count
    mask = s.mask if tiles == 4 else first if s.mask is None else first & s.mask
    words = m.load(ref, index, 16 // item, 16, mask, op)  # each lane's row
    rows = m.full(words).reshape(-1, 4, 8, 16 // item)[:, :tiles]  # warp, matrix, row, element
    if transpose:
        rows = rows.swapaxes(2, 3)
    # Lane 4g + t gets elements 2t, 2t + 1 (4 bytes) of row g of every matrix.
    pairs = np.ascontiguousarray(rows).view(np.int32)  # warp, matrix, g, t
    return pairs.transpose(0, 2, 3, 1).reshape(m.nb, m.nt, tiles)


@rule("nvgpu.ldmatrix", "nvvm.ldmatrix")
def _load(tr: Translator, op):
    pointer, *indices = op.operands
    t, out = op.results[0].type, tr.reg(op.results[0])
    if op.name == "nvgpu.ldmatrix":
        tiles, transpose, shape, dtype = number(op, "numTiles"), flag(op, "transpose"), vector_shape(t), dtype_of(t)
    else:
        tiles, transpose, dtype = number(op, "num"), _b16_8x8(tr, op), np.dtype(np.int32)
        shape = (tiles,) if tiles > 1 else ()
    item = 2 if op.name == "nvvm.ldmatrix" else dtype.itemsize
    at = address_of(tr, op, pointer, indices, item)
    if transpose and item != 2:
        raise tr.refused(op, "takes 16-bit elements where it transposes")
    tr.accesses.append(16)

    def step(s: State) -> None:
        words = load_matrices(s, *at(s), item, tiles, transpose, op)
        s.r[out] = np.ascontiguousarray(words).view(dtype).reshape(s.m.nb, s.m.nt, *shape)

    return step


@stateful("nvvm.stmatrix")
def _store_registers(tr: Translator, op):
    tiles, transpose = len(op.operands) - 1, _b16_8x8(tr, op)
    tr.accesses.append(16)

    def store(s: State, pointer: MemRef, *values: np.ndarray) -> None:
        m = s.m
        whole_warps(s, op)
        registers = [m.full(v).reshape(-1, 8, 4) for v in values]  # warp, g, t
        matrices = np.ascontiguousarray(np.stack(registers, axis=1).astype(np.int32)).view(np.uint16)
        if transpose:
            matrices = matrices.swapaxes(2, 3)
        rows = np.zeros((m.nb * m.nt // WARP, 4, 8, 8), np.uint16)  # lane 8i + r stores row r of matrix i
        rows[:, :tiles] = matrices
        ref, index = element_of(s, pointer, 2, op)
        first = m.lane < 8 * tiles
        mask = first if s.mask is None else first & s.mask
        m.store(ref, index, rows.reshape(m.nb, m.nt, 8), 16, mask, op)

    return store


@stateful("nvvm.movmatrix")
def _move_registers(tr: Translator, op):
    _b16_8x8(tr, op)

    def move(s: State, source: np.ndarray) -> np.ndarray:
        m = s.m
        whole_warps(s, op)
        words = np.ascontiguousarray(m.full(source))
        matrices = words.view(np.int16).reshape(-1, 8, 8).swapaxes(1, 2)
        return np.ascontiguousarray(matrices).view(np.int32).reshape(m.nb, m.nt)

    return move


@stateful("nvgpu.mma.sync")
def _multiply_fragments(tr: Translator, op):
    m, n, k = mnk = integers(op, "mmaShape")
    in_type, out_type = dtype_of(op.operands[0].type), dtype_of(op.results[0].type)
    per = 4 // in_type.itemsize  # elements of a 32-bit register
    if (m, n) != (16, 8) or k % (4 * per) or in_type.itemsize not in (2, 4):
        raise tr.refused(op, f"shape {mnk} on {in_type} is not supported")

    def product(s: State, *operands: np.ndarray) -> np.ndarray:
        warps = whole_warps(s, op)
        a, b, c = (of_warps(s.m, x, warps) for x in operands)
        total = multiply(*matrices(a, b, c, k, per), out_type)
        return to_threads(s.m, registers(total), warps)

    return product


@stateful("nvvm.mma.sync", segments=True)
def _multiply_registers(tr: Translator, op):
    a_values, b_values, c_values = segments_of(op)
    m, n, k = sizes_of(op)
    names = [_operand_type(op, x, v[0].type) for x, v in zip("AB", (a_values, b_values), strict=True)]
    if (m, n) != (16, 8) or any(x not in _ELEMENTS for x in names):
        raise tr.refused(op, f"{names[0]} x {names[1]} of shape m{m}n{n}k{k} is not supported")
    in_types, per = [np.dtype(_ELEMENTS[x]) for x in names], 4 // np.dtype(_ELEMENTS[names[0]]).itemsize
    vectors, out_type = isinstance(c_values[0].type, ir.VectorType), dtype_of(c_values[0].type)
    saturate = word(op, "intOverflowBehavior") == "satfinite"

    def product(s: State, *operands: list[np.ndarray]) -> np.ndarray:
        warps = whole_warps(s, op)
        parts = (_elements(s.m, x, d) for x, d in zip(operands, [*in_types, out_type], strict=True))
        a, b, c = (of_warps(s.m, x, warps) for x in parts)
        total = multiply(*matrices(a, b, c, k, per), out_type, saturate)
        fields = np.ascontiguousarray(to_threads(s.m, registers(total), warps))
        return fields if vectors else fields.reshape(s.m.nb, s.m.nt, 4)

    return product


def _operand_type(op, which: str, t: ir.Type) -> str:
    """The element type of A or B: named, or that of the registers."""
    named = word(op, f"multiplicand{which}PtxType")
    return named or ("f16" if "f16" in str(t) and "bf16" not in str(t) else str(t))


def _elements(m: Machine, values: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """32-bit registers as elements of a dtype, [blocks, threads, elements]."""
    whole = (np.ascontiguousarray(m.full(x)).reshape(m.nb, m.nt, -1) for x in values)
    return np.concatenate([x.view(dtype) for x in whole], axis=2)
