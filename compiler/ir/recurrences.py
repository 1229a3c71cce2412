"""Recurrences that are one kernel: a loop over time steps whose step multiplies a carried state by one matrix, and then
computes each unit of the new states alone (LSTM, GRU, RNN: the gates).

    func.func private @recurrence_0(%h0, %c0, %xs, %w) attributes {mlirc.kernel, mlirc.kind = "recurrence"} {
      %r:3 = scf.for %t = %c0 to %count step %c1 iter_args(%h = %h0, %c = %c0, %y = %empty) {
        %x = tensor.extract_slice %xs[%t, 0, 0] [1, B, G H]           // or at %last - %t
        %d = linalg.generic (b, n, k) ins(%h, %w)                     // products: [B, G H] in f32
        %xg = tensor.extract_slice %x[0, g H] [B, H]                  // the same of %d, for each gate g
        %n:2 = linalg.generic (b, u) ins(%xg, %dg, %c, ...)
        %z = tensor.insert_slice %n#0 into %y[%t, 0, 0] [1, B, H]
        scf.yield %n#0, %n#1, %z
      }
      return %r#0, %r#1, %r#2
    }

A kernel may have several such loops, which do not read each other's results: the two directions of a layer.
`mlirc-fuse-recurrences` writes this form; whoever schedules or lowers it reads it with `read`, which takes no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir

KIND = "recurrence"


@dataclass(frozen=True)
class Operand:
    """What the gates read: `kind` is `product` (of the state and the matrix), `carry` (number: of the states), `slice`
    (of an argument, of this time step) or `argument`; `at`: where, of a row b and a unit u."""

    kind: str
    number: int
    at: ir.AffineMap


@dataclass(frozen=True)
class Recurrence:
    """A kernel's recurrence: `steps` steps over [`batch`, `units`] states. State number `state` is multiplied with
    argument `matrix`, [`gates` * units, units] (`k_last`) or transposed. `product` and `gate_body` are the generics,
    the latter with its `operands`. `starts`: the argument that each state starts from; `makes`: the gates' result that
    each becomes;
    `rows`: the gates' result of which each stacked result has one slice a step. `returned`: by the
    number of a result of the kernel that of a state, or, from the number of states on, of a stacked result."""

    steps: int
    batch: int
    units: int
    gates: int
    reverse: bool
    state: int
    matrix: int
    k_last: bool
    product: ir.Operation
    gate_body: ir.Operation
    operands: tuple[Operand, ...]
    starts: tuple[int, ...]
    makes: tuple[int, ...]
    rows: tuple[int, ...]
    returned: dict[int, int]


def read(function: ir.OpView) -> tuple[Recurrence, ...]:
    """The recurrences, independent ones, that a kernel's function is; none where it has another form."""
    ops = [o.operation for o in function.operation.regions[0].blocks[0].operations]
    loops = [o for o in ops if o.name == "scf.for"]
    free = ("scf.for", "arith.constant", "tensor.empty", "func.return")
    if any(o.name not in free for o in ops):
        return ()
    found = []
    for loop in loops:
        inner = [o.operation for o in loop.regions[0].blocks[0].operations]
        generics = [
            o for o in inner if o.name == "linalg.generic" and isinstance(o.operands[0].type, ir.RankedTensorType)
        ]
        if len(generics) != 2 or len(generics[0].results) != 1 or _reads_a_loop(loop):
            return ()
        found.append(_Reader(function, loop, *generics).read())
    return tuple(found)


def _reads_a_loop(loop: ir.Operation) -> bool:
    return any(not isinstance(v.owner, ir.Block) and v.owner.operation.name == "scf.for" for v in loop.operands)


class _Reader:
    def __init__(self, function: ir.OpView, loop: ir.Operation, product: ir.Operation, gates: ir.Operation):
        self.arguments = list(function.operation.regions[0].blocks[0].arguments)
        self.loop, self.product, self.gates = loop, product, gates
        body = loop.regions[0].blocks[0]
        self.time, *self.carried = body.arguments
        ops = list(function.operation.regions[0].blocks[0].operations)
        self.end, self.last = ops[-1].operation, body.operations[len(body.operations) - 1].operation
        self.reverse = False

    def read(self) -> Recurrence:
        starts = [None if v not in self.arguments else self.arguments.index(v) for v in list(self.loop.operands)[3:]]
        states = [i for i, s in enumerate(starts) if s is not None]
        made, rows = [], []
        for value in self.last.operands:
            op = value.owner.operation
            if op == self.gates:
                made.append(list(self.gates.results).index(value))
            else:
                rows.append(list(self.gates.results).index(op.operands[0]))
        h, w = list(self.product.operands)[:2]
        batch, units = shape_of(h)
        maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(self.gates.attributes["indexing_maps"])]
        inputs = list(self.gates.operands)[: len(self.gates.operands) - len(self.gates.results)]
        operands = tuple(self.operand(v, m) for v, m in zip(inputs, maps, strict=False))
        weight_map = ir.AffineMapAttr(ir.ArrayAttr(self.product.attributes["indexing_maps"])[1]).value
        results = list(self.loop.results)
        return Recurrence(
            steps=ir.IntegerAttr(self.loop.operands[1].owner.attributes["value"]).value,
            batch=batch,
            units=units,
            gates=shape_of(self.product.results[0])[1] // units,
            reverse=self.reverse,
            state=self.carried.index(h),
            matrix=self.arguments.index(w),
            k_last=ir.AffineDimExpr(weight_map.results[1]).position == 2,
            product=self.product,
            gate_body=self.gates,
            operands=operands,
            starts=tuple(starts[i] for i in states),  # type: ignore[misc]
            makes=tuple(made),
            rows=tuple(rows),
            returned={i: results.index(v) for i, v in enumerate(self.end.operands) if v in results},
        )

    def operand(self, value: ir.Value, at: ir.AffineMap) -> Operand:
        owner = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if owner is not None and owner.name == "tensor.extract_slice" and len(owner.operands) == 1:  # of columns
            offsets = map(ir.AffineExpr.get_constant, owner.attributes["static_offsets"])
            moved = [ir.AffineExpr.get_add(e, o) for e, o in zip(at.results, offsets, strict=True)]
            value, at = owner.operands[0], ir.AffineMap.get(2, 0, moved)
        if value == self.product.results[0]:
            return Operand("product", 0, at)
        if value in self.carried:
            return Operand("carry", self.carried.index(value), at)
        if value in self.arguments:
            return Operand("argument", self.arguments.index(value), at)
        op = value.owner.operation
        self.reverse = op.operands[1] != self.time
        return Operand("slice", self.arguments.index(op.operands[0]), at)
