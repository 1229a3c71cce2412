"""ldmatrix, stmatrix and mma.sync as the nvvm dialect has them: registers one by one.

Fragments are those of nvgpu.py for every element size: with `per` elements in a 32-bit register, register i of A
is row g + 8 (i mod 2), columns per * (t + 4 (i / 2)) and on; of B rows (k) per * (t + 4 i) and on of column g; of C
and D row g + 8 (i / 2), column 2t + i mod 2 (PTX ISA, "Matrix Fragments for mma.m16n8k*")."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlirc.host.device.attributes import segments_of, word
from mlirc.host.device.declare import rule
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.rules.nvgpu import of_warps, tf32, to_f32, to_threads, whole_warps
from mlirc.host.device.rules.pointer import element_of
from mlirc.host.device.tensor_cores import lowest_exponent, multiply_add, multiply_add_fp8
from mlirc.host.device.translate import Translator
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


@rule("nvvm.ldmatrix")
def _ldmatrix(tr: Translator, op):
    pointer, out, transpose = tr.reg(op.operands[0]), tr.reg(op.results[0]), _b16_8x8(tr, op)
    tiles = ir.IntegerAttr(op.attributes["num"]).value
    tr.accesses.append(16)

    def step(s: State) -> None:
        m = s.m
        whole_warps(s, op)
        ref, index = element_of(s, s.r[pointer], 2, op)
        words = m.load(ref, index, 8, 16, _addressing(s, tiles), op)
        rows = m.full(words).reshape(-1, 4, 8, 8)[:, :tiles]  # warp, matrix, row, element
        if transpose:
            rows = rows.swapaxes(2, 3)
        pairs = np.ascontiguousarray(rows).view(np.int32)  # warp, matrix, g, t
        registers = pairs.transpose(0, 2, 3, 1).reshape(m.nb, m.nt, tiles)
        s.r[out] = registers if tiles > 1 else registers[:, :, 0]

    return step


def _addressing(s: State, tiles: int):
    """The lanes whose addresses count."""
    first = s.m.lane < 8 * tiles
    return first if s.mask is None else first & s.mask


@rule("nvvm.stmatrix")
def _stmatrix(tr: Translator, op):
    pointer, *values = (tr.reg(v) for v in op.operands)
    tiles, transpose = len(values), _b16_8x8(tr, op)
    tr.accesses.append(16)

    def step(s: State) -> None:
        m = s.m
        whole_warps(s, op)
        registers = [m.full(s.r[v]).reshape(-1, 8, 4) for v in values]  # warp, g, t
        matrices = np.ascontiguousarray(np.stack(registers, axis=1).astype(np.int32)).view(np.uint16)
        if transpose:
            matrices = matrices.swapaxes(2, 3)
        rows = np.zeros((m.nb * m.nt // WARP, 4, 8, 8), np.uint16)  # lane 8i + r stores row r of matrix i
        rows[:, :tiles] = matrices
        ref, index = element_of(s, s.r[pointer], 2, op)
        m.store(ref, index, rows.reshape(m.nb, m.nt, 8), 16, _addressing(s, tiles), op)

    return step


@rule("nvvm.movmatrix")
def _movmatrix(tr: Translator, op):
    source, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    _b16_8x8(tr, op)

    def step(s: State) -> None:
        m = s.m
        whole_warps(s, op)
        words = np.ascontiguousarray(m.full(s.r[source]))
        matrices = words.view(np.int16).reshape(-1, 8, 8).swapaxes(1, 2)
        s.r[out] = np.ascontiguousarray(matrices).view(np.int32).reshape(m.nb, m.nt)

    return step


@rule("nvvm.mma.sync")
def _mma(tr: Translator, op):
    parts = [[tr.reg(v) for v in part] for part in segments_of(op)]
    out = tr.reg(op.results[0])
    shape = str(op.attributes["shape"]).split("<")[-1].rstrip(">").replace(" ", "")
    sizes = dict(p.split("=") for p in shape.split(","))
    m_, n_, k_ = (int(sizes[x]) for x in "mnk")
    names = [_operand_type(op, x, v.type) for x, v in zip("AB", (op.operands[0], segments_of(op)[1][0]), strict=True)]
    if (m_, n_) != (16, 8) or any(n not in _ELEMENTS for n in names):
        raise tr.refused(op, f"{names[0]} x {names[1]} of shape m{m_}n{n_}k{k_} is not supported")
    dtypes = [np.dtype(_ELEMENTS[n]) for n in names]
    per = 4 // dtypes[0].itemsize
    halves = k_ // (4 * per)
    acc_type = segments_of(op)[2][0].type
    acc_dtype = dtype_of(acc_type)
    saturate = "intOverflowBehavior" in op.attributes and word(op, "intOverflowBehavior") == "satfinite"

    def step(s: State) -> None:
        m, warps = s.m, whole_warps(s, op)
        a, b, c = (of_warps(m, _registers(s, r, d), warps) for r, d in zip(parts, [*dtypes, acc_dtype], strict=True))
        left = a.reshape(-1, 8, 4, halves, 2, per).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, k_)
        right = b.reshape(-1, 8, 4, halves, per).transpose(0, 3, 2, 4, 1).reshape(-1, k_, 8)
        c = c.reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
        total = multiply(left, right, c, acc_dtype, saturate)
        back = total.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, WARP, 2, 2)
        fields = np.ascontiguousarray(to_threads(m, back, warps))
        s.r[out] = fields if str(acc_type).startswith("vector") else fields.reshape(m.nb, m.nt, 4)

    return step


def _operand_type(op, which: str, t: ir.Type) -> str:
    """The element type of A or B: named, or that of the registers."""
    name = f"multiplicand{which}PtxType"
    if name in op.attributes:
        return word(op, name)
    return "f16" if "f16" in str(t) and "bf16" not in str(t) else str(t)


def _registers(s: State, registers: list[int], dtype: np.dtype) -> np.ndarray:
    """32-bit registers [blocks, threads, registers] as elements of a dtype, the last dimension times as long."""
    m = s.m
    columns = []
    for r in registers:
        value = s.r[r]
        full = np.ascontiguousarray(m.full(value))
        columns.append(full.reshape(m.nb, m.nt, -1).view(dtype))
    return np.concatenate(columns, axis=2)


def multiply(left: np.ndarray, right: np.ndarray, acc: np.ndarray, out: np.dtype, saturate: bool = False) -> np.ndarray:
    """left [..., m, k] times right [..., k, n] plus acc: integers exactly, floats as the tensor cores do."""
    if left.dtype.kind in "iu":
        total = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64) + acc
        if saturate:
            total = np.clip(total, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
        return total.astype(np.int32)
    widen = tf32 if left.dtype == np.float32 else to_f32
    lowest = (lowest_exponent(left.dtype), lowest_exponent(right.dtype))
    a, b, c = widen(left), widen(right), acc.astype(np.float32)
    if left.dtype.itemsize == 1:
        return multiply_add_fp8(a, b, c, lowest).astype(out)
    return multiply_add(a, b, c, lowest, out=out)
