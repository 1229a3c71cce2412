"""At the `kernels` level: which kernels begin early, and what of theirs no launch of a run writes."""

from __future__ import annotations

from mlirc.ir import levels
from mlirc.ir.dependence import DEPENDENT, GIVEN, UNWRITTEN
from mlirc.mlir import ir, nested

_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


def mark_kernels(module: ir.Module) -> None:
    """Marks every kernel of a `kernels`-level module whose `@main` has several calls, in place: one alone has nothing
    to begin in front of the end of."""
    if levels.calls(module).total() < 2:
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


def _unwritten(main: ir.OpView) -> set[ir.Value]:
    """The arguments of `@main` that a run only reads."""
    arguments = list(main.operation.regions[0].blocks[0].arguments)
    attributes = main.operation.attributes
    about = [ir.DictAttr(a) for a in attributes["arg_attrs"]] if "arg_attrs" in attributes else [{}] * len(arguments)
    kinds = [ir.StringAttr(a["mlirc.kind"]).value if "mlirc.kind" in a else "input" for a in about]
    return {a for a, kind in zip(arguments, kinds, strict=True) if kind in UNWRITTEN}
