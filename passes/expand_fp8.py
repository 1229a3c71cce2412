"""`mlirc-expand-fp8`: conversions between 8-bit floats and other numbers become arithmetic on 32-bit integers and f32.

No back end lowers them: LLVM knows no 8-bit floats, `cvt` of sm_89 and later saturates where these operations do not,
and earlier targets have none. What is left of f8 in a kernel is moved, and that is bytes.

Rounding is to the nearest even, as PyTorch's. Above the largest number lies NaN in f8E4M3FN, which has no infinity, and
infinity in f8E5M2. NaN keeps its sign (OCP 8-bit Floating Point Specification, 5.2; its nonsaturating mode).
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import arith, find, ir
from mlirc.passes import register
from mlirc.passes.mathlib.builder import Number, element_type, like, select


@dataclass(frozen=True)
class Format:
    """An 8-bit float: bits of its mantissa, and the bias of its exponent."""

    mantissa: int
    bias: int

    @property
    def shift(self) -> int:
        """Between its mantissa and that of f32."""
        return 23 - self.mantissa


FORMATS = {"f8E4M3FN": Format(3, 7), "f8E5M2": Format(2, 15)}
_SIGN = -(1 << 31)
_INFINITY = 0x7F800000  # of f32, without its sign
_NAN = 0x7F  # all bits but the sign, in both formats
_NO_NUMBER = {"f8E4M3FN": _NAN, "f8E5M2": 0x7C}  # the first code above the numbers: NaN, and infinity
_CASTS = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "arith.cmpf")


def _is_f8(type_: ir.Type) -> bool:
    return str(element_type(type_)) in FORMATS


def _as(type_: ir.Type, build: type, element: ir.Type, value: ir.Value) -> Number:
    return Number(build(like(type_, element), value).result)


def widen(value: ir.Value) -> Number:
    """The f32 with the value of an 8-bit float, a scalar or a vector; every one has one."""
    type_, name = value.type, str(element_type(value.type))
    i8, i32 = (ir.IntegerType.get_signless(n) for n in (8, 32))
    bits = _as(type_, arith.ExtUIOp, i32, _as(type_, arith.BitcastOp, i8, value).value)
    form = FORMATS[name]
    magnitude = (bits & 0x7F) << form.shift
    signed = magnitude | ((bits & 0x80) << 24)
    number = signed.bits() * 2.0 ** (127 - form.bias)  # exact, of subnormal numbers, too
    # Codes from the first one above the numbers on, with the exponent of infinity and NaN in f32.
    special = (bits & 0x80) << 24 | _INFINITY | magnitude & ((1 << 23) - 1 if name == "f8E4M3FN" else 0x600000)
    return select((bits & 0x7F).compare("ge", _NO_NUMBER[name]), special.bits(), number)


def narrow(value: Number, name: str) -> ir.Value:
    """An f32, a scalar or a vector, rounded to the 8-bit float of the type `name`."""
    form = FORMATS[name]
    bits = value.bits()
    size = bits & 0x7FFFFFFF
    even = (size >> form.shift) & 1
    rounded = size + even + ((1 << form.shift - 1) - 1 - ((127 - form.bias) << 23)) >> form.shift
    # What is subnormal in f8: added to the power of two whose last place is the least subnormal number.
    anchor = value.const(2.0 ** (23 + 1 - form.bias - form.mantissa))
    subnormal = (size.bits() + anchor).bits() - anchor.bits()
    most = rounded.const(_NO_NUMBER[name])
    rounded = select(rounded.compare("lt", most), rounded, most)
    code = select(size.compare("lt", (128 - form.bias) << 23), subnormal, rounded)
    code = select(size.compare("gt", _INFINITY), _NAN, code)
    code = code | ((bits & _SIGN) >> 24)
    narrowed = _as(value.type, arith.TruncIOp, ir.IntegerType.get_signless(8), code.value)
    return _as(value.type, arith.BitcastOp, ir.Type.parse(name), narrowed.value).value


def _to_f32(value: ir.Value, op: ir.Operation) -> Number:
    element = element_type(value.type)
    if _is_f8(value.type):
        return widen(value)
    if isinstance(element, ir.IntegerType):
        build = arith.UIToFPOp if op.name == "arith.uitofp" else arith.SIToFPOp
        return _as(value.type, build, ir.F32Type.get(), value)
    if element.width > 32:
        raise MlircError(f"{op.name} at {op.location}: {element} to f8 would round twice: go through f32")
    return Number(value).to_f32()


def _expand(op: ir.Operation) -> ir.Value:
    type_ = op.results[0].type
    if op.name == "arith.cmpf":
        wide = [widen(v).value for v in op.operands]
        return arith.CmpFOp(op.attributes["predicate"], *wide).result
    number = _to_f32(op.operands[0], op)
    if _is_f8(type_):
        return narrow(number, str(element_type(type_)))
    if op.name in ("arith.fptosi", "arith.fptoui"):
        build = arith.FPToSIOp if op.name == "arith.fptosi" else arith.FPToUIOp
        return build(type_, number.value).result
    width = element_type(type_).width
    if width == 32:
        return number.value
    return (arith.ExtFOp if width > 32 else arith.TruncFOp)(type_, number.value).result  # 16 bits hold every f8


def expand_fp8(root: ir.Operation) -> None:
    """Expands the conversions nested in an operation, in place. Raises MlircError for one that no arithmetic of f32
    gives."""
    with root.context:
        for op in find(root, *_CASTS):
            if _is_f8(op.operands[0].type) or _is_f8(op.results[0].type):
                with op.location, ir.InsertionPoint(op):
                    op.results[0].replace_all_uses_with(_expand(op))
                op.erase()


@register("mlirc-expand-fp8")
def run(module: ir.Module) -> None:
    """Expands conversions from and to 8-bit floats; see the file's head."""
    expand_fp8(module.operation)
