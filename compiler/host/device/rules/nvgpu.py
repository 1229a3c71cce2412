"""nvgpu and nvvm on arrays: asynchronous copies, matrix loads, tensor core products.

Fragments follow the PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix". With g = lane / 4 and t = lane mod 4,
register i, half j of A is row g + 8 (i mod 2), column 2t + j + 8 (i / 2); of B it is row (k) 2t + j + 8i, column g;
of C row g + 8i, column 2t + j."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import segments_of
from mlirc.host.device.copies import commit, copy_async, wait_group
from mlirc.host.device.declare import rule
from mlirc.host.device.machine import WARP, Machine, State
from mlirc.host.device.numbers import dtype_of, vector_shape
from mlirc.host.device.rules.memref import fetch, indices_of, item_size
from mlirc.host.device.rules.pointer import element_of
from mlirc.host.device.sync import warp_barrier
from mlirc.host.device.tensor_cores import lowest_exponent, multiply_add
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


@rule("nvgpu.device_async_copy")
def _async_copy(tr: Translator, op):
    (dst,), dst_indices, (src,), src_indices, count = segments_of(op)
    width = ir.IntegerAttr(op.attributes["dstElements"]).value
    item = item_size(dst.type)
    to, at = (tr.reg(dst), indices_of(tr, dst_indices)), (tr.reg(src), indices_of(tr, src_indices))
    number = indices_of(tr, count)
    tr.accesses += [item * width]
    if item * width not in (4, 8, 16):
        raise tr.refused(op, f"copies of {item * width} bytes are not supported: 4, 8 or 16")

    def step(s: State) -> None:
        r = s.r
        n = fetch(r, number)
        copy_async(s, (r[to[0]], fetch(r, to[1])), (r[at[0]], fetch(r, at[1])), width, n[0] if n else width, op)

    return step


@rule("nvvm.cp.async.shared.global")
def _pointer_copy(tr: Translator, op):
    """By pointers: so many bytes, of which the last operand tells how many are read."""
    to, at, *count = (tr.reg(v) for v in op.operands)
    size = ir.IntegerAttr(op.attributes["size"]).value
    tr.accesses.append(size)

    def step(s: State) -> None:
        r = s.r
        copy_async(
            s, element_of(s, r[to], 1, op), element_of(s, r[at], 1, op), size, r[count[0]] if count else size, op
        )

    return step


@rule("nvgpu.device_async_create_group", "nvvm.cp.async.commit.group")
def _create_group(tr: Translator, op):
    return commit


@rule("nvgpu.device_async_wait", "nvvm.cp.async.wait.group")
def _wait_group(tr: Translator, op):
    name = "n" if op.name.startswith("nvvm") else "numGroups"
    pending = ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else 0
    return lambda s: wait_group(s, pending)


@rule("nvvm.bar.warp.sync")
def _warp_sync(tr: Translator, op):
    mask = tr.reg(op.operands[0])
    return lambda s: warp_barrier(s, s.r[mask], op)


def whole_warps(s: State, op) -> np.ndarray | None:
    """Reports a warp-wide instruction that only part of a warp executes. Returns the numbers of the warps of the batch
    that execute it, None for all."""
    m = s.m
    warps = m.by_warp(True if s.mask is None else s.mask)
    if s.mask is None:
        return None
    here = np.logical_or.reduce(warps, axis=1)
    missing = here[:, None] & ~warps
    if missing.any():
        m.complain("divergent warp", missing.reshape(m.nb, m.nt), f"does not take part in {op.name} of its warp", op)
    return None if here.all() else np.flatnonzero(here)


def of_warps(m: Machine, value: np.ndarray, warps: np.ndarray | None) -> np.ndarray:
    """The registers of some warps, [warps, lanes, ...]."""
    full = m.full(value)
    rows = full.reshape(-1, WARP, *value.shape[2:])
    return rows if warps is None else rows[warps]


def to_threads(m: Machine, rows: np.ndarray, warps: np.ndarray | None) -> np.ndarray:
    """Registers of some warps [warps, lanes, ...] as those of all threads; the other warps have zeros."""
    if warps is not None:
        full = np.zeros((m.nb * m.nt // WARP, *rows.shape[1:]), rows.dtype)
        full[warps] = rows
        rows = full
    return rows.reshape(m.nb, m.nt, *rows.shape[2:])


@rule("nvgpu.ldmatrix")
def _ldmatrix(tr: Translator, op):
    ref, indices, out = tr.reg(op.operands[0]), indices_of(tr, list(op.operands)[1:]), tr.reg(op.results[0])
    tiles = ir.IntegerAttr(op.attributes["numTiles"]).value
    transpose = ir.BoolAttr(op.attributes["transpose"]).value
    dtype, item = dtype_of(op.results[0].type), item_size(op.results[0].type)
    shape = vector_shape(op.results[0].type)
    per_row = 16 // item
    if transpose and item != 2:
        raise tr.refused(op, "takes 16-bit elements where it transposes")
    tr.accesses.append(16)

    def step(s: State) -> None:
        m = s.m
        whole_warps(s, op)
        first = m.lane < 8 * tiles  # the lanes whose addresses count
        mask = (first if s.mask is None else first & s.mask) if tiles < 4 else s.mask
        where = fetch(s.r, indices)
        words = m.load(s.r[ref], where, per_row, 16, mask, op)  # each lane's row of 16 bytes
        rows = m.full(words).reshape(m.nb, m.nt // WARP, 4, 8, per_row)[:, :, :tiles]
        if transpose:
            rows = rows.swapaxes(3, 4)
        # Lane 4g + t gets elements 2t, 2t + 1 (4 bytes) of row g of every matrix.
        per_lane = 4 // item
        cut = rows.reshape(m.nb, -1, tiles, 8, 4, per_lane)
        lanes = np.ascontiguousarray(cut.transpose(0, 1, 3, 4, 2, 5)).reshape(m.nb, m.nt, tiles, per_lane)
        s.r[out] = lanes.view(dtype).reshape(m.nb, m.nt, *shape)

    return step


def to_f32(a: np.ndarray) -> np.ndarray:
    """16-bit floats as f32, quickly."""
    if str(a.dtype) == "bfloat16":
        return (np.ascontiguousarray(a).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float32)


def tf32(a: np.ndarray) -> np.ndarray:
    """f32 cut to TF32's 10 bits of mantissa, as the tensor cores read it."""
    return (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@rule("nvgpu.mma.sync")
def _mma(tr: Translator, op):
    a, b, c = (tr.reg(v) for v in op.operands)
    out = tr.reg(op.results[0])
    mnk = [ir.IntegerAttr(x).value for x in ir.ArrayAttr(op.attributes["mmaShape"])]
    in_type, out_type = dtype_of(op.operands[0].type), dtype_of(op.results[0].type)
    per = 4 // in_type.itemsize  # elements of a 32-bit register
    m_, n_, k_ = mnk
    if (m_, n_) != (16, 8) or k_ % (4 * per) or in_type.itemsize not in (2, 4):
        raise tr.refused(op, f"shape {mnk} on {in_type} is not supported")
    k_halves = k_ // (4 * per)
    lowest = (lowest_exponent(in_type), lowest_exponent(in_type))
    widen = tf32 if in_type == np.float32 else to_f32

    def step(s: State) -> None:
        r, m, warps = s.r, s.m, whole_warps(s, op)
        parts = [of_warps(m, r[x], warps) for x in (a, b, c)]
        left = widen(parts[0]).reshape(-1, 8, 4, k_halves, 2, per)  # g, t, column half, row half, j
        left = left.transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, k_)
        right = widen(parts[1]).reshape(-1, 8, 4, k_halves, per)  # g, t, half, j
        right = right.transpose(0, 3, 2, 4, 1).reshape(-1, k_, 8)
        acc = parts[2].astype(np.float32).reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
        total = multiply_add(left, right, acc, lowest)
        back = total.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, WARP, 2, 2)
        r[out] = to_threads(m, back, warps).astype(out_type, copy=False)

    return step
