"""How hard LLVM tries: what runs for a shorter time than it would take to optimize is compiled as it is, unless that
costs accuracy."""

from __future__ import annotations

from mlirc.mlir import ir, nested

PLAIN, OPTIMIZED = 0, 2  # LLVM's levels
# To optimize costs 0.5 to 2.5 ms per operation in the code, and saves 0.1 to 0.3 ns per execution of one; what is
# compiled is run a few times.
_EXECUTIONS = 500_000
# A sum that LLVM may reorder is several sums when it is optimized, and much nearer to the truth where it is long.
_LONG_SUM = 2048
_UNKNOWN_TRIPS = 16  # of a loop with computed bounds, such as a triangle's


def opt_level(module: ir.Module, function: str) -> int:
    """The level at which LLVM should compile a module of loops over buffers whose `function` is called a few times."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    ops = [op for f in functions.values() for op in nested(f)]
    if any(_trips(op) >= _LONG_SUM and _sums(op) for op in ops):
        return OPTIMIZED
    return OPTIMIZED if _executions(functions[function], functions, {}) > _EXECUTIONS * len(ops) else PLAIN


def _sums(loop: ir.Operation) -> bool:
    """Whether a loop adds up numbers in an order that does not matter."""
    return any(
        op.operation.name == "arith.addf" and "reassoc" in str(op.attributes["fastmath"])
        for op in loop.regions[0].blocks[0].operations
    )


def _executions(op: ir.Operation, functions: dict[str, ir.Operation], known: dict[str, int]) -> int:
    """How many operations one execution of `op` executes inside of it; `known` holds those of functions."""
    count = 0
    for inner in (o.operation for region in op.regions for block in region.blocks for o in block.operations):
        if inner.name == "func.call":
            callee = ir.FlatSymbolRefAttr(inner.attributes["callee"]).value
            if callee not in known:
                known[callee] = 0  # for one that calls itself
                known[callee] = _executions(functions[callee], functions, known)
            count += 1 + known[callee]
        else:
            count += 1 + _trips(inner) * _executions(inner, functions, known)
    return count


def _trips(op: ir.Operation) -> int:
    if op.name == "scf.for":
        lower, upper, step = (_constant(v) for v in list(op.operands)[:3])
        if lower is not None and upper is not None and step:
            return max(0, -(-(upper - lower) // step))
    return _UNKNOWN_TRIPS if op.name in ("scf.for", "scf.while") else 1


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return ir.IntegerAttr(owner.attributes["value"]).value
