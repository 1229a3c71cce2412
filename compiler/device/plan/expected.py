"""What a run of `@main` makes, symbolically: every launch with what its arguments hold, and what the outputs hold.

Read off the `gpu` level's `@main`, its loops' steps and the kernels' host functions; the launch plan has no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mlirc.backend.kernel import Copy
from mlirc.device.plan.contents import Content, Memory, Values, part, whole
from mlirc.device.plan.kernels import KernelLaunches
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.ir.levels import argument_names
from mlirc.ir.loops import is_loop, read_loop
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir


@dataclass(eq=False)
class ExpectedLaunch:
    """A launch in call number `call` (from 1) of a run: what its arguments hold before it, and the values that the
    parameters which it writes hold after it."""

    kernel: str
    call: int
    symbol: str
    contents: tuple[Content, ...]
    made: dict[int, int]


class Expected:
    """One run of `@main`, whose arguments are values given by their names. `launches` is by symbol and contents,
    `by_symbol` has all of them in order, `outputs` what the results hold."""

    def __init__(
        self, module: ir.Module, kernels: Mapping[str, KernelLaunches], values: Values, given: Mapping[str, int]
    ):
        self.functions, self.kernels, self.values = levels.functions(module), kernels, values
        self.launches: dict[tuple[str, tuple[Content, ...]], ExpectedLaunch] = {}
        self.by_symbol: dict[str, list[ExpectedLaunch]] = {}
        self.makers: dict[int, ExpectedLaunch] = {}  # by the value that it makes
        self.calls = 0
        main = self.functions["main"]
        block = main.operation.regions[0].blocks[0]
        held = {
            argument: whole(given[name], tensor_bytes(argument.type))
            for name, argument in zip(argument_names(main), block.arguments, strict=True)
        }
        self.outputs = self._block(block, held)

    def _block(self, block: ir.Block, held: dict[ir.Value, Content]) -> list[Content]:
        """What a block returns; `held` is what its arguments hold."""
        *ops, end = [o.operation for o in block.operations]
        for op in ops:
            if op.name == "func.call":
                made = self._call(op, [held[v] for v in op.operands])
                held.update(zip(op.results, made, strict=True))
            elif op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
                held[op.results[0]] = held[op.operands[0]]
            elif op.name == "tensor.extract_slice":
                held[op.results[0]] = part(held[op.operands[0]], *slice_bytes(op))
            else:
                raise MlircError(f"{op.name} in @main at {op.location}: only calls and views are expected")
        return [held[v] for v in end.operands]

    def _call(self, op: ir.Operation, given: list[Content]) -> list[Content]:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if name in self.functions and is_loop(self.functions[name]):
            return self._loop(self.functions[name], given, [tensor_bytes(r.type) for r in op.results])
        if name not in self.kernels:
            raise MlircError(f"kernel {name} has no gpu-level module")
        self.calls += 1
        return self._kernel(self.kernels[name], given)

    def _kernel(self, kernel: KernelLaunches, given: list[Content]) -> list[Content]:
        memories = [Memory(size) for size in kernel.sizes]
        for memory, content in zip(memories, given, strict=False):
            memory.write(0, content)
        arguments = len(given)
        for launch, stored in zip(kernel.launches, kernel.stored, strict=True):
            if isinstance(launch, Copy):
                content = memories[launch.source].read(launch.source_offset, launch.size)
                memories[launch.target].write(launch.target_offset, content)
                continue
            places = [(*place, size) for place, size in zip(launch.places, kernel.bytes_of(launch), strict=True)]
            contents = tuple(memories[i].read(offset, size) for i, offset, size in places)
            made = {}
            for p in sorted(stored):
                number = places[p][0] - arguments
                what = f"result {number}" if number >= 0 else f"argument {places[p][0]}"
                made[p] = self.values.number(
                    (launch.symbol, contents, p), f"{what} of call {self.calls} ({kernel.name})"
                )
                memories[places[p][0]].write(places[p][1], whole(made[p], places[p][2]))
            found = ExpectedLaunch(kernel.name, self.calls, launch.symbol, contents, made)
            self.launches.setdefault((launch.symbol, contents), found)
            self.by_symbol.setdefault(launch.symbol, []).append(found)
            self.makers.update(dict.fromkeys(made.values(), found))
        results = range(arguments, self._results_end(kernel))
        return [memories[i].read(0, kernel.sizes[i]) for i in results]

    def _results_end(self, kernel: KernelLaunches) -> int:
        type_ = self.functions[kernel.name].type
        return len(type_.inputs) + len(type_.results)

    def _loop(self, function: ir.OpView, given: list[Content], sizes: list[int]) -> list[Content]:
        loop = read_loop(function)
        block = self.functions[loop.step].operation.regions[0].blocks[0]
        returned = dict(zip(loop.results, sizes, strict=True))
        carried: list[Content | Memory] = []
        for i, (start, sliced) in enumerate(zip(loop.starts, loop.slices, strict=True)):
            content = given[start] if start is not None else whole(0, returned[i])
            if sliced is None:
                carried.append(content)
                continue
            carried.append(Memory(length(content)))
            carried[-1].write(0, content)  # type: ignore[union-attr]
        for step in range(loop.count):
            held = {}
            for argument, source in zip(block.arguments, loop.operands, strict=True):
                tensor = carried[source.number] if source.kind == "carry" else given[source.number]
                content = tensor.read(0, tensor.size) if isinstance(tensor, Memory) else tensor
                if source.kind == "slice":
                    row = length(content) // loop.count
                    content = part(content, row * (loop.count - 1 - step if source.reverse else step), row)
                held[argument] = content
            results = self._block(block, held)
            before = list(carried)
            for i, (source, reverse) in enumerate(zip(loop.yields, loop.slices, strict=True)):
                new = results[source.number] if source.kind == "result" else before[source.number]
                stack = carried[i]
                if not isinstance(stack, Memory):
                    carried[i] = new
                elif not isinstance(new, Memory):  # which `read_loop` rules out
                    stack.write(length(new) * (loop.count - 1 - step if reverse else step), new)
        out = [carried[i] for i in loop.results]
        return [c.read(0, c.size) if isinstance(c, Memory) else c for c in out]


def length(content: Content) -> int:
    """The bytes of a content."""
    return sum(size for _, _, size in content)


def tensor_bytes(type_: ir.Type) -> int:
    """The bytes of a static tensor, i1 as one byte per element."""
    return math.prod(type_.shape) * ELEMENT_BYTES[str(type_.element_type)]


def slice_bytes(op: ir.Operation) -> tuple[int, int]:
    """(first byte, bytes) of a contiguous `tensor.extract_slice`; raises MlircError for another one."""
    shape = list(op.operands[0].type.shape)
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{n}"])) for n in ("offsets", "sizes", "strides")
    )
    first = last = 0
    for extent, offset, size, stride in zip(shape, offsets, sizes, strides, strict=True):
        first, last = first * extent + offset, last * extent + offset + (size - 1) * stride
    count, item = math.prod(sizes), ELEMENT_BYTES[str(op.operands[0].type.element_type)]
    if count and (last - first + 1 != count or len(op.operands) != 1):
        raise MlircError(f"tensor.extract_slice in @main at {op.location} is not contiguous")
    return first * item, count * item
