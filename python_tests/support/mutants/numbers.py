"""Mutants of kernels at the `gpu` level that keep every rule of the GPU and compute something else: a softmax without its
maximum, another eps, indices of 16 bits, a weight that is not applied, an accumulator in 16 bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from support.mutants import values
from support.mutants.kernels import Mutant

_HEAD = re.compile(r"gpu\.func ")
_BINARY = re.compile(r"\s*(%\S+) = arith\.(\w+) (%\S+), (%\S+?)( fastmath<\S+>)? : (.*)$")
_LOWEST = "0xFF800000"
_FUNCTIONS = {"exp": "exp2", "rsqrt": "sqrt", "roundeven": "floor", "erf": "tanh", "tanh": "erf"}
Put = Callable[..., list[str]]
Change = Iterator[tuple[str, str, list[str]]]


def number_mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a kernel's text: those of one line, in the order of the lines, and then those of all lines of a
    kind, since a kernel computes the same thing once for each element that a thread has."""
    lines = text.split("\n")
    inside = False
    together: dict[tuple[str, str], list[tuple[int, list[str]]]] = {}
    for i, line in enumerate(lines):
        inside = (inside or _HEAD.search(line) is not None) and "gpu.return" not in line
        if not inside or _HEAD.search(line):
            continue
        for what, how, new in _changes(line, i):
            yield Mutant(what, how, i, line, "\n".join([*lines[:i], *new, *lines[i + 1 :]]))
            together.setdefault((what, how), []).append((i, new))
    for (what, how), places in together.items():
        if len(places) > 1:
            changed = dict(places)
            whole = [x for i, line in enumerate(lines) for x in changed.get(i, [line])]
            yield Mutant(what, f"{how} everywhere", places[0][0], lines[places[0][0]], "\n".join(whole))


def _changes(line: str, number: int) -> Change:
    """(what, how, the lines instead of it); `number` makes names that the kernel does not have."""
    yield from _constants(line)
    yield from _integers(line, number)
    yield from _accumulators(line, number)
    yield from values.changes(line, number)
    for name, other in _FUNCTIONS.items():
        if f"math.{name} " in line:
            yield "function", f"{other} for {name}", [line.replace(f"math.{name} ", f"math.{other} ")]
    found = _BINARY.match(line)
    if not found:
        return
    result, op, a, b, _, type_ = found.groups()
    zero = f"%mutant_{number} = arith.constant {'dense<0.0>' if type_.startswith('vector') else '0.0'} : {type_}"
    same = f"{result} = arith.addf %mutant_{number}, {{}} : {type_}"
    if op in ("subf", "addf", "mulf"):
        what = {"subf": "subtrahend", "addf": "term", "mulf": "factor"}[op]
        yield what, "not applied", [zero, same.format(a)]
        if op != "subf" and a != b:
            yield what, "not applied", [zero, same.format(b)]
    if op in ("maximumf", "maxnumf", "minimumf", "minnumf"):
        other = {"maximumf": "minimumf", "minimumf": "maximumf", "maxnumf": "minnumf", "minnumf": "maxnumf"}[op]
        for new in (other, "addf"):
            yield "maximum", "another combiner", [line.replace(f"arith.{op}", f"arith.{new}")]
        numbers = {"maximumf": "maxnumf", "minimumf": "minnumf"}.get(op)
        if numbers:
            yield "maximum", "of numbers alone", [line.replace(f"arith.{op}", f"arith.{numbers}")]
        for kept in (a, b):
            yield "maximum", "or limit not applied", [zero, same.format(kept)]


def _constants(line: str) -> Change:
    found = re.match(
        r"\s*%\S+ = arith\.constant (?:dense<)?([-+0-9.eE]+|0x\w+)>? : (?:vector<\S+x)?(?:f32|bf16|f16)", line
    )
    if not found:
        return
    number = found[1]
    if number == _LOWEST:
        yield "lowest", "a small number", [line.replace(_LOWEST, "-1.0e+1")]
    elif not number.startswith("0x") and 0 < abs(float(number)) <= 1e-4:
        yield "eps", "times 100", [line.replace(number, f"{float(number) * 100:.8e}")]
        yield "eps", "0", [line.replace(number, "0.0")]
        yield "eps", "a hundredth", [line.replace(number, f"{float(number) / 100:.8e}")]
    elif not number.startswith("0x") and float(number) not in (0.0, 1.0):
        yield "constant", "one thousandth larger", [line.replace(number, f"{float(number) * 1.001:.8e}")]


def _integers(line: str, number: int) -> Change:
    if found := re.match(r"\s*(%\S+) = arith\.(index_cast|extsi|extui|sitofp|uitofp|index_castui) (%\S+) : (\S+) to (\S+)",
                         line):  # fmt: skip
        result, op, source, old, new = found.groups()
        other = {"index_cast": "index_castui", "index_castui": "index_cast", "extsi": "extui", "extui": "extsi",
                 "sitofp": "uitofp", "uitofp": "sitofp"}[op]  # fmt: skip
        if old not in ("i1", "index"):
            yield "sign", "the other extension", [line.replace(f"arith.{op} ", f"arith.{other} ")]
        if new == "index" and old in ("i32", "i64"):
            for width in (8, 16):
                short = f"%mutant_{number} = arith.trunci {source} : {old} to i{width}"
                kept = f"{result} = arith.{op} %mutant_{number} : i{width} to index"
                yield "index", f"of {width} bits", [short, kept]
                most = f"%mutant_{number} = arith.constant {(1 << width - 1) - 1} : {old}"
                cut = f"%mutant_c{number} = arith.minsi {source}, %mutant_{number} : {old}"
                yield "index", f"below 2^{width - 1}", [most, cut, line.replace(f"{source} :", f"%mutant_c{number} :")]
    if found := re.match(r"\s*%\S+ = arith\.cmp([if]) (\w+), ", line):
        others = {"slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "ult": "ule", "ule": "ult", "ugt": "uge",
                  "uge": "ugt", "olt": "ole", "ole": "olt", "ogt": "oge", "oge": "ogt"}  # fmt: skip
        if found[2] in others:
            yield "comparison", "off by one", [line.replace(f" {found[2]},", f" {others[found[2]]},")]
    if found := re.match(r"\s*(%\S+) = arith\.(minsi|maxsi) (%\S+), (%\S+) : (i\d+)", line):
        zero = f"%mutant_{number} = arith.constant 0 : {found[5]}"
        for kept in (found[3], found[4]):
            yield "maximum", "or limit not applied", [
                zero, f"{found[1]} = arith.addi {kept}, %mutant_{number} : {found[5]}",
            ]  # fmt: skip


def _accumulators(line: str, number: int) -> Change:
    found = re.match(r"\s*(%\S+) = (?:nvgpu\.mma\.sync|arith\.addf|math\.fma).*(?:->|:) (vector<\S+xf32>|f32)$", line)
    if found:
        result, type_ = found.groups()
        short = type_.replace("f32", "bf16")
        yield (
            "accumulator",
            "in bf16",
            [
                line.replace(result, f"%mutant_{number}", 1),
                f"%mutant_s{number} = arith.truncf %mutant_{number} : {type_} to {short}",
                f"{result} = arith.extf %mutant_s{number} : {short} to {type_}",
            ],
        )
