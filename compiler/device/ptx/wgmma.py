"""wgmma in the PTX interpreter (PTX ISA, "Asynchronous warpgroup level matrix instructions"), done at once: fences,
commits and waits have nothing to do."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from mlirc.device.ptx.machine import WARPGROUP, Machine
from mlirc.device.ptx.parse import Instruction, Operand
from mlirc.device.ptx.step import Active, all_of, unknown
from mlirc.device.wgmma import DTYPES, M, Product, descriptor_bytes
from mlirc.errors import MlircError

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")


def wgmma(m: Machine, at: Instruction, active: Active) -> None:
    if at.op[1] != "mma_async":
        return
    p, d, a, b, scale = _product(at)
    chosen = all_of(m, active)
    before = np.stack([m.registers[x.name] for x in d.parts], axis=1)
    after = before.copy()
    adds = m.read(scale, "pred") if scale.kind != "number" else np.full(m.count, bool(scale.value))
    for first in np.flatnonzero(chosen & (m.thread % WARPGROUP == 0)):
        lanes = slice(int(first), int(first) + WARPGROUP)
        if m.thread[lanes][-1] != m.thread[first] + WARPGROUP - 1 or not chosen[lanes].all():
            raise MlircError(f"line {at.line}: `{at.name}` is not executed by a whole warpgroup")
        here = dataclasses.replace(p, adds=bool(adds[first]))
        if a.kind == "list":
            left = p.fragment(np.stack([m.registers[x.name][lanes] for x in a.parts], axis=1))
        else:
            left = _operand(m, at, a, int(first), M, p.a_major, p)
        right = _operand(m, at, b, int(first), p.n, p.b_major, p, p.b)
        held = np.ascontiguousarray(before[lanes]).view(p.result)
        after[lanes] = np.ascontiguousarray(here.compute(left, right, held)).view(np.uint32)
    for i, register in enumerate(d.parts):
        m.write(register.name, np.ascontiguousarray(after[:, i]), active)


def check(at: Instruction) -> None:
    """Raises MlircError for a wgmma that is not known here."""
    if at.op[1] == "mma_async":
        _product(at)
    elif at.op[1] not in ("fence", "commit_group", "wait_group"):
        raise unknown(at)


def _product(at: Instruction) -> tuple[Product, Operand, Operand, Operand, Operand]:
    """The product, its accumulator, A, B, and whether it adds to the accumulator."""
    parts = [x for x in at.op[2:] if x not in ("sync", "aligned")]
    saturate = "satfinite" in parts
    shape, d, a, b = [x for x in parts if x != "satfinite"]
    found = _SHAPE.match(shape)
    accumulator, left, right, scale, *flags = at.operands
    if found is None or a not in DTYPES:
        raise unknown(at)
    names = [] if d == "s32" else ["sign_a", "sign_b"]
    if a in ("f16", "bf16"):
        names += ["b_major"] if left.kind == "list" else ["a_major", "b_major"]
    if len(flags) != len(names):
        raise unknown(at)
    values = [int(np.int64(x.value)) for x in flags]
    settings = {n: v if n.startswith("sign") else not v for n, v in zip(names, values, strict=True)}
    p = Product(int(found[1]), int(found[2]), a, b, d, saturate=saturate, **settings)  # type: ignore[arg-type]
    if p.problem() or len(accumulator.parts) != p.words:
        raise unknown(at)
    return p, accumulator, left, right, scale


def _operand(
    m: Machine, at: Instruction, operand: Operand, first: int, rows: int, major: bool, p: Product, name: str = ""
) -> np.ndarray:
    """A matrix in shared memory [rows, k], by the descriptor that a warpgroup's first thread has."""
    cells = descriptor_bytes(int(m.read(operand, "u64")[first]), rows, p.k * p.item, major, p.item)
    if int(cells.max()) + p.item > m.top:
        raise MlircError(
            f"line {at.line}: `{at.name}` reads byte {int(cells.max())} of shared memory, which has {m.top}"
        )
    byte = cells[..., None] + np.arange(p.item)
    return m.shared[m.of_block[first], byte].reshape(rows, -1).view(DTYPES[name or p.a])
