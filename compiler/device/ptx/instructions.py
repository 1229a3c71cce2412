"""The instructions, by the first part of their opcodes: what each does to the machine.

An instruction's function takes the machine, the instruction and the threads that execute it (None: all). `known` says,
before anything runs, whether an instruction is one of these.
"""

from __future__ import annotations

import numpy as np

from mlirc.device.fragments import matrices, registers
from mlirc.device.numbers import flushed, through_f64
from mlirc.device.ptx import bulk, operations, votes
from mlirc.device.ptx.atomics import atomic
from mlirc.device.ptx.machine import Machine
from mlirc.device.ptx.operations import ALIKE, APPROXIMATE, DTYPES, SHIFTS
from mlirc.device.ptx.parse import Instruction
from mlirc.device.ptx.step import ORDERS, SCOPES, SPACES, Active, Step, all_of, nothing, unknown
from mlirc.device.ptx.wgmma import check as check_wgmma
from mlirc.device.ptx.wgmma import wgmma
from mlirc.device.tensor_cores import multiply, nearest_tf32
from mlirc.device.wgmma import DTYPES as ELEMENTS
from mlirc.errors import MlircError


def _alike(m: Machine, at: Instruction, active: Active) -> None:
    """Operations whose operands all have the instruction's type."""
    head, *middle = at.op[:-1]
    kind = at.op[-1]
    rest = [x for x in middle if x not in ("rn", "lo")]
    out, *operands = at.operands
    values = [m.read(o, kind) for o in operands]
    if head in SHIFTS:
        result = SHIFTS[head](values[0], m.read(operands[1], "u32"))
    elif rest == ["NaN"] and head in ("min", "max"):
        result = ALIKE[head](*values, nan=True)
    elif rest in (["approx"], ["approx", "ftz"]) and head in APPROXIMATE and kind == "f32":
        f = through_f64(APPROXIMATE[head])
        result = flushed(f(flushed(values[0]))) if "ftz" in rest else f(values[0])
    elif rest == ["hi"] and head == "mul":
        result = ALIKE["mulhi"](*values)
    elif rest == ["wide"] and head == "mul":
        result = operations.wide(*values)
    elif not rest:
        result = ALIKE[head](*values)
    else:
        raise unknown(at)
    m.write(out.name, result, active)


def _mad(m: Machine, at: Instruction, active: Active) -> None:
    out, a, b, c = at.operands
    kind, wide = at.op[-1], at.op[1] == "wide"
    if at.op[1] not in ("lo", "wide"):
        raise unknown(at)
    x, y = m.read(a, kind), m.read(b, kind)
    wider = f"{kind[0]}{2 * int(kind[1:])}"
    product = operations.wide(x, y) if wide else x * y
    m.write(out.name, product + m.read(c, wider if wide else kind), active)


def _bfe(m: Machine, at: Instruction, active: Active) -> None:
    out, a, start, length = at.operands
    m.write(out.name, operations.FIELD(m.read(a, at.op[1]), m.read(start, "u32"), m.read(length, "u32")), active)


def _setp(m: Machine, at: Instruction, active: Active) -> None:
    if len(at.op) != 3 or len(at.operands) != 3:
        raise unknown(at)
    out, a, b = at.operands
    found = operations.compare(at.op[1], m.read(a, at.op[2]), m.read(b, at.op[2]))
    if found is None:
        raise unknown(at)
    m.write(out.name, found, active)


def _selp(m: Machine, at: Instruction, active: Active) -> None:
    out, a, b, p = at.operands
    m.write(out.name, np.where(m.read(p, "pred"), m.read(a, at.op[1]), m.read(b, at.op[1])), active)


def _mov(m: Machine, at: Instruction, active: Active) -> None:
    out, source = at.operands
    kind = at.op[1]
    size = np.dtype(DTYPES[kind]).itemsize
    if out.kind == "list":
        parts = m.read(source, kind).view(f"u{size // len(out.parts)}").reshape(m.count, -1)
        for i, part in enumerate(out.parts):
            if part.name != "_":
                m.write(part.name, parts[:, i].copy(), active)
    elif source.kind == "list":
        each = f"b{8 * size // len(source.parts)}"
        stacked = np.stack([m.read(p, each) for p in source.parts], axis=1)
        m.write(out.name, np.ascontiguousarray(stacked).view(f"u{size}").reshape(-1), active)
    else:
        m.write(out.name, m.read(source, kind).copy(), active)


