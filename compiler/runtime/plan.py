"""The launch plan: what a compiled model's PTX file says of itself, as JSON in comment lines.

The file starts with a header line, `//mlirc: plan VERSION LINES BYTES SHA256`, then LINES lines of JSON, each behind
`//mlirc: `, then BYTES bytes of PTX. The checksum covers the JSON lines and the PTX. ptxas and the driver take the
file as it is, since to them the plan is a comment.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirc.errors import MlircError

VERSION = 1
PREFIX = "//mlirc: "
DTYPE_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "u8": 1, "i1": 1}
POINTER_ALIGNMENT = 16  # bytes, of every buffer that a kernel is given: kernels load so many at a time
ARENA_ALIGNMENT = 256  # bytes, of what lies in the arena
SPACES = ("input", "weight", "output", "arena")
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of the model's boundary: dense, row-major, i1 as one byte per element. `kind` is `input`,
    `random` (the generator's state, which comes last of the inputs and which the runtime fills in), `output`, `weight`
    (a state-dict entry) or `constant` (a tensor that is in no state dict)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Ref:
    """A range of bytes: `space` is one of SPACES, `index` counts the plan's inputs, weights or outputs (0 for the
    arena)."""

    space: str
    index: int
    offset: int
    size: int


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the PTX entry `symbol` with one pointer parameter per argument. `kernel` is the kernel function at
    the `kernels` level, `origin` the model's modules that it came from; `smem` is dynamic shared memory in bytes."""

    symbol: str
    grid: Dim3
    block: Dim3
    smem: int
    args: tuple[Ref, ...]
    kernel: str = ""
    origin: tuple[str, ...] = ()
    cluster: Dim3 | None = None


@dataclass(frozen=True)
class CopyStep:
    """A device-to-device copy of `source.size` bytes."""

    source: Ref
    target: Ref


@dataclass(frozen=True)
class Repeat:
    """A loop: the steps from number `first` on are `count` times `length` steps, which differ in their offsets alone
    (`mlirc.runtime.repeats`)."""

    first: int
    length: int
    count: int


@dataclass
class Plan:
    """Everything that the runtime needs to run a model: sizes in bytes, steps in order. The first `setup` steps depend
    on constants only: they run once, when the model is loaded. `unpacked_size` is what the arena would take with a
    buffer of its own for every intermediate result. `draws` says how the generator of random numbers moves: see
    `mlirc.runtime.random_state`. `steps` has every iteration of the loops that `repeats` lists; the plan's text says
    them once."""

    model: str
    target: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    weights: list[TensorSpec]
    arena_size: int
    steps: list[KernelLaunch | CopyStep]
    unpacked_size: int = 0
    setup: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    draws: tuple[int, ...] = ()
    repeats: list[Repeat] = field(default_factory=list)

    @property
    def given(self) -> list[TensorSpec]:
        """The inputs that a caller gives."""
        return [spec for spec in self.inputs if spec.kind == "input"]

    @property
    def launches(self) -> list[KernelLaunch]:
        return [s for s in self.steps if isinstance(s, KernelLaunch)]

    def signature(self) -> str:
        """The boundary and the number of launches, for people: `model: (inputs) -> (outputs), N launches`."""
        ins, outs = (", ".join(f"{t.name}: {t}" for t in ts) for ts in (self.given, self.outputs))
        return f"{self.model}: ({ins}) -> ({outs}), {len(self.launches)} launches"

    def validate(self) -> None:
        """Raises MlircError unless the plan is one that could be run: see `mlirc.runtime.plan_check`."""
        from mlirc.runtime.plan_check import check_plan

        check_plan(self)


def _ref_out(ref: Ref) -> list:
    return [SPACES.index(ref.space), ref.index, ref.offset, ref.size]


def _step_out(step: KernelLaunch | CopyStep, refs: list[list] | None = None) -> dict:
    if isinstance(step, CopyStep):
        source, target = refs or [_ref_out(step.source), _ref_out(step.target)]
        return {"copy": source, "to": target}
    out: dict[str, Any] = {"launch": step.symbol, "grid": step.grid, "block": step.block, "smem": step.smem}
    out["args"] = refs or [_ref_out(r) for r in step.args]
    if step.cluster:
        out["cluster"] = step.cluster
    out["kernel"] = step.kernel
    out["origin"] = step.origin
    return out


def _steps_out(plan: Plan) -> Iterator[dict]:
    """One object for every step that is in no loop, and for every loop."""
    from mlirc.runtime.repeats import references, roll

    done = 0
    for loop in plan.repeats:
        yield from map(_step_out, plan.steps[done : loop.first])
        done = loop.first + loop.length * loop.count
        motions = roll(plan.steps[loop.first : done], loop.count)
        body = []
        for step, moves in zip(plan.steps[loop.first : loop.first + loop.length], motions, strict=True):
            refs = [[*_ref_out(r), m.move, m.wrap] for r, m in zip(references(step), moves, strict=True)]
            body.append(_step_out(step, refs))
        yield {"repeat": loop.count, "steps": body}
    yield from map(_step_out, plan.steps[done:])


