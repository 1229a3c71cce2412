"""`mlirc::draw` as one elementwise linalg op: every element computes its own Philox block, so that draws fuse."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.random.philox import MULTIPLIERS, ROUNDS, WEYL
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.mlir import math as math_ops

OPERATOR = "torch.mlirc.draw"


def lower_draw(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of that name, whose shape is static."""
    kind, threads, per, vector, below = (_constant(v) for v in list(op.operands)[3:])
    with op.location, ir.InsertionPoint(op):
        state = [builtin_tensor(v) for v in list(op.operands)[:2]]
        shape, element = _type(op.results[0])
        rank = len(shape)
        init = tensor.empty(shape, element)
        every = [ir.AffineDimExpr.get(d) for d in range(rank)]
        maps = [ir.AffineMap.get(rank, 0, []), ir.AffineMap.get(rank, 0, []), ir.AffineMap.get(rank, 0, every)]
        generic = linalg.GenericOp(
            [init.type],
            state,
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        )
        i64 = ir.IntegerType.get_signless(64)
        block = generic.regions[0].blocks.append(i64, i64, element)
        with ir.InsertionPoint(block):
            body = _Body(block.arguments[0], block.arguments[1])
            body.place(shape, int(threads), int(per), bool(vector))
            linalg.YieldOp([body.number(str(kind), int(below))])
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _type(value: ir.Value) -> tuple[list[int], ir.Type]:
    shape, element = str(value.type).removeprefix("!torch.vtensor<[").removesuffix(">").split("],")
    return [int(n) for n in shape.split(",")] if shape else [], ir.Type.parse(element.removeprefix("s"))


def _constant(value: ir.Value) -> str | int | bool:
    attribute = value.owner.attributes["value"]
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    return attribute.value


