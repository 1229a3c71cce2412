"""Mutants that do not come to an end, or to another one: loops whose step is 0 or whose end is out of reach, barriers that
one warp skips, and accesses to another argument, such as an input in place of a result."""

from __future__ import annotations

import re
from collections.abc import Iterator

SUBJECTS = ("ending", "argument")
_LOOP = re.compile(r"(\s*(?:%\S+ = )?scf\.for %\S+ = %\S+ to )(%\S+)( step )(%\S+)(.*)$")
_BARRIER = re.compile(r"^\s*(gpu\.barrier|nvvm\.barrier\b.*)$")
_ACCESS = re.compile(r"(?:vector|memref)\.(?:load|store|atomic_rmw) .*?(%\w+)\[[^\]]*\].* : (?:\(\w+, )?(memref<[^>]*>)|"
                     r"nvgpu\.device_async_copy (%\w+)\[[^\]]*\].* : (memref<[^>]*>) to")  # fmt: skip
_HEAD = re.compile(r"(gpu|llvm)\.func ")
_LATER = (
    "%mutant_t = gpu.thread_id x",
    "%mutant_32 = arith.constant 32 : index",
    "%mutant_later = arith.cmpi uge, %mutant_t, %mutant_32 : index",
)


def changes(lines: list[str], i: int) -> Iterator[tuple[str, str, list[str]]]:
    """The mutants of a line: what, how, and all lines."""
    line = lines[i]

    def put(*new: str) -> list[str]:
        return [*lines[:i], *new, *lines[i + 1 :]]

    if found := _LOOP.match(line):
        kind, far = ("i32", (1 << 31) - 1) if line.rstrip().endswith(": i32 {") else ("index", 1 << 62)
        head, end, step, by, rest = found.groups()
        yield "ending", "step of 0", put(f"%mutant_n = arith.constant 0 : {kind}", f"{head}{end}{step}%mutant_n{rest}")
        yield (
            "ending",
            "out of reach",
            put(f"%mutant_n = arith.constant {far} : {kind}", f"{head}%mutant_n{step}{by}{rest}"),
        )
    if _BARRIER.match(line):
        yield "ending", "barrier skipped by a warp", put(*_LATER, "scf.if %mutant_later {", line, "}")
    yield from _arguments(lines, i)


def _arguments(lines: list[str], i: int) -> Iterator[tuple[str, str, list[str]]]:
    """An access to a parameter of the function goes to the next one of the same type: an input for a result, a result
    for an input, one input for another."""
    found = _ACCESS.search(lines[i])
    if not found:
        return
    k = 1 if found[1] else 3
    head = next(h for h in reversed(lines[:i]) if _HEAD.search(h))
    same = re.findall(rf"(%\w+): {re.escape(found[k + 1])}[,) ]", head)
    if found[k] in same and len(same) > 1:
        other = same[(same.index(found[k]) + 1) % len(same)]
        changed = lines[i][: found.start(k)] + other + lines[i][found.end(k) :]
        yield "argument", "another one", [*lines[:i], changed, *lines[i + 1 :]]
