"""Moves loops out of large functions, each distinct one once: LLVM's time grows faster than a function's size, and a
model repeats its layers."""

from __future__ import annotations

from mlirc.mlir import context, func, ir


def outline_linalg(module: ir.Module, function: ir.Operation) -> None:
    """Replaces every linalg op on memrefs that stands in `function` itself by a call of a function that holds it."""
    made: dict[str, str] = {}
    with context(), ir.Location.unknown():
        for op in [o.operation for o in function.regions[0].blocks[0].operations]:
            if not op.name.startswith("linalg.") or len(op.results):
                continue
            constants, captured = _outer_values(op)
            holder = _holder(module, op, constants, captured)
            # Without a scope of its own, the names of the whole module are made for each.
            text = holder.operation.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
            if text in made:
                holder.operation.erase()
            else:
                made[text] = f"loops_{len(made)}"
                holder.attributes["sym_name"] = ir.StringAttr.get(made[text])
            with ir.InsertionPoint(op):
                func.CallOp([], ir.FlatSymbolRefAttr.get(made[text]), captured)
            op.erase()


def _outer_values(op: ir.Operation) -> tuple[list[ir.Operation], list[ir.Value]]:
    """The scalar constants, and all other values, that the op and its regions take from outside."""
    inside: set[ir.Value] = set()
    constants: list[ir.Operation] = []
    values: list[ir.Value] = []

    def visit(nested: ir.Operation) -> ir.WalkResult:
        for region in nested.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        inside.update(nested.results)
        return ir.WalkResult.ADVANCE

    op.walk(visit)

    def collect(nested: ir.Operation) -> ir.WalkResult:
        for value in nested.operands:
            if value in inside:
                continue
            inside.add(value)
            owner = value.owner
            if not isinstance(owner, ir.Block) and owner.name == "arith.constant":
                constants.append(getattr(owner, "operation", owner))
            else:
                values.append(value)
        return ir.WalkResult.ADVANCE

    op.walk(collect)
    return constants, values


def _is_static(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.MemRefType):
        return True
    strides, offset = type_.get_strides_and_offset()
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    return type_.has_static_shape and dynamic not in (*strides, offset)


def _holder(
    module: ir.Module, op: ir.Operation, constants: list[ir.Operation], captured: list[ir.Value]
) -> func.FuncOp:
    """A private function over `captured` that holds a copy of the op."""
    with ir.InsertionPoint(module.body):
        holder = func.FuncOp("loops", ([v.type for v in captured], []), visibility="private")
    holder.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get("noinline")])
    if all(_is_static(v.type) for v in captured):
        holder.attributes["llvm.bareptr"] = ir.UnitAttr.get()  # a tenth of the IR that passing descriptors takes
    block = holder.add_entry_block()
    with ir.InsertionPoint(block):
        moved = [c.clone() for c in constants]
        copy = op.clone()
        func.ReturnOp([])
    places = dict(zip(captured, block.arguments, strict=True))
    places |= {
        old.results[0]: getattr(new, "operation", new).results[0] for old, new in zip(constants, moved, strict=True)
    }

    def rename(nested: ir.Operation) -> ir.WalkResult:
        for i, value in enumerate(nested.operands):
            if value in places:
                nested.operands[i] = places[value]
        return ir.WalkResult.ADVANCE

    getattr(copy, "operation", copy).walk(rename)
    return holder
