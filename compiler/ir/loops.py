"""Loops over time steps from the `linalg` level down: a function that `@main` calls, which calls a step's function.

    func.func private @loop_0(%h0, %xs, %w) attributes {mlirc.loop} {
      %ys = tensor.empty()
      %r:2 = scf.for %t = %c0 to %count step %c1 iter_args(%h = %h0, %y = %ys) {
        %x = tensor.extract_slice %xs[%t, 0] [1, 8] [1, 1]          // or at %last - %t
        %n:2 = func.call @step_0(%h, %x, %w)
        %z = tensor.insert_slice %n#1 into %y[%t, 0] [1, 8] [1, 1]
        scf.yield %n#0, %z
      }
      return %r#0, %r#1
    }

The step's function (`mlirc.step`) is a graph like `@main`: linalg ops, or calls of kernels and free views. What runs a
loop as launches reads it with `read_loop`, which takes this form and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import context, ir

LOOP, STEP = "mlirc.loop", "mlirc.step"


@dataclass(frozen=True)
class Source:
    """Where a tensor of a step comes from: `carry` (number: of the loop's values), `argument` of the loop's function, a
    `slice` of one, or a `result` of the step's call. `reverse`: the slices are taken from the last to the first."""

    kind: str
    number: int
    reverse: bool = False


@dataclass(frozen=True)
class Loop:
    """A loop's function, read. Per value that the loop carries: where it starts (an argument's number, None for a new
    tensor), and what each step makes of it: a whole tensor (`result` or `carry`), or a slice of it (`slices`: whether
    `reverse`; None for a whole one). `operands` are the step's, `results` the carried values that the function
    returns."""

    count: int
    step: str
    starts: tuple[int | None, ...]
    operands: tuple[Source, ...]
    yields: tuple[Source, ...]
    slices: tuple[bool | None, ...]
    results: tuple[int, ...]


def write_loop(
    name: str, step: str, count: int, carried: int, sliced: int, reverse: bool, types: Sequence[ir.Type],
    results: Sequence[ir.Type],
) -> ir.Module:  # fmt: skip
    """A module with the function of a loop over `types` (carries, what it takes slices of, and what is the same for all
    steps), with the results of `mlirc::scan`; and the declaration of its step."""
    with context():
        parts = [*types[:carried], *map(_row, types[carried : carried + sliced]), *types[carried + sliced :]]
        made = [*results[:carried], *map(_row, results[carried:])]
        signature = f"({_list(parts)}) -> ({_list(made)})"
        lines = [f"func.func private @{step}{signature}"]
        arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
        lines += [f"func.func private @{name}({arguments}) -> ({_list(results)}) attributes {{{LOOP}}} {{"]
        constants = {"first": 0, "one": 1, "count": count, "last": count - 1}
        lines += [f"%{key} = arith.constant {value} : index" for key, value in constants.items()]
        lines += [f"%e{i} = tensor.empty() : {t}" for i, t in enumerate(results[carried:])]
        values = [f"%c{i}" for i in range(carried)] + [f"%y{i}" for i in range(len(results) - carried)]
        starts = [f"%a{i}" for i in range(carried)] + [f"%e{i}" for i in range(len(results) - carried)]
        carries = ", ".join(f"{v} = {s}" for v, s in zip(values, starts, strict=True))
        head = f"scf.for %t = %first to %count step %one iter_args({carries}) -> ({_list(results)})"
        lines += [f"%r:{len(results)} = {head} {{"]
        lines += ["%i = arith.subi %last, %t : index"] if reverse else []
        at = "%i" if reverse else "%t"
        for k in range(carried, carried + sliced):
            lines += [f"%s{k} = tensor.extract_slice %a{k}{_place(types[k], at)} : {types[k]} to {_row(types[k])}"]
        inputs = [*values[:carried], *(f"%s{k}" for k in range(carried, carried + sliced))]
        inputs += [f"%a{k}" for k in range(carried + sliced, len(types))]
        lines += [f"%n:{len(made)} = func.call @{step}({', '.join(inputs)}) : {signature}"]
        new = [f"%n#{i}" for i in range(carried)]
        for k, type_ in enumerate(results[carried:]):
            part = f"%n#{carried + k} into %y{k}{_place(type_, at)}"
            lines += [f"%z{k} = tensor.insert_slice {part} : {_row(type_)} into {type_}"]
            new += [f"%z{k}"]
        lines += [f"scf.yield {', '.join(new)} : {_list(results)}", "}"]
        lines += [f"return {', '.join(f'%r#{i}' for i in range(len(results)))} : {_list(results)}", "}"]
        return ir.Module.parse("\n".join(lines))


def _list(types: Sequence[ir.Type]) -> str:
    return ", ".join(map(str, types))


def _row(type_: ir.Type) -> ir.Type:
    return ir.RankedTensorType.get(list(type_.shape)[1:], type_.element_type)


def _place(type_: ir.Type, at: str) -> str:
    rest = list(type_.shape)[1:]
    offsets, sizes = [at, *["0"] * len(rest)], ["1", *map(str, rest)]
    return "".join(f"[{', '.join(x)}]" for x in (offsets, sizes, ["1"] * len(offsets)))


def is_loop(function: ir.OpView) -> bool:
    """Whether a function is that of a loop."""
    return LOOP in function.attributes


def read_loop(function: ir.OpView) -> Loop:
    """The loop of a function that is one; raises MlircError, with the place, for one of another form."""
    return _Reader(function).read()


class _Reader:
    def __init__(self, function: ir.OpView):
        self.function = function
        self.block = function.operation.regions[0].blocks[0]

    def wrong(self, what: str, op: ir.Operation | None = None) -> MlircError:
        name = ir.StringAttr(self.function.attributes["sym_name"]).value
        return MlircError(
            f"loop {name}: {what}, at {(op or self.function.operation).location}: a loop has no such form"
        )

    def read(self) -> Loop:
        ops = [o.operation for o in self.block.operations]
        loops = [o for o in ops if o.name == "scf.for"]
        if len(loops) != 1 or any(
            o.name not in ("scf.for", "arith.constant", "tensor.empty", "func.return") for o in ops
        ):
            raise self.wrong("it must hold one scf.for, constants and tensor.empty")
        [self.loop], end = loops, ops[-1]
        low, high, stride = (self.constant(v) for v in list(self.loop.operands)[:3])
        if (low, stride) != (0, 1) or high is None or high < 1:
            raise self.wrong("it must count from 0 by 1 to a constant", self.loop)
        self.count = high
        self.body = self.loop.regions[0].blocks[0]
        self.time, *self.carried = self.body.arguments
        inner = [o.operation for o in self.body.operations]
        calls = [o for o in inner if o.name == "func.call"]
        if len(calls) != 1:
            raise self.wrong("a step must be one call", self.loop)
        [self.call] = calls
        starts = tuple(self.start(v) for v in list(self.loop.operands)[3:])
        pairs = [self.made(v, i) for i, v in enumerate(inner[-1].operands)]
        made = list(self.loop.results)
        if any(v not in made for v in end.operands):
            raise self.wrong("it must return what the scf.for makes", end)
        return Loop(
            count=self.count,
            step=ir.FlatSymbolRefAttr(self.call.attributes["callee"]).value,
            starts=starts,
            operands=tuple(self.operand(v) for v in self.call.operands),
            yields=tuple(p[0] for p in pairs),
            slices=tuple(p[1] for p in pairs),
            results=tuple(made.index(v) for v in end.operands),
        )

    def constant(self, value: ir.Value) -> int | None:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
            return None
        return ir.IntegerAttr(owner.attributes["value"]).value

    def start(self, value: ir.Value) -> int | None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return list(self.block.arguments).index(value)
        if owner.operation.name != "tensor.empty":
            raise self.wrong("a value must start as an argument or as tensor.empty", owner.operation)
        return None

    def operand(self, value: ir.Value) -> Source:
        """Where an operand of the step's call comes from."""
        if value in self.carried:
            return Source("carry", self.carried.index(value))
        arguments = list(self.block.arguments)
        if value in arguments:
            return Source("argument", arguments.index(value))
        op = value.owner.operation
        if op.name == "tensor.extract_slice" and op.operands[0] in arguments:
            return Source("slice", arguments.index(op.operands[0]), self.reversed(op, op.operands[0].type))
        raise self.wrong(f"the step is given what {op.name} makes", op)

    def made(self, value: ir.Value, number: int) -> tuple[Source, bool | None]:
        """What a step makes of a carried value, and for a slice of it whether from the last to the first."""
        if value in self.carried:
            return Source("carry", self.carried.index(value)), None
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if op is not None and op == self.call:
            return Source("result", list(op.results).index(value)), None
        if op is not None and op.name == "tensor.insert_slice" and op.operands[1] == self.carried[number]:
            source, none = self.made(op.operands[0], -1)
            uses = list(self.carried[number].uses)
            if none is None and source.kind == "result" and len(uses) == 1:
                return source, self.reversed(op, op.operands[1].type)
        raise self.wrong("a step makes something else than its call's results and slices of them", op)

    def reversed(self, op: ir.Operation, type_: ir.Type) -> bool:
        """Whether a slice, of one index of the first dimension and all of the others, is taken from the last one."""
        offsets, sizes, strides = (list(op.attributes[f"static_{n}"]) for n in ("offsets", "sizes", "strides"))
        shape = list(type_.shape)
        index = list(op.operands)[-1]
        whole = sizes == [1, *shape[1:]] and not any(offsets[1:]) and all(s == 1 for s in strides)
        dynamic = offsets[0] == ir.ShapedType.get_dynamic_stride_or_offset()
        if not whole or not dynamic or shape[0] != self.count:
            raise self.wrong("a slice must be one index of the first dimension, which is as long as the loop", op)
        if index == self.time:
            return False
        owner = None if isinstance(index.owner, ir.Block) else index.owner.operation
        if owner is not None and owner.name == "arith.subi" and owner.operands[1] == self.time:
            if self.constant(owner.operands[0]) == self.count - 1:
                return True
        raise self.wrong("a slice's index must be the step or count it from the end", op)
