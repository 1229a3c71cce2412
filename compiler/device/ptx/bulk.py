"""mbarriers, and the copies that tell them, in the PTX interpreter (PTX ISA, "Data Movement and Conversion
Instructions": cp.async.bulk, cp.async.bulk.tensor). Every copy arrives at once."""

from __future__ import annotations

import math

import numpy as np

from mlirc.device.ptx.machine import CLUSTER_SHIFT, Machine
from mlirc.device.ptx.mbarriers import MBarrier
from mlirc.device.ptx.parse import Instruction, Operand
from mlirc.device.ptx.step import ORDERS, SCOPES, SPACES, Active, all_of, unknown
from mlirc.device.tensor_maps import REDUCTIONS, AnyMap, swizzled
from mlirc.errors import MlircError


def mbarrier(m: Machine, at: Instruction, active: Active) -> None:
    how = at.op[1]
    rest = [x for x in at.op[2:] if x not in (*ORDERS, *SCOPES, *SPACES, "b64")]
    if how in ("try_wait", "test_wait"):
        m.write(at.operands[0].name, ended(m, at, all_of(m, active)), active)
    elif how in ("init", "inval") and not rest:
        _live(m, at, all_of(m, active))
    elif how in ("arrive", "arrive_drop") and rest in ([], ["expect_tx"]) or how == "expect_tx" and not rest:
        _arrive(m, at, all_of(m, active), rest == ["expect_tx"])
    elif how == "complete_tx" and not rest:
        chosen = all_of(m, active)
        sizes = m.read(at.operands[1], "u32")[chosen].tolist()
        for place, size in zip(m.places(at.operands[0], "shared", 8, chosen, at).tolist(), sizes, strict=True):
            told(m, place, at, 0, size=size)
    else:
        raise unknown(at)


def _live(m: Machine, at: Instruction, chosen: np.ndarray) -> None:
    """init and inval."""
    places = m.places(at.operands[0], "shared", 8, chosen, at)
    if at.op[1] == "inval":
        for place in places.tolist():
            _at(m, place, at)
            del m.mbarriers[place]
        return
    for place, count in zip(places.tolist(), m.read(at.operands[1], "u32")[chosen].tolist(), strict=True):
        m.mbarriers[place] = MBarrier(count, count)


def _at(m: Machine, place: int, at: Instruction) -> MBarrier:
    if place not in m.mbarriers:
        block, byte = divmod(place, m.shared.shape[1])
        where = f"byte {byte} of the shared memory of block {int(m.numbers[block])}"
        raise MlircError(f"line {at.line}: `{at.name}`: there is no mbarrier at {where}")
    return m.mbarriers[place]


def _arrive(m: Machine, at: Instruction, chosen: np.ndarray, expects: bool) -> None:
    """arrive, arrive.expect_tx and expect_tx, whose operands are [token,] mbarrier [, a number]."""
    only = at.op[1] == "expect_tx"
    token, (place, *more) = ("_", at.operands) if only else (at.operands[0].name, at.operands[1:])
    number = m.read(more[0], "u32")[chosen] if more else np.ones(int(chosen.sum()), np.uint32)
    places = m.places(place, "shared", 8, chosen, at)
    before = np.zeros(m.count, np.uint64)
    before[chosen] = [_at(m, p, at).phase for p in places.tolist()]
    for p in dict.fromkeys(places.tolist()):
        mine = places == p
        total = int(number[mine].sum())
        count = 0 if only else int(mine.sum()) if expects else total
        if at.op[1] == "arrive_drop":
            _at(m, p, at).count -= count
        told(m, p, at, count, total if only or expects else 0)
    if token != "_":
        m.write(token, before, chosen)


def told(m: Machine, place: int, at: Instruction, arrivals: int, expected: int = 0, size: int = 0) -> None:
    """Tells an mbarrier of arrivals, bytes that are to come, and bytes that have come."""
    bar = _at(m, place, at)
    try:
        ends = bar.complete(size) if size else bar.arrive(arrivals, expected)
    except MlircError as e:
        raise MlircError(f"line {at.line}: `{at.name}`: {e}") from e
    if ends:
        m.wake()


def ended(m: Machine, at: Instruction, chosen: np.ndarray) -> np.ndarray:
    """The threads for which the phase has ended that try_wait or test_wait asks for: by its parity, or by the token of
    the arrival."""
    place, asked = at.operands[1:3]
    parity = "parity" in at.op
    given = m.read(asked, "u32" if parity else "u64")[chosen].tolist()
    found = np.zeros(m.count, bool)
    bars = [_at(m, p, at) for p in m.places(place, "shared", 8, chosen, at).tolist()]
    found[chosen] = [b.phase & 1 != x & 1 if parity else b.phase != x for b, x in zip(bars, given, strict=True)]
    return found


def arrive_behind_copies(m: Machine, at: Instruction, active: Active) -> None:
    """cp.async.mbarrier.arrive: the thread's copies have come; without .noinc it adds the arrival that it is."""
    if "noinc" not in at.op:
        return
    places = m.places(at.operands[0], "shared", 8, all_of(m, active), at)
    for place, count in zip(*np.unique(places, return_counts=True), strict=True):
        told(m, int(place), at, int(count))


