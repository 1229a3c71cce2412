"""The launch plan: what a compiled model's PTX file says of itself, as JSON in comment lines.

The file starts with a header line, `//mlirc: plan VERSION LINES BYTES SHA256`, then LINES lines of JSON, each behind
`//mlirc: `, then BYTES bytes of PTX. The checksum covers the JSON lines and the PTX. ptxas and the driver take the
file as it is, since to them the plan is a comment.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirc.errors import MlircError

VERSION = 1
PREFIX = "//mlirc: "
DTYPE_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i8": 1, "i1": 1}
SPACES = ("input", "weight", "output", "arena")
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of the model's boundary: dense, row-major, i1 as one byte per element. `kind` is `input`,
    `output`, `weight` (a state-dict entry) or `constant` (a tensor that is in no state dict)."""

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


@dataclass
class Plan:
    """Everything that the runtime needs to run a model: sizes in bytes, steps in order. The first `setup` steps depend
    on constants only: they run once, when the model is loaded. `unpacked_size` is what the arena would take with a
    buffer of its own for every intermediate result."""

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

    @property
    def launches(self) -> list[KernelLaunch]:
        return [s for s in self.steps if isinstance(s, KernelLaunch)]

    def signature(self) -> str:
        """The boundary and the number of launches, for people: `model: (inputs) -> (outputs), N launches`."""
        ins, outs = (", ".join(f"{t.name}: {t}" for t in ts) for ts in (self.inputs, self.outputs))
        return f"{self.model}: ({ins}) -> ({outs}), {len(self.launches)} launches"

    def validate(self) -> None:
        """Raises MlircError unless every reference lies inside the buffer that it names."""
        tables = {"input": self.inputs, "weight": self.weights, "output": self.outputs}
        for spec in (*self.inputs, *self.outputs, *self.weights):
            if spec.dtype not in DTYPE_BYTES or any(d < 0 for d in spec.shape):
                raise MlircError(f"plan: tensor '{spec.name}' has an invalid type {spec}")
        for kind, table in tables.items():
            names = [spec.name for spec in table]
            if len(set(names)) != len(names):
                twice = next(n for n in names if names.count(n) > 1)
                raise MlircError(f"plan: two {kind}s are called '{twice}': names must be unique")
        for number, step in enumerate(self.steps):
            refs = step.args if isinstance(step, KernelLaunch) else (step.source, step.target)
            for ref in refs:
                if ref.space == "arena" and ref.index == 0:
                    room = self.arena_size
                elif ref.space in tables and 0 <= ref.index < len(tables[ref.space]):
                    room = tables[ref.space][ref.index].nbytes
                else:
                    raise MlircError(f"plan: step {number} names buffer {ref.space} {ref.index}, which is not there")
                if number < self.setup and ref.space in ("input", "output"):
                    raise MlircError(f"plan: step {number} runs at load but uses {ref.space} {ref.index}")
                if ref.offset < 0 or ref.size < 0 or ref.offset + ref.size > room:
                    raise MlircError(f"plan: step {number} reaches outside of {ref.space} {ref.index}")
            if isinstance(step, CopyStep) and step.source.size != step.target.size:
                raise MlircError(f"plan: step {number} copies {step.source.size} bytes onto {step.target.size}")


def _ref_out(ref: Ref) -> list:
    return [SPACES.index(ref.space), ref.index, ref.offset, ref.size]


def _ref_in(item: list) -> Ref:
    space, index, offset, size = map(int, item)
    return Ref(SPACES[space], index, offset, size)


def _step_out(step: KernelLaunch | CopyStep) -> dict:
    if isinstance(step, CopyStep):
        return {"copy": _ref_out(step.source), "to": _ref_out(step.target)}
    out: dict[str, Any] = {"launch": step.symbol, "grid": step.grid, "block": step.block, "smem": step.smem}
    out["args"] = [_ref_out(r) for r in step.args]
    if step.cluster:
        out["cluster"] = step.cluster
    out["kernel"] = step.kernel
    out["origin"] = step.origin
    return out


def _dim3(item: list) -> Dim3:
    x, y, z = map(int, item)
    return x, y, z


