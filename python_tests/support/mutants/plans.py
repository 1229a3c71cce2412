"""Mutants of launch plans, one change of a plan's JSON each, and of the PTX behind it, with the checksum renewed; and
what the host device says to each, beside what it does to the numbers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlirc.device.model import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan import VERSION
from mlirc.runtime.plan_file import PREFIX, _digest, extract, identity
from mlirc.runtime.plan_json import to_json
from support.kernels.payloads import generic, kernel
from support.models.planned import Launches, run_plan

ARENA = 3  # the arena's number among the spaces
KINDS = ("steps", "buffers", "arguments", "sizes", "tables", "loops")


@dataclass(frozen=True)
class PlanMutant:
    """`what` it concerns, one of KINDS, `how` that was spoiled, and the plan's JSON. `runs`: whether the fake device,
    which knows no grids, names or sizes of shared memory, can tell if it does harm; if not, it does."""

    what: str
    how: str
    data: dict
    runs: bool = True


def signed(data: dict, ptx: str) -> str:
    """A file of a plan's JSON and a PTX, whose checksum is right."""
    lines = [json.dumps(data)]
    header = f"plan {VERSION} 1 {len(ptx.encode())} {_digest(lines, ptx.encode())}"
    return "".join(f"{PREFIX}{line}\n" for line in (header, *lines)) + ptx


def resign(text: str, ptx: str | None = None) -> str:
    """A file's text with another PTX, or a plan that was changed in its lines, and a checksum that is right."""
    count = int(text.split(" ", 4)[3])
    lines = [line.removeprefix(PREFIX) for line in text.split("\n", count + 1)[1 : count + 1]]
    return signed(json.loads("\n".join(lines)), ptx_of(text) if ptx is None else ptx)


def write_signed(file: Path, text: str) -> None:
    """Writes a PTX file that was changed, as if it had been compiled so: checksum and the marks of its levels are
    renewed."""
    was, new = identity(file.read_text()), resign(text)
    for level in file.with_suffix(".levels").glob("*.mlir"):
        level.write_text(level.read_text().replace(was, identity(new)))
    file.write_text(new)


def ptx_of(text: str) -> str:
    """The PTX in a file's text."""
    return text.split("\n", 1 + int(text.split(" ", 4)[3]))[-1]


def plan_mutants(plan: Any) -> Iterator[PlanMutant]:
    """Every mutant of a plan."""
    data = json.loads(to_json(plan))
    yield from _of_steps(data)
    yield from _of_references(data)
    yield from _of_launches(data)
    yield from _of_tables(data)
    for number, step in enumerate(data["steps"]):
        if "repeat" in step:
            yield from _of_loop(data, number)


def _bodies(data: dict) -> Iterator[list[dict]]:
    """The lists of steps: those of the plan, and of each loop."""
    yield data["steps"]
    yield from (step["steps"] for step in data["steps"] if "repeat" in step)


def _of_steps(data: dict) -> Iterator[PlanMutant]:
    for which, steps in enumerate(_bodies(data)):
        for i in range(len(steps)):
            for how in ("swapped with the next", "dropped", "doubled", "moved to the end"):
                new = copy.deepcopy(data)
                body = list(_bodies(new))[which]
                if how == "dropped":
                    del body[i]
                elif how == "doubled":
                    body.insert(i, body[i])
                elif how == "moved to the end":
                    body.append(body.pop(i))
                elif i + 1 < len(body):
                    body[i], body[i + 1] = body[i + 1], body[i]
                if body and new["steps"] != data["steps"]:
                    yield PlanMutant("steps", how, new)


def _references(data: dict) -> list[list[int]]:
    """Every reference of the plan: space, index, offset, size, and in loops move and wrap."""
    found = []
    for body in _bodies(data):
        for step in body:
            found += step.get("args", []) if "copy" not in step else [step["copy"], step["to"]]
            found += [ref for _, table in step.get("tables", []) for ref in table]
    return found


