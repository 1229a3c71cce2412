"""What everything that emits instructions needs: index arithmetic that folds, constants, numbers of threads, and values
in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from mlirc.errors import MlircError
from mlirc.mlir import arith, gpu, ir, llvm, nvvm, vector
from mlirc.passes.distribute.layouts.registers import pow2_divisor
from mlirc.schedule.places import attribute_place, script_line

IndexValue: TypeAlias = int | ir.Value  # an index that may be known while compiling


class Unsupported(MlircError):
    """A `tiles`-level form that the distribution does not know; `place` is the line of the schedule's script that is to
    blame, where one is known: of the attribute `attribute` of the op, or else the line that made the op."""

    def __init__(self, message: str, op: ir.Operation | None = None, attribute: str = "") -> None:
        super().__init__(message)
        self.place = ""
        if op is not None:
            self.at(op, attribute)

    def at(self, op: ir.Operation, attribute: str = "") -> None:
        """Blames the line behind an op, unless another is blamed already."""
        if not self.place:
            noted = attribute_place(op, attribute) if attribute else ""
            self.place = noted or script_line(str(op.operation.location))


def vec(t: ir.Type, n: int) -> ir.Type:
    """The type of n elements in registers: the element itself for n == 1."""
    return t if n == 1 else ir.VectorType.get([n], t)


class Builder:
    """Emission into one `gpu.func`. Must be used inside a context, a location and an insertion point.

    `spread` blocks of a cluster may work as one (`mlirc.spread`): that one is the block then, with all their warps.
    `block_thread`, `block_warp` and `lane` are the thread's number in its block, its warp's, and its own in that. Which
    of the block's warps do something together a team says (`team.py`)."""

    def __init__(self, entry: ir.Block, block_warps: int, spread: int = 1):
        self.entry, self.block_warps, self.spread = entry, block_warps, spread
        self._constants: dict = {}
        self._divisors: dict[ir.Value, int] = {}
        self.index = ir.IndexType.get()
        with ir.InsertionPoint(entry):
            # Everything shared by the whole kernel (constants, thread numbers) is built in front of this marker.
            self.marker = arith.ConstantOp(self.index, 0).operation
            with ir.InsertionPoint(self.marker):
                tid = gpu.ThreadIdOp(gpu.Dimension.x).result
                self.block_thread = tid
                self.lane = arith.RemUIOp(tid, self.c(32)).result
                if block_warps == spread:
                    self.block_warp: IndexValue = 0
                else:
                    # A shuffle tells the compiler that the warp's number is the same in all lanes.
                    i32 = ir.IntegerType.get_signless(32)
                    number = arith.IndexCastOp(i32, arith.DivUIOp(tid, self.c(32)).result).result
                    zero = arith.ConstantOp(i32, 0).result
                    width = arith.ConstantOp(i32, 32).result
                    shuffled = gpu.ShuffleOp(number, zero, width, gpu.ShuffleMode.IDX).results[0]
                    self.block_warp = arith.IndexCastOp(self.index, shuffled).result
                if spread > 1:
                    i32 = ir.IntegerType.get_signless(32)
                    rank = arith.IndexCastOp(self.index, nvvm.ClusterId(results=[i32]).results[0]).result
                    own = block_warps // spread
                    self.own_warp = self.block_warp  # in the block of the launch
                    self.block_warp = self.add(self.mul(rank, own), self.block_warp)
                    self.block_thread = arith.AddIOp(self.value(self.mul(rank, 32 * own)), tid).result

    # -- constants and index arithmetic

    def at_entry(self) -> ir.InsertionPoint:
        return ir.InsertionPoint(self.marker)

    def c(self, value: int) -> ir.Value:
        """An index constant."""
        return self.constant(ir.IntegerAttr.get(self.index, value))

    def constant(self, attr: ir.Attribute, n: int = 1) -> ir.Value:
        """A typed scalar constant, or a vector with it in all n elements."""
        key = (attr, n)
        if key not in self._constants:
            with self.at_entry():
                if n == 1:
                    self._constants[key] = arith.ConstantOp(attr.type, attr).result
                else:
                    t = ir.VectorType.get([n], attr.type)
                    self._constants[key] = arith.ConstantOp(t, ir.DenseElementsAttr.get_splat(t, attr)).result
        return self._constants[key]

    def value(self, x: IndexValue) -> ir.Value:
        return self.c(x) if isinstance(x, int) else x

    def known_multiple(self, x: ir.Value, divisor: int) -> ir.Value:
        """Records that x is a multiple of `divisor`: vector accesses are chosen by it."""
        self._divisors[x] = math.gcd(divisor, 1 << 30) if divisor else 1 << 30
        return x

    def divisor(self, x: IndexValue) -> int:
        """A power of two known to divide x."""
        return pow2_divisor(x) if isinstance(x, int) else pow2_divisor(self._divisors.get(x, 1))

    def add(self, a: IndexValue, b: IndexValue) -> IndexValue:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b == 0:
            return a
        d = min(self.divisor(a), self.divisor(b))
        return self.known_multiple(arith.AddIOp(self.value(a), self.value(b)).result, d)

    def sub(self, a: IndexValue, b: IndexValue) -> IndexValue:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if isinstance(b, int) and b == 0:
            return a
        d = min(self.divisor(a), self.divisor(b))
        return self.known_multiple(arith.SubIOp(self.value(a), self.value(b)).result, d)

    def mul(self, a: IndexValue, b: IndexValue) -> IndexValue:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if 1 in (a, b):
            return b if a == 1 else a
        if 0 in (a, b):
            return 0
        d = min(self.divisor(a) * self.divisor(b), 1 << 30)
        return self.known_multiple(arith.MulIOp(self.value(a), self.value(b)).result, d)

    def div(self, a: IndexValue, b: int) -> IndexValue:
        if b == 1:
            return a
        if isinstance(a, int):
            return a // b
        return arith.DivUIOp(a, self.c(b)).result

    def rem(self, a: IndexValue, b: int) -> IndexValue:
        if b == 1:
            return 0
        if isinstance(a, int):
            return a % b
        return arith.RemUIOp(a, self.c(b)).result

    def min(self, a: IndexValue, b: IndexValue) -> IndexValue:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        if isinstance(a, ir.Value) and isinstance(b, ir.Value) and a == b:
            return a
        d = min(self.divisor(a), self.divisor(b))
        return self.known_multiple(arith.MinSIOp(self.value(a), self.value(b)).result, d)

    def max(self, a: IndexValue, b: IndexValue) -> IndexValue:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        d = min(self.divisor(a), self.divisor(b))
        return self.known_multiple(arith.MaxSIOp(self.value(a), self.value(b)).result, d)

    def less(self, a: IndexValue, b: IndexValue) -> bool | ir.Value:
        if isinstance(a, int) and isinstance(b, int):
            return a < b
        return arith.CmpIOp(arith.CmpIPredicate.slt, self.value(a), self.value(b)).result

    def equal(self, a: IndexValue, b: IndexValue) -> bool | ir.Value:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return arith.CmpIOp(arith.CmpIPredicate.eq, self.value(a), self.value(b)).result

    def condition(self, a: bool | ir.Value) -> ir.Value:
        """A truth value that may be known, as an i1."""
        if isinstance(a, bool):
            return self.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(1), int(a)))
        return a

    def both(self, a: bool | ir.Value, b: bool | ir.Value) -> bool | ir.Value:
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return arith.AndIOp(a, b).result

    def affine(self, expr: ir.AffineExpr, dims: Sequence[IndexValue], symbols: Sequence[IndexValue] = ()) -> IndexValue:
        """Evaluates an affine expression. Floor division and modulo are of non-negative numbers."""
        if isinstance(expr, ir.AffineConstantExpr):
            return expr.value
        if isinstance(expr, ir.AffineDimExpr):
            return dims[expr.position]
        if isinstance(expr, ir.AffineSymbolExpr):
            return symbols[expr.position]
        lhs, rhs = self.affine(expr.lhs, dims, symbols), self.affine(expr.rhs, dims, symbols)
        if isinstance(expr, ir.AffineAddExpr):
            return self.add(lhs, rhs)
        if isinstance(expr, ir.AffineMulExpr):
            return self.mul(lhs, rhs)
        if not isinstance(rhs, int):
            raise Unsupported(f"affine expression {expr}: the divisor is not a constant")
        if isinstance(expr, ir.AffineModExpr):
            return self.rem(lhs, rhs)
        if isinstance(expr, ir.AffineFloorDivExpr):
            return self.div(lhs, rhs)
        if isinstance(expr, ir.AffineCeilDivExpr):
            return self.div(self.add(lhs, rhs - 1), rhs)
        raise Unsupported(f"affine expression {expr}")

    # -- lanes, addresses

    def warp_barrier(self) -> None:
        """The lanes of this warp meet: order among their memory accesses."""
        ir.Operation.create("nvvm.bar.warp.sync", operands=[self.full_mask()])

    def shared_pointer(self, address: IndexValue) -> ir.Value:
        """An address in shared memory, in bytes, as a pointer."""
        i32 = ir.IntegerType.get_signless(32)
        number = arith.IndexCastUIOp(i32, self.value(address)).result
        return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<3>"), number).result

    def full_mask(self) -> ir.Value:
        return self.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), -1))

    def shuffle_xor(self, x: ir.Value, offset: int) -> ir.Value:
        """x of the lane whose number differs in `offset`; any element type of at most 64 bits."""
        return self._shuffle(x, offset, gpu.ShuffleMode.XOR)

    def shuffle_up(self, x: ir.Value, offset: int) -> ir.Value:
        """x of the lane whose number is less by `offset`, or the lane's own where there is none."""
        return self._shuffle(x, offset, gpu.ShuffleMode.UP)

    def shuffle_down(self, x: ir.Value, offset: int) -> ir.Value:
        """x of the lane whose number is more by `offset`, or the lane's own where there is none."""
        return self._shuffle(x, offset, gpu.ShuffleMode.DOWN)

    def shuffle_from(self, x: ir.Value, lane: IndexValue) -> ir.Value:
        """x of that lane."""
        i32 = ir.IntegerType.get_signless(32)
        number = lane if isinstance(lane, int) else arith.IndexCastOp(i32, lane).result
        return self._shuffle(x, number, gpu.ShuffleMode.IDX)

    def _shuffle(self, x: ir.Value, by: int | ir.Value, mode: gpu.ShuffleMode) -> ir.Value:
        i32 = ir.IntegerType.get_signless(32)
        t = x.type
        bits = 64 if isinstance(t, ir.IndexType) else t.width
        if bits < 32:
            narrow = ir.IntegerType.get_signless(bits)
            raw = x if isinstance(t, ir.IntegerType) else arith.BitcastOp(narrow, x).result
            wide = self._shuffle(arith.ExtUIOp(i32, raw).result, by, mode)
            back = arith.TruncIOp(narrow, wide).result
            return back if isinstance(t, ir.IntegerType) else arith.BitcastOp(t, back).result
        if isinstance(t, ir.IndexType):
            i64 = ir.IntegerType.get_signless(64)
            return arith.IndexCastOp(t, self._shuffle(arith.IndexCastOp(i64, x).result, by, mode)).result
        off = self.constant(ir.IntegerAttr.get(i32, by)) if isinstance(by, int) else by
        width = self.constant(ir.IntegerAttr.get(i32, 32))
        return gpu.ShuffleOp(x, off, width, mode).results[0]

    # -- registers

    def splat(self, x: ir.Value, n: int) -> ir.Value:
        if n == 1 or isinstance(x.type, ir.VectorType):
            return x
        owner = x.owner
        if isinstance(owner, ir.Operation | ir.OpView) and owner.name == "arith.constant":
            return self.constant(owner.attributes["value"], n)
        return vector.BroadcastOp(ir.VectorType.get([n], x.type), x).result

    def extract(self, v: ir.Value, i: int) -> ir.Value:
        if not isinstance(v.type, ir.VectorType):
            return v
        return vector.ExtractOp(v, [], [i]).result

    def pack(self, values: list[ir.Value]) -> ir.Value:
        if len(values) == 1:
            return values[0]
        return vector.FromElementsOp(ir.VectorType.get([len(values)], values[0].type), values).result
