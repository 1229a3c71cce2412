"""Loops that end when a condition says so, and never will: told at once, not when the launch's time is over.

What a condition depends on is followed back through the loop: values from outside of it never change, and the loop's
own come from one turn to the next. If these come back to what they were at an earlier turn, they do so for ever. If the
only one is a counter, its last turn is known from the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirc.device.limits import most_turns
from mlirc.mlir import ir, nested

# Operations whose results depend on their operands (and on what is constant for a thread) alone.
_PURE = ("arith.", "math.", "affine.apply", "affine.min", "affine.max", "vector.extract", "vector.insert",
         "vector.broadcast", "vector.splat", "vector.shuffle", "gpu.thread_id", "gpu.block_id", "gpu.block_dim",
         "gpu.grid_dim", "gpu.global_id", "gpu.lane_id", "gpu.subgroup_id", "scf.if", "scf.for", "scf.yield",
         "scf.index_switch", "scf.condition", "scf.while", "index.")  # fmt: skip
_VIEWS = ("memref.subview", "memref.view", "memref.cast", "memref.reinterpret_cast", "memref.collapse_shape",
          "memref.expand_shape", "memref.extract_", "memref.dim", "llvm.getelementptr", "llvm.inttoptr",
          "llvm.mlir.")  # fmt: skip
_LOADS = ("memref.load", "vector.load", "affine.load", "llvm.load")
_SIGNED = {"slt": 1, "sle": 1, "ult": 1, "ule": 1, "sgt": -1, "sge": -1, "ugt": -1, "uge": -1}
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


@dataclass
class Ending:
    """What decides when a loop ends. `carried`: the numbers of the loop's values, as its condition gets them, that it
    depends on; None where other things do as well, such as memory that the loop or others may write. `counter`: of
    these one that is compared with what does not change, and that what does not change is added to: its number, the
    predicate, and the other side's value."""

    carried: list[int] | None
    counter: tuple[int, str, ir.Value] | None = None


@dataclass
class _Slice:
    op: Any
    before: ir.Block
    after: ir.Block
    still: bool  # whether nothing in the loop, and nobody else meanwhile, changes memory
    carried: set[int] = field(default_factory=set)
    seen: set[ir.Value] = field(default_factory=set)

    def follow(self, value: ir.Value) -> bool:
        """Adds what a value depends on; False if that is more than the loop's own values."""
        work = [value]
        while work:
            value = work.pop()
            if value in self.seen:
                continue
            self.seen.add(value)
            owner = value.owner
            if isinstance(owner, ir.Block):
                number = ir.BlockArgument(value).arg_number
                if owner == self.before:
                    self.carried.add(number)
                    work.append(_end(self.after)[number])
                elif owner == self.after:
                    work.append(_end(self.before)[number + 1])
                elif self._within(owner.owner):  # a counter or a carried value of a loop inside
                    work += _all_operands(owner.owner.operation)
                continue
            op = owner.operation
            if not self._within(op):
                continue
            if not all(self._simple(o) for o in [op, *nested(op)]):
                return False
            work += _all_operands(op)
        return True

    def fixed(self, value: ir.Value) -> bool:
        """Whether a value is the same in every turn."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            return owner not in (self.before, self.after) and not self._within(owner.owner)
        return owner.operation.name == "arith.constant" or not self._within(owner)

    def _simple(self, op: Any) -> bool:
        return op.name.startswith((*_PURE, *_VIEWS)) or (self.still and op.name in _LOADS)

    def _within(self, op: Any) -> bool:
        """Whether an operation is inside of the loop."""
        parent = op.operation
        while parent is not None and parent.operation.name not in ("gpu.func", "llvm.func", "builtin.module"):
            if parent.operation == self.op:
                return True
            parent = parent.operation.parent
        return False


def _end(block: ir.Block) -> list[ir.Value]:
    return list(list(block.operations)[-1].operation.operands)


def _all_operands(op: Any) -> list[ir.Value]:
    return [v for o in [op, *nested(op)] for v in o.operands]


def ending(op: Any) -> Ending:
    """What decides when an `scf.while` ends."""
    before, after = op.regions[0].blocks[0], op.regions[1].blocks[0]
    still = all(o.name.startswith((*_PURE, *_VIEWS)) or o.name in _LOADS for o in nested(op))
    condition = _end(before)[0]
    found = _Slice(op, before, after, still)
    if not found.follow(condition):
        return Ending(None)
    return Ending(sorted(found.carried), _counter(found, condition))


def _counter(found: _Slice, condition: ir.Value) -> tuple[int, str, ir.Value] | None:
    owner = condition.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.cmpi" or len(found.carried) != 1:
        return None
    (number,) = found.carried
    left, right = owner.operation.operands
    mine = found.before.arguments[number]
    if _root(found, left) != mine or not found.fixed(right):
        return None
    new = _root(found, _end(found.after)[number])  # from the body's values back to those that the condition passes
    for value, argument in zip(_end(found.before)[1:], found.after.arguments, strict=True):
        if new == argument and _root(found, value) == mine:
            predicate = _PREDICATES[ir.IntegerAttr(owner.operation.attributes["predicate"]).value]
            return number, predicate, right
    return None


def _root(found: _Slice, value: ir.Value) -> ir.Value:
    """What a value is made of by adding what is the same in every turn."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name not in ("arith.addi", "arith.subi"):
            break
        first, second = op.operands
        if found.fixed(second):
            value = first
        elif op.name == "arith.addi" and found.fixed(first):
            value = second
        else:
            break
    return value


def turns_left(predicate: str, was: np.ndarray, now: np.ndarray, end: np.ndarray, active) -> float:
    """How many turns a counter still takes that a turn has changed from `was` to `now`, in the thread that takes the
    most; infinity where it goes the other way."""
    if predicate not in _SIGNED or was.itemsize < 4:  # a narrow one comes round
        return 0.0
    unsigned = predicate.startswith("u")
    numbers = [_plain(x, unsigned) for x in (was, now, end)]
    step, rest = numbers[1] - numbers[0], numbers[2] - numbers[1]
    sign = _SIGNED[predicate]
    with np.errstate(all="ignore"):
        turns = np.where(step * sign > 0, rest / step, np.where(rest * sign > 0, np.inf, 0.0))
    if active is not None:
        turns = np.where(active, turns, 0.0)
    return float(turns.max(initial=0.0))


def _plain(x: np.ndarray, unsigned: bool) -> np.ndarray:
    x = np.asarray(x)
    return (x.view(np.dtype(f"u{x.itemsize}")) if unsigned and x.dtype.kind == "i" else x).astype(np.float64)


def unchanged(was: list, now: list) -> Any:
    """In which threads values are what they were (mask semantics); True without values."""
    same: Any = True
    for a, b in zip(was, now, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            equal: Any = a is b
        else:
            equal = (a == b) | ((a != a) & (b != b))
            while equal.ndim > 2:
                equal = equal.all(axis=-1)
        same = same & equal
    return same


def too_many(turns: float, seconds: float) -> str:
    """Why a loop of so many turns is not begun, in words; "" if time may suffice."""
    if turns <= most_turns(seconds):
        return ""
    return f"{turns:.3g} turns, for which {seconds:g} s (--seconds) are not enough"
