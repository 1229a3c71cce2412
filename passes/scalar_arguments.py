"""`mlirc-scalar-arguments`: kernels take numbers by value where the host knows them.

`mark_scalars` finds, at the `kernels` level, the arguments of kernels that every call gives an input of kind `scalar`,
and lists them in the function's `mlirc.values` (array of i64). At the `gpu` level the pass has the host function load
these, and the kernels take what is loaded, in place of the memref of one element: where they only load from it.
"""

from __future__ import annotations

import math

from mlirc.ir import levels, loops
from mlirc.mlir import arith, ir, memref, nested
from mlirc.passes import register

VALUES = "mlirc.values"
_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


def mark_scalars(module: ir.Module) -> None:
    """Lists, in place, the arguments of each kernel that may be values."""
    functions = levels.functions(module)
    main = functions["main"]
    if "arg_attrs" not in main.attributes or '"scalar"' not in str(main.attributes["arg_attrs"]):
        return
    block = main.operation.regions[0].blocks[0]
    kinds = [ir.DictAttr(a) for a in main.attributes["arg_attrs"]]
    scalars = {a for a, k in zip(block.arguments, kinds, strict=True)
               if "mlirc.kind" in k and ir.StringAttr(k["mlirc.kind"]).value == "scalar"}  # fmt: skip
    found: dict[str, set[int]] = {}
    for function in functions.values():
        for op in nested(function.operation):
            if op.name in _VIEWS and op.operands[0] in scalars:
                scalars.add(op.results[0])
            elif op.name == "func.call":
                here = {i for i, v in enumerate(op.operands) if v in scalars}
                name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
                found[name] = found.get(name, here) & here
    for name, numbers in found.items():
        if numbers and name in functions and not loops.is_loop(functions[name]):
            functions[name].attributes[VALUES] = ir.DenseI64ArrayAttr.get(sorted(numbers))


@register("mlirc-scalar-arguments")
def run(module: ir.Module, **options: str) -> None:
    """Gives the kernels of one `gpu`-level module the numbers of `mlirc.values` by value, in place."""
    host = levels.functions(module).get(levels.host_function(module))
    if host is None or VALUES not in host.attributes:
        return
    block = host.operation.regions[0].blocks[0]
    kernels = {ir.StringAttr(op.attributes["sym_name"]).value: op
               for op in nested(module.operation) if op.name == "gpu.func"}  # fmt: skip
    launches = [op.operation for op in block.operations if op.operation.name == "gpu.launch_func"]
    symbols = [ir.SymbolRefAttr(op.attributes["kernel"]).value[-1] for op in launches]
    for number in ir.DenseI64ArrayAttr(host.attributes[VALUES]):
        argument = block.arguments[number]
        for launch, symbol in zip(launches, symbols, strict=True):
            if symbols.count(symbol) == 1:
                _give(launch, kernels[symbol], argument)


def _give(launch: ir.Operation, kernel: ir.Operation, argument: ir.Value) -> None:
    """Has one launch give the number that an argument holds, where its kernel only loads it."""
    segments = list(ir.DenseI32ArrayAttr(launch.attributes["operandSegmentSizes"]))
    start = sum(segments[:11])
    type_ = ir.MemRefType(argument.type)
    for k in range(segments[11]):
        parameter = kernel.regions[0].blocks[0].arguments[k]
        if launch.operands[start + k] != argument or math.prod(type_.shape) != 1:
            continue
        uses = [use.owner.operation for use in parameter.uses]
        if not all(op.name == "memref.load" for op in uses):
            continue
        with launch.location, ir.InsertionPoint(launch):
            zero = [arith.constant(ir.IndexType.get(), 0)] if type_.shape else []
            launch.operands[start + k] = memref.LoadOp(argument, zero * len(type_.shape)).result
        for op in uses:
            op.results[0].replace_all_uses_with(parameter)
            op.erase()
        parameter.set_type(type_.element_type)
        known = ir.FunctionType(ir.TypeAttr(kernel.attributes["function_type"]).value)
        inputs = [*known.inputs[:k], type_.element_type, *known.inputs[k + 1 :]]
        kernel.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, known.results))