def _of_references(data: dict) -> Iterator[PlanMutant]:
    refs = _references(data)
    for number, ref in enumerate(refs):
        for by in (-256, -16, -4, 4, 16, 256):
            if ref[0] == ARENA and ref[2] + by >= 0:
                new = copy.deepcopy(data)
                _references(new)[number][2] += by
                yield PlanMutant("arguments", f"offset {'+' if by > 0 else '-'}{abs(by)} bytes", new)
    places = sorted({ref[2] for ref in refs if ref[0] == ARENA})
    for a in places:
        for b in places:
            if a != b:
                new = copy.deepcopy(data)
                for ref in _references(new):
                    if ref[0] == ARENA and ref[2] == a:
                        ref[2] = b
                yield PlanMutant("buffers", "laid over another", new)
        new = copy.deepcopy(data)
        for ref in _references(new):
            if ref[0] == ARENA and ref[2] >= a:
                ref[2] = max(0, ref[2] - 16)
        yield PlanMutant("buffers", "moved 16 bytes into the one before", new)


def _of_launches(data: dict) -> Iterator[PlanMutant]:
    for which, steps in enumerate(_bodies(data)):
        for i, step in enumerate(steps):
            if "launch" not in step:
                continue

            def put(which: int = which, i: int = i, **fields: Any) -> dict:
                new = copy.deepcopy(data)
                list(_bodies(new))[which][i] |= copy.deepcopy(fields)
                return new

            args = step["args"]
            for p in range(len(args) - 1):
                swapped = [*args[:p], args[p + 1], args[p], *args[p + 2 :]]
                alike = args[p][3] == args[p + 1][3]
                yield PlanMutant("arguments", "swapped with the next", put(args=swapped), runs=alike)
            for p, arg in enumerate(args):
                for other in {tuple(r) for r in _references(data) if r[3] == arg[3] and len(r) == len(arg)}:
                    if list(other) != arg:
                        new = [*args[:p], list(other), *args[p + 1 :]]
                        yield PlanMutant("arguments", "another of its size", put(args=new))
            yield from _of_sizes(step, put)
            yield from _of_maps(step, put)
            yield from _of_terms(step, put, len(data["inputs"]))


