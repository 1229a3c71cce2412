"""Two calls of recurrences that do not depend on each other become the call of one kernel, which has both loops."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.dialects.schedule import _build
from mlirc.ir.recurrences import KIND
from mlirc.mlir import func, ir
from mlirc.passes.graph.outline import graph_functions

Alike = Callable[[str, str], bool]


def pair(module: ir.Module, alike: Alike) -> None:
    """Pairs calls in `@main`, of kernels that are `alike`, by their names: the later call is where both are made."""
    functions = {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}
    made: dict[tuple[str, str], func.FuncOp] = {}
    block = graph_functions(module)[0].operation.regions[0].blocks[0]
    waiting: list[ir.Operation] = []
    for op in [o.operation for o in block.operations]:
        waiting = [w for w in waiting if not any(v.owner.operation == w for v in op.operands if not _is_argument(v))]
        if op.name != "func.call" or not _name(op).startswith(f"{KIND}_"):
            continue
        first = next((w for w in waiting if alike(_name(w), _name(op)) and not _depends(op, w)), None)
        if first is None:
            waiting.append(op)
            continue
        waiting.remove(first)
        names = _name(first), _name(op)
        if names not in made:
            number = len(functions) + len(made)
            made[names] = _joined(module, functions[names[0]], functions[names[1]], f"{KIND}_{number}")
        _call(made[names], first, op)
    used = {_name(o.operation) for o in block.operations if o.operation.name == "func.call"}
    for name in {n for names in made for n in names} - used:
        functions[name].operation.erase()


def _name(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _is_argument(value: ir.Value) -> bool:
    return isinstance(value.owner, ir.Block)


def _depends(op: ir.Operation, on: ir.Operation) -> bool:
    """Whether an op is computed of another one's results."""
    seen: set[ir.Operation] = set()
    work = [op]
    while work:
        for value in work.pop().operands:
            if _is_argument(value) or (owner := value.owner.operation) in seen:
                continue
            if owner == on:
                return True
            seen.add(owner)
            work.append(owner)
    return False


def _joined(module: ir.Module, first: func.FuncOp, second: func.FuncOp, name: str) -> func.FuncOp:
    """A kernel with the loops of two, over the arguments of both, with the results of both."""
    types = [[*f.type.inputs] for f in (first, second)], [[*f.type.results] for f in (first, second)]
    with ir.InsertionPoint(module.body), first.location:
        kernel = func.FuncOp(name, ([t for ts in types[0] for t in ts], [t for ts in types[1] for t in ts]))
        kernel.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for key in ("mlirc.kernel", "mlirc.kind", "mlirc.origin"):
            kernel.attributes[key] = first.attributes[key]
        block = kernel.add_entry_block()
    results: list[ir.Value] = []
    start = 0
    with ir.InsertionPoint(block):
        for function in (first, second):
            own = function.operation.regions[0].blocks[0]
            count = len(own.arguments)
            values = dict(zip(own.arguments, list(block.arguments)[start : start + count], strict=True))
            start += count
            *ops, end = [o.operation for o in own.operations]
            for op in ops:
                _build.clone(op, values)
            results += [values[v] for v in end.operands]
        func.ReturnOp(results)
    return kernel


def _call(kernel: func.FuncOp, first: ir.Operation, second: ir.Operation) -> None:
    with ir.InsertionPoint(second), second.location:
        call = func.CallOp(kernel, [*first.operands, *second.operands])
    old = [*first.results, *second.results]
    for result, new in zip(old, call.results, strict=True):
        result.replace_all_uses_with(new)
    second.erase()
    first.erase()
