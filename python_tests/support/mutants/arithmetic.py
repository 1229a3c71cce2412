"""Mutants of arithmetic: divisors of zero, shifts by the width, indices that leave 32 bits, terms and factors dropped,
signs turned, and windows of memory that are another one for some lanes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from support.mutants import warp

Change = tuple[str, str, list[str]]

SUBJECTS = ("integer", "number", "window")
EVERY = 5  # of so many operations on floats, and of so many on indices, one is spoiled
_BINARY = re.compile(r"^\s*(%\w+) = arith\.(\w+) (%[\w#]+), (%[\w#]+)(?: overflow<\w+>)? : (index|i\d+)\s*$")
_FLOAT = re.compile(
    r"^\s*(%\w+) = (?:arith|math)\.(fma|addf|subf|mulf) (%[\w#]+), (%[\w#]+)(?:, (%[\w#]+))? : (\S+)\s*$"
)


def changes(lines: list[str], i: int) -> Iterator[Change]:
    """The mutants of a line: what, how, and all lines."""
    line = lines[i]

    def put(*new: str) -> list[str]:
        return [*lines[:i], *new, *lines[i + 1 :]]

    if found := _BINARY.match(line):
        yield from _integers(line, i, found, put)
        yield from _flags(i, found, put)
    if found := re.match(r"^\s*(%\w+) = arith\.(extui|uitofp|index_castui|trunci) (%[\w#]+) : (.*)$", line):
        flag = "overflow<nuw>" if found[2] == "trunci" else "nneg"
        yield "integer", f"with {flag}", put(f"{found[1]} = arith.{found[2]} {found[3]} {flag} : {found[4]}")
    if (found := _FLOAT.match(line)) and i % EVERY == 0:
        yield from _floats(found, put)
    yield from _windows(lines, i, put)


def _integers(line: str, i: int, found: re.Match, put: Callable) -> Iterator[Change]:
    result, op, _, right, t = found.groups()
    width = 32 if t == "index" else int(t[1:])
    other = line[: found.start(4)] + "%mutant_k" + line[found.end(4) :]
    if op.startswith(("div", "rem", "ceildiv", "floordiv")):
        yield "integer", "divided by zero", put(f"%mutant_k = arith.constant 0 : {t}", other)
    if op.startswith("sh"):
        yield "integer", "shifted by the width", put(f"%mutant_k = arith.constant {width} : {t}", other)
    if t != "index" or i % EVERY:
        return
    plain = line.replace(f"{result} =", "%mutant_x =", 1)
    for how, bits, back in (("past 32 bits", 16, "muli"), ("past 32 bits and back", 24, "divsi")):
        yield "integer", how, put(
            plain, f"%mutant_k = arith.constant {1 << bits} : index",
            "%mutant_y = arith.muli %mutant_x, %mutant_k : index",
            f"{result} = arith.{back} %mutant_y, %mutant_k : index",
        )  # fmt: skip


def _flags(i: int, found: re.Match, put: Callable) -> Iterator[Change]:
    """Flags that the operands may break."""
    result, op, left, right, t = found.groups()
    if op in ("shrui", "shrsi", "divui", "divsi"):
        yield "integer", "with exact", put(f"{result} = arith.{op} {left}, {right} exact : {t}")
    if op in ("addi", "subi", "muli", "shli") and i % EVERY == 0:
        yield "integer", "with overflow<nuw>", put(f"{result} = arith.{op} {left}, {right} overflow<nuw> : {t}")


def _floats(found: re.Match, put: Callable) -> Iterator[Change]:
    result, op, a, b, c, t = found.groups()
    if op == "fma":
        yield "number", "addend dropped", put(f"{result} = arith.mulf {a}, {b} : {t}")
        yield "number", "factor dropped", put(f"{result} = arith.addf {a}, {c} : {t}")
        negated = f"%mutant_n = arith.negf {a} : {t}"
        yield "number", "sign turned", put(negated, f"{result} = math.fma %mutant_n, {b}, {c} : {t}")
    else:
        other = {"addf": "subf", "subf": "addf", "mulf": "addf"}[op]
        yield "number", "another operation", put(f"{result} = arith.{other} {a}, {b} : {t}")
        zero = f"%mutant_z = arith.subf {b}, {b} : {t}"
        yield "number", "operand dropped", put(zero, f"{result} = arith.addf {a}, %mutant_z : {t}")


def _windows(lines: list[str], i: int, put: Callable) -> Iterator[Change]:
    line = lines[i]
    if found := re.search(r"memref\.view %\w+\[(%c[1-9]\w*)\]", line):
        chosen = ("%mutant_c0 = arith.constant 0 : index",
                  f"%mutant_o = arith.select %mutant_low, {found[1]}, %mutant_c0 : index")  # fmt: skip
        moved = line[: found.start(1)] + "%mutant_o" + line[found.end(1) :]
        yield "window", "another one for half a warp", put(*warp.LANE, *chosen, moved)
    found = re.search(r"(?:vector|memref)\.(?:load|store) (?:%\w+, )?(%\w+)\[[^\]]*\].* : (memref<[^>]*>)", line)
    head = next(h for h in reversed(lines[:i]) if re.search(r"(gpu|llvm)\.func ", h))
    same = re.findall(rf"(%\w+): {re.escape(found[2])}[,) ]", head) if found else []
    if found and found[1] in same and len(same) > 1:
        other = same[(same.index(found[1]) + 1) % len(same)]
        moved = line[: found.start(1)] + "%mutant_b" + line[found.end(1) :]
        choice = f"%mutant_b = arith.select %mutant_low, {found[1]}, {other} : {found[2]}"
        yield "window", "of another buffer for half a warp", put(*warp.LANE, choice, moved)
