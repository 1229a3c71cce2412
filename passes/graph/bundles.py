"""Calls of kernels that become a call of one kernel, which has the bodies of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlirc.ir.tensors import VIEWS
from mlirc.mlir import func, ir
from mlirc.passes.graph.outline import ORIGIN_LIMIT, clone_into

KIND = "bundle"


@dataclass
class Part:
    """Calls, in their order, that may stand anywhere behind operation number `after` and in front of number `before`:
    behind what they read, in front of who reads their results. `points` is how many elements they compute."""

    calls: list[func.CallOp]
    after: int
    before: int
    points: int
    each: dict[ir.Operation, int]  # the elements by call
    reads: dict[ir.Operation, int]  # the calls whose results it reads: the most elements that a reader computes
    at_load: bool = False  # they run once, when the model is loaded

    @classmethod
    def of(
        cls, calls: list[func.CallOp], number: Mapping[ir.Operation, int], points: int, at_load: bool = False
    ) -> Part:
        """Of calls that read each other's results, and nothing else does but the last one's."""
        inner = inner_ops(calls)
        read = [v for op in inner for v in op.operands if not isinstance(v.owner, ir.Block)]
        after = [number[v.owner.operation] for v in read if v.owner.operation not in inner]
        before = [number[use.owner.operation] for result in calls[-1].results for use in result.uses]
        each = {c.operation: points for c in calls}
        makers = [m for v in read if (m := _maker(v)) is not None and m not in each]
        reads = dict.fromkeys(makers, points)
        return cls(calls, max(after, default=-1), min(before, default=len(number)), points, each, reads, at_load)

    def joins(self, other: Part) -> bool:
        """Whether there is a place for both, `other` being the later one. What reads the other's results joins where it
        has as many elements: then one thread computes both."""
        same = all(self.each.get(maker, points) == points for maker, points in other.reads.items())
        return same and self.at_load == other.at_load and max(self.after, other.after) < min(self.before, other.before)

    def add(self, other: Part) -> None:
        """Makes both one."""
        self.after, self.before = max(self.after, other.after), min(self.before, other.before)
        self.calls, self.points = [*self.calls, *other.calls], self.points + other.points
        self.each |= other.each
        self.reads |= other.reads


def _maker(value: ir.Value) -> ir.Operation | None:
    """The call that makes a value, through views."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name == "func.call":
            return op
        if not op.name.startswith("tensor."):
            return None
        value = op.operands[0]
    return None


def sink_views(block: ir.Block) -> None:
    """Moves views in front of their first reader, and those of arguments to the front of all: views keep calls from
    standing anywhere else."""
    ops = [op.operation for op in block.operations]
    first, known = ops[0], set(block.arguments)
    for i, op in enumerate(ops):
        if op.name.startswith("tensor.") and all(v in known for v in op.operands):
            known |= set(op.results)
            if op is first:
                first = ops[i + 1]
            else:
                op.move_before(first)
    number: dict[ir.Operation, float] = {op.operation: i for i, op in enumerate(block.operations)}
    for op in reversed(list(number)):
        readers = [use.owner.operation for r in op.results for use in r.uses]
        if op.name.startswith("tensor.") and readers and not all(r in known for r in op.results):
            first = min(readers, key=number.__getitem__)
            op.move_before(first)
            number[op] = number[first] - 0.5


def inner_ops(calls: list[func.CallOp]) -> list[ir.Operation]:
    """The calls, and the views between them, in an order in which each may stand."""
    known = {c.operation for c in calls}
    found: list[ir.Operation] = []

    def between(value: ir.Value) -> bool:
        """Adds the views that lead from one of the calls to a value; returns whether there is one."""
        if isinstance(value.owner, ir.Block):
            return False
        op = value.owner.operation
        if op in known:
            return True
        if op.name.startswith("tensor.") and between(op.operands[0]):
            found.append(op)
            return True
        return False

    for call in calls:
        for value in call.operands:
            between(value)
        found.append(call.operation)
    return list(dict.fromkeys(found))