def bulk(m: Machine, at: Instruction, active: Active) -> None:
    """cp.async.bulk and cp.async.bulk.tensor in either direction, cp.reduce.async.bulk.tensor."""
    chosen = all_of(m, active)
    if at.op[3] in ("commit_group", "wait_group", "prefetch"):
        return
    spaces = [x for x in at.op if x in SPACES]
    reduces = at.op[1] == "reduce"
    how = next((x for x in at.op if x in REDUCTIONS), "") if reduces else ""
    if len(spaces) != 2 or reduces and ("tensor" not in at.op or not how):
        raise unknown(at)
    for thread in np.flatnonzero(chosen):
        lone = np.zeros(m.count, bool)
        lone[thread] = True
        if "tensor" in at.op:
            _box(m, at, lone, int(thread), SPACES[spaces[0]] == "shared", how)
        else:
            _bytes(m, at, lone, SPACES[spaces[0]], SPACES[spaces[1]])


def _bytes(m: Machine, at: Instruction, lone: np.ndarray, to: str, source: str) -> None:
    target, origin, amount, *signal = at.operands
    size = int(m.read(amount, "u32")[lone][0])
    if size % 16:
        raise MlircError(f"line {at.line}: `{at.name}` copies {size} bytes, which is no multiple of 16")
    first, second = (_span(m, x, space, size, lone, at) for x, space in ((target, to), (origin, source)))
    if size:
        m.store(to, first, m.load(source, second, size))
    if to == "shared":
        told(m, int(m.places(signal[0], "shared", 8, lone, at)[0]), at, 0, size=size)


def _span(m: Machine, operand: Operand, space: str, size: int, lone: np.ndarray, at: Instruction) -> np.ndarray:
    """The place of the first of some bytes, all of which are there."""
    if size:
        last = Operand(operand.kind, value=operand.value + size - 1, parts=operand.parts)
        m.places(last, space, 1, lone, at)
    return m.places(operand, space, 16, lone, at)


def _box(m: Machine, at: Instruction, lone: np.ndarray, thread: int, loads: bool, how: str) -> None:
    """A tensor copy by one thread."""
    shared, tensor = at.operands[:2] if loads else at.operands[1::-1]
    number = int(m.read(tensor.parts[0], "u64")[thread])
    if number not in m.maps:
        raise MlircError(f"line {at.line}: `{at.name}`: there is no tensor map at {number:#x}")
    source: AnyMap = m.maps[number]
    mode = next((x for x in at.op if x in ("tile", "im2col", "im2col_no_offs")), "tile")
    if mode.removesuffix("_no_offs") != source.mode:
        raise MlircError(f"line {at.line}: `{at.name}` is of another mode than its tensor map, which is {source.mode}")
    start = [int(m.read(c, "s32")[thread]) for c in tensor.parts[1].parts][::-1]
    if len(start) != source.array.ndim:
        raise MlircError(f"line {at.line}: `{at.name}`: {len(start)} coordinates in a tensor of {source.array.ndim}")
    place = int(_span(m, shared, "shared", source.nbytes, lone, at)[0])
    stride = m.shared.shape[1]
    block, byte = divmod(place, stride)
    if byte % 128:
        raise MlircError(f"line {at.line}: `{at.name}`: byte {byte} of shared memory is no multiple of 128")
    address = swizzled(byte + np.arange(source.nbytes), source.swizzle)
    if address.max(initial=0) >= m.top:
        raise MlircError(f"line {at.line}: `{at.name}` leaves shared memory, which has {m.top} bytes")
    if not loads:
        source.write(start, m.shared[block, address], REDUCTIONS[how] if how else None)
        m.changes += 1
        return
    shifts = [int(m.read(x, "u16")[thread]) for x in at.operands[3].parts][::-1] if mode == "im2col" else []
    box = source.read(start, shifts).reshape(-1).view(np.uint8)
    signal = int(m.places(at.operands[2], "shared", 8, lone, at)[0])
    for rank in _ranks(m, at, thread, block):
        m.shared[rank, address] = box
        told(m, signal % stride + rank * stride, at, 0, size=len(box))


def _ranks(m: Machine, at: Instruction, thread: int, block: int) -> list[int]:
    """The blocks that a tensor copy goes to."""
    if "multicast::cluster" not in at.op:
        return [block]
    operand = at.operands[4 if "im2col" in at.op else 3]
    mask, first = int(m.read(operand, "u16")[thread]), block // m.blocks_of_cluster * m.blocks_of_cluster
    if not mask or mask >> m.blocks_of_cluster:
        raise MlircError(f"line {at.line}: `{at.name}`: a mask {mask:#x} in a cluster of {m.blocks_of_cluster} blocks")
    return [first + i for i in range(math.ceil(math.log2(mask + 1))) if mask >> i & 1]


def mapa(m: Machine, at: Instruction, active: Active) -> None:
    """mapa.shared::cluster: the address in the block of a rank."""
    out, address, rank = at.operands
    if at.op[1] != "shared::cluster":
        raise unknown(at)
    kind = at.op[2]
    own = m.read(address, kind) & ((1 << CLUSTER_SHIFT) - 1)
    m.write(out.name, own | (m.read(rank, "u32").astype(own.dtype) + 1 << CLUSTER_SHIFT), active)
