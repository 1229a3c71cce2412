"""Constants in addresses, as the offsets that PTX's accesses have room for.

An element's number is i32, an address in global memory 64 bits: LLVM adds a constant to the number before it extends
it, so that accesses that lie constants apart have an address each, two registers and four instructions. Only if it knew
that the sum does not wrap would it add them the other way about; a flag that says so (`nsw`) does not stay, since what
reorders sums drops it. So a getelementptr of `base + c` becomes two here, of `base` and of `c`.

Of copies by cp.async LLVM computes each address only once, however far from its use: those of a loop's first slices are
kept in registers for another loop's. Here they become the PTX instruction, whose constants nothing can take out.
"""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import find, ir, llvm

_OPERAND = -(1 << 31)  # among a getelementptr's constant indices: an operand stands here
_FARTHEST = 1 << 27  # elements of up to eight bytes: PTX's offsets have 32 bits
_COPY = "nvvm.cp.async.shared.global"
_Split = tuple[ir.Value | None, int]  # what varies, None for nothing, and the constant


def constants_as_offsets(func: ir.Operation) -> None:
    """Splits the addresses of an llvm.func into what varies and a constant number of elements.

    Sound because an address is in bounds, and `lowering.index_bits` has checked that bounds fit: no sum wraps.
    """
    known: dict[ir.Value, _Split] = {}
    copies = find(func, _COPY)
    for op in find(func, "llvm.getelementptr"):
        if _indices(op) != [_OPERAND]:
            continue
        base, constant = _split(op.operands[1], known)
        if base is None or constant == 0 or abs(constant) >= _FARTHEST:
            continue
        pointer, element = op.results[0].type, op.attributes["elem_type"]
        with ir.InsertionPoint(op), op.location:
            start = llvm.GEPOp(pointer, op.operands[0], [base], [_OPERAND], element, None).result
            there = llvm.GEPOp(pointer, start, [], [constant], element, None).result
        op.results[0].replace_all_uses_with(there)
        op.erase()
    for op in copies:
        _copy_with_offsets(op)


def _indices(op: ir.Operation) -> list[int]:
    return list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"]))


def _split(value: ir.Value, known: dict[ir.Value, _Split]) -> _Split:
    """An integer as a sum of what varies, built beside it, and a constant."""
    if value not in known:
        known[value] = _split_once(value, known)
    return known[value]


def _split_once(value: ir.Value, known: dict[ir.Value, _Split]) -> _Split:
    owner = value.owner
    op = owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None
    if op is not None and op.name == "llvm.mlir.constant":
        return None, ir.IntegerAttr(op.attributes["value"]).value
    if op is None or op.name not in ("llvm.add", "llvm.mul"):
        return value, 0
    (left, c), (right, d) = (_split(x, known) for x in op.operands)
    if op.name == "llvm.mul":
        if left is None:
            left, c, right, d = right, d, left, c
        if left is None or right is not None or c == 0:
            return value, 0
        with ir.InsertionPoint(op), op.location:
            factor = llvm.ConstantOp(value.type, ir.IntegerAttr.get(value.type, d)).result
            return llvm.MulOp(left, factor, _wrapping()).result, c * d
    if left is None or right is None:
        return left or right, c + d
    if c == d == 0:
        return value, 0
    with ir.InsertionPoint(op), op.location:
        return llvm.AddOp(left, right, _wrapping()).result, c + d


def _wrapping() -> ir.Attribute:
    return ir.Attribute.parse("#llvm.overflow<none>")


def _with_offset(pointer: ir.Value) -> tuple[ir.Value, int]:
    """A pointer as one in front of it and the bytes between the two."""
    owner = pointer.owner
    op = owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None
    if op is not None and op.name == "llvm.addrspacecast":
        below, offset = _with_offset(op.operands[0])
        if offset:
            with ir.InsertionPoint(op), op.location:
                return llvm.AddrSpaceCastOp(pointer.type, below).result, offset
    if op is None or op.name != "llvm.getelementptr" or len(op.operands) != 1 or len(_indices(op)) != 1:
        return pointer, 0
    element = ir.TypeAttr(op.attributes["elem_type"]).value
    if not isinstance(element, ir.IntegerType | ir.FloatType):
        return pointer, 0
    start, offset = _with_offset(op.operands[0])
    offset += _indices(op)[0] * element_bytes(element)
    return (start, offset) if abs(offset) < 1 << 31 else (pointer, 0)


def _copy_with_offsets(op: ir.Operation) -> None:
    """A copy from global to shared memory as PTX text (PTX ISA, "cp.async")."""
    (to, a), (at, b) = _with_offset(op.operands[0]), _with_offset(op.operands[1])
    size, cache = ir.IntegerAttr(op.attributes["size"]).value, str(op.attributes["modifier"]).rsplit(" ", 1)[-1]
    places = ", ".join(f"[${i}+{offset}]" if offset else f"[${i}]" for i, offset in enumerate((a, b)))
    count = list(op.operands)[2:]  # bytes that are read; the rest are zeros
    text = f"cp.async.{cache.strip('<>')}.shared.global {places}, {size}" + ", $2" * len(count) + ";"
    with ir.InsertionPoint(op), op.location:
        llvm.InlineAsmOp(None, [to, at, *count], text, "r,l" + ",rn" * len(count) + ",~{memory}", has_side_effects=True)
    op.erase()