def _step_in(item: dict) -> KernelLaunch | CopyStep:
    if "copy" in item:
        return CopyStep(_ref_in(item["copy"]), _ref_in(item["to"]))
    return KernelLaunch(
        symbol=str(item["launch"]),
        grid=_dim3(item["grid"]),
        block=_dim3(item["block"]),
        smem=int(item["smem"]),
        args=tuple(_ref_in(r) for r in item["args"]),
        kernel=str(item["kernel"]),
        origin=tuple(map(str, item["origin"])),
        cluster=_dim3(item["cluster"]) if "cluster" in item else None,
    )


def _json_lines(plan: Plan) -> Iterator[str]:
    """The plan's JSON with one tensor or one step to a line, so that people and diffs can read it."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = {"version": VERSION, "model": plan.model, "target": plan.target, "versions": plan.versions}
    head |= {"arena_size": plan.arena_size, "unpacked_size": plan.unpacked_size, "setup": plan.setup}
    yield dump(head)[:-1] + ","
    tables: list[tuple[str, list]] = [
        (n, [[t.name, t.dtype, t.shape, t.kind] for t in getattr(plan, n)]) for n in _TABLES
    ]
    tables.append(("steps", [_step_out(s) for s in plan.steps]))
    for i, (name, rows) in enumerate(tables):
        yield f'"{name}":['
        for j, row in enumerate(rows):
            yield dump(row) + ("," if j + 1 < len(rows) else "")
        yield "]," if i + 1 < len(tables) else "]}"


_TABLES = ("inputs", "outputs", "weights")


def to_json(plan: Plan) -> str:
    """The plan as JSON text."""
    return "\n".join(_json_lines(plan))


def from_json(text: str) -> Plan:
    """Reads a plan back; raises MlircError for another version or for JSON that is no valid plan."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise MlircError(f"plan: format version {data['version']}, but this mlirc reads {VERSION}: compile again")
        tables = {
            name: [TensorSpec(str(n), str(t), tuple(map(int, s)), str(k)) for n, t, s, k in data[name]]
            for name in _TABLES
        }
        plan = Plan(
            model=str(data["model"]),
            target=str(data["target"]),
            versions={str(k): str(v) for k, v in data["versions"].items()},
            arena_size=int(data["arena_size"]),
            unpacked_size=int(data["unpacked_size"]),
            setup=int(data["setup"]),
            steps=[_step_in(s) for s in data["steps"]],
            **tables,
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
        raise MlircError(f"plan: damaged JSON ({type(e).__name__}: {e}): compile the model again") from e
    plan.validate()
    return plan


def _digest(plan_lines: list[str], ptx: bytes) -> str:
    digest = hashlib.sha256("\n".join(plan_lines).encode())
    digest.update(b"\0")
    digest.update(ptx)
    return digest.hexdigest()


def embed(ptx_text: str, plan: Plan) -> str:
    """Returns the PTX file's text: the plan as comment lines, then the PTX.

    Raises MlircError when the plan is inconsistent or launches a kernel that the PTX does not define.
    """
    plan.validate()
    for symbol in {launch.symbol for launch in plan.launches}:
        if f".entry {symbol}(" not in ptx_text:
            raise MlircError(f"plan: kernel '{symbol}' is launched but the PTX defines no such entry")
    lines = list(_json_lines(plan))
    data = ptx_text.encode()
    header = f"plan {VERSION} {len(lines)} {len(data)} {_digest(lines, data)}"
    return "".join(f"{PREFIX}{line}\n" for line in (header, *lines)) + ptx_text


def extract(text: str, where: str = "PTX file") -> Plan:
    """Reads the plan out of a PTX file's text; raises MlircError (naming `where`) when it is missing, truncated or
    damaged, or when the PTX was changed after the plan was made."""
    if not text.startswith(PREFIX):
        raise MlircError(f"{where}: carries no launch plan: it was not made by mlirc, or its comments were removed")
    header, _, rest = text.partition("\n")
    fields = header[len(PREFIX) :].split()
    if len(fields) != 5 or fields[0] != "plan" or not all(f.isascii() and f.isdigit() for f in fields[1:4]):
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
    try:
        return from_json("\n".join(lines))
    except MlircError as e:
        raise MlircError(f"{where}: {e}") from e
