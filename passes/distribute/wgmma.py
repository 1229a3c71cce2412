"""Products by wgmma (sm_90a): a warpgroup of four warps multiplies 64 rows at a time, both operands read from shared
memory through descriptors (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

The staged tiles are what it wants as they are: rows of 128 bytes whose 16-byte chunks are permuted by the row's number
are the 128-byte swizzling mode. Rows run along k, or along m or n: those are cut into panels of 128 bytes, each with
the tile's whole k (PTX ISA, "Strides": K-major and MN-major)."""

from __future__ import annotations

import math

from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute import memory
from mlirc.passes.distribute.accumulators import struct_type
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layout import Layout, lane, reg, warp

ROW_BYTES = 128  # one row of a swizzle atom
ATOM_BYTES = 8 * ROW_BYTES
STEP_K = 16
# Matrix descriptor: stride between groups of eight rows, mode 1. The leading dimension's offset is not used where rows
# run along k; else it is from one panel to the next.
_DESCRIPTOR = (1 << 62) | ((ATOM_BYTES >> 4) << 32)


def accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int) -> Layout:
    """D of wgmma m64nNk16: dims (m, n); warpgroups are warps_m / 4 along m and warps_n along n."""
    groups_m = warps_m // 4
    return Layout.of(
        (warp(groups_m, 4 * warps_n), reg(block_m // groups_m // 64), warp(4, 1), reg(2), lane(8, 4)),
        (warp(warps_n, 4), reg(block_n // warps_n // 8), lane(4, 1), reg(2)),
    )


def padded(m: int, n: int, warps_m: int, warps_n: int) -> tuple[int, int]:
    """The tile extents that whole instructions cover; raises Unsupported for warps that form no warpgroups."""
    if warps_m % 4:
        raise Unsupported(f"wgmma takes warps_m in multiples of 4, not {warps_m}: a warpgroup is four warps along m")
    m = -(-m // (16 * warps_m)) * 16 * warps_m
    n = -(-n // (8 * warps_n)) * 8 * warps_n
    if n // warps_n > 256:
        raise Unsupported(f"wgmma computes at most 256 columns per warpgroup, not {n // warps_n}: raise warps_n")
    return m, n


class Operand:
    """Descriptors of one operand's tile in shared memory."""

    def __init__(self, em: Emitter, view: memory.View, k_last: bool, first_row: IndexValue):
        shape = view.shape
        self.em, self.k_last = em, k_last
        if view.swizzle != 8 or shape[-1] * 2 != ROW_BYTES or not (k_last or view.panels):
            raise Unsupported("wgmma reads operands in slices of 64 along k (block_k = 64); use mma")
        panel = em.divisor(first_row) if isinstance(first_row, ir.Value) else first_row or shape[-1]
        if not k_last and panel % shape[-1]:
            raise Unsupported(f"wgmma's warpgroups begin at multiples of {shape[-1]} in rows along m or n; use mma")
        with em.at_entry():
            start = memref.ExtractAlignedPointerAsIndexOp(view.base).result
        self.panel = shape[-2] * ROW_BYTES  # bytes of one
        # A row of k along k, or the panel's rows for each of its own: 128 bytes a row of m or n in both cases.
        self.row = ROW_BYTES if k_last else self.panel // shape[-1]
        stage = em.mul(view.offsets[0], math.prod(shape[1:]) * 2)
        address = em.add(em.add(start, stage), em.mul(first_row, self.row))
        i64 = ir.IntegerType.get_signless(64)
        shifted = arith.AndIOp(arith.ShRUIOp(em.value(address), em.c(4)).result, em.c(0x3FFF)).result
        low = arith.IndexCastUIOp(i64, shifted).result
        leading = 1 if k_last else self.panel >> 4
        self.base = arith.AddIOp(low, em.constant(ir.IntegerAttr.get(i64, _DESCRIPTOR | leading << 16))).result

    def at(self, row: int, k: int) -> ir.Value:
        """The descriptor of the slice that starts `row` rows and `k` elements into the operand."""
        across = k // 64 * self.panel + k % 64 * 2 if self.k_last else k * ROW_BYTES
        offset = (row * self.row + across) >> 4
        if offset == 0:
            return self.base
        i64 = ir.IntegerType.get_signless(64)
        return arith.AddIOp(self.base, self.em.constant(ir.IntegerAttr.get(i64, offset))).result


class Registers:
    """A as it lies in registers: `words` by 64 rows, by steps of 16 along k, four of two elements each (PTX ISA,
    "Register Fragments for wgmma.mma_async.m64nNk16")."""

    def __init__(self, words: list[list[list[ir.Value]]]):
        self.words = words


def multiply(
    em: Emitter, a: Operand | Registers, b: Operand, element: ir.Type, values: list[ir.Value], columns: int, k: int,
    adds: bool = True,
) -> list[ir.Value]:  # fmt: skip
    """Issues the products of one tile and commits them as a group; returns the new accumulators, which nothing may read
    before `wait`. `adds`: to `values`, which are not looked at otherwise."""
    nvvm.WgmmaFenceAlignedOp()
    out = []
    for i, value in enumerate(values):
        for number, step in enumerate(range(0, k, STEP_K)):
            right = b.at(0, step)
            if isinstance(a, Registers):
                value = _from_registers(em, a.words[i][number], right, b.k_last, element, value, columns)
            else:
                value = _from_shared(a, a.at(64 * i, step), right, b.k_last, element, value, columns, adds or step > 0)
        out.append(value)
    nvvm.WgmmaGroupSyncAlignedOp()
    return out


def _name(element: ir.Type) -> str:
    return "bf16" if isinstance(element, ir.BF16Type) else "f16"


def _from_shared(
    a: Operand, left: ir.Value, right: ir.Value, b_major: bool, element: ir.Type, value: ir.Value, columns: int,
    adds: bool,
) -> ir.Value:  # fmt: skip
    """One instruction, with both operands' descriptors."""
    parse = ir.Attribute.parse
    return nvvm.WgmmaMmaAsyncOp(
        struct_type(ir.F32Type.get(), columns // 2),
        value,
        left,
        right,
        parse(f"#nvvm.shape<m = 64, n = {columns}, k = {STEP_K}>"),
        parse(f"#nvvm.wgmma_type<{_name(element)}>"),
        parse(f"#nvvm.wgmma_type<{_name(element)}>"),
        parse("#nvvm.wgmma_type<f32>"),
        parse(f"#nvvm.wgmma_scale_out<{'one' if adds else 'zero'}>"),
        parse("#nvvm.wgmma_scale_in<one>"),
        parse("#nvvm.wgmma_scale_in<one>"),
        parse(f"#nvvm.mma_layout<{'row' if a.k_last else 'col'}>"),
        parse(f"#nvvm.mma_layout<{'col' if b_major else 'row'}>"),
    ).results_


def _from_registers(
    em: Emitter, words: list[ir.Value], right: ir.Value, b_major: bool, element: ir.Type, value: ir.Value, columns: int
) -> ir.Value:
    """One instruction with A in registers, which the nvvm dialect has no operation for: inline assembly, whose results
    are in the accumulator's registers."""
    f32, count = ir.F32Type.get(), columns // 2
    results = ", ".join(f"${i}" for i in range(count))
    left = ", ".join(f"${2 * count + i}" for i in range(4))
    name = _name(element)
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, ${2 * count + 5}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k{STEP_K}."
        f"f32.{name}.{name} {{{results}}}, {{{left}}}, ${2 * count + 4}, p, 1, 1, {int(not b_major)}; }}"
    )
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["r"] * 4 + ["l", "r"]
    fields = [llvm.ExtractValueOp(f32, value, ir.DenseI64ArrayAttr.get([i])).result for i in range(count)]
    one = em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1))
    return llvm.InlineAsmOp(
        struct_type(f32, count), [*fields, *words, right, one], text, ",".join(constraints), has_side_effects=True
    ).res


def wait(pending: int) -> None:
    """At most `pending` of the latest groups are still under way."""
    nvvm.WgmmaWaitGroupSyncOp(pending)


def proxy_fence() -> None:
    """Makes this thread's writes to shared memory visible to wgmma, which reads through another proxy."""
    parse = ir.Attribute.parse
    nvvm.FenceProxyOp(parse("#nvvm.proxy_kind<async.shared>"), space=parse("#nvvm.shared_space<cta>"))
