"""Where operations access memory: memrefs and their indices, and pointers. A pointer is a `MemRef` of rank 0 whose base
counts bytes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from mlirc.device.machine import State
from mlirc.device.memory import MemRef
from mlirc.device.numbers import dtype_of
from mlirc.device.translate import Translator
from mlirc.errors import MlircError
from mlirc.mlir import ir


def indices_of(tr: Translator, values) -> list:
    """Index operands as numbers where constant, else as registers wrapped in a one-element tuple."""
    return [k if (k := tr.known(v)) is not None else (tr.reg(v),) for v in values]


def fetch(r: list, indices: list) -> list:
    return [i if isinstance(i, int) else r[i[0]] for i in indices]


def shift(pointer: MemRef, byte) -> MemRef:
    """A pointer moved by a number (or an array) of bytes."""
    return MemRef(pointer.buffer, pointer.base + byte, (), (), 1, pointer.rank)


def element_of(s: State, pointer: MemRef, item: int, op) -> tuple[MemRef, list]:
    """A pointer as a one-dimensional memref of elements of `item` bytes, and the index it points to."""
    base = pointer.base if isinstance(pointer.base, np.ndarray) else np.full((1, 1), pointer.base, dtype=np.int64)
    off = s.m.active(s.mask, base % item != 0)
    if off is not None:
        s.m.complain(
            "misaligned",
            off,
            f"has an address in {pointer.buffer.name} that is no multiple of the {item} bytes of an element",
            op,
        )
    buffer = pointer.buffer
    if item > buffer.align:
        s.m.placed(buffer, item, s.mask, op)
    return MemRef(buffer, 0, (buffer.nbytes // item,), (1,), item, pointer.rank), [base // item]


def address_of(
    tr: Translator, op, pointer: ir.Value, indices: list, item: int
) -> Callable[[State], tuple[MemRef, list]]:
    """A function of the state that tells where an operation accesses memory: by a memref and its indices, or by a
    pointer to elements of `item` bytes. It returns a memref and indices."""
    register = tr.reg(pointer)
    if isinstance(pointer.type, ir.MemRefType):
        numbers = indices_of(tr, indices)
        return lambda s: (s.r[register], fetch(s.r, numbers))
    return lambda s: element_of(s, s.r[register], item, op)


def struct_fields(t: ir.Type) -> tuple[int, np.dtype]:
    """The number and dtype of a struct's fields, which are all of one type."""
    inner = re.fullmatch(r"!llvm\.struct<\((.*)\)>", str(t))
    names = [n.strip() for n in inner[1].split(",")] if inner else []
    if not names or len(set(names)) != 1:
        raise MlircError(f"host device: a value of type {t}: only structs of equal numbers are supported")
    return len(names), dtype_of(ir.Type.parse(names[0], t.context))