def _of_sizes(step: dict, put) -> Iterator[PlanMutant]:
    (x, y, z), block = step["grid"], step["block"]
    for how, grid in (("one more", [x + 1, y, z]), ("one less", [x - 1, y, z]), ("halved", [x // 2, y, z]),
                      ("turned", [y, x, z]), ("twice in y", [x, 2 * y, z])):  # fmt: skip
        if grid != step["grid"]:
            yield PlanMutant("sizes", f"grid {how}", put(grid=grid), runs=False)
    yield PlanMutant("sizes", "block halved", put(block=[block[0] // 2, *block[1:]]), runs=False)
    yield PlanMutant("sizes", "block doubled", put(block=[block[0] * 2, *block[1:]]), runs=False)
    for how, smem in (("none", 0), ("16 bytes less", step["smem"] - 16), ("1 KiB more", step["smem"] + 1024)):
        if smem != step["smem"]:
            yield PlanMutant("sizes", f"shared memory {how}", put(smem=smem), runs=False)
    if "dependent" not in step:
        yield PlanMutant("sizes", "begins early", put(dependent=True), runs=False)
    if "cooperative" not in step:
        yield PlanMutant("sizes", "cooperative", put(cooperative=True), runs=False)
    yield PlanMutant("sizes", "a cluster", put(cluster=[1, 1, 2] if not step["grid"][2] % 2 else [1, 1, 1]), runs=False)


def _of_maps(step: dict, put) -> Iterator[PlanMutant]:
    """Tensor maps of other elements, arrays, boxes and swizzles, and arguments that are no maps."""
    maps = step.get("maps", [])
    for i, (p, dtype, shape, box, swizzle) in enumerate(maps):
        alike = {"f32": "i32", "i32": "f32", "bf16": "f16", "f16": "bf16"}
        changed = [("of other elements", [p, alike.get(dtype, "u8"), shape, box, swizzle])]
        changed += [(f"with a swizzle of {n}", [p, dtype, shape, box, n]) for n in (0, 32, 64, 128)]
        for d in range(len(shape)):
            for how, extents in (("half as", [*shape[:d], shape[d] // 2, *shape[d + 1 :]]), ("one more", [
                    *shape[:d], shape[d] + 1, *shape[d + 1 :]]), ("one less", [*shape[:d], shape[d] - 1, *shape[d + 1 :]]),
                    ("turned", shape[::-1])):  # fmt: skip
                changed.append((f"of an array {how}", [p, dtype, extents, box, swizzle]))
            for how, extent in (("half", box[d] // 2), ("twice", 2 * box[d]), ("one more than", box[d] + 1)):
                changed.append(
                    (f"of a box {how} as large", [p, dtype, shape, [*box[:d], extent, *box[d + 1 :]], swizzle])
                )
        changed.append(("of another argument", [p + 1, dtype, shape, box, swizzle]))
        for how, new in changed:
            if new != maps[i]:
                yield PlanMutant("arguments", f"a tensor map {how}", put(maps=[*maps[:i], new, *maps[i + 1 :]]), False)
        if len(maps) > 1:
            yield PlanMutant("arguments", "no tensor map", put(maps=[*maps[:i], *maps[i + 1 :]]), False)


def _of_terms(step: dict, put, inputs: int) -> Iterator[PlanMutant]:
    """Other values, tables of pointers and grids that scalars decide."""
    values, tables, extents = (step.get(key, []) for key in ("values", "tables", "extents"))
    for p in range(len(step["args"])) if values else ():
        other = sorted({*values} ^ {p})
        yield PlanMutant("arguments", "a value or none", put(values=other), False)
    for i, (p, table) in enumerate(tables):
        changed = [("reversed", table[::-1]), ("cut", table[:-1]), ("with one more", [*table, step["args"][p]])]
        changed += [(f"with {which} of another", [*table[:j], ref, *table[j + 1 :]])
                    for _, refs in tables for which, ref in enumerate(refs) for j in range(len(table))]  # fmt: skip
        for how, new in [*changed, *((f"as argument {q}", None) for q in range(len(step["args"])) if q != p)]:
            row = [p, new] if new is not None else [int(how.split()[-1]), table]
            if row != tables[i]:
                rows = sorted([*tables[:i], row, *tables[i + 1 :]])
                yield PlanMutant("arguments", f"a table {how}", put(tables=rows), False)
    for i, (dim, scalar, divisor, factor) in enumerate(extents):
        rows = [[dim, n, divisor, factor] for n in range(inputs)] + [[d, scalar, divisor, factor] for d in range(3)]
        rows += [[dim, scalar, divisor + by, factor] for by in (-1, 1)] + [[dim, scalar, divisor, 2 * factor]]
        rows += [[dim, scalar, divisor, max(1, factor // 2)], [dim, scalar, factor, divisor]]
        for row in rows:
            if row != extents[i]:
                yield PlanMutant("sizes", "another extent", put(extents=[*extents[:i], row, *extents[i + 1 :]]), False)


_OTHER_KINDS = {"input": ("inout", "scalar"), "inout": ("input",), "scalar": ("input", "inout"), "state": ("weight",
                "constant"), "weight": ("state",), "constant": ("state",)}  # fmt: skip


def _of_tables(data: dict) -> Iterator[PlanMutant]:
    for table in ("inputs", "weights"):
        for i, (*_, kind) in enumerate(data[table]):
            for other in _OTHER_KINDS.get(kind, ()):
                new = copy.deepcopy(data)
                new[table][i][3] = other
                yield PlanMutant("tables", f"{kind} as {other}", new, runs=False)
    for table in ("inputs", "weights", "outputs"):
        rows = data[table]
        for i in range(len(rows) - 1):
            for how in ("swapped with the next", "names swapped"):
                new = copy.deepcopy(data)
                a, b = new[table][i : i + 2]
                if how == "names swapped":
                    a[0], b[0] = b[0], a[0]
                else:
                    new[table][i : i + 2] = [b, a]
                yield PlanMutant("tables", f"{table} {how}", new, runs=False)
    for by in (-1, 1):
        yield PlanMutant("tables", "setup " + ("less" if by < 0 else "more"), {**data, "setup": data["setup"] + by})
    for i, n in enumerate(data.get("draws", ())):
        draws = [*data["draws"][:i], n + 4, *data["draws"][i + 1 :]]
        yield PlanMutant("tables", "draws moved on", {**data, "draws": draws})


def _of_loop(data: dict, number: int) -> Iterator[PlanMutant]:
    count = data["steps"][number]["repeat"]
    for by in (-1, 1):
        new = copy.deepcopy(data)
        new["steps"][number]["repeat"] += by
        for step in new["steps"][number]["steps"]:
            for ref in step.get("args", []) if "copy" not in step else [step["copy"], step["to"]]:
                ref[5] = count + by if ref[5] == count else ref[5]
        yield PlanMutant("loops", f"a turn {'less' if by < 0 else 'more'}", new)
    total = len(_references({"steps": data["steps"][number]["steps"]}))
    for i in range(total):
        for how in ("does not move", "moves back", "moves twice as far", "starts over after two"):
            new = copy.deepcopy(data)
            ref = _references({"steps": new["steps"][number]["steps"]})[i]
            was = list(ref)
            if how == "does not move":
                ref[4:] = [0, 1]
            elif how == "moves back" and ref[4]:
                ref[2], ref[4] = ref[2] + ref[4] * (ref[5] - 1), -ref[4]
            elif how == "moves twice as far":
                ref[4] *= 2
            elif ref[4]:
                ref[5] = 2
            if ref != was:
                yield PlanMutant("loops", f"an argument {how}", new)


@dataclass
class PlanCase:
    """A compiled model, with inputs, and what it computes run by run."""

    job: Compilation
    inputs: list[torch.Tensor]
    weights: dict[str, np.ndarray] | None = None  # where the job was given none
    right: list[torch.Tensor] = field(init=False)
    launches: Launches = field(init=False)
    model: DeviceModel = field(init=False)

    def __post_init__(self) -> None:
        self.launches = Launches(self.job)
        self.right = run_plan(self.job, self.inputs, launches=self.launches, weights=self.weights)
        self.model = DeviceModel.parse(self.job.text("gpu"))

    def checker(self, text: str) -> FileCheck:
        """The host device's judge of a file's text; raises MlircError where it is not loaded."""
        return FileCheck(extract(text), self.model, self.job.text("gpu"), Path("m.ptx"), text)

    def says(self, text: str) -> list[str]:
        """The host device's findings about a file's plan, or why it is not loaded."""
        try:
            return [str(f) for f in self.checker(text).of_plan()]
        except MlircError as e:
            return [str(e)]

    def judge(self, mutant: PlanMutant, thorough: bool = False) -> str:
        """refused (it is not loaded), found, missed (it does harm, and nothing is said), or same (nothing is said, and
        it does none). With `thorough` other, too: it is said, and does none."""
        text = signed(mutant.data, ptx_of(self.job.ptx))
        try:
            said = self.checker(text).of_plan()
        except MlircError:
            return "refused"
        if said and not (thorough and mutant.runs):
            return "found"
        same = mutant.runs and self._same(text)
        return ("other" if same else "found") if said else ("same" if same else "missed")

    def _same(self, text: str) -> bool:
        try:
            got = run_plan(self.job, self.inputs, launches=self.launches, text=text, weights=self.weights)
        except (MlircError, ValueError):
            return False
        pairs = zip(got, self.right, strict=True)
        return all(np.array_equal(a.numpy(), b.numpy(), equal_nan=True) for a, b in pairs)


# Instructions that mean something else, or are another kernel's: (how, pattern, replacement).
EDITS = (
    ("sum turned to a difference", r"\badd\.(\S+)", r"sub.\1"),
    ("rounded otherwise", r"\bfma\.rn\.", "fma.rz."),
    ("barrier removed", r"\n\tbar\.sync[^\n]*|\n\tbarrier\.sync[^\n]*", ""),
    ("comparison turned", r"\bsetp\.(lt|le)\.", "setp.gt."),
    ("branch turned", r"\t@%p", "\t@!%p"),
    ("store dropped", r"\n(?:\t@\S+ )?\s*st\.global[^\n]*", ""),
    ("immediate one more", r", (\d+);", lambda m: f", {int(m[1]) + 1};"),
    ("cached otherwise", r"ld\.global\.nc\.", "ld.global."),
    ("shift longer", r"\bshl\.b32 (.*), (\d+);", lambda m: f"shl.b32 {m[1]}, {int(m[2]) + 1};"),
)


def ptx_mutants(ptx: str, each: int = 3) -> Iterator[tuple[str, str]]:
    """(how, PTX): for each edit the first, a middle and the last place of every file, and two kernels exchanged."""
    for how, pattern, new in EDITS:
        places = list(re.finditer(pattern, ptx))
        chosen = [places[k * (len(places) - 1) // max(1, each - 1)] for k in range(each)] if places else []
        for match in dict.fromkeys(chosen):
            yield (
                how,
                ptx[: match.start()] + match.expand(new) * 1 + ptx[match.end() :]
                if isinstance(new, str)
                else (ptx[: match.start()] + new(match) + ptx[match.end() :]),
            )
    bodies = re.findall(r"^\{.*?^\}", ptx, flags=re.DOTALL | re.MULTILINE)
    for a, b in zip(bodies, bodies[1:], strict=False):
        if a != b:
            yield "another kernel's body", ptx.replace(a, b, 1)


def _mix(name: str, type_: str) -> str:
    """A kernel that computes a + 2 b."""
    dims = "p, q" if type_.count("x") == 2 else "p"
    body = f"  %e = tensor.empty() : {type_}\n" + generic(
        "r", dims, [("%a", type_, dims), ("%b", type_, dims)], ("%e", type_, dims),
        "%z = arith.addf %x1, %x1 : f32\n    %y = arith.addf %x0, %z : f32",
    )  # fmt: skip
    return kernel(name, "elementwise", {"a": type_, "b": type_}, type_, body)


def model_text() -> str:
    """A `kernels`-level model: buffers that share the arena, a view that is copied to be aligned, a call at load, a
    loop over rows with a state and a stack, a result that is used later and one that is an output, too."""
    t, row, stack = "tensor<5x3xf32>", "tensor<3xf32>", "tensor<4x3xf32>"
    names = ", ".join(
        f'%{n}: {t} {{mlirc.name = "{n}", mlirc.kind = "{k}"}}'
        for n, k in (("x", "input"), ("y", "input"), ("w", "weight"), ("v", "weight"), ("c", "constant"))
    )
    pair, mix = f"({row}, {stack})", f"({t}, {t}) -> {t}"
    return "\n".join([
        f"func.func @main({names}) -> ({t}, {t}, {row}, {stack}) {{",
        f"  %c1 = call @elementwise_0(%c, %c) : {mix}",
        f"  %a = call @elementwise_0(%x, %w) : {mix}", f"  %b = call @elementwise_0(%a, %c1) : {mix}",
        f"  %d = call @elementwise_0(%b, %y) : {mix}", f"  %g = call @elementwise_0(%d, %v) : {mix}",
        f"  %f = call @elementwise_0(%g, %a) : {mix}",
        f"  %h = tensor.extract_slice %g[2, 0] [1, 3] [1, 1] : {t} to {row}",
        f"  %xs = tensor.extract_slice %d[1, 0] [4, 3] [1, 1] : {t} to {stack}",
        f"  %r:2 = call @loop_0(%h, %xs) : {pair} -> {pair}",
        f"  return %f, %b, %r#0, %r#1 : {t}, {t}, {row}, {stack}", "}",
        f"func.func private @loop_0(%h: {row}, %xs: {stack}) -> {pair} attributes {{mlirc.loop}} {{",
        *(f"  %{n} = arith.constant {v} : index" for n, v in (("first", 0), ("one", 1), ("count", 4), ("last", 3))),
        f"  %ys = tensor.empty() : {stack}",
        f"  %r:2 = scf.for %t = %first to %count step %one iter_args(%k = %h, %s = %ys) -> {pair} {{",
        "    %i = arith.subi %last, %t : index",
        f"    %x = tensor.extract_slice %xs[%i, 0] [1, 3] [1, 1] : {stack} to {row}",
        f"    %n:2 = func.call @step_0(%k, %x) : ({row}, {row}) -> ({row}, {row})",
        f"    %z = tensor.insert_slice %n#1 into %s[%t, 0] [1, 3] [1, 1] : {row} into {stack}",
        f"    scf.yield %n#0, %z : {row}, {stack}", "  }", f"  return %r#0, %r#1 : {row}, {stack}", "}",
        f"func.func private @step_0(%h: {row}, %x: {row}) -> ({row}, {row}) attributes {{mlirc.step}} {{",
        f"  %n = call @elementwise_1(%h, %x) : ({row}, {row}) -> {row}",
        f"  %m = call @elementwise_1(%x, %n) : ({row}, {row}) -> {row}",
        f"  return %n, %m : {row}, {row}", "}",
        _mix("elementwise_0", t), _mix("elementwise_1", row),
    ])  # fmt: skip
