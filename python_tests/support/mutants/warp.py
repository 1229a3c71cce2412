"""Mutants of what the lanes of a warp do together, and of what is initialized: masks, widths, offsets, warp-wide
instructions and barriers in divergent arms, barriers' numbers and counts, stores removed, values replaced by poison."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Change = tuple[str, str, list[str]]

# Where the mask is: behind the operation's name and its kind, or in front of the colon.
_MASKED = re.compile(
    r"(nvvm\.(?:shfl\.sync|vote\.sync|match\.sync) +\w+ +|nvvm\.(?:bar\.warp\.sync|elect\.sync) +|"
    r"nvvm\.redux\.sync +\w+ +%[\w-]+, *)(%[\w-]+)"
)
_SHUFFLE = re.compile(r"(gpu\.shuffle +(\w+) +%[\w-]+, )(%[\w-]+), (%[\w-]+) : (\S+)")
_SHFL = re.compile(r"(nvvm\.shfl\.sync +(\w+) +%[\w-]+, %[\w-]+, )(%[\w-]+)(, %[\w-]+)")
_TOGETHER = re.compile(r"(gpu\.shuffle|nvvm\.(shfl|vote|match|redux|elect)\.sync|gpu\.ballot)")
_WAITS = re.compile(r"^\s*(gpu\.barrier|nvvm\.barrier\b.*|nvvm\.bar\.warp\.sync.*)$")
_STORE = re.compile(r"^\s*((memref|vector)\.store|llvm\.store) ")
_ARITH = re.compile(r"^\s*(%\w+) = (?:arith|math)\.(\w+) .*: (?:\S+ to )?((?:vector<[^>]*>|[a-z]+\d+|index))\s*$")
SUBJECTS = ("mask", "shuffle", "divergence", "initial value", "value")
POISONED = 7  # of so many results of arithmetic one becomes poison

LANE = (
    "%mutant_lane = gpu.lane_id",
    "%mutant_16 = arith.constant 16 : index",
    "%mutant_low = arith.cmpi ult, %mutant_lane, %mutant_16 : index",
)


def changes(lines: list[str], i: int) -> Iterator[Change]:
    """The mutants of a line: what, how, and all lines."""
    line = lines[i]

    def put(*new: str) -> list[str]:
        return [*lines[:i], *new, *lines[i + 1 :]]

    yield from _masks(line, put)
    yield from _shuffles(line, put)
    yield from _divergent(line, put)
    yield from _unordered(lines, i, put)
    yield from _named(line, put)
    yield from _initial(line, i, put)


def _unordered(lines: list[str], i: int, put: Callable) -> Iterator[Change]:
    """Lanes that converge, which orders none of their accesses: a vote for a barrier of the warp, and a store to shared
    memory by either half of the warp, in arms of a branch, with no barrier behind."""
    line = lines[i]
    if found := re.match(r"\s*nvvm\.bar\.warp\.sync (%[\w-]+) : i32", line):
        vote = f"%mutant_v = nvvm.vote.sync ballot {found[1]}, %mutant_yes -> i32"
        yield "barrier", "weakened to a vote", put("%mutant_yes = arith.constant true", vote)
    if not re.match(r"\s*vector\.store .*workgroup", line):
        return
    for j in range(i + 1, len(lines)):
        if lines[j].rstrip().endswith("{") or lines[j].lstrip().startswith("}"):
            return
        if "nvvm.bar.warp.sync" in lines[j]:
            arms = ("scf.if %mutant_low {", line, "} else {", line, "}")
            yield "divergence", "store in both arms, no barrier", [*lines[:i], *LANE, *arms, *lines[i + 1 : j],
                                                                   *lines[j + 1 :]]  # fmt: skip
            return


def _masks(line: str, put: Callable) -> Iterator[Change]:
    found = _MASKED.search(line)
    if not found:
        return
    changed = line[: found.start(2)] + "%mutant_m" + line[found.end(2) :]
    for how, other in (
        ("without a lane", "arith.andi OLD, %mutant_k : i32"), ("with a lane more", "arith.ori OLD, %mutant_k : i32"),
        ("that names all lanes", "arith.constant -1 : i32"), ("of the first half", "arith.constant 65535 : i32"),
    ):  # fmt: skip
        number = {"without a lane": -9, "with a lane more": 1 << 19}.get(how, 0)
        constant = f"%mutant_k = arith.constant {number} : i32"
        yield "mask", how, put(constant, f"%mutant_m = {other.replace('OLD', found[2])}", changed)
    last = ("%mutant_31 = arith.constant 31 : index", "%mutant_is = arith.cmpi eq, %mutant_lane, %mutant_31 : index")
    mixed = ("%mutant_k = arith.constant 32 : i32", f"%mutant_o = arith.xori {found[2]}, %mutant_k : i32",
             f"%mutant_m = arith.select %mutant_is, %mutant_o, {found[2]} : i32")  # fmt: skip
    yield "mask", "another in one lane", put(*LANE, *last, *mixed, changed)


def _shuffles(line: str, put: Callable) -> Iterator[Change]:
    found = _SHUFFLE.search(line)
    if found:
        width = "%mutant_w = arith.constant 16 : i32"
        yield "shuffle", "of width 16", put(width, line[: found.start(4)] + "%mutant_w" + line[found.end(4) :])
    found = found or _SHFL.search(line)
    if not found:
        return
    for how, number, op in (
        ("offset plus one", 1, "addi"),
        ("offset doubled", 1, "shli"),
        ("offset 16 further", 16, "xori"),
    ):
        moved = (f"%mutant_k = arith.constant {number} : i32", f"%mutant_o = arith.{op} {found[3]}, %mutant_k : i32")
        yield "shuffle", how, put(*moved, line[: found.start(3)] + "%mutant_o" + line[found.end(3) :])
    modes = ("xor", "down", "up", "idx") if "gpu" in found[1] else ("bfly", "down", "up", "idx")
    other = modes[(modes.index(found[2]) + 1) % 4]
    yield "shuffle", "of another mode", put(line[: found.start(2)] + other + line[found.end(2) :])


def _divergent(line: str, put: Callable) -> Iterator[Change]:
    """An instruction of the warp, or a barrier, in one arm of a branch by the lane, or in both."""
    if _WAITS.match(line):
        yield "divergence", "barrier in one arm", put(*LANE, "scf.if %mutant_low {", line, "}")
        yield "divergence", "barrier in both arms", put(*LANE, "scf.if %mutant_low {", line, "} else {", line, "}")
    found = re.match(r"\s*(%\w+)(:2)?(?:, (%\w+))? = (.*)$", line)
    if not found or not _TOGETHER.search(line) or found[2]:
        return
    names = [n for n in (found[1], found[3]) if n]
    t = re.split(r"->|:", line)[-1].strip()
    types = [t, "i1"][: len(names)]
    inner = ", ".join(f"{n}_in" for n in names)
    other = [f"{n}_else = ub.poison : {x}" for n, x in zip(names, types, strict=True)]
    ends = (f"scf.yield {inner} : {', '.join(types)}", "scf.yield {} : {}".format(
        ", ".join(f"{n}_else" for n in names), ", ".join(types)))  # fmt: skip
    head = f"{', '.join(names)} = scf.if %mutant_low -> ({', '.join(types)}) {{"
    copy = f"{inner} = {found[4]}"
    yield "divergence", "in one arm", put(*LANE, head, copy, ends[0], "} else {", *other, ends[1], "}")
    yield "divergence", "in both arms", put(*LANE, head, copy, ends[0], "} else {", copy, ends[0], "}")


def _named(line: str, put: Callable) -> Iterator[Change]:
    if found := re.match(r"\s*nvvm\.barrier(?:\.arrive)? id = (%\w+)(?: number_of_threads = (%\w+))?", line):
        for how, number in (("of number 16", 16), ("of another number", 9)):
            constant = f"%mutant_k = arith.constant {number} : i32"
            yield "barrier", how, put(constant, line[: found.start(1)] + "%mutant_k" + line[found.end(1) :])
        if found[2]:
            for how, number in (("for 32 threads", 32), ("for 48 threads", 48), ("for 160 threads", 160)):
                constant = f"%mutant_k = arith.constant {number} : i32"
                yield "barrier", how, put(constant, line[: found.start(2)] + "%mutant_k" + line[found.end(2) :])


def _initial(line: str, i: int, put: Callable) -> Iterator[Change]:
    if _STORE.match(line):
        yield "initial value", "not stored", put()
    if found := re.match(r"(.*iter_args\()(.*)(\) -> \((.*)\).*)", line):
        pairs, types = found[2].split(", "), re.split(r", (?![^<]*>)", found[4])
        for k, (pair, t) in enumerate(zip(pairs, types, strict=True)):
            spoiled = [*pairs[:k], f"{pair.split(' = ')[0]} = %mutant_p", *pairs[k + 1 :]]
            poison = f"%mutant_p = ub.poison : {t}"
            yield "initial value", "poison", put(poison, f"{found[1]}{', '.join(spoiled)}{found[3]}")
    found = _ARITH.match(line)
    if found and i % POISONED == 0 and not found[2].startswith(("cmp", "constant")):
        yield "value", "poison", put(f"{found[1]} = ub.poison : {found[3]}")
    elif found and i % POISONED == 0 and found[2].startswith("cmp"):
        yield "value", "poison", put(f"{found[1]} = ub.poison : i1")