class Bundler:
    """Makes kernels of kind KIND, one for equal ones; `kernels` are all of the module by name."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.kernels = {op.name.value: op for op in module.body.operations if "mlirc.kernel" in op.attributes}
        self.made: dict[str, func.FuncOp] = {}  # by their text without a name

    def bundle(self, calls: list[func.CallOp]) -> None:
        """Replaces calls, which may all stand in front of the first reader of a result, by one of a kernel with the
        bodies of theirs."""
        inner = inner_ops(calls)
        inside, results = set(inner), {r for op in inner for r in op.results}
        inputs = list(dict.fromkeys(v for op in inner for v in op.operands if v not in results))
        outputs = [r for c in calls for r in c.results if any(u.owner.operation not in inside for u in r.uses)]
        kernel = self._kernel(inner, inputs, outputs)
        readers = {use.owner.operation for v in outputs for use in v.uses}
        first = next(op for op in calls[0].operation.block.operations if op.operation in readers)
        with ir.InsertionPoint(first), ir.Location.fused([c.location for c in calls]):
            made = func.CallOp(kernel, inputs)
        for old, new in zip(outputs, made.results, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(inner):
            if op.name == "func.call" or not any(True for r in op.results for _ in r.uses):
                op.erase()

    def _kernel(self, inner: list[ir.Operation], inputs: list[ir.Value], outputs: list[ir.Value]) -> func.FuncOp:
        types = [v.type for v in inputs], [v.type for v in outputs]
        with ir.InsertionPoint(self.module.body):
            kernel = func.FuncOp("kernel", types, visibility="private")
        places = dict(zip(inputs, kernel.add_entry_block().arguments, strict=True))
        names: dict[str, None] = {}
        with ir.InsertionPoint(kernel.regions[0].blocks[0]):
            for op in inner:
                if op.name != "func.call":
                    clone_into(op, places)
                    continue
                callee = self.kernels[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                names |= dict.fromkeys(ir.StringAttr(a).value for a in ir.ArrayAttr(callee.attributes["mlirc.origin"]))
                inline_call(callee, op, places)
            func.ReturnOp([places[v] for v in outputs])
        text = kernel.operation.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
        if text in self.made:
            kernel.operation.erase()
            return self.made[text]
        name = f"{KIND}_{len(self.made)}"
        kernel.attributes["sym_name"] = ir.StringAttr.get(name)
        kernel.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        kernel.attributes["mlirc.kind"] = ir.StringAttr.get(KIND)
        kernel.attributes["mlirc.origin"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in list(names)[:ORIGIN_LIMIT]])
        self.made[text] = self.kernels[name] = kernel
        return kernel


def inline_call(kernel: func.FuncOp, call: ir.Operation, places: dict[ir.Value, ir.Value]) -> None:
    """Copies the body of a kernel to the insertion point, for a call whose operands `places` has."""
    body = kernel.regions[0].blocks[0]
    own = {a: places[v] for a, v in zip(body.arguments, call.operands, strict=True)}
    for op in body.operations:
        if op.operation.name == "func.return":
            places.update(zip(call.results, (own[v] for v in op.operands), strict=True))
        else:
            clone_into(op.operation, own)


def drop_unused(module: ir.Module) -> None:
    """Erases the kernels that nobody calls any more."""
    called = {
        op.callee.value
        for function in module.body.operations
        for op in function.regions[0].blocks[0].operations
        if isinstance(op, func.CallOp)
    }
    for op in list(module.body.operations):
        if "mlirc.kernel" in op.attributes and op.name.value not in called:
            op.operation.erase()


def calls_reading(value: ir.Value) -> list[func.CallOp] | None:
    """The calls that read a value, through views; None where something else does."""
    found: dict[ir.Operation, func.CallOp] = {}
    for use in value.uses:
        user = use.owner
        if isinstance(user, func.CallOp):
            found[user.operation] = user
        elif user.operation.name in VIEWS and (inner := calls_reading(user.operation.results[0])) is not None:
            found |= {c.operation: c for c in inner}
        else:
            return None
    return list(found.values())
