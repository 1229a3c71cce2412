"""Mutants of what a kernel computes of values: roundings that cut off or saturate, counts that are off by one, elements
and lanes that are exchanged or lost, comparisons and integers of another sign, small numbers that become 0."""

from __future__ import annotations

import re
from collections.abc import Iterator

Change = Iterator[tuple[str, str, list[str]]]

_MANTISSA = {"bf16": 0xFFFF0000, "f16": 0xFFFFE000}
_LARGEST = {"bf16": "3.38953139e+38", "f16": "6.550400e+04"}
_NAN = {"oeq": "ueq", "one": "une", "une": "one", "ogt": "ugt", "oge": "uge", "olt": "ult", "ole": "ule", "uno": "ord",
        "ord": "uno"}  # fmt: skip
_UNSIGNED = ("divsi", "remsi", "shrsi", "minsi", "maxsi", "ceildivsi")


def changes(line: str, number: int) -> Change:
    """(what, how, the lines instead of it); `number` makes names that the kernel does not have."""
    yield from _roundings(line, number)
    yield from _counts(line)
    yield from _elements(line)
    yield from _signs(line, number)
    yield from _functions(line, number)
    if found := re.match(r"\s*%\S+ = arith\.cmpf (\w+), ", line):
        if found[1] in _NAN:
            yield "comparison", "of NaN", [line.replace(f" {found[1]},", f" {_NAN[found[1]]},", 1)]
    if "gpu.shuffle xor " in line:
        for mode in ("up", "down"):
            yield "lanes", f"shuffle {mode}", [line.replace("gpu.shuffle xor ", f"gpu.shuffle {mode} ")]


def _dense(type_: str, value: str) -> str:
    return f"dense<{value}>" if type_.startswith("vector") else value


def _roundings(line: str, n: int) -> Change:
    found = re.match(r"\s*%\S+ = arith\.truncf (%\S+) : (\S*f32>?) to \S*?(bf16|f16)>?$", line)
    if not found:
        return
    source, type_, short = found.groups()
    whole = type_.replace("f32", "i32")
    yield "rounding", "cut off", [
        f"%mutant_m{n} = arith.constant {_dense(type_, str(_MANTISSA[short] - (1 << 32)))} : {whole}",
        f"%mutant_b{n} = arith.bitcast {source} : {type_} to {whole}",
        f"%mutant_a{n} = arith.andi %mutant_b{n}, %mutant_m{n} : {whole}",
        f"%mutant_{n} = arith.bitcast %mutant_a{n} : {whole} to {type_}",
        line.replace(f"truncf {source} ", f"truncf %mutant_{n} "),
    ]  # fmt: skip
    yield "rounding", "saturating", [
        f"%mutant_h{n} = arith.constant {_dense(type_, _LARGEST[short])} : {type_}",
        f"%mutant_l{n} = arith.constant {_dense(type_, '-' + _LARGEST[short])} : {type_}",
        f"%mutant_a{n} = arith.minimumf {source}, %mutant_h{n} : {type_}",
        f"%mutant_{n} = arith.maximumf %mutant_a{n}, %mutant_l{n} : {type_}",
        line.replace(f"truncf {source} ", f"truncf %mutant_{n} "),
    ]  # fmt: skip


def _counts(line: str) -> Change:
    found = re.match(r"\s*%\S+ = arith\.constant (?:dense<)?([0-9.]+[eE][-+]\d+)>? : (?:vector<\S+x)?f32", line)
    if not found or not (value := float(found[1])):
        return
    for count, other in ((value, lambda n: n), (1 / value, lambda n: 1 / n)):
        if count >= 3 and abs(count - round(count)) < 1e-4 * min(count, 1000):
            for how, step in (("one more", 1), ("one less", -1)):
                yield "count", how, [line.replace(found[1], f"{other(round(count) + step):.8e}")]