def _cvt(m: Machine, at: Instruction, active: Active) -> None:
    if at.name == _TO_TF32:
        out, operand = at.operands
        m.write(out.name, nearest_tf32(m.read(operand, "f32")), active)
        return
    *mode, to, source = at.op[1:]
    rounding = [x for x in mode if x != "sat"]
    out, *operands = at.operands
    if len(rounding) > 1 or (rounding and rounding[0] not in ("rn", "rz", "rni", "rzi", "rmi", "rpi")):
        raise unknown(at)
    found: list[np.ndarray] = []
    for operand in operands:
        value = m.read(operand, source)
        made = operations.convert(value, np.dtype(DTYPES[to]), rounding[0] if rounding else "", "sat" in mode)
        if made is None:
            raise unknown(at)
        found.append(made)
    if to.endswith("x2") != (len(found) == 2) or source.endswith("x2"):
        raise unknown(at)
    result = found[0]
    if len(found) == 2:  # the first operand is the upper half
        result = np.ascontiguousarray(np.stack([found[1], found[0]], axis=1)).reshape(-1)
    m.write(out.name, result, active)


def _cvta(m: Machine, at: Instruction, active: Active) -> None:
    """Addresses are the same in every space: accesses to generic ones are not known here."""
    if at.op[-1] != "u64" or not set(at.op[1:-1]) <= {"to", "param", *SPACES}:
        raise unknown(at)
    m.write(at.operands[0].name, m.read(at.operands[1], "u64").copy(), active)


def _space(at: Instruction) -> tuple[str, int, str]:
    """(space, elements, type) of a load or store; raises MlircError for what is not known."""
    parts = [x for x in at.op[1:-1] if x not in (*ORDERS, *SCOPES, "nc", "L1::no_allocate")]
    counts = {(): 1, ("v2",): 2, ("v4",): 4, ("v8",): 8}
    if not parts or parts[0] not in SPACES or tuple(parts[1:]) not in counts:
        raise unknown(at)
    return SPACES[parts[0]], counts[tuple(parts[1:])], at.op[-1]


def _ld(m: Machine, at: Instruction, active: Active) -> None:
    out, address = at.operands
    if at.op[1] == "param":
        m.write(out.name, m.parameter(address, at, all_of(m, active)), active)
        return
    space, count, kind = _space(at)
    size, chosen = np.dtype(DTYPES[kind]).itemsize, all_of(m, active)
    places = m.places(address, space, size * count, chosen, at)
    data = m.load(space, places, size * count).view(DTYPES[kind])
    for i, register in enumerate(out.parts if out.kind == "list" else (out,)):
        value = np.zeros(m.count, DTYPES[kind])
        value[chosen] = data[:, i]
        if register.name != "_":
            m.write(register.name, value, chosen)


def _st(m: Machine, at: Instruction, active: Active) -> None:
    address, source = at.operands
    space, count, kind = _space(at)
    size, chosen = np.dtype(DTYPES[kind]).itemsize, all_of(m, active)
    places = m.places(address, space, size * count, chosen, at)
    parts = [m.read(p, kind)[chosen] for p in (source.parts if source.kind == "list" else (source,))]
    m.store(space, places, np.ascontiguousarray(np.stack(parts, axis=1)).view(np.uint8))


def _cp(m: Machine, at: Instruction, active: Active) -> None:
    if "bulk" in at.op:
        bulk.bulk(m, at, active)
        return
    if at.op[2] == "mbarrier":
        bulk.arrive_behind_copies(m, at, active)
        return
    if at.op[:2] != ("cp", "async") or at.op[2] not in ("ca", "cg", "commit_group", "wait_group", "wait_all"):
        raise unknown(at)
    if at.op[2] not in ("ca", "cg"):
        return
    target, source, total, *real = at.operands
    size, chosen = total.value, all_of(m, active)
    amount = m.read(real[0], "u32")[chosen] if real else np.full(int(chosen.sum()), size)
    data = np.zeros((len(amount), size), np.uint8)
    for n in np.unique(amount):
        if n:
            some = chosen.copy()
            some[chosen] = amount == n
            data[amount == n, :n] = m.load("global", m.places(source, "global", 1, some, at), int(n))
            last = source.__class__(source.kind, value=source.value + int(n) - 1, parts=source.parts)
            m.places(last, "global", 1, some, at)
    m.store("shared", m.places(target, "shared", size, chosen, at), data)


def _shfl(m: Machine, at: Instruction, active: Active) -> None:
    out, a, b, c, _ = at.operands
    how, chosen = at.op[2], all_of(m, active)
    value, by, clamp = m.read(a, "b32"), m.read(b, "u32").astype(np.int64), m.read(c, "u32").astype(np.int64)
    segment, lane = clamp >> 8 & 31, m.lane
    most = (lane & segment) | (clamp & 31 & ~segment)
    target = {"idx": (lane & segment) | (by & 31 & ~segment), "bfly": lane ^ by, "up": lane - by, "down": lane + by}[
        how
    ]
    valid = target >= most if how == "up" else target <= most
    source = np.arange(m.count) - lane + np.where(valid, target, lane)
    if not chosen[source[chosen]].all():
        raise MlircError(f"line {at.line}: `{at.name}` reads a lane that does not execute it")
    name, _, predicate = out.name.partition("|")
    m.write(name, value[source], active)
    if predicate:
        m.write(predicate, valid, active)


