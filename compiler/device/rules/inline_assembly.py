"""Inline assembly (`llvm.inline_asm`): wgmma with A in registers, for which MLIR has no operation, and no instruction
at all, which keeps LLVM from moving what a register is computed of. The spelling is in docs/host-device.md; the syntax
is the PTX ISA's, "wgmma.mma_async"."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from mlirc.device.addresses import struct_fields
from mlirc.device.declare import rule
from mlirc.device.engine import engine_of
from mlirc.device.inline_asm import PREDICATE, WGMMA, Operands, scale, text_of, tied, whole_struct
from mlirc.device.machine import State
from mlirc.device.translate import Translator
from mlirc.device.warps import WARPGROUP, warpgroups
from mlirc.device.wgmma import Product, any_made_late, checked, launch


@rule("llvm.inline_asm")
def _inline(tr: Translator, op):
    text = text_of(op, "asm_string")
    if not text.strip():
        return _nothing(tr, op)
    found = WGMMA.search(text)
    rest = PREDICATE.sub("", WGMMA.sub("", text))
    if found is None or re.sub(r"\.reg\s+\.pred\s+\w+\s*;|[{}\s]", "", rest):
        raise tr.refused(op, "is no single wgmma.mma_async: use the operations of the nvvm dialect")
    operands = Operands(op)
    n, k, saturate, d, a, b, accumulator, left, right, flags = found.groups()
    added, *signs = [w.strip() for w in flags.split(",")]
    in_registers = left.startswith("{")
    p = _product(tr, op, (int(n), int(k), a, b, d), signs, in_registers, bool(saturate))
    values = operands.accumulator([w.strip() for w in accumulator.split(",")])
    count, dtype = struct_fields(op.results[0].type)
    checked(tr, p, count * dtype.itemsize // 4, op)
    tr.proxies, tr.unit = True, WARPGROUP
    whole, acc = whole_struct(op), [tr.reg(v) for v in values]  # whole: each field stands for all
    words = [w.strip() for w in left.strip("{}").split(",")] if in_registers else [left]
    firsts = [operands.value(w) for w in words]
    if in_registers and len(firsts) != 4:
        raise tr.refused(op, f"wgmma with {len(firsts)} registers of A, not 4")
    late = in_registers and any_made_late(op, firsts)
    a_registers, second, out = [tr.reg(v) for v in firsts], tr.reg(operands.value(right)), tr.reg(op.results[0])
    fresh = any_made_late(op, values, carried=False)
    adds = _scale(tr, operands, scale(text, added))

    def step(s: State) -> None:
        m, r = s.m, s.r
        before = r[acc[0]] if whole else np.stack(np.broadcast_arrays(*(r[x] for x in acc)), axis=-1)
        here = p if adds is None or bool(np.asarray(r[adds]).any()) else dataclasses.replace(p, adds=False)
        first = [r[x] for x in a_registers]
        result = launch(s, here, first if in_registers else first[0], r[second], before, op, fresh)
        if in_registers and m.check:
            _note_registers(s, dict(zip(a_registers, first, strict=True)), late, op)
        r[out] = result

    return step


def _nothing(tr: Translator, op):
    """No instruction: the result is the operand that shares its register."""
    if tied(op) != {0: 0} or len(op.operands) != 1 or op.results[0].type != op.operands[0].type:
        raise tr.refused(op, "of no instruction takes one operand, tied to a result of its type")
    taken, made = tr.reg(op.operands[0]), tr.reg(op.results[0])

    def step(s: State) -> None:
        s.r[made] = s.r[taken]

    return step


def _product(tr: Translator, op, shape: tuple, flags: list[str], in_registers: bool, saturate: bool) -> Product:
    """The product by its shape and types, and the flags behind the scale of D: the signs of A and B, and for 16-bit
    types whether an operand in shared memory is transposed."""
    n, k, a, b, d = shape
    names = [] if d == "s32" else ["sign_a", "sign_b"]
    if a in ("f16", "bf16"):
        names += ["b_major"] if in_registers else ["a_major", "b_major"]
    if len(flags) != len(names) or any(f not in ("1", "-1", "0") for f in flags):
        raise tr.refused(op, f"wgmma of {a} takes the flags {names}")
    given = dict(zip(names, (int(f) for f in flags), strict=True))
    settings = {name: value if name.startswith("sign") else not value for name, value in given.items()}
    return Product(n, k, a, b, d, saturate=saturate, **settings)  # type: ignore[arg-type]


def _scale(tr: Translator, operands: Operands, word: str) -> int | None:
    """The register of the value that tells whether D is added to; None where it always is."""
    if word == "1":
        return None
    if word == "0":
        number = len(tr.initial)
        tr.initial.append(np.zeros((1, 1), bool))
        return number
    return tr.reg(operands.value(word))


def _note_registers(s: State, used: dict[int, np.ndarray], late: bool, op) -> None:
    """Checks and notes the registers that hold A: written in front of a wgmma.fence, and not again before the wait."""
    engine = engine_of(s)
    written: dict[int, bool] = {}  # by the registers of earlier wgmmas, which those of all blocks share
    for b, t in warpgroups(s, op):
        if late:
            message = "has A in registers that were written behind the last wgmma.fence"
            s.m.complain("missing wgmma fence", s.m.one(b, t), message, op)
        for _, other in engine.fragments.get((b, t), []):
            if id(other) not in written:
                written[id(other)] = any(other.get(number, x) is not x for number, x in used.items())
            if written[id(other)]:
                message = "has A in registers that were written while an earlier wgmma still reads them"
                s.m.complain("unfinished wgmma", s.m.one(b, t), message, op)
                break
        engine.fragments.setdefault((b, t), []).append((engine.groups.get((b, t), 0), used))
