"""Loads that stay where they stand: in front of the shuffles and barriers of sums that they are no part of.

What is added to a row's sum, a bias or a residual, is needed by one thread, behind the sum. A schedule has it read with
all the rest (`schedule.read_first`), so that it is there by then. But LLVM and ptxas move a load to where its value is
used: under the condition that the thread stores, where all of the block waits for memory once more. A volatile load
(PTX ISA, ld.volatile) neither of them moves. But every warp's goes to the L2 cache: what all blocks read, as the angles
of a rotation, stays an ordinary load, since thousands of warps would wait for the same few lines there (queries, keys
and values of Qwen2.5-7B took 18.1 us, 12.2 so)."""

from __future__ import annotations

from mlirc.mlir import ir

_MEETINGS = ("nvvm.shfl.sync", "nvvm.barrier", "nvvm.barrier0")
_CONVERSIONS = ("llvm.bitcast", "llvm.fpext", "llvm.fptrunc")
_SHARED = "!llvm.ptr<3>"


def hold_loads(func: ir.Operation) -> None:
    """Makes such loads of an `llvm.func`'s first block volatile, in place: those of one element of global memory, in
    front of the block's last shuffle or barrier, which are no factors, and on which no shuffle and nothing in
    shared memory depends. Where threads shuffle nothing, there are no sums, and all stays as it is."""
    ops = [o.operation for o in func.regions[0].blocks[0].operations]
    meetings = [i for i, op in enumerate(ops) if op.name in _MEETINGS]
    for op in ops[: meetings[-1]] if any(ops[i].name == _MEETINGS[0] for i in meetings) else ():
        if op.name == "llvm.load" and _one_global(op) and not _scales(op) and not _meets(op):
            op.attributes["volatile_"] = ir.UnitAttr.get()


def _one_global(load: ir.Operation) -> bool:
    return str(load.operands[0].type) == "!llvm.ptr" and not isinstance(load.results[0].type, ir.VectorType)


def _scales(load: ir.Operation) -> bool:
    """Whether what is loaded, converted or not, is a factor of something."""
    for use in load.results[0].uses:
        user = use.owner.operation
        if user.name == "llvm.fmul" or user.name == "llvm.intr.fma" and use.operand_number < 2:
            return True
        if user.name in _CONVERSIONS and _scales(user):
            return True
    return False


def _meets(load: ir.Operation) -> bool:
    """Whether other threads may get what depends on a load: by a shuffle, by shared memory, or by ways not known."""
    rest, seen = [load], {load}
    while rest:
        op = rest.pop()
        for use in [use for result in op.results for use in result.uses]:
            user = use.owner.operation
            if user.name == "llvm.store" and str(user.operands[1].type) != _SHARED and use.operand_number == 0:
                continue
            if user.name in _MEETINGS or not user.results or user.successors:
                return True
            if user not in seen:
                seen.add(user)
                rest.append(user)
    return False
