"""`mlirc::dequantize` as one map at the `linalg` level (`mlirc.dequantize` on the `linalg.generic`), which the product
that reads it computes in registers."""

from __future__ import annotations

from math import log2

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.quantize.packing import CHUNK, LANES, PAIR, PANEL, RUN, WORDS, Plane, planes_of
from mlirc.frontend.quantize.scheme import Format
from mlirc.mlir import arith, ir, linalg, tensor

OPERATOR = "torch.mlirc.dequantize"


def lower_dequantize(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name OPERATOR, whose shapes are static."""
    words, scales, zeros = op.operands[0], op.operands[1], op.operands[2]
    kind = ir.StringAttr(op.operands[3].owner.attributes["value"]).value
    k, group = (op.operands[i].owner.attributes["value"].value for i in (4, 5))
    format_ = Format.of(kind)
    with op.location, ir.InsertionPoint(op):
        packed, sources = builtin_tensor(words), [builtin_tensor(scales)]
        if "none" not in str(zeros.type):
            sources.append(builtin_tensor(zeros))
        (n, _), element = sources[0].type.shape, sources[0].type.element_type
        row, column = ir.AffineDimExpr.get(0), ir.AffineDimExpr.get(1)
        planes = planes_of(format_.bits, k)
        scale_at = ir.AffineExpr.get_floor_div(column, group) if group else ir.AffineConstantExpr.get(0)
        panel = ir.AffineExpr.get_floor_div(row, PANEL)
        reads = [[panel, _word(row, column, plane)] for plane in planes] + [[row, scale_at]] * len(sources)
        init = tensor.empty([n, k], element)
        maps = [ir.AffineMap.get(2, 0, read) for read in (*reads, [row, column])]
        generic = linalg.GenericOp(
            [init.type],
            [*([packed] * len(planes)), *sources],
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * 2),
        )
        generic.operation.attributes[DEQUANTIZE] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), format_.bits)
        i32 = ir.IntegerType.get_signless(32)
        block = generic.regions[0].blocks.append(*([i32] * len(planes)), *([element] * (len(sources) + 1)))
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            words, others = arguments[: len(planes)], arguments[len(planes) : -1]
            linalg.YieldOp([_Floats(format_, element).of(planes, words, *others)])
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _word(row: ir.AffineExpr, column: ir.AffineExpr, plane: Plane) -> ir.AffineExpr:
    """The word of a panel of rows that has a number's bits of a plane."""
    fields, block = plane.fields, plane.block
    at = ir.AffineExpr.get_floor_div(column, block) * (CHUNK * PANEL) + plane.start * PANEL
    at = at + ir.AffineExpr.get_mod(row, PANEL) * CHUNK
    at = at + ir.AffineExpr.get_floor_div(ir.AffineExpr.get_mod(column, LANES * RUN), RUN) * WORDS
    if fields <= RUN:  # a run has several words
        within = ir.AffineExpr.get_floor_div(ir.AffineExpr.get_mod(column, RUN), fields) if fields < RUN else None
        at = at + within if within is not None else at
    run = ir.AffineExpr.get_floor_div(ir.AffineExpr.get_mod(column, block), LANES * RUN)
    return at + (run * (RUN // fields) if fields <= RUN else ir.AffineExpr.get_floor_div(run, fields // RUN))


class _Fields:
    """Where in its words a number of the row is: shifts as i32."""

    def __init__(self) -> None:
        self.column = linalg.IndexOp(1).result

    def _part(self, divisor: int, modulus: int, factor: int) -> ir.Value:
        """(column / divisor mod modulus) * factor"""
        index = ir.IndexType.get()
        quotient = arith.divui(self.column, arith.constant(index, divisor)) if divisor > 1 else self.column
        return arith.muli(arith.remui(quotient, arith.constant(index, modulus)), arith.constant(index, factor))

    def of_pair(self, plane: Plane) -> ir.Value:
        """The shift of a number and its neighbour: a multiple of the plane's bits."""
        shift = self._part(PAIR, min(plane.fields, RUN) // PAIR, plane.bits)
        if plane.fields > RUN:  # a word has several runs
            shift = arith.addi(shift, self._part(LANES * RUN, plane.fields // RUN, plane.bits * RUN // PAIR))
        return arith.index_cast(ir.IntegerType.get_signless(32), shift)

    def of_byte(self, plane: Plane) -> ir.Value:
        """The shift of the byte of a half in which a number is: 0 or 8."""
        divisor = PAIR * 8 // plane.bits if plane.fields <= RUN else LANES * RUN
        return arith.index_cast(ir.IntegerType.get_signless(32), self._part(divisor, 2, 8))

    def in_byte(self, plane: Plane) -> ir.Value:
        """How far up in its byte a number is."""
        return arith.index_cast(ir.IntegerType.get_signless(32), self._part(PAIR, 8 // plane.bits, plane.bits))

    def of_neighbour(self) -> ir.Value:
        """What tells two neighbours apart: no shift where halves of words are registers."""
        return arith.index_cast(ir.IntegerType.get_signless(32), self._part(1, PAIR, 16))


def _constant(value: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(32), value)


def _numbers(planes: list[Plane], words: list[ir.Value]) -> ir.Value:
    """A number of its words, as i32."""
    fields, total = _Fields(), None
    for plane, word in zip(planes, words, strict=True):
        # One shift of a word for two neighbours, then the one that tells them apart.
        field = arith.shrui(arith.shrui(word, fields.of_pair(plane)), fields.of_neighbour())
        field = arith.andi(field, _constant((1 << plane.bits) - 1))
        if plane.low:
            field = arith.shli(field, _constant(plane.low))
        total = field if total is None else arith.ori(total, field)
    assert total is not None
    return total


_MANTISSA = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}
SMALL = 2.0**32  # by so much numbers are less, on their way to bf16: so scales up to 2^26 may multiply powers of two
_BIAS = {"bf16": 127, "f16": 15, "f32": 127}


class _Floats:
    """Floats of numbers, without conversions. All but the product with the scale is exact."""

    def __init__(self, format_: Format, element: ir.Type):
        self.format, self.element = format_, element
        self.short = str(element) in ("bf16", "f16")
        self.via = element if self.short else ir.F32Type.get()

    def of(self, planes: list[Plane], words: list[ir.Value], scale: ir.Value, zero: ir.Value | None = None) -> ir.Value:
        """(number - zero) * scale."""
        if self.format.floating and self.short:
            return arith.mulf(self._short_eight(planes[0], words[0]), scale)
        if str(self.element) == "bf16" and not self.format.floating:
            return self._subnormal(planes, words, scale, zero)
        number = _numbers(planes, words)
        if self.format.floating:
            return arith.mulf(self._eight(number), scale)
        return arith.mulf(self._cast(self._marked(number, zero), self.element), scale)

    def _subnormal(
        self, planes: list[Plane], words: list[ir.Value], scale: ir.Value, zero: ir.Value | None
    ) -> ir.Value:
        """Of bf16 the bits of a number n up to 255 are the float n * 2^-133: subnormal below 128, and the last places
        are as large in the next binade. So a field is a float wherever it lies in the lower byte of its half, 2^low
        times too large or too small; times a power of two it is n / SMALL, to which the other planes' and the zero
        point are added in the same instruction (`mlirc-contract`), exactly. The scale makes up for the rest."""
        i16, fields = ir.IntegerType.get_signless(16), _Fields()
        if zero is None:
            total = arith.constant(self.element, -self.format.middle / SMALL)
        else:
            total = arith.mulf(zero, arith.constant(self.element, -1 / SMALL))
        for plane, word in zip(planes, words, strict=True):
            half = arith.shrui(arith.shrui(word, fields.of_byte(plane)), fields.of_neighbour())
            up = fields.in_byte(plane)
            mask = arith.trunci(i16, arith.shli(_constant((1 << plane.bits) - 1), up))
            field = arith.andi(arith.trunci(i16, half), mask)
            # 2^(133 + low - up) / SMALL as bits: the exponent, above 7 of the mantissa.
            exponent = arith.subi(_constant(127 + 133 + plane.low - int(log2(SMALL))), up)
            power = arith.trunci(i16, arith.shli(exponent, _constant(7)))
            bits = arith.bitcast(self.element, field)
            total = arith.addf(arith.mulf(bits, arith.bitcast(self.element, power)), total)
        return arith.mulf(total, arith.mulf(scale, arith.constant(self.element, SMALL)))

    def _marked(self, number: ir.Value, zero: ir.Value | None) -> ir.Value:
        """number - zero, of a number that the mantissa holds: put into that of a power of two, whose last place is 1,
        which is subtracted with the zero point (the scheme of FasterTransformer's int4 kernels)."""
        mantissa, bias = _MANTISSA[str(self.via)], _BIAS[str(self.via)]
        integer = ir.IntegerType.get_signless(16 if self.short else 32)
        bits = arith.trunci(integer, number) if self.short else number
        marked = arith.bitcast(self.via, arith.ori(bits, arith.constant(integer, (bias + mantissa) << mantissa)))
        power = float(1 << mantissa)
        if zero is None:
            start = arith.constant(self.via, power + self.format.middle)
        else:
            start = arith.addf(self._cast(zero, self.via), arith.constant(self.via, power))
        return arith.subf(marked, start)

    def _short_eight(self, plane: Plane, word: ir.Value) -> ir.Value:
        """An 8-bit float's number as a float of 16 bits, which has all of its values: the exponent and mantissa at
        their places there, then times the power of two between the two formats' biases, which makes subnormal numbers
        right, too. No number is NaN: weights that are not finite are refused."""
        mantissa, fields = _MANTISSA[str(self.element)], _Fields()
        # First to the upper byte of its half: a word's shift by another 8 or 0 bits, not the half's.
        shift = arith.subi(_constant(8), fields.of_pair(plane))
        upper = arith.shli(word, shift)
        sign = arith.andi(arith.shrui(upper, fields.of_neighbour()), _constant(0x8000))
        down = 11 - mantissa  # the mantissa's 3 bits are the half's 10 to 8
        rest = arith.shrui(arith.shrui(upper, _constant(down)), fields.of_neighbour())
        rest = arith.andi(rest, _constant(0x7F00 >> down))
        i16 = ir.IntegerType.get_signless(16)
        both = arith.ori(arith.trunci(i16, sign), arith.trunci(i16, rest))
        power = arith.constant(self.element, 2.0 ** (_BIAS[str(self.element)] - 7))
        return arith.mulf(arith.bitcast(self.element, both), power)

    def _eight(self, number: ir.Value) -> ir.Value:
        """An 8-bit float's number in the element's type, which has all of its values."""
        byte = arith.trunci(ir.IntegerType.get_signless(8), number)
        return arith.extf(self.element, arith.bitcast(ir.Float8E4M3FNType.get(), byte))

    @staticmethod
    def _cast(value: ir.Value, to: ir.Type) -> ir.Value:
        if value.type == to:
            return value
        wider = ir.FloatType(to).width > ir.FloatType(value.type).width
        return arith.extf(to, value) if wider else arith.truncf(to, value)
