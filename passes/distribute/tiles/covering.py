"""Gathers of neighbours that are not aligned, or that lie some elements apart, as the windows of a pooling along rows:
whole aligned accesses cover what a piece reads, and what its next tap reads, so that each is loaded once."""

from __future__ import annotations

from typing import Any

from mlirc.ir.levels import INDEX_BELOW
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute.memory import access
from mlirc.passes.graph.index import Index

ACCESS = 16  # bytes
SGE, SLT = 5, 2  # predicates of arith.cmpi
CASTS = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")


def covered(body: Any, op: ir.Operation, p: int, view: access.View, indices: list[ir.Value]) -> ir.Value | None:
    """Piece p of a `tensor.extract` in a body (`elementwise.Body`), whose indices are given; None where accesses do not
    cover it, or no fewer than it has elements."""
    em, width = body.em, ACCESS // element_bytes(view.element)
    *rows, last = list(op.operands)[1:]
    row_length = view.shape[-1]
    if body.places is None or width < 2 or row_length % width or any(map(body.wide, rows)):
        return None
    if (plain := _unclamped(op, last, row_length)) is None:
        return None
    found: list[Index | None] = [body.places.form(plain, p * body.piece + k) for k in range(body.piece)]
    forms = [form for form in found if form is not None and form.terms == (found[0] or form).terms]
    if len(forms) < body.piece or any(c % width for c in forms[0].terms.values()):
        return None
    starts = {form.const // width for form in forms}
    if len(starts) > body.piece // 2 + 1:
        return None
    loaded = {}
    for start in starts:
        key = ("covered", view.base, *indices[:-1], start, Index(0, forms[0].terms))
        if key not in body.memo:
            at = _inside(em, body.places, Index(start * width, forms[0].terms), row_length - width)
            body.memo[key] = access.load_elements(em, view, [*indices[:-1], at], width)
        loaded[start] = body.memo[key]
    elements = [em.extract(loaded[f.const // width], f.const % width) for f in forms]
    return access.join(em, elements, 1, op.results[0].type, body.piece)


def _inside(em: Any, places: Any, index: Index, most: int) -> ir.Value:
    """An index of an aligned access, kept in the row."""
    low, high = index.range()
    value = places.value(index)
    if low < 0:
        value = em.max(value, 0)
    return em.value(em.min(value, most) if high > most else value)


def _unclamped(op: ir.Operation, index: ir.Value, row_length: int) -> ir.Value | None:
    """The index that a read has before it is kept in its row, where nobody looks at what is read if that changes it;
    None where somebody may."""
    needed = []
    while not isinstance(index.owner, ir.Block) and index.owner.name in ("arith.maxsi", "arith.minsi"):
        clamp = index.owner.operation
        limit = _constant(clamp.operands[1])
        if INDEX_BELOW in clamp.attributes or limit != (0 if clamp.name == "arith.maxsi" else row_length - 1):
            return None
        needed.append((SGE, 0) if clamp.name == "arith.maxsi" else (SLT, row_length))
        index = clamp.operands[0]
    asked = all(_is_guarded(op.results[0], index, test) for test in needed)
    return index if asked else None


def _is_guarded(value: ir.Value, index: ir.Value, test: tuple[int, int]) -> bool:
    """Whether all who read a value, or a cast of it, select it where a comparison of an index holds."""
    for use in value.uses:
        user = use.owner.operation
        if user.name in CASTS:
            if not _is_guarded(user.results[0], index, test):
                return False
        elif user.name != "arith.select" or use.operand_number != 1 or not _asks(user.operands[0], index, test):
            return False
    return True


def _asks(condition: ir.Value, index: ir.Value, test: tuple[int, int]) -> bool:
    """Whether a condition holds only where `index` is at least, or less than, a number."""
    if isinstance(condition.owner, ir.Block):
        return False
    op = condition.owner.operation
    if op.name == "arith.andi":
        return any(_asks(v, index, test) for v in op.operands)
    if op.name != "arith.cmpi" or op.operands[0] != index:
        return False
    return (ir.IntegerAttr(op.attributes["predicate"]).value, _constant(op.operands[1])) == test


def _constant(value: ir.Value) -> int | None:
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return None
    attribute = value.owner.attributes["value"]
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
