"""Mutants of kernels at the `gpu` level: one barrier, fence, wait, commit, arrive, predicate, bound or offset removed,
weakened or misplaced at a time, and what the host device says to each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlirc import mlir
from mlirc.device import DeviceKernel, Report
from mlirc.device.numbers import bits_of
from mlirc.device.reference import Case as Compared
from mlirc.device.reference import Reference, compare
from mlirc.errors import MlircError
from support.mutants import arithmetic, ends, hopper, warp

# Constants that mutants use, put in front of every kernel's body.
_HELPERS = (
    "%mutant_0 = arith.constant 0 : index",
    "%mutant_1 = arith.constant 1 : index",
    "%mutant_all = arith.constant -1 : i32",
)
_HEAD = re.compile(r"(gpu|llvm)\.func ")
_EFFECT = re.compile(
    r"nvgpu\.(device_async_copy|ldmatrix)|(vector|memref)\.(load|store)|wgmma\.mma_async|\.wait\.group|commit\.group"
    r"|gpu\.barrier|bar\.warp\.sync|fence|mbarrier|cp\.async\.bulk|atomic|cmpxchg|memory\.barrier"
)
_SYNC = {
    "barrier": r"^\s*(gpu\.barrier|nvvm\.barrier|nvvm\.bar\.warp\.sync.*)$",
    "wait": r"^\s*nvvm\.(cp\.async\.wait\.group|wgmma\.wait\.group|mbarrier\.try_wait).*$",
    "commit": r"^\s*nvvm\.(cp\.async|wgmma)\.commit\.group.*$",
    "fence": r"^\s*(nvvm\.(fence|wgmma\.fence|memory\.barrier)|llvm\.fence).*$",
    "atomic": r"^\s*(llvm\.store .* atomic |%\S+ = llvm\.atomicrmw ).*$",
    "arrive": r"^\s*(%\S+ = )?nvvm\.mbarrier\.arrive.*$",
}
_MEMORY = re.compile(r"(nvgpu\.(?:device_async_copy|ldmatrix)|(?:vector|memref)\.(?:load|store|atomic_rmw)) ")


@dataclass(frozen=True)
class Mutant:
    """`what` it concerns (barrier, fence, wait, commit, arrive, atomic, predicate, bound, offset, argument), `how` that was
    spoiled, the number and the text of the line, and the whole text."""

    what: str
    how: str
    line: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.what} {self.how}, line {self.line + 1}: {' '.join(self.was.split())[:110]}"


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a kernel's text, in the order of its lines."""
    lines = text.split("\n")
    inside = False
    for i, line in enumerate(lines):
        inside = inside or _HEAD.search(line) is not None
        inside = inside and "gpu.return" not in line and "llvm.return" not in line
        for what, how, changed in hopper.maps(line, lambda *new, i=i: [*lines[:i], *new, *lines[i + 1 :]]):
            yield Mutant(what, how, i, line, _with_helpers(changed))
        if not inside or _HEAD.search(line):
            continue
        for what, how, changed in [
            *_changes(lines, i),
            *ends.changes(lines, i),
            *warp.changes(lines, i),
            *arithmetic.changes(lines, i),
        ]:
            if changed != lines:
                yield Mutant(what, how, i, line, _with_helpers(changed))


def _with_helpers(lines: Sequence[str]) -> str:
    out = []
    for line in lines:
        out.append(line)
        if _HEAD.search(line):
            out += _HELPERS
    return "\n".join(out)


