"""Symbolic sizes of a torch.export archive: text that PyTorch gives to sympy's `eval`, so judged by a grammar."""

from __future__ import annotations

import ast
import re

from mlirc.files.opening import shorten
from mlirc.frontend.judge.archive import not_judged

_LENGTH = 4000  # characters of an expression
_EXPONENT = 64  # largest exponent or shift that is a number
_FUNCTIONS = {
    # sympy's, as its `srepr` prints them
    "Abs", "Add", "And", "Equality", "Eq", "Float", "Ge", "GreaterThan", "Gt", "Integer", "Le", "LessThan", "Lt", "Max",
    "Min", "Mod", "Mul", "Ne", "Not", "Or", "Piecewise", "ExprCondPair", "Pow", "Rational", "StrictGreaterThan",
    "StrictLessThan", "Symbol", "Unequality", "ceiling", "floor", "sign", "sqrt",
    # torch.utils._sympy.functions
    "CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity", "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator", "LShift", "ModularIndexing", "PowByNatural", "PythonMod", "RShift",
    "RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where",
}  # fmt: skip
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift"}
_NAMES = {"oo", "int_oo", "true", "false", "True", "False"}
_ASSUMPTIONS = {
    "commutative", "even", "finite", "integer", "negative", "nonnegative", "nonpositive", "nonzero", "odd", "positive",
    "precision", "real", "zero",
}  # fmt: skip
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,60}")
_SHORT_SYMBOL = re.compile(r"_?[a-z]{1,4}\d{1,9}(_\d+)?")  # unlike any name that sympy or Python knows
_NUMBER = re.compile(r"-?[\d.]{1,40}(e[+-]?\d{1,3})?", re.ASCII)


def judge_expression(text: object, what: str) -> None:
    """Raises NotJudged unless `text` is arithmetic on symbols and numbers, of bounded size."""
    try:
        if not isinstance(text, str) or len(text) > _LENGTH or not text.isascii():
            raise _Refused(text)
        _visit(ast.parse(text, mode="eval").body, 0)
    except (_Refused, SyntaxError, ValueError, RecursionError, MemoryError):
        raise not_judged(what, f"a symbolic size is {ascii(shorten(text, 80))}, which is no arithmetic") from None


class _Refused(Exception):
    pass


def _visit(node: ast.expr, powers: int) -> None:
    """Raises _Refused for what is not in the grammar; `powers` are those around the node."""
    match node:
        case ast.Constant(value=bool() | float()):
            return
        case ast.Constant(value=int(number)) if abs(number) < 1 << 63:
            return
        case ast.Name(id=name) if name in _NAMES or _SHORT_SYMBOL.fullmatch(name):
            return
        case ast.UnaryOp(operand=operand):
            return _visit(operand, powers)
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return _visit_power(base, exponent, powers)
        case ast.BinOp(op=ast.LShift() | ast.RShift() | ast.MatMult()):
            raise _Refused(node)
        case ast.BinOp(left=left, right=right):
            _visit(left, powers)
            return _visit(right, powers)
        case ast.Compare(left=left, comparators=others):
            for part in (left, *others):
                _visit(part, powers)
            return
        case ast.Tuple(elts=parts):
            for part in parts:
                _visit(part, powers)
            return
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in _FUNCTIONS:
            for keyword in keywords:
                if keyword.arg not in _ASSUMPTIONS or not isinstance(keyword.value, ast.Constant):
                    raise _Refused(node)
                if not isinstance(keyword.value.value, bool | int) or not 0 <= keyword.value.value < 200:
                    raise _Refused(node)
            return _visit_call(name, arguments, powers)
    raise _Refused(node)


def _visit_call(name: str, arguments: list[ast.expr], powers: int) -> None:
    match name, arguments:
        case "Symbol", [ast.Constant(value=str(symbol))] if _SYMBOL.fullmatch(symbol):
            return
        case "Float", [ast.Constant(value=str(number))] if _NUMBER.fullmatch(number):
            return
        case ("Symbol", _):
            raise _Refused(name)
        case (_, [base, exponent]) if name in _POWERS:
            return _visit_power(base, exponent, powers)
    for argument in arguments:
        _visit(argument, powers)


def _visit_power(base: ast.expr, exponent: ast.expr, powers: int) -> None:
    """Numbers to the power of numbers can be longer than memory: exponents are small, and powers of powers few."""
    number = exponent
    match number:
        case ast.Call(func=ast.Name(id="Integer"), args=[inner]):
            number = inner
    match number:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = inner
    small = isinstance(number, ast.Constant) and isinstance(number.value, int | float) and number.value <= _EXPONENT
    if powers >= 2 or (not small and _holds_number(exponent)):
        raise _Refused(base)
    _visit(base, powers + 1)
    _visit(exponent, powers + 1)


def _holds_number(node: ast.expr) -> bool:
    """Whether an exponent is computed from numbers; a plain symbol, or one half, is not."""
    match node:
        case ast.Name() | ast.Call(func=ast.Name(id="Symbol" | "Rational" | "Float")):
            return False
    return True
