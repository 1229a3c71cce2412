"""At the `kernels` level: which kernels begin early, and what of theirs no launch of a run writes."""

from __future__ import annotations

from math import prod

from mlirc.ir import levels
from mlirc.ir.at_load import argument_kinds
from mlirc.ir.dependence import DEPENDENT, GIVEN, LATE, LETS, UNWRITTEN
from mlirc.ir.recurrences import KIND as RECURRENCE
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir, nested
from mlirc.schedule.kernel_info import KernelInfo, describe

# Bytes of what no launch writes beyond which a product reads many weights. On an H200 (dependent-launch-h200.md) a step
# of SmolLM2-135M, whose products have less, is fastest where all begin early. Of larger models attention, and what is
# behind it, do not: steps of TinyLlama-1.1B and Qwen2.5-7B gain 2 to 4 % so, and lose by those two. Where weights are
# f32 they gain 2 % by them (TinyLlama-1.1B, on an H200 and an H100), if attention's copies are under way before.
FEW_BYTES = 4 << 20
# Bytes of packed weights beyond which nothing begins early where several products have them: they read at nearly the
# memory's speed by themselves. Of Qwen2.5-7B's, gate and up of int8 (136 MB) cost a step 75 us so, where those of int4
# (70 MB) gain 12; and the other products of int8 lose what they gain, in what makes them ready for it.
MOST_PACKED = 96 << 20
# Rows of 16-bit floats that are as one: a step of several sequences, or tokens that are judged at once. On an H100
# these gain 6 to 16 % by the same rules; with packed weights Qwen2.5-7B's loses 18 % (verify-h100.md).
FEW_ROWS = 16
_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


def mark_kernels(module: ir.Module, *, rows: bool = False) -> None:
    """Marks every kernel of a `kernels`-level module whose `@main` has several calls, in place: one alone has nothing
    to begin in front of the end of. With `rows`: only where all products are with few rows; those that read many
    weights do not, if it is but one call, as of a head, and else all but attention and what is behind it do (none where
    several read `MOST_PACKED` bytes of packed weights); where their weights are f32, these two do, too, what is behind
    attention once its first copies are on their way."""
    calls = levels.calls(module)
    if calls.total() < 2:
        return
    kernels = levels.kernels(module)
    products = {n: describe(op.operation) for n, op in kernels.items() if rows and _kind(op) == "matmul"}
    if rows and not (products and all(map(_has_few_rows, products.values()))):
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
    read = {n: _bytes(kernels[n], found[n]) for n in found if n in products}  # a table of rows is none
    large = {n for n in read if read[n] > FEW_BYTES}
    if sum(calls[n] for n in read if read[n] > MOST_PACKED and _is_packed(products[n])) > 1:
        return
    early = set(found) - large
    lets: set[str] = set()
    late: set[str] = set()
    if sum(calls[n] for n in large) > 1:
        if all(_is_wide(products[n]) for n in large):
            early, late = set(found), {n for n in found if _kind(kernels[n]) == "attention"}
        else:
            early, lets = _apart_from_attention(_order(module), kernels)
    together = {n for n, function in kernels.items() if _kind(function) == RECURRENCE}  # all blocks begin at once
    early, lets = early - together, lets - together
    for name, function in kernels.items():
        if name in late:
            function.attributes[LATE] = ir.UnitAttr.get()
        if name in found and name in early | lets:
            function.attributes[DEPENDENT if name in early else LETS] = ir.UnitAttr.get()
            function.attributes[GIVEN] = ir.DenseI64ArrayAttr.get(sorted(found[name]))


def _apart_from_attention(order: list[str], kernels: dict) -> tuple[set[str], set[str]]:
    """Of kernels called in this order: those that begin early where products read many weights, which are all but
    attention and what stands behind it, whose weights would come in front of attention's keys; and those that stand in
    front of these and do not themselves."""
    pairs = list(zip(order, order[1:], strict=False))
    attention = {n for n in order if _kind(kernels[n]) == "attention"}
    early = set(order) - attention - {after for before, after in pairs if before in attention}
    return early, {before for before, after in pairs if after in early} - early - attention


def _order(module: ir.Module) -> list[str]:
    """The kernels of the calls in `@main`, in order."""
    main = nested(levels.functions(module)["main"].operation)
    names = [ir.FlatSymbolRefAttr(op.attributes["callee"]).value for op in main if op.name == "func.call"]
    return [n for n in names if n in levels.kernels(module)]


def _kind(function: ir.OpView) -> str:
    kind = function.attributes["mlirc.kind"] if "mlirc.kind" in function.attributes else None
    return ir.StringAttr(kind).value if kind is not None else ""


def _bytes(function: ir.OpView, arguments: set[int]) -> int:
    """Bytes of some of a kernel's arguments."""
    types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs
    tensors = [ir.RankedTensorType(types[i]) for i in arguments if isinstance(types[i], ir.RankedTensorType)]
    return sum(prod(t.shape) * ELEMENT_BYTES.get(str(t.element_type), 8) for t in tensors)


def _has_few_rows(kernel: KernelInfo) -> bool:
    """Whether a product is a matrix, of 16 or 32 bits or packed, by a vector; or, of 16 bits, by a few."""
    c = kernel.contraction
    rows = 0 if c is None else prod(kernel.dims[d].extent for d in (*c.batch, *c.m))
    if c is not None and c.packed:
        return rows == 1
    if kernel.matvec is not None:
        return kernel.matvec.matrix_bytes > 1
    return c is not None and c.element_bytes == 2 and rows <= FEW_ROWS


def _is_wide(kernel: KernelInfo) -> bool:
    """Whether a product's matrix is f32: its bytes take so long that attention's keys hardly wait for them."""
    return kernel.matvec is not None and kernel.matvec.matrix_bytes == 4


def _is_packed(kernel: KernelInfo) -> bool:
    return kernel.contraction is not None and kernel.contraction.packed > 0


def _unwritten(main: ir.OpView) -> set[ir.Value]:
    """The arguments of `@main` that a run only reads."""
    return {a for a, kind in argument_kinds(main.operation).items() if kind in UNWRITTEN}
