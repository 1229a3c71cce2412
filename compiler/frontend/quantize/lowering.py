"""`mlirc::dequantize` as one map at the `linalg` level (`mlirc.dequantize` on the `linalg.generic`), which the product
that reads it computes in registers."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.quantize.packing import Plane, planes_of
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
        reads = [[row, _word(column, plane)] for plane in planes] + [[row, scale_at]] * len(sources)
        init = tensor.empty([n, k], element)
        maps = [ir.AffineMap.get(2, 0, read) for read in (*reads, [row, column])]
        generic = linalg.GenericOp(
            [init.type],
            [*([packed] * len(planes)), *sources],
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * 2),
        )
        generic.operation.attributes[DEQUANTIZE] = ir.UnitAttr.get()
        i32 = ir.IntegerType.get_signless(32)
        block = generic.regions[0].blocks.append(*([i32] * len(planes)), *([element] * (len(sources) + 1)))
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            numbers = _numbers(planes, arguments[: len(planes)])
            floats = _Floats(format_, element)
            linalg.YieldOp([floats.of(numbers, *arguments[len(planes) : -1])])
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _word(column: ir.AffineExpr, plane: Plane) -> ir.AffineExpr:
    """The word of a row that has a number's bits of a plane."""
    block = ir.AffineExpr.get_floor_div(column, plane.block) * 4
    return block + ir.AffineExpr.get_floor_div(ir.AffineExpr.get_mod(column, 8), 2) + plane.start


def _numbers(planes: list[Plane], words: list[ir.Value]) -> ir.Value:
    """A number of its words, as i32."""
    i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()

    def part(value: ir.Value, divisor: int, modulus: int, factor: int) -> ir.Value:
        """(value / divisor mod modulus) * factor"""
        quotient = arith.divui(value, arith.constant(index, divisor)) if divisor > 1 else value
        return arith.muli(arith.remui(quotient, arith.constant(index, modulus)), arith.constant(index, factor))

    column, total = linalg.IndexOp(1).result, None
    for plane, word in zip(planes, words, strict=True):
        # One shift of a word for two neighbours, then the one that tells them apart: none where halves are registers.
        field = arith.shrui(word, arith.index_cast(i32, part(column, 8, plane.fields // 2, plane.bits)))
        field = arith.shrui(field, arith.index_cast(i32, part(column, 1, 2, 16)))
        field = arith.andi(field, arith.constant(i32, (1 << plane.bits) - 1))
        if plane.low:
            field = arith.shli(field, arith.constant(i32, plane.low))
        total = field if total is None else arith.ori(total, field)
    assert total is not None
    return total


class _Floats:
    """Floats of numbers: the number is put into the mantissa of a power of two, which is subtracted with the zero
    point: both are exact, and cost less than a conversion (the scheme of FasterTransformer's int4 kernels)."""

    def __init__(self, format_: Format, element: ir.Type):
        self.format, self.element = format_, element
        mantissa = {"bf16": 7, "f16": 10, "f32": 23, "f64": 52}[str(element)]
        self.via = element if mantissa >= format_.bits and str(element) != "f64" else ir.F32Type.get()

    def of(self, number: ir.Value, scale: ir.Value, zero: ir.Value | None = None) -> ir.Value:
        """(number - zero) * scale."""
        if self.format.floating:
            return arith.mulf(self._eight(number), scale)
        mantissa, bias, bits = {"bf16": (7, 127, 16), "f16": (10, 15, 16), "f32": (23, 127, 32)}[str(self.via)]
        integer = ir.IntegerType.get_signless(bits)
        narrow = arith.trunci(integer, number) if bits < 32 else number
        marked = arith.ori(narrow, arith.constant(integer, (bias + mantissa) << mantissa))
        power = arith.constant(self.via, float(1 << mantissa))
        if zero is None:
            start = arith.constant(self.via, float((1 << mantissa) + self.format.middle))
        else:
            start = arith.addf(self._cast(zero, self.via), power)
        return arith.mulf(self._cast(arith.subf(arith.bitcast(self.via, marked), start), self.element), scale)

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
