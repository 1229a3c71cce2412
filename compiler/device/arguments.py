"""A kernel's arguments: inputs, which it must leave as they are, and results, of which it must write every byte."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.device.memory import Buffer
from mlirc.errors import MlircError
from mlirc.mlir import ir


@dataclass(frozen=True)
class Given:
    """An input in words, its shape, and the bytes of an element."""

    name: str
    shape: tuple[int, ...]
    item: int

    def element(self, byte: int) -> str:
        """The element that a byte belongs to, in words."""
        at = np.unravel_index(min(byte // self.item, max(math.prod(self.shape) - 1, 0)), self.shape or (1,))
        return f"element {list(map(int, at))[: len(self.shape)]} of {self.name}, which is an input"


def check_given(m: Any, buffer: Buffer, address: np.ndarray, item: int, mask, op) -> None:
    """Complains about threads that write an input (`address`: in items), whatever they write: on a GPU it is the
    caller's tensor, or a weight that the next run reads."""
    if buffer.given is None or not m.check:
        return
    bad = m.everyone(mask)
    if bad.any():
        first = int(m.compress(np.asarray(address), np.flatnonzero(bad))[0])
        m.complain("overwritten input", bad, f"writes {buffer.given.element(first * item)}", op)


def results_of(args: Sequence[np.ndarray], inputs: int | None, stored: Collection[int], kernel: str) -> set[int]:
    """Which arguments are results: those behind the `inputs`; where nobody says how many those are, what the kernel
    stores to, but for arrays that are read-only. Raises MlircError for results that cannot be written, or that share
    memory with another argument: here every argument has memory of its own, on a GPU they would not."""
    known = inputs is not None
    found = set(range(inputs or 0, len(args))) if known else {i for i in stored if args[i].flags.writeable}
    for i in sorted(found):
        if not args[i].flags.writeable:
            raise MlircError(f"host device: kernel {kernel} writes argument {i}, an array that is read-only: copy it")
    if clash := overlap(args, found):
        raise MlircError(
            f"host device: kernel {kernel}: argument {clash[0]}, which it writes, shares memory with argument "
            f"{clash[1]}: give it memory of its own"
        )
    return found


def overlap(args: Sequence[np.ndarray], written: Collection[int]) -> tuple[int, int] | None:
    """A written argument, and another one that shares memory with it; None if there are none."""
    for i in sorted(written):
        for j, other in enumerate(args):
            if i != j and _overlap(args[i], other):
                return i, j
    return None


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.may_share_memory(a, b) and np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # strides that nobody can tell apart
        return True


def own_copies(results: Sequence[np.ndarray], args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results, copied where one is an argument, a view of one, or what another result is: whoever writes to it then
    changes nothing else, and no weight in a file."""
    out: list[np.ndarray] = []
    for result in results:
        shared = any(np.may_share_memory(result, other) for other in [*args, *out])
        out.append(result.copy() if shared or not result.flags.writeable else result)
    return out


def holes(buffer: Buffer, nbytes: int, item: int) -> np.ndarray:
    """The elements of a result of which nobody wrote all bytes, as flat numbers."""
    if buffer.written is None or not nbytes:
        return np.empty(0, np.int64)
    return np.flatnonzero((buffer.written[:nbytes].reshape(-1, item) == 0).any(axis=1))


# The operand that is the address.
_STORES = {"memref.store": 1, "vector.store": 1, "vector.transfer_write": 1, "memref.copy": 1, "memref.atomic_rmw": 1,
           "memref.generic_atomic_rmw": 0, "llvm.store": 1, "llvm.atomicrmw": 0, "llvm.cmpxchg": 0,
           "nvgpu.device_async_copy": 0, "vector.maskedstore": 0, "vector.scatter": 0, "vector.compressstore": 0,
           "nvvm.cp.async.bulk.global.shared.cta": 0,
           "nvvm.cp.async.bulk.tensor.global.shared.cta": 0, "nvvm.cp.async.bulk.tensor.reduce": 0, "affine.store": 1,
           "affine.vector_store": 1}  # fmt: skip


def stored_parameters(function: Any) -> set[int]:
    """The numbers of the parameters of a gpu.func that it may write to: those that the address of a store is computed
    from, whether by views, by arithmetic on integers, or by what a branch or a loop passes on."""
    inputs = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
    arguments = list(function.regions[0].blocks[0].arguments)[:inputs]  # its own buffers follow
    found: set[int] = set()
    seen: set[ir.Value] = set()
    work: list[ir.Value] = []

    def visit(op) -> ir.WalkResult:
        if op.name in _STORES:
            work.append(op.operands[_STORES[op.name]])
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in arguments:
            found.add(arguments.index(value))
        else:
            work += _origins(value)
    return found


def _origins(value: ir.Value) -> list[ir.Value]:
    """What an address is made of: the operands of its operation but for the first index on, where it is a view."""
    owner = value.owner
    if isinstance(owner, ir.Block):  # of a loop: what enters it, and what each turn passes on
        parent = owner.owner
        if parent.operation.name in ("gpu.func", "llvm.func"):
            return []
        return [*parent.operation.operands, *_yielded(parent.operation)]
    op = owner.operation
    if op.name.startswith("memref.") and "load" not in op.name:
        return list(op.operands)[:1]
    if op.name == "llvm.load" and str(op.results[0].type).startswith("!llvm.ptr"):
        return [op.operands[0]]  # of a table of pointers
    if "load" in op.name or op.name in ("memref.alloca", "memref.alloc"):
        return []
    return [*op.operands, *_yielded(op)]


def _yielded(op) -> list[ir.Value]:
    """What the regions of an operation end with."""
    ends = [list(block.operations)[-1] for region in op.regions for block in region.blocks if len(block.operations)]
    return [v for end in ends for v in end.operation.operands]