class _Body:
    """Builds the body of a draw at the current insertion point; integers are i32 and i64, without sign."""

    def __init__(self, seed: ir.Value, offset: ir.Value):
        self.i32, self.i64 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
        self.seed, self.offset = seed, offset
        self.words: list[ir.Value] = []
        self.which: ir.Value | None = None  # number of the element in its call, an i32; None where it is always 0

    def const(self, type_: ir.Type, value: int) -> ir.Value:
        width = type_.width
        value &= (1 << width) - 1
        return arith.constant(type_, ir.IntegerAttr.get(type_, value - (1 << width) if value >> (width - 1) else value))

    def place(self, shape: Sequence[int], threads: int, per: int, vector: bool) -> None:
        """Computes thread, call and number of this element, and the words of its block."""
        count = math.prod(shape)
        type_ = self.i32 if count < 1 << 31 else self.i64
        element = self.const(type_, 0)
        for d, size in enumerate(shape):
            index = arith.index_cast(type_, linalg.IndexOp(ir.IntegerAttr.get(self.i64, d)).result)
            element = index if d == 0 else arith.addi(arith.muli(element, self.const(type_, size)), index)
        inside = None
        if vector:
            inside = arith.andi(element, self.const(type_, per - 1))
            element = arith.shrui(element, self.const(type_, per.bit_length() - 1))
            count = -(-count // per)
        thread, call = element, None
        if count > threads:
            thread = arith.remui(element, self.const(type_, threads))
            call = arith.divui(element, self.const(type_, threads))
            if not vector:
                inside = arith.andi(call, self.const(type_, per - 1))
                call = arith.shrui(call, self.const(type_, per.bit_length() - 1))
        if vector and per > 4:
            assert inside is not None
            extra = arith.shrui(inside, self.const(type_, 2))
            inside = arith.andi(inside, self.const(type_, 3))
            call = extra if call is None else arith.addi(arith.muli(call, self.const(type_, per // 4)), extra)
        self.which = inside if inside is None or type_ == self.i32 else arith.trunci(self.i32, inside)
        counter = arith.shrui(self.offset, self.const(self.i64, 2))
        if call is not None:
            counter = arith.addi(counter, self._wide(call))
        self.words = self._philox([*self._halves(counter), *self._halves(self._wide(thread))], self._halves(self.seed))

    def _wide(self, value: ir.Value) -> ir.Value:
        return value if value.type == self.i64 else arith.extui(self.i64, value)

    def _halves(self, value: ir.Value) -> list[ir.Value]:
        high = arith.shrui(value, self.const(self.i64, 32))
        return [arith.trunci(self.i32, value), arith.trunci(self.i32, high)]

    def _philox(self, counter: list[ir.Value], key: list[ir.Value]) -> list[ir.Value]:
        a, b, c, d = counter
        steps = [self.const(self.i32, w) for w in WEYL]
        for number in range(ROUNDS):
            low, high = self._product(a, MULTIPLIERS[0])
            other_low, other_high = self._product(c, MULTIPLIERS[1])
            a, b = arith.xori(arith.xori(other_high, b), key[0]), other_low
            c, d = arith.xori(arith.xori(high, d), key[1]), low
            if number + 1 < ROUNDS:
                key = [arith.addi(k, s) for k, s in zip(key, steps, strict=True)]
        return [a, b, c, d]

    def _product(self, value: ir.Value, factor: int) -> tuple[ir.Value, ir.Value]:
        """The low and the high half of the product of two i32, each by itself: a GPU has an instruction for either."""
        wide = arith.muli(arith.extui(self.i64, value), self.const(self.i64, factor))
        return arith.muli(value, self.const(self.i32, factor)), self._halves(wide)[1]

    def _pick(self, choices: Sequence[ir.Value]) -> ir.Value:
        """The choice of this element's number."""
        found = choices[0]
        if self.which is None:
            return found
        for number, choice in enumerate(choices[1:], start=1):
            same = arith.cmpi(arith.CmpIPredicate.eq, self.which, self.const(self.i32, number))
            found = arith.select(same, choice, found)
        return found

    def _real(self, type_: ir.Type, value: ir.Value, scale: float, add: float) -> ir.Value:
        """value * scale + add for an unsigned integer."""
        wide = arith.uitofp(type_, value)
        scaled = arith.mulf(wide, arith.constant(type_, ir.FloatAttr.get(type_, scale)))
        return arith.addf(scaled, arith.constant(type_, ir.FloatAttr.get(type_, add)))

    def _pair(self, low: ir.Value, high: ir.Value, shift: int) -> ir.Value:
        """low xor (high << shift), in 64 bits."""
        shifted = arith.shli(self._wide(high), self.const(self.i64, shift))
        return arith.xori(self._wide(low), shifted)

    def number(self, kind: str, below: int) -> ir.Value:
        """This element's number of a kind of `philox.KINDS`."""
        words = self.words
        f32, f64 = ir.F32Type.get(), ir.F64Type.get()
        if kind == "word":
            return self._modulo(self._wide(self._pick(words)), below)
        if kind == "uniform":
            return self._real(f32, self._pick(words), 2.0**-32, 2.0**-33)
        if kind == "double_word":
            low, high = self._pick([words[1], words[3]]), self._pick([words[0], words[2]])
            return self._modulo(self._pair(low, high, 32), below)
        if kind == "uniform64":
            low, high = self._pick([words[0], words[2]]), self._pick([words[1], words[3]])
            return self._real(f64, self._pair(low, high, 21), 2.0**-53, 2.0**-54)
        if kind == "normal64":
            first = self._real(f64, self._pair(words[0], words[1], 21), 2.0**-53, 2.0**-54)
            turns = self._real(f64, self._pair(words[2], words[3], 21), 2.0**-52, 2.0**-53)
            angle = arith.mulf(turns, arith.constant(f64, ir.FloatAttr.get(f64, math.pi)))
            return self._box_muller(first, angle, [0, 1])
        turn = 6.2831854820251465  # 2 pi in f32
        first = self._real(f32, self._pick([words[0], words[0], words[2], words[2]]), 2.0**-32, 2.0**-33)
        second = self._pick([words[1], words[1], words[3], words[3]])
        return self._box_muller(first, self._real(f32, second, turn * 2.0**-32, turn * 2.0**-33), [0, 1, 0, 1])

    def _modulo(self, value: ir.Value, below: int) -> ir.Value:
        return arith.remui(value, self.const(self.i64, below)) if below else value

    def _box_muller(self, uniform: ir.Value, angle: ir.Value, sine_or_cosine: Sequence[int]) -> ir.Value:
        """sqrt(-2 log u) times the sine (0) or cosine (1) of the angle, by the element's number."""
        minus_two = arith.constant(uniform.type, ir.FloatAttr.get(uniform.type, -2.0))
        radius = math_ops.sqrt(arith.mulf(minus_two, math_ops.log(uniform)))
        if self.which is None:
            return arith.mulf(radius, math_ops.sin(angle))
        wave = [math_ops.sin(angle), math_ops.cos(angle)]
        return arith.mulf(radius, self._pick([wave[n] for n in sine_or_cosine]))
