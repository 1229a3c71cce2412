"""`mlirc-prefetch-weights`: small launches bring weights into the L2 cache for those behind them.

A `kernels`-level pass. Where a step of decoding rotates and writes its keys, and attends to the cache, little is read
from memory, and the products behind wait for nothing but their weights. Blocks of their own in the launch of such a
small kernel (of kind `bundle`) ask for these: a prefetch changes nothing that anybody can see, and what has come by the
time that it is read comes from the cache.

A bundle brings the weights of the products behind it, in the order in which these run, up to the next bundle: `bytes`
of them at most, of which the last product's weights share what is left. They become arguments of its kernel, which says
with `mlirc.prefetch` which these are.

    bytes   of one launch (default: 24 MiB)
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.ir.tensors import ELEMENT_BYTES, shape_of
from mlirc.mlir import func, ir
from mlirc.passes import register
from mlirc.passes.graph.bundles import KIND
from mlirc.passes.loops.prefetches import LINE, PREFETCH

BYTES = 24 << 20
LEAST = 1 << 16  # bytes of a tensor that are worth it
_WEIGHTS = ("weight", "constant")


@register("mlirc-prefetch-weights")
def run(module: ir.Module, bytes: str = "", **options: str) -> None:
    """Gives bundles the weights that they bring, in place. Raises MlircError for an unknown option."""
    if options or not (bytes.isdigit() or not bytes):
        raise MlircError("mlirc-prefetch-weights has one option: bytes, of one launch")
    kernels = dict(levels.kernels(module))
    main = levels.functions(module)["main"]
    weights = _weights(main)
    block = main.operation.regions[0].blocks[0]
    calls = [op for op in block.operations if isinstance(op, func.CallOp) and op.callee.value in kernels]
    made: dict[tuple, func.FuncOp] = {}
    for i, call in enumerate(calls):
        if _kind(kernels[call.callee.value]) == KIND:
            found = _behind(calls[i + 1 :], kernels, weights, int(bytes) if bytes else BYTES)
            if found:
                _bring(call, kernels[call.callee.value], found, made)
    used = {op.callee.value for op in block.operations if isinstance(op, func.CallOp)}
    for name, kernel in kernels.items():
        if _kind(kernel) == KIND and name not in used:
            kernel.operation.erase()


def _kind(kernel: ir.OpView) -> str:
    return ir.StringAttr(kernel.attributes["mlirc.kind"]).value


def _weights(main: ir.OpView) -> set[ir.Value]:
    """The arguments of `@main` that hold weights, which no run writes."""
    arguments = list(main.operation.regions[0].blocks[0].arguments)
    attributes = main.operation.attributes
    about = [ir.DictAttr(a) for a in attributes["arg_attrs"]] if "arg_attrs" in attributes else [{}] * len(arguments)
    kinds = [ir.StringAttr(a["mlirc.kind"]).value if "mlirc.kind" in a else "" for a in about]
    return {a for a, kind in zip(arguments, kinds, strict=True) if kind in _WEIGHTS}


def _behind(
    calls: list[func.CallOp], kernels: dict[str, ir.OpView], weights: set[ir.Value], room: int
) -> dict[ir.Value, int]:
    """The weights that products read until the next bundle, with how many of their first bytes there is room for."""
    found: dict[ir.Value, int] = {}
    for call in calls:
        kernel = kernels[call.callee.value]
        if _kind(kernel) == KIND or room < LINE:
            break
        if _kind(kernel) != "matmul":
            continue
        sizes = {v: nbytes for v in call.operands if v in weights and v not in found and (nbytes := _bytes(v)) >= LEAST}
        if total := sum(sizes.values()):
            share = min(1.0, room / total)
            found |= {v: int(nbytes * share) // LINE * LINE for v, nbytes in sizes.items()}
            room -= min(room, total)
    return {v: nbytes for v, nbytes in found.items() if nbytes}


def _bytes(value: ir.Value) -> int:
    """Of a tensor, whole lines; 0 for one whose elements are no bytes."""
    size = ELEMENT_BYTES.get(str(ir.RankedTensorType(value.type).element_type), 0)
    for extent in shape_of(value):
        size *= extent
    return size // LINE * LINE


def _bring(call: func.CallOp, kernel: ir.OpView, found: dict[ir.Value, int], made: dict[tuple, func.FuncOp]) -> None:
    """Replaces a call by one of a kernel that takes the weights, too."""
    key = (call.callee.value, *((str(v.type), nbytes) for v, nbytes in found.items()))
    if key not in made:
        made[key] = _with_arguments(kernel, found, f"{call.callee.value}_{sum(k[0] == key[0] for k in made)}")
    with call.location, ir.InsertionPoint(call):
        new = func.CallOp(made[key], [*call.operands, *found])
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    call.operation.erase()


def _with_arguments(kernel: ir.OpView, found: dict[ir.Value, int], name: str) -> func.FuncOp:
    """A copy of a kernel with arguments behind its own."""
    new = kernel.operation.clone(ip=ir.InsertionPoint(kernel)).opview
    block = new.operation.regions[0].blocks[0]
    first = len(block.arguments)
    for value in found:
        block.add_argument(value.type, kernel.location)
    type_ = ir.FunctionType(ir.TypeAttr(new.attributes["function_type"]).value)
    inputs = [*type_.inputs, *(v.type for v in found)]
    new.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, type_.results))
    if "arg_attrs" in new.attributes:
        more = [ir.DictAttr.get({})] * len(found)
        new.attributes["arg_attrs"] = ir.ArrayAttr.get([*ir.ArrayAttr(new.attributes["arg_attrs"]), *more])
    new.attributes["sym_name"] = ir.StringAttr.get(name)
    numbers = [n for i, nbytes in enumerate(found.values()) for n in (first + i, nbytes)]
    new.attributes[PREFETCH] = ir.DenseI64ArrayAttr.get(numbers)
    return new