def _changes(lines: list[str], i: int) -> Iterator[tuple[str, str, list[str]]]:
    line = lines[i]

    def put(*new: str) -> list[str]:
        return [*lines[:i], *new, *lines[i + 1 :]]

    for what, pattern in _SYNC.items():
        if re.match(pattern, line):
            yield what, "removed", put()
            yield what, "moved down", _moved(lines, i, 1)
            if what != "wait":  # an earlier wait waits for more
                yield what, "moved up", _moved(lines, i, -1)
    if line.strip() == "gpu.barrier":
        yield "barrier", "weakened to the warp's", put("nvvm.bar.warp.sync %mutant_all : i32")
    weaker = re.sub(r"(wait\.group(?:\.sync\.aligned)? )(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}", line)
    yield "wait", "weakened", put(weaker)
    yield from _orders(line, put)
    if found := re.match(r"\s*scf\.if (%\S+)", line):
        yes = "%mutant_yes = arith.constant true"
        yield "predicate", "removed", put(yes, line.replace(f"scf.if {found[1]} ", "scf.if %mutant_yes "))
    if found := re.match(r"\s*(%\S+) = arith\.cmpi (slt|ult|sle|ule|sgt|sge), .*: index", line):
        other = {"slt": "sle", "ult": "ule", "sgt": "sge", "sle": "slt", "ule": "ult", "sge": "sgt"}[found[2]]
        yield "predicate", "off by one", put(line.replace(f"cmpi {found[2]}", f"cmpi {other}"))
        yield "predicate", "always true", put(f"{found[1]} = arith.constant true")
    yield from _bounds(line, put)
    yield from _offsets(line, put)
    yield from hopper.changes(lines, i, put, lambda step: _moved(lines, i, step, hopper.EFFECT))


def _orders(line: str, put) -> Iterator[tuple[str, str, list[str]]]:
    """Weaker memory orders, narrower scopes, waits that do not wait."""
    what = "fence" if "llvm.fence" in line or "memory.barrier" in line else "atomic"
    for how, pattern, weaker in (
        ("relaxed", r"\b(acq_rel|acquire|release)\b(?! monotonic)", "monotonic"),
        ("relaxed", r"\bacquire monotonic\b", "monotonic monotonic"),
        ("that only acquires", r"\bacq_rel\b", "acquire"),
        ("that only releases", r"\bacq_rel\b", "release"),
        ("of the block's scope", r'"device"', '"block"'),
        ("of the block's scope", r"memory\.barrier <gpu>", "memory.barrier <cta>"),
    ):
        if not (what == "fence" and weaker == "monotonic"):
            yield what, how, put(re.sub(pattern, weaker, line))
    if found := re.match(r"\s*scf\.condition\((%\S+)\)", line):
        yield (
            "wait",
            "that does not wait",
            put("%mutant_no = arith.constant false", line.replace(found[1], "%mutant_no")),
        )


def _bounds(line: str, put) -> Iterator[tuple[str, str, list[str]]]:
    if found := re.match(r"\s*(%\S+) = arith\.(?:minsi|minui) (%\S+), (%\S+) : index", line):
        yield "bound", "removed", put(f"{found[1]} = arith.addi {found[2]}, %mutant_0 : index")
        yield "bound", "always at the end", put(f"{found[1]} = arith.addi {found[3]}, %mutant_0 : index")
        yield "bound", "one too far", put(line.replace(found[1], "%mutant_x", 1),
                                          f"{found[1]} = arith.addi %mutant_x, %mutant_1 : index")  # fmt: skip
    if found := re.match(r"\s*(%\S+) = arith\.select %\S+, (%\S+), %\S+ : index", line):
        yield "bound", "zero fill removed", put(f"{found[1]} = arith.addi {found[2]}, %mutant_0 : index")
    if found := re.match(r"\s*(?:%\S+ = )?scf\.for %\S+ = (%\S+) to (%\S+) step (%\S+)", line):
        kind = "i32" if line.rstrip().endswith(": i32 {") else "index"
        for how, op in (("one turn more", "addi"), ("one turn less", "subi")):
            end = f"%mutant_end = arith.{op} {found[2]}, {found[3]} : {kind}"
            yield "bound", how, put(end, line.replace(f"to {found[2]} step", "to %mutant_end step"))


