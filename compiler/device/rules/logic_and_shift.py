"""Bitwise logic and shifts (PTX ISA, "Logic and Shift Instructions")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.declare import rule
from mlirc.device.integer_checks import Bad, as_unsigned, integer_step, integer_width
from mlirc.device.numbers import dtype_of, unsigned
from mlirc.device.translate import Translator

_LOGIC = {"arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor}
_SHIFTS: dict[str, Callable] = {
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": as_unsigned(np.right_shift),
}


@rule(*_LOGIC)
def _logic(tr: Translator, op):
    return integer_step(tr, op, _LOGIC[op.name], [])


def _shifted(name: str, width: int) -> Callable:
    """A shift; by the width or more, undefined in MLIR, it gives what PTX gives: zeros, or the sign."""
    f = _SHIFTS[name]

    def signed(a, b):
        near = b.size == 1 and b.flat[0] < width
        return f(a, b if near else np.minimum(unsigned(b), width - 1).astype(b.dtype))

    def shifted(a, b):
        far = unsigned(b) >= width
        return np.where(far, 0, f(a, np.where(far, 0, b).astype(b.dtype))).astype(a.dtype)

    return signed if name == "arith.shrsi" else shifted


@rule(*_SHIFTS)
def _shift(tr: Translator, op):
    t = op.results[0].type
    if dtype_of(t) == np.bool_:
        raise tr.refused(op, "of i1 has no meaning")
    width, n = integer_width(tr, t), tr.known(op.operands[1])
    checks: list[tuple[Bad, str]] = []
    if n is None or not 0 <= n < width:
        message = f"shifts by as many bits as its operand has, {width}, or more"
        checks = [(lambda a, b, r: np.broadcast_to(unsigned(b) >= width, r.shape), message)]
    return integer_step(tr, op, _shifted(op.name, width), checks)
