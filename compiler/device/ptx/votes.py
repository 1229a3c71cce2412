"""What lanes of a warp decide together, in the PTX interpreter (PTX ISA, "Parallel Synchronization and Communication
Instructions": vote, match, redux, elect)."""

from __future__ import annotations

import numpy as np

from mlirc.device.ptx.machine import WARP, Machine
from mlirc.device.ptx.operations import DTYPES
from mlirc.device.ptx.parse import Instruction
from mlirc.device.ptx.step import Active, all_of, unknown

_LANES = np.arange(WARP)


def _members(m: Machine, at: Instruction) -> np.ndarray:
    """Which lanes each thread's mask names: [threads, lanes]."""
    return (m.read(at.operands[-1], "u32")[:, None] >> _LANES.astype(np.uint32) & 1).astype(bool)


def _of_warp(m: Machine, values: np.ndarray) -> np.ndarray:
    """For every thread those of its warp: [threads, lanes]."""
    return np.repeat(values.reshape(-1, WARP), WARP, axis=0)


def vote(m: Machine, at: Instruction, active: Active) -> None:
    out, source, _ = at.operands
    if at.op[1] != "sync" or at.op[2] not in ("ballot", "any", "all", "uni"):
        raise unknown(at)
    yes = m.read(source, "pred")
    members = _members(m, at) & _of_warp(m, all_of(m, active))
    said = _of_warp(m, yes)
    found = {
        "ballot": ((members & said) << _LANES).sum(axis=1).astype(np.uint32),
        "any": (members & said).any(axis=1),
        "all": (~members | said).all(axis=1),
        "uni": (~members | (said == yes[:, None])).all(axis=1),
    }[at.op[2]]
    m.write(out.name, found, active)


_REDUCTIONS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
               "xor": np.bitwise_xor}  # fmt: skip


def redux(m: Machine, at: Instruction, active: Active) -> None:
    out, source, _ = at.operands
    how, kind = at.op[2], at.op[-1]
    if how not in _REDUCTIONS or DTYPES[kind] is np.float32 or len(at.op) != 4:
        raise unknown(at)
    values = _of_warp(m, m.read(source, kind))
    info = np.iinfo(values.dtype)
    neutral = {"min": info.max, "max": info.min, "and": info.max if not info.min else -1}.get(how, 0)
    masked = np.where(_members(m, at), values, values.dtype.type(neutral))
    m.write(out.name, _REDUCTIONS[how].reduce(masked, axis=1, dtype=values.dtype), active)


def match(m: Machine, at: Instruction, active: Active) -> None:
    """The lanes of the mask with the same value; all of them or none for match.all."""
    name, _, predicate = at.operands[0].name.partition("|")
    value = m.read(at.operands[1], at.op[-1])
    members = _members(m, at)
    same = members & (_of_warp(m, value) == value[:, None])
    if at.op[1] == "all":
        alike = (same == members).all(axis=1)
        same &= alike[:, None]
        if predicate:
            m.write(predicate, alike, active)
    m.write(name, (same << _LANES).sum(axis=1).astype(np.uint32), active)


def elect(m: Machine, at: Instruction, active: Active) -> None:
    """The first lane of the mask is the one; its number and whether a thread is that one."""
    name, _, predicate = at.operands[0].name.partition("|")
    first = _members(m, at).argmax(axis=1)
    if name != "_":
        m.write(name, first.astype(np.uint32), active)
    if predicate:
        m.write(predicate, m.lane == first, active)
