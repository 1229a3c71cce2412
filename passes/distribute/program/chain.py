"""Blocks that take a step each of one scan's loop, and hand on what is before it (`mlirc.chain`).

    ticket    a block's number is drawn from a counter: whoever waits for a block knows that it has begun
    total     of the block's step, posted in memory
    look back a warp waits for the totals of the steps before in its group of 32, and scans them
    groups    the last block of a group posts the group's total; all wait for those of the groups before
    zeros     a second counter says who is the last that has looked back: its first warp writes zeros to all of it

Which totals are combined in which order is fixed, unlike in the look-back of Merrill and Garland ("Single-pass parallel
prefix scan with decoupled look-back", 2016), which takes what prefixes there are by then: results are the same from run
to run. Nobody waits for a chain: a block's prefix is two totals behind the slowest block in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, llvm, memref, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory import access

GROUP = 32  # blocks whose totals a warp scans
Values = list[ir.Value]
Combine = Callable[[Values, Values], Values]
_ACQUIRE, _RELEASE, _RELAXED = (
    llvm.AtomicOrdering.acquire, llvm.AtomicOrdering.release, llvm.AtomicOrdering.monotonic,
)  # fmt: skip


class Board:
    """`count` places in the module's own memory, at each of which one thread posts values of `types`, for others that
    wait for them. Values of 32 bits are one word of 64 bits with their flag; others have a flag beside them, which is
    stored (release) behind them and seen (acquire) in front of them. All is zeros in front of a launch."""

    def __init__(self, em: Emitter, name: str, count: int, types: Sequence[ir.Type]) -> None:
        self.em, self.name, self.count, self.types = em, name, count, list(types)
        self.is_word = len(types) == 1 and types[0].width == 32
        self.flag = ir.IntegerType.get_signless(64 if self.is_word else 32)
        stored = [self.flag] if self.is_word else [self.flag, *types]
        self.arrays = [(declare(em, f"{name}_{i}", count, t), t) for i, t in enumerate(stored)]

    def post(self, at: IndexValue, values: Values) -> None:
        """Posts values at a place, which is free."""
        flag = self.em.constant(ir.IntegerAttr.get(self.flag, 1))
        if self.is_word:
            upper = self.em.constant(ir.IntegerAttr.get(self.flag, 1 << 32))
            bits = arith.BitcastOp(ir.IntegerType.get_signless(32), values[0]).result
            flag = arith.OrIOp(arith.ExtUIOp(self.flag, bits).result, upper).result
        for (array, t), value in zip(self.arrays[1:], values, strict=False):
            llvm.StoreOp(value, place(self.em, array, at, t), alignment=element_bytes(t))
        order = _RELAXED if self.is_word else _RELEASE
        where = place(self.em, self.arrays[0][0], at, self.flag)
        llvm.StoreOp(flag, where, alignment=element_bytes(self.flag), ordering=order, syncscope="device")

    def read(self, at: IndexValue) -> Values:
        """Waits for what is posted at a place."""
        where = place(self.em, self.arrays[0][0], at, self.flag)
        order, zero = _RELAXED if self.is_word else _ACQUIRE, self.em.constant(ir.IntegerAttr.get(self.flag, 0))
        loop = scf.WhileOp([self.flag], [])
        with ir.InsertionPoint(loop.before.blocks.append()):
            size = element_bytes(self.flag)
            word = llvm.LoadOp(self.flag, where, alignment=size, ordering=order, syncscope="device").result
            scf.ConditionOp(arith.CmpIOp(arith.CmpIPredicate.eq, word, zero).result, [word])
        with ir.InsertionPoint(loop.after.blocks.append(self.flag)):
            scf.YieldOp([])
        if self.is_word:
            bits = arith.TruncIOp(ir.IntegerType.get_signless(32), loop.results[0]).result
            return [arith.BitcastOp(self.types[0], bits).result]
        return [
            llvm.LoadOp(t, place(self.em, array, at, t), alignment=element_bytes(t)).result
            for array, t in self.arrays[1:]
        ]

    def clear(self) -> None:
        """Writes zeros, by the lanes of a warp."""
        for array, t in self.arrays:
            loop = scf.ForOp(self.em.lane, self.em.c(self.count), self.em.c(32), [])
            with ir.InsertionPoint(loop.body):
                where = place(self.em, array, loop.induction_variable, t)
                llvm.StoreOp(self.em.constant(_zero(t)), where, alignment=element_bytes(t))
                scf.YieldOp([])


class Chain:
    """`rows` scans of `blocks` blocks each. Its `row` and `step` say what this block takes."""

    def __init__(self, em: Emitter, rows: int, blocks: int) -> None:
        self.em, self.rows, self.blocks = em, rows, blocks
        self.groups = -(-blocks // GROUP)
        self.i32 = ir.IntegerType.get_signless(32)
        slot = em.alloc_smem([1], self.i32)
        with access.predicated(em.team.leads()):
            memref.StoreOp(self._draw("tickets", _RELAXED), slot, [em.c(0)])
        em.team.meet()
        number = arith.IndexCastOp(em.index, memref.LoadOp(slot, [em.c(0)]).result).result
        self.row, self.step = em.div(number, blocks) if rows > 1 else 0, em.rem(number, blocks) if rows > 1 else number

    def prefix(self, total: Values, start: Values, combine: Combine) -> Values:
        """What is before the block's step, in all threads, from the `total` of the step and what the row starts from,
        which all threads have."""
        em, types = self.em, [v.type for v in total]
        steps = Board(em, "totals", self.rows * self.blocks, types)
        ends = Board(em, "groups", self.rows * self.groups, types)
        own = em.add(em.mul(self.row, self.blocks), self.step)
        group, number = em.div(self.step, GROUP), em.rem(self.step, GROUP)
        with access.predicated(em.team.leads()):
            steps.post(own, total)
        slots = [em.alloc_smem([1], t) for t in types]
        with access.predicated(em.condition(em.equal(em.team.warp, 0))):
            before_it = self._wait(steps, em.sub(own, number), number, total)
            within = self._scan_lanes(before_it, combine)
            with access.predicated(em.both(em.equal(number, GROUP - 1), em.equal(em.lane, GROUP - 1))):
                ends.post(em.add(em.mul(self.row, self.groups), group), within)
            before = [em.shuffle_from(v, em.max(em.sub(number, 1), 0)) for v in within]
            front = self._front(ends, group, total, combine)
            both = self._select(em.equal(number, 0), front, combine(front, before))
            both = self._select(em.equal(group, 0), before, both)
            result = self._select(em.equal(self.step, 0), start, combine(start, both))
            with access.predicated(em.equal(em.lane, 0)):
                for slot, value in zip(slots, result, strict=True):
                    memref.StoreOp(value, slot, [em.c(0)])
        em.team.meet()
        self._clear([steps, ends])
        return [memref.LoadOp(slot, [em.c(0)]).result for slot in slots]

    def _front(self, ends: Board, group: IndexValue, like: Values, combine: Combine) -> Values:
        """The totals of all groups before one, combined; of group 0 no matter what."""
        em = self.em
        if self.groups == 1:
            return like
        loop = scf.ForOp(em.c(0), em.value(group), em.c(GROUP), list(like))
        with ir.InsertionPoint(loop.body):
            first = loop.induction_variable
            count = em.min(em.sub(group, first), GROUP)
            at = em.add(em.mul(self.row, self.groups), first)
            scanned = self._scan_lanes(self._wait(ends, at, count, like), combine)
            part = [em.shuffle_from(v, em.sub(count, 1)) for v in scanned]
            carried = list(loop.inner_iter_args)
            scf.YieldOp(self._select(em.equal(first, 0), part, combine(carried, part)))
        return list(loop.results)

    def _wait(self, board: Board, first: IndexValue, count: IndexValue, otherwise: Values) -> Values:
        """What is posted at places from `first` on, in lanes 0 to `count` - 1; other lanes have `otherwise`."""
        em = self.em
        branch = scf.IfOp(em.condition(em.less(em.lane, count)), [v.type for v in otherwise], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp(board.read(em.add(first, em.lane)))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(otherwise)
        return list(branch.results)

    def _scan_lanes(self, values: Values, combine: Combine) -> Values:
        """What each lane, and those before it, have."""
        em, offset = self.em, 1
        while offset < GROUP:
            up = [em.shuffle_up(v, offset) for v in values]
            values = self._select(em.less(em.lane, offset), values, combine(up, values))
            offset *= 2
        return values

    def _clear(self, boards: Sequence[Board]) -> None:
        """Writes zeros to all boards, in the block that is the last one to have read them."""
        em = self.em
        with access.predicated(em.condition(em.equal(em.team.warp, 0))):
            branch = scf.IfOp(em.condition(em.equal(em.lane, 0)), [self.i32], has_else=True)
            with ir.InsertionPoint(branch.then_block):
                scf.YieldOp([self._draw("done", llvm.AtomicOrdering.acq_rel)])
            with ir.InsertionPoint(branch.else_block):
                scf.YieldOp([em.constant(ir.IntegerAttr.get(self.i32, 0))])
            em.warp_barrier()
            number = em.shuffle_from(branch.results[0], 0)
            with access.predicated(arith.CmpIOp(arith.CmpIPredicate.eq, number, self._most()).result):
                for board in boards:
                    board.clear()

    def _draw(self, counter: str, order: llvm.AtomicOrdering) -> ir.Value:
        """The next number of the blocks, which begin again at 0 with the next launch."""
        array = declare(self.em, counter, 1, self.i32)
        return llvm.AtomicRMWOp(llvm.AtomicBinOp.uinc_wrap, array, self._most(), order, syncscope="device").result

    def _most(self) -> ir.Value:
        """The last number of a block."""
        return self.em.constant(ir.IntegerAttr.get(self.i32, self.rows * self.blocks - 1))

    def _select(self, condition: bool | ir.Value, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Values:
        if isinstance(condition, bool):
            return list(a if condition else b)
        return [arith.SelectOp(condition, x, y).result for x, y in zip(a, b, strict=True)]


def declare(em: Emitter, name: str, count: int, element: ir.Type) -> ir.Value:
    """Adds an array of zeros to the kernel's module, and gives its address."""
    function = em.entry.owner.operation
    symbol = f"{ir.StringAttr(function.attributes['sym_name']).value}_{name}"
    value = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([count], element), _zero(element))
    with ir.InsertionPoint.at_block_begin(function.parent.regions[0].blocks[0]):
        llvm.GlobalOp(
            ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{count} x {element}>")), symbol,
            ir.Attribute.parse("#llvm.linkage<internal>"), value=value, addr_space=1,
        )  # fmt: skip
    with em.at_entry():
        return llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<1>"), symbol).result


def place(em: Emitter, array: ir.Value, at: IndexValue, element: ir.Type) -> ir.Value:
    """The address of an array's element."""
    number = arith.IndexCastOp(ir.IntegerType.get_signless(32), em.value(at)).result
    return llvm.GEPOp(ir.Type.parse("!llvm.ptr<1>"), array, [number], [-(1 << 31)], element, None).result


def _zero(t: ir.Type) -> ir.Attribute:
    return ir.FloatAttr.get(t, 0.0) if isinstance(t, ir.FloatType) else ir.IntegerAttr.get(t, 0)