def _ldmatrix(m: Machine, at: Instruction, active: Active) -> None:
    if at.op[3] != "m8n8" or at.op[-1] != "b16":
        raise unknown(at)
    tiles, chosen = int(at.op[4][1:]), all_of(m, active)
    first = chosen & (m.lane < 8 * tiles)
    data = np.zeros((m.count, 16), np.uint8)
    data[first] = m.load("shared", m.places(at.operands[1], "shared", 16, first, at), 16)
    rows = data.view(np.uint16).reshape(-1, 4, 8, 8)[:, :tiles]
    if "trans" in at.op:
        rows = rows.swapaxes(2, 3)
    pairs = np.ascontiguousarray(rows).view(np.uint32).transpose(0, 2, 3, 1).reshape(m.count, tiles)
    out = at.operands[0]
    for i, register in enumerate(out.parts if out.kind == "list" else (out,)):
        m.write(register.name, pairs[:, i].copy(), active)


def _stmatrix(m: Machine, at: Instruction, active: Active) -> None:
    if at.op[3] != "m8n8" or at.op[-1] != "b16":
        raise unknown(at)
    source = at.operands[1].parts or (at.operands[1],)
    pairs = np.stack([m.read(r, "b32") for r in source], axis=1).reshape(-1, 8, 4, len(source))
    rows = np.ascontiguousarray(pairs.transpose(0, 3, 1, 2)).view(np.uint16)  # warp, matrix, row, element
    if "trans" in at.op:
        rows = rows.swapaxes(2, 3)
    data = np.zeros((m.count // 32, 4, 8, 8), np.uint16)
    data[:, : len(source)] = rows
    first = all_of(m, active) & (m.lane < 8 * len(source))
    m.store("shared", m.places(at.operands[0], "shared", 16, first, at), data.view(np.uint8).reshape(-1, 16)[first])


def _mma(m: Machine, at: Instruction, active: Active) -> None:
    saturate, shape = "satfinite" in at.op, at.op[3]
    out_kind, a_kind, b_kind, c_kind = at.op[-4:]
    if not shape.startswith("m16n8k") or a_kind not in ELEMENTS or b_kind not in ELEMENTS or out_kind != c_kind:
        raise unknown(at)
    k, per, out_type = int(shape[6:]), 4 // ELEMENTS[a_kind].itemsize, np.dtype(DTYPES[out_kind])
    if k % (4 * per):
        raise unknown(at)
    d, *operands = at.operands
    a, b, c = (
        np.stack([m.read(r, "b32") for r in o.parts or (o,)], axis=1).view(dtype)
        for o, dtype in zip(operands, (ELEMENTS[a_kind], ELEMENTS[b_kind], out_type), strict=True)
    )
    total = multiply(*matrices(a, b, c, k, per), out_type, saturate)
    words = np.ascontiguousarray(registers(total)).reshape(m.count, 4).view(np.uint32)
    for i, register in enumerate(d.parts):
        m.write(register.name, np.ascontiguousarray(words[:, i]), active)


STEPS: dict[str, Step] = {
    **dict.fromkeys((*ALIKE, *APPROXIMATE, *SHIFTS), _alike), "mad": _mad, "bfe": _bfe, "setp": _setp, "selp": _selp,
    "mov": _mov, "cvt": _cvt, "cvta": _cvta, "ld": _ld, "st": _st, "cp": _cp, "shfl": _shfl, "ldmatrix": _ldmatrix,
    "mma": _mma, "atom": atomic, "red": atomic, "vote": votes.vote, "redux": votes.redux, "elect": votes.elect,
    "match": votes.match, "stmatrix": _stmatrix,
    "mbarrier": bulk.mbarrier, "mapa": bulk.mapa, "wgmma": wgmma,
    **dict.fromkeys(("fence", "membar", "setmaxnreg", "griddepcontrol", "prefetch", "prefetchu", "nanosleep"), nothing),
}  # fmt: skip
_BARRIERS = {
    *("bar.sync", "bar.arrive", "bar.warp.sync", "barrier.sync", "barrier.arrive"),
    *(f"barrier.cluster.{x}" for x in ("arrive", "arrive.relaxed", "arrive.release", "wait", "wait.acquire")),
}
_TO_TF32 = "cvt.rna.tf32.f32"
_TYPED = {*ALIKE, *APPROXIMATE, *SHIFTS, "mad", "bfe", "setp", "selp", "mov", "ld", "st", "atom", "red"}


def check(at: Instruction) -> None:
    """Raises MlircError for an instruction that is not known here, before anything runs. What depends on its modifiers
    alone is looked at when it runs."""
    head = at.op[0]
    control = head in ("bra", "ret", "exit") or at.name in _BARRIERS
    types = at.op[-2:] if head == "cvt" and at.name != _TO_TF32 else at.op[-1:] if head in _TYPED else ()
    if any(t not in DTYPES for t in types):
        raise unknown(at)
    if not control and head not in STEPS:
        raise unknown(at)
    if head == "wgmma":
        check_wgmma(at)