def _json_lines(plan: Plan) -> Iterator[str]:
    """The plan's JSON with one tensor or one step to a line, so that people and diffs can read it."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = {"version": VERSION, "model": plan.model, "target": plan.target, "versions": plan.versions}
    head |= {"arena_size": plan.arena_size, "unpacked_size": plan.unpacked_size, "setup": plan.setup}
    if plan.draws:
        head["draws"] = plan.draws
    yield dump(head)[:-1] + ","
    tables: list[tuple[str, list]] = [
        (n, [[t.name, t.dtype, t.shape, t.kind] for t in getattr(plan, n)]) for n in TABLES
    ]
    tables.append(("steps", list(_steps_out(plan))))
    for i, (name, rows) in enumerate(tables):
        yield f'"{name}":['
        for j, row in enumerate(rows):
            yield dump(row) + ("," if j + 1 < len(rows) else "")
        yield "]," if i + 1 < len(tables) else "]}"


TABLES = ("inputs", "outputs", "weights")


def to_json(plan: Plan) -> str:
    """The plan as JSON text."""
    return "\n".join(_json_lines(plan))


def from_json(text: str) -> Plan:
    """Reads a plan back; raises MlircError for another version or for JSON that is no valid plan."""
    from mlirc.runtime.plan_json import read_plan

    plan = read_plan(text)
    plan.validate()
    return plan


def _digest(plan_lines: list[str], ptx: bytes) -> str:
    digest = hashlib.sha256("\n".join(plan_lines).encode())
    digest.update(b"\0")
    digest.update(ptx)
    return digest.hexdigest()


def identity(text: str) -> str:
    """The checksum in the first line of a PTX file, which no other model or compilation has; "" where there is none."""
    fields = text.partition("\n")[0].split()
    return fields[-1] if text.startswith(f"{PREFIX}plan ") and re.fullmatch("[0-9a-f]{64}", fields[-1]) else ""


def embed(ptx_text: str, plan: Plan) -> str:
    """Returns the PTX file's text: the plan as comment lines, then the PTX.

    Raises MlircError when the plan is inconsistent, or does not fit the kernels that the PTX defines.
    """
    from mlirc.runtime.plan_check import check_ptx

    plan.validate()
    check_ptx(plan, ptx_text)
    lines = list(_json_lines(plan))
    data = ptx_text.encode()
    header = f"plan {VERSION} {len(lines)} {len(data)} {_digest(lines, data)}"
    return "".join(f"{PREFIX}{line}\n" for line in (header, *lines)) + ptx_text


def extract(text: str, where: str = "PTX file") -> Plan:
    """Reads the plan out of a PTX file's text; raises MlircError (naming `where`) when it is missing, truncated or
    damaged, when the PTX was changed after the plan was made, or when the two do not fit."""
    if not text.startswith(PREFIX):
        raise MlircError(f"{where}: carries no launch plan: it was not made by mlirc, or its comments were removed")
    header, _, rest = text.partition("\n")
    fields = header[len(PREFIX) :].split()
    if len(fields) != 5 or fields[0] != "plan" or not all(re.fullmatch("[0-9]{1,18}", f) for f in fields[1:4]):
        raise MlircError(f"{where}: the launch plan's header is damaged: compile the model again")
    version, count, size = map(int, fields[1:4])
    if version != VERSION:
        raise MlircError(f"{where}: plan version {version}, but this mlirc reads {VERSION}: compile the model again")
    parts = rest.split("\n", count)
    if len(parts) <= count:
        raise MlircError(f"{where}: truncated inside the launch plan: compile the model again")
    lines, data = parts[:count], parts[count].encode()
    if any(not line.startswith(PREFIX) for line in lines):
        raise MlircError(f"{where}: the launch plan is damaged: compile the model again")
    if len(data) < size:
        raise MlircError(f"{where}: truncated: {len(data)} of {size} bytes of PTX: compile the model again")
    lines = [line[len(PREFIX) :] for line in lines]
    if _digest(lines, data) != fields[4]:
        raise MlircError(f"{where}: damaged: the checksum over plan and PTX does not match: compile the model again")
    from mlirc.runtime.plan_check import check_ptx

    try:
        plan = from_json("\n".join(lines))
        check_ptx(plan, parts[count])
        return plan
    except MlircError as e:
        raise MlircError(f"{where}: {e}") from e
