"""What products by wgmma, which run while the warps go on, need of the code around them."""

from __future__ import annotations

from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir, llvm, nested, nvvm

WORD = 4  # bytes
AT_ONCE, AT_END, LATER = "at once", "at the end", "later"


def proxy_fence() -> None:
    """Makes this thread's writes to shared memory visible to wgmma and to tensor copies, which read through another
    proxy."""
    parse = ir.Attribute.parse
    nvvm.FenceProxyOp(parse("#nvvm.proxy_kind<async.shared>"), space=parse("#nvvm.shared_space<cta>"))


def pinned(value: ir.Value) -> ir.Value:
    """The same register, computed in front of this place: LLVM moves what it is made of behind no such place. No
    instruction; of other values than words, nothing."""
    type_ = value.type
    vector = ir.VectorType(type_) if isinstance(type_, ir.VectorType) else None
    element, count = (vector.element_type, vector.shape[0]) if vector is not None else (type_, 1)
    if not isinstance(element, ir.F32Type | ir.BF16Type | ir.F16Type) or element_bytes(element) * count != WORD:
        return value
    word = ir.F32Type.get() if isinstance(element, ir.F32Type) else ir.IntegerType.get_signless(32)
    register = "f" if isinstance(element, ir.F32Type) else "r"
    found = value if type_ == word else llvm.BitcastOp(word, value).result
    found = llvm.InlineAsmOp(word, [found], "", f"={register},0", has_side_effects=True).res
    return found if type_ == word else llvm.BitcastOp(type_, found).result


def carried(op: ir.Operation) -> ir.Value | None:
    """What a product's result is in the loop's next iteration, where only the loop takes it; else None."""
    result = op.results[0]
    while True:
        uses = list(result.uses)
        if len(uses) != 1:
            return None
        user = uses[0].owner.operation
        if user.name == "scf.yield" and user.parent.name == "scf.for":
            return op.block.arguments[1 + uses[0].operand_number]
        if user.name != "tensor.insert_slice" or uses[0].operand_number != 0 or user.block != op.block:
            return None
        result = user.results[0]


def reads(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an op, or one in it, reads a value."""
    return any(v == value for o in (op, *nested(op)) for v in o.operands)


def first_reader(op: ir.Operation) -> ir.Operation | None:
    """The op in front of a product that looks at its result of the iteration before."""
    value = carried(op)
    if value is None:
        return None
    return next((o for o in _until(op) if reads(o, value)), None)


def _until(op: ir.Operation) -> list[ir.Operation]:
    ops = [o.operation for o in op.block.operations]
    return ops[: ops.index(op)]


def finish(op: ir.Operation) -> str:
    """When a product that stands in a loop is waited for: `LATER`, in the next iteration, where only the loop takes its
    result, in front of what looks at it there (or at the end, if only the product itself does); `AT_END` of its
    iteration, where others behind it still look at what the iteration before gave, or where what looks at its sums in
    the next one stands in front of all products; else `AT_ONCE`."""
    value = carried(op)
    if value is None:
        return AT_ONCE
    behind = [o.operation for o in op.block.operations][len(_until(op)) + 1 :]
    reader = first_reader(op)
    products = [o for o in _until(op) if o.name == "linalg.generic" and multiply_accumulate(o)]
    # Nothing would run on: the next iteration begins with the wait.
    early = reader is not None and products and not any(p.is_before_in_block(reader) for p in products)
    return AT_END if early or any(reads(o, value) for o in behind) else LATER
