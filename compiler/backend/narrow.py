"""Joins code lowered with 64-bit indices (upstream's nvgpu conversion knows no other) to code with 32-bit indices.

Between the two stand unrealized casts: i32 -> index -> i64, and a 32-bit memref descriptor -> memref -> a 64-bit
descriptor. Address arithmetic behind such casts is rebuilt on i32; what else is left becomes a sign extension.
"""

from __future__ import annotations

from mlirc.mlir import find, ir, llvm

_CAST = "builtin.unrealized_conversion_cast"


def _owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None


def _through_cast(value: ir.Value) -> ir.Value | None:
    """x of cast(cast(x)), or None."""
    outer = _owner(value)
    if outer is None or outer.name != _CAST:
        return None
    inner = _owner(outer.operands[0])
    if inner is None or inner.name != _CAST:
        return None
    return inner.operands[0]


def _is_int(type_: ir.Type, width: int) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width == width


def _narrow(value: ir.Value) -> ir.Value | None:
    """The same number as an i32 value, built before its user, or None when it is no index arithmetic."""
    owner = _owner(value)
    if owner is None:
        return None
    i32 = ir.IntegerType.get_signless(32)
    if owner.name == "llvm.mlir.constant":
        number = ir.IntegerAttr(owner.attributes["value"]).value
        with ir.InsertionPoint(owner):
            return llvm.ConstantOp(i32, ir.IntegerAttr.get(i32, number)).result
    source = _through_cast(value)
    if source is not None:
        return source if _is_int(source.type, 32) else None
    if owner.name not in ("llvm.add", "llvm.mul"):
        return None
    left = _narrow(owner.operands[0])
    right = _narrow(owner.operands[1]) if left is not None else None
    if left is None or right is None:
        return None
    with ir.InsertionPoint(owner):
        build = llvm.AddOp if owner.name == "llvm.add" else llvm.MulOp
        return build(left, right, ir.Attribute.parse("#llvm.overflow<none>")).result  # no binding sets another


def _extract_from_narrow(extract: ir.Operation) -> bool:
    """Reads a field of a 64-bit descriptor from the 32-bit descriptor that it was cast from."""
    source = _through_cast(extract.operands[0])
    if source is None or source.type == extract.operands[0].type:
        return False
    position = extract.attributes["position"]
    result = extract.results[0]
    with ir.InsertionPoint(extract):
        if str(result.type).startswith("!llvm.ptr"):
            fresh = llvm.ExtractValueOp(result.type, source, position).result
        else:
            narrow = llvm.ExtractValueOp(ir.IntegerType.get_signless(32), source, position).result
            fresh = llvm.SExtOp(result.type, narrow).result
    result.replace_all_uses_with(fresh)
    return True


def narrow_addresses(gpu_module: ir.Operation) -> None:
    """Rewires the seams between 64-bit and 32-bit index code in a gpu.module of the llvm dialect, in place."""
    with gpu_module.context, ir.Location.unknown():
        ops = find(gpu_module, _CAST, "llvm.extractvalue", "llvm.getelementptr")
        if not any(op.name == _CAST for op in ops):
            return
        dead = [op for op in ops if op.name == "llvm.extractvalue" and _extract_from_narrow(op)]
        for op in ops:
            if op.name != "llvm.getelementptr":
                continue
            for i in range(1, len(op.operands)):
                if _is_int(op.operands[i].type, 64):
                    fresh = _narrow(op.operands[i])
                    if fresh is not None:
                        op.operands[i] = fresh
        for op in ops:
            if op.name == _CAST:
                _resize_cast(op)
        for op in dead:
            op.erase()


def _resize_cast(op: ir.Operation) -> None:
    """Turns what is left of i32 -> index -> i64 (or back) into an extension (or a truncation)."""
    source = _through_cast(op.results[0])
    if source is None:
        return
    result = op.results[0]
    with ir.InsertionPoint(op):
        if _is_int(source.type, 32) and _is_int(result.type, 64):
            result.replace_all_uses_with(llvm.SExtOp(result.type, source).result)
        elif _is_int(source.type, 64) and _is_int(result.type, 32):
            result.replace_all_uses_with(
                llvm.TruncOp(result.type, source, ir.Attribute.parse("#llvm.overflow<none>")).result
            )
