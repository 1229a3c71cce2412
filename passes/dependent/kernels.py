"""At the `kernels` level: which kernels begin early, and what of theirs no launch of a run writes."""

from __future__ import annotations

from mlirc.ir import levels
from mlirc.ir.dependence import DEPENDENT, GIVEN, MOST_THREADS, UNWRITTEN
from mlirc.mlir import ir, nested
from mlirc.schedule.kernel_info import describe

# Of launches that begin early by themselves. A block that waits has one latency of memory more, which is lost once for
# each wave of blocks: on an H200 a head of 49,152 rows of 576 (1.6 million threads) took 5 us longer, one of 128,256
# of 2,048 (16 million) 39 us; launches of up to a million threads became faster (dependent-launch-h200.md).
FEW_THREADS = 1 << 20
_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


def mark_kernels(module: ir.Module, *, rows: bool = False) -> None:
    """Marks every kernel of a `kernels`-level module whose `@main` has several calls, in place: one alone has nothing
    to begin in front of the end of. With `rows`: where all products are with one row, as in a step of decoding, and
    for launches of few threads."""
    if levels.calls(module).total() < 2 or rows and not _only_rows(module):
        return
    functions = levels.functions(module)
    given = _unwritten(functions["main"])
    found: dict[str, set[int]] = {}
    for function in functions.values():
        for op in nested(function.operation):
            if op.name in _VIEWS and op.operands[0] in given:
                given.add(op.results[0])
            elif op.name == "func.call":
                here = {i for i, v in enumerate(op.operands) if v in given}
                name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                found[name] = found.get(name, here) & here
    for name, function in levels.kernels(module).items():
        if name in found:
            function.attributes[DEPENDENT] = ir.UnitAttr.get()
            function.attributes[GIVEN] = ir.DenseI64ArrayAttr.get(sorted(found[name]))
            if rows:
                long = ir.IntegerType.get_signless(64)
                function.attributes[MOST_THREADS] = ir.IntegerAttr.get(long, FEW_THREADS)


def _only_rows(module: ir.Module) -> bool:
    """Whether a module has products, of 16 or 32 bits, and each is a matrix by a vector."""
    kinds = {name: ir.StringAttr(op.attributes["mlirc.kind"]).value for name, op in levels.kernels(module).items()}
    products = [describe(op.operation) for name, op in levels.kernels(module).items() if kinds[name] == "matmul"]
    return bool(products) and all(
        p.matvec is not None and p.matvec.matrix_bytes > 1 and not (p.contraction and p.contraction.packed)
        for p in products
    )


def _unwritten(main: ir.OpView) -> set[ir.Value]:
    """The arguments of `@main` that a run only reads."""
    arguments = list(main.operation.regions[0].blocks[0].arguments)
    attributes = main.operation.attributes
    about = [ir.DictAttr(a) for a in attributes["arg_attrs"]] if "arg_attrs" in attributes else [{}] * len(arguments)
    kinds = [ir.StringAttr(a["mlirc.kind"]).value if "mlirc.kind" in a else "input" for a in about]
    return {a for a, kind in zip(arguments, kinds, strict=True) if kind in UNWRITTEN}
