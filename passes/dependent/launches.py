"""At the `gpu` level: where a kernel lets those behind it begin, and where it waits for those in front of it.

Blocks let the next launch begin when they are about to wait themselves, with their own loads under way; where the host
function is marked `mlirc.lets_begin_late`, behind their first copies. It takes what room this one's blocks leave, never
theirs: it begins when the last of them has, or ended. The wait stands in the
kernel's outermost block, so that no thread ends without: who waits for this launch then knows that those before it have
ended, too. It comes in front of the first access to what a launch may have written, or may still read. In front of it
stay, or come, loads of what no launch writes, into registers; and prefetches of more of that (`prefetch.py`).
"""

from __future__ import annotations

from mlirc.ir import levels
from mlirc.ir.accesses import Accesses, is_pure, is_wait
from mlirc.ir.dependence import DEPENDENT, LATE, LETS, Launched, launches_of
from mlirc.mlir import ir, nested, nvvm
from mlirc.passes.dependent.prefetch import prefetch, trips

# Bytes of a thread that are loaded in front of the wait: 32 registers, which it holds for as long as it waits.
MOST_LOADED = 128
# Bytes that a thread may load behind the wait in a kernel that lets the next one begin in front of it: ptxas moves all
# loads up to `griddepcontrol.launch_dependents`, and spills what registers do not hold (18,944 elements of bf16 by one
# warp, 2,240 bytes a thread: 2 KB spilled, Qwen2.5-7B's step took twice as long). Others let it begin by ending. Not of
# packed weights, whose words a loop loads that ptxas leaves a loop: 44 bytes are spilled at the most.
MOST_BEHIND = 1536


def begin_early(module: ir.Module) -> None:
    """Gives the kernels of a `gpu`-level module their waits, and marks its launches, where the host function is
    marked `mlirc.dependent`; where it is marked `mlirc.lets_begin`, its waits alone, for those behind it. A kernel that
    waits already stays as it is."""
    host = levels.functions(module).get(levels.host_function(module))
    if host is None or DEPENDENT not in host.attributes and LETS not in host.attributes:
        return
    launches = launches_of(host.operation)
    for func in [op for op in nested(module.operation) if op.name == "gpu.func"]:
        mine = [x for x in launches if x.symbol == ir.StringAttr(func.attributes["sym_name"]).value]
        if mine and not any(map(is_wait, nested(func))):
            given = mine[0].given.intersection(*[x.given for x in mine])
            _wait_late(func, given, mine[0], late=LATE in host.attributes)
    for launch in launches if DEPENDENT in host.attributes else ():
        launch.op.attributes[DEPENDENT] = ir.UnitAttr.get()


def _wait_late(func: ir.Operation, given: frozenset[int], launch: Launched, *, late: bool) -> None:
    """Adds the two instructions; `given` are the parameters of what no launch writes. `late`: the next launch begins
    behind the first copies, or, of a kernel without, at its end."""
    accesses = Accesses(func)
    ops = [o.operation for o in accesses.block.operations]
    alone = len(func.regions[0].blocks) == 1  # else control flow leads around what stands behind the first block
    place = next((o for o in ops if not alone or accesses.accessed(o) - given), ops[-1])
    with place.location, ir.InsertionPoint(place):
        wait = nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.wait).operation
    once = any(accesses.once(op) for op in nested(func))
    if alone:
        loaded = _load_first(ops[ops.index(place) :], wait, accesses, given)
        prefetch(func, wait, accesses, given, loaded, launch, plain=not once)
    if late:
        copied = next((op for op in nested(func) if op.name == "nvvm.cp.async.commit.group"), None)
        if copied is not None:
            with copied.location, ir.InsertionPoint.after(copied):
                nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.launch_dependents)
        return
    if not once and _loaded_behind(wait, accesses) > MOST_BEHIND:
        return
    with place.location, ir.InsertionPoint(wait):
        nvvm.GriddepcontrolOp(nvvm.GridDepActionKind.launch_dependents)


def _loaded_behind(wait: ir.Operation, accesses: Accesses) -> int:
    """Bytes that a thread loads behind the wait, in all iterations of its loops as far as their number is known."""
    total, late = 0, False
    for top in [o.operation for o in accesses.block.operations]:
        late = late or top == wait
        for op in (top, *nested(top)) if late else ():
            if not accesses.reads(op):
                continue
            size, inner = _bytes(op.results[0].type), op
            while (inner := inner.parent.operation).name != "gpu.func":
                size *= (trips(inner) or 1) if inner.name == "scf.for" else 1
            total += size
    return total


def _load_first(
    behind: list[ir.Operation], wait: ir.Operation, accesses: Accesses, given: frozenset[int]
) -> set[ir.Operation]:
    """Moves loads of what no launch writes in front of the wait, with the numbers that they need; returns them."""
    movable: dict[ir.Operation, list[ir.Operation]] = {}  # with what has to move before them, of those behind the wait
    late = set(behind)
    moved: set[ir.Operation] = set()
    room = MOST_LOADED
    for op in behind:
        reads = accesses.reads(op)
        loads = reads is not None and bool(reads) and reads <= given
        if not loads and not is_pure(op):
            continue
        needed: list[ir.Operation] = []
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation not in late:
                continue
            if owner.operation not in movable:
                break
            needed += [o for o in (*movable[owner.operation], owner.operation) if o not in needed]
        else:
            if not loads:
                movable[op] = needed
            elif (size := _bytes(op.results[0].type)) <= room:
                room -= size
                movable[op] = needed
                for one in [*needed, op]:
                    if one not in moved:
                        one.move_before(wait)
                        moved.add(one)
    return moved


def _bytes(type_: ir.Type) -> int:
    """Bytes of registers that a value takes."""
    count, element = 1, type_
    if isinstance(type_, ir.VectorType):
        element = ir.VectorType(type_).element_type
        for extent in ir.VectorType(type_).shape:
            count *= extent
    bits = 64 if isinstance(element, ir.IndexType) else element.width
    return max(4, count * bits // 8)