def _offsets(line: str, put) -> Iterator[tuple[str, str, list[str]]]:
    yield (
        "offset",
        "of a buffer dropped",
        put(re.sub(r"memref\.view (%\S+)\[%c[1-9]\d*\]", r"memref.view \1[%c0]", line)),
    )
    if found := re.match(r"\s*(%\S+) = arith\.xori (%\S+), %\S+ : index", line):
        yield "offset", "not swizzled", put(f"{found[1]} = arith.addi {found[2]}, %mutant_0 : index")
    if found := re.match(r"\s*(?:nvvm\.mbarrier\.init %\S+|.*mbarrier\.arrive\.expect_tx %\S+), (%\w+)", line):
        more = f"%mutant_n = arith.addi {found[1]}, {found[1]} : i32"
        yield "arrive", "twice the count", put(more, line.replace(f", {found[1]} ", ", %mutant_n "))
    if found := re.match(r"\s*(%\S+) = arith\.addi (%\S+), %\S+ : i64", line):
        yield (
            "offset",
            "of a descriptor dropped",
            put("%mutant_z = arith.constant 0 : i64", f"{found[1]} = arith.addi {found[2]}, %mutant_z : i64"),
        )
    if not _MEMORY.search(line):
        return
    for bracket in re.finditer(r"(%\w+)\[(%[^\]]*)\]", line):
        indices = bracket[2].split(", ")
        for k, index in enumerate(indices):
            moved = ", ".join([*indices[:k], "%mutant_i", *indices[k + 1 :]])
            changed = f"{line[: bracket.start(2)]}{moved}{line[bracket.end(2) :]}"
            yield "offset", "one too far", put(f"%mutant_i = arith.addi {index}, %mutant_1 : index", changed)


def _moved(lines: list[str], i: int, step: int, effect: re.Pattern = _EFFECT) -> list[str]:
    """The line put behind the next (or before the previous) one that touches memory or synchronizes; the lines as they
    are where the block ends before one is found."""
    j = i + step
    while 0 <= j < len(lines) and not lines[j].rstrip().endswith("{") and not lines[j].lstrip().startswith("}"):
        if effect.search(lines[j]):
            rest = [*lines[:i], *lines[i + 1 :]]
            return [*rest[:j], lines[i], *rest[j:]]  # the rest is one shorter behind i
        j += step
    return lines


@dataclass
class Case:
    """A kernel under test: its text at the `gpu` level, several sets of arguments, the shapes of its results, and what
    it must compute. `run` takes (text, arguments, seed) to results and findings, for kernels that no host function
    launches."""

    text: str
    arguments: list[list[np.ndarray]]
    specs: list
    reference: Reference
    run: Callable[..., tuple[list[np.ndarray], Report]] | None = None

    def __post_init__(self) -> None:
        self.right, findings = self.outcome(self.text, 0)
        assert not findings, findings

    def outcome(self, text: str, seed: int) -> tuple[list[bytes], set[str]]:
        """What a text computes on each set of arguments, up to the first with a finding, and the kinds of findings."""
        return self._outcome(text, mlir.parse(text), seed)

    def _outcome(self, text: str, module: mlir.ir.Module, seed: int) -> tuple[list[bytes], set[str]]:
        kernel = DeviceKernel(module) if self.run is None else None
        outcome: list[bytes] = []
        report = Report()
        for number, arguments in enumerate(self.arguments):
            if kernel is None:
                assert self.run is not None
                results, report = self.run(text, arguments, seed + number)
                case = Compared(arguments, results, [None] * len(results), lambda *_: ("the kernel", None))
                compare(self.reference, case, report, "kernel")
            else:
                results = [np.zeros(spec.shape, spec.dtype) for spec in self.specs]
                report = kernel.run([*arguments, *results], seed=seed + number, reference=self.reference)
            outcome.append(b"".join(map(bits_of, results)))
            if report.findings:
                break
        return outcome, report.kinds()

    def judge(self, mutant: Mutant, seed: int = 0) -> str:
        """`rule` (a finding about how the kernel uses memory or its threads), `wrong` (one about its numbers only),
        `close` (no finding, but results with other bits; those of a NaN are nobody's matter), `same`, or `invalid`: no kernel any more."""
        try:
            module = mlir.parse(mutant.text)
        except MlircError:
            return "invalid"
        try:
            found, kinds = self._outcome(mutant.text, module, seed)
        except MlircError:  # a report by the device itself, such as an extent that differs between threads
            return "rule"
        if kinds:
            return "wrong" if kinds == {"wrong result"} else "rule"
        return "same" if found == self.right else "close"
