"""What a schedule states of a kernel that approximates on purpose, by which its results are judged."""

from __future__ import annotations

from mlirc.ir.levels import ROUNDS, STATED_BY, TOLERANCE
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.instructions import all_instructions
from mlirc.schedule.attributes import PREFIX


def state(function: ir.Operation, by: str, *, rounds: str = "", tolerance: float = 0.0) -> None:
    """Writes on a kernel's function what is stated of it, beside what is there already; of two tolerances the sum."""
    attributes = function.attributes
    with function.context:
        if rounds:
            attributes[ROUNDS] = ir.StringAttr.get(rounds)
        if tolerance:
            known = ir.FloatAttr(attributes[TOLERANCE]).value if TOLERANCE in attributes else 0.0
            attributes[TOLERANCE] = ir.FloatAttr.get(ir.F64Type.get(), known + tolerance)
        known_by = ir.StringAttr(attributes[STATED_BY]).value if STATED_BY in attributes else ""
        attributes[STATED_BY] = ir.StringAttr.get(", ".join(dict.fromkeys(filter(None, [known_by, by]))))


def state_instructions(function: ir.Operation) -> None:
    """Writes on a kernel's function what the instructions that it names state of themselves."""
    named = {
        ir.StringAttr(op.attributes[f"{PREFIX}mma"]).value for op in nested(function) if f"{PREFIX}mma" in op.attributes
    }
    for name, i in all_instructions().items():
        if name in named and (i.rounds or i.tolerance):
            state(function, f"instruction {name}", rounds=i.rounds, tolerance=i.tolerance)