def _elements(line: str) -> Change:
    if found := re.match(r"\s*%\S+ = vector\.from_elements (%\S+), (%[^\s,]+)", line):
        a, b = found.groups()
        if a != b:
            yield "element", "exchanged", [line.replace(f"{a}, {b}", f"{b}, {a}", 1)]
    if found := re.match(r"\s*%\S+ = vector\.extract %\S+\[(\d+)\] : \S+ from vector<(\d+)x[^x]*$", line):
        k, count = int(found[1]), int(found[2])
        if count > 1:
            yield "element", "of the neighbour", [line.replace(f"[{k}]", f"[{k - 1 if k else 1}]", 1)]
    if found := re.match(r"\s*(%\S+) = arith\.select (%\S+), (%\S+), (%\S+) : ", line):
        if found[3] != found[4] and "index" not in line:
            swapped = line.replace(f"{found[2]}, {found[3]}, {found[4]}", f"{found[2]}, {found[4]}, {found[3]}", 1)
            yield "choice", "of the other", [swapped]


def _signs(line: str, n: int) -> Change:
    found = re.match(r"\s*(%\S+) = arith\.(\w+) (?:(\w+), )?(%\S+), (%\S+)( overflow\S+)? : (\S+)$", line)
    if found and "index" not in found[7] and re.search(r"i(8|16|32|64)", found[7]):
        result, op, predicate, a, b, _, type_ = found.groups()
        if op == "cmpi" and predicate.startswith("s"):
            yield "sign", "of a comparison", [line.replace(f"cmpi {predicate},", f"cmpi u{predicate[1:]},")]
        if op in _UNSIGNED:
            yield "sign", "of an operation", [line.replace(f"arith.{op} ", f"arith.{op.replace('si', 'ui')} ")]
        if op in ("addi", "subi", "muli", "andi", "ori", "xori", "shli", "shrsi", "shrui"):
            yield "integer", "operand not applied", [f"{result} = arith.ori {a}, {a} : {type_}"]
        if op in ("shrsi", "shrui", "divsi", "divui"):
            yield "flag", "exact", [line.replace(f" : {type_}", f" exact : {type_}")]
    if found := re.match(r"\s*(%\S+) = (?:arith\.negf|math\.absf) (%\S+) : (\S+)$", line):
        result, source, type_ = found.groups()
        one = f"%mutant_{n} = arith.constant {_dense(type_, '1.0')} : {type_}"
        yield "sign", "of a float not changed", [one, f"{result} = arith.mulf {source}, %mutant_{n} : {type_}"]


def _functions(line: str, n: int) -> Change:
    found = re.match(r"\s*(%\S+) = math\.(\w+) (%[^\s,]+)(?:, %\S+)? : (f32|vector<\S+xf32>)$", line)
    if not found:
        return
    result, name, _, type_ = found.groups()
    if name == "roundeven":
        yield "function", "round for roundeven", [line.replace("math.roundeven", "math.round")]
    if name in ("absf", "fma", "roundeven", "round", "floor", "ceil", "trunc", "copysign"):
        return
    bools = re.sub(r"f32", "i1", type_)
    yield "function", "flushes small numbers", [
        line.replace(result, f"%mutant_v{n}", 1),
        f"%mutant_e{n} = arith.constant {_dense(type_, '1.0e-30')} : {type_}",
        f"%mutant_z{n} = arith.constant {_dense(type_, '0.0')} : {type_}",
        f"%mutant_a{n} = math.absf %mutant_v{n} : {type_}",
        f"%mutant_c{n} = arith.cmpf olt, %mutant_a{n}, %mutant_e{n} : {type_}",
        f"{result} = arith.select %mutant_c{n}, %mutant_z{n}, %mutant_v{n} : {bools}, {type_}"
        if type_.startswith("vector") else f"{result} = arith.select %mutant_c{n}, %mutant_z{n}, %mutant_v{n} : {type_}",
    ]  # fmt: skip
