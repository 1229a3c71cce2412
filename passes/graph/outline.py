"""Turns groups of ops of `@main` into kernel functions and calls, one function for equal groups."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlirc.errors import MlircError
from mlirc.ir.loops import STEP
from mlirc.ir.tensors import shape_of
from mlirc.mlir import func, ir

KERNELS, ROOT, KEPT = "mlirc.kernels", "mlirc.root", "mlirc.kept"  # marks of `mlirc-group-kernels`
ORIGIN_LIMIT = 8  # module paths kept per kernel


def main_function(module: ir.Module) -> func.FuncOp:
    """The function `@main` of the module; raises MlircError if there is none."""
    for op in module.body.operations:
        if isinstance(op, func.FuncOp) and op.name.value == "main":
            return op
    raise MlircError("the module has no function @main: give a `linalg`-level module")


def graph_functions(module: ir.Module) -> list[func.FuncOp]:
    """The functions whose ops become kernels: `@main`, and the steps of loops. Raises MlircError without `@main`."""
    main = main_function(module)
    return [main, *(op for op in module.body.operations if isinstance(op, func.FuncOp) and STEP in op.attributes)]


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def is_contiguous_slice(op: ir.Operation) -> bool:
    """Whether an op is a static `tensor.extract_slice` with unit strides that reads one contiguous range."""
    op = op.operation
    if (
        op.name != "tensor.extract_slice"
        or len(op.operands) != 1
        or any(s != 1 for s in op.attributes["static_strides"])
    ):
        return False
    sizes, source = list(op.attributes["static_sizes"]), shape_of(op.operands[0])
    partial = [i for i, (n, full) in enumerate(zip(sizes, source, strict=True)) if n != full]
    return not partial or all(n == 1 for n in sizes[: partial[-1]])


def is_recomputed(op: ir.Operation) -> bool:
    """Whether an op costs nothing to repeat in each kernel that needs it: constants, scalars, empty, filled tensors."""
    op = op.operation
    if op.name in ("arith.constant", "tensor.empty", "linalg.fill"):
        return True
    return bool(op.results) and not any(is_tensor(r) for r in op.results) and op.name != "func.call"


def origins(location: ir.Location, found: dict[str, None]) -> None:
    """Adds the names of a location (module paths of the model) to `found`, an ordered set."""
    if isinstance(location, ir.NameLoc):
        found[location.name_str] = None
    elif isinstance(location, ir.FusedLoc):
        for child in location.locations:
            origins(child, found)


class Outliner:
    """Makes kernel functions at the end of a module and calls to them in `@main` and the steps of its loops; `body` is
    that of the function whose ops are being outlined."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.body = main_function(module).regions[0].blocks[0]
        self._known: dict[str, tuple[func.FuncOp, dict[str, None]]] = {}
        self._counts: dict[str, int] = {}

    def outline(self, ops: Sequence[ir.Operation], kind: str, outputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Clones `ops` (in order) into a kernel of the given kind that returns `outputs`; calls it before the last op.

        Returns the call's results. Constants, scalars, empty and filled tensors that the ops need are cloned with them.
        """
        inputs = self._inputs(ops)
        names: dict[str, None] = {}
        for op in ops:
            origins(op.location, names)
        with ir.Location.unknown():
            kernel = func.FuncOp(
                "kernel",
                ([v.type for v in inputs], [v.type for v in outputs]),
                visibility="private",
                ip=ir.InsertionPoint(self.module.body),
            )
            block = kernel.add_entry_block()
            mapping = dict(zip(inputs, block.arguments, strict=True))
            with ir.InsertionPoint(block):
                for op in ops:
                    clone_into(op, mapping)
                func.ReturnOp([mapping[v] for v in outputs])
        return self.call(kernel, kind, inputs, names, ops[-1])

    def call(
        self, kernel: func.FuncOp, kind: str, inputs: Sequence[ir.Value], names: dict[str, None], before: ir.Operation
    ) -> list[ir.Value]:
        """Names the kernel (or drops it for an equal one that is known) and calls it before the op `before`."""
        text = kind + kernel.operation.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
        if text in self._known:
            kernel.operation.erase()
            kernel, known_names = self._known[text]
            known_names.update(names)
        else:
            number = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
            kernel.attributes["sym_name"] = ir.StringAttr.get(f"{kind}_{number}")
            kernel.attributes["mlirc.kernel"] = ir.UnitAttr.get()
            kernel.attributes["mlirc.kind"] = ir.StringAttr.get(kind)
            self._known[text] = (kernel, dict(names))
        with ir.InsertionPoint(before), before.location:
            return list(func.CallOp(kernel, list(inputs)).results)

    def finish(self) -> None:
        """Writes the origins; call once, after the last kernel."""
        for kernel, names in self._known.values():
            short = summarize_origins(list(names))
            kernel.attributes["mlirc.origin"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in short])

    def _inputs(self, ops: Sequence[ir.Operation]) -> list[ir.Value]:
        """Tensors made outside of `ops` that they read, in order of first use."""
        inside = {r for op in ops for r in op.operation.results}
        found: dict[ir.Value, None] = {}

        def visit(op: ir.Operation, nested: bool) -> None:
            for value in op.operation.operands:
                if value in inside or (nested and _defined_within(value, self.body)):
                    continue
                owner = value.owner
                if isinstance(owner, ir.Block) or not is_recomputed(owner):
                    if value not in found:
                        found[value] = None
                else:
                    visit(owner, False)
                    visit_regions(owner)

        def visit_regions(op: ir.Operation) -> None:
            for region in op.operation.regions:
                for block in region.blocks:
                    for inner in block.operations:
                        visit(inner, True)
                        visit_regions(inner)

        for op in ops:
            visit(op, False)
            visit_regions(op)
        return list(found)


def _defined_within(value: ir.Value, top: ir.Block) -> bool:
    """Whether a value is defined in a region nested in the block `top`, not in `top` itself."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return block != top


def clone_into(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Clones an op at the current insertion point, through `mapping`; clones recomputed producers on demand."""
    op = op.operation
    top = op.block
    outside: list[ir.Value] = list(op.operands)
    _captured(op, top, outside)
    for value in outside:
        if value not in mapping:
            clone_into(value.owner, mapping)
    new = op.clone()
    for name in (KERNELS, ROOT, KEPT):
        if name in new.attributes:
            del new.attributes[name]
    _remap(new, mapping)
    for old, result in zip(op.results, new.results, strict=True):
        mapping[old] = result
    return new


def _captured(op: ir.Operation, top: ir.Block, found: list[ir.Value]) -> None:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                inner = inner.operation
                found.extend(v for v in inner.operands if not _defined_within(v, top))
                _captured(inner, top, found)


def _remap(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> None:
    for i, value in enumerate(op.operands):
        if value in mapping:
            op.operands[i] = mapping[value]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _remap(inner.operation, mapping)


def summarize_origins(names: list[str]) -> list[str]:
    """Module paths with layer numbers replaced by `*` where they repeat, at most ORIGIN_LIMIT of them."""
    short: dict[str, list[str]] = {}
    for name in names:
        short.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name), []).append(name)
    return [found[0] if len(found) == 1 else pattern for pattern, found in short.items()][:ORIGIN_LIMIT]
