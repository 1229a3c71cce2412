"""A launch plan as JSON, written and read. Of what is read nothing is taken for granted: every value has just the type
it must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from mlirc.errors import MlircError
from mlirc.runtime.plan import (
    SIZES_VERSION,
    SPACES,
    TABLES,
    VERSION,
    CopyStep,
    Dim3,
    Extent,
    KernelLaunch,
    Plan,
    Ref,
    Repeat,
    TensorSpec,
)
from mlirc.runtime.plan_check import check_plan
from mlirc.runtime.repeats import MAX_STEPS, Motion, PlanStep, references, roll, unroll
from mlirc.runtime.sizes_json import read_sizes, sizes_out
from mlirc.runtime.structure import read_structure, structure_out
from mlirc.runtime.tensor_map import Im2col, TensorMapSpec

_AGAIN = "compile the model again"
_HEAD = ("version", "model", "target", "versions", "arena_size", "unpacked_size", "setup", *TABLES, "steps")
_MORE = ("cluster", "maps", "dependent", "cooperative", "values", "tables", "extents")  # that a launch may have, too
_LAUNCH = ("launch", "grid", "block", "smem", "args", "kernel", "origin")


def to_json(plan: Plan) -> str:
    """The plan as JSON text."""
    return "\n".join(json_lines(plan))


def _ref_out(ref: Ref) -> list:
    return [SPACES.index(ref.space), ref.index, ref.offset, ref.size]


def _step_out(step: KernelLaunch | CopyStep, refs: list[list] | None = None) -> dict:
    if isinstance(step, CopyStep):
        source, target = refs or [_ref_out(step.source), _ref_out(step.target)]
        return {"copy": source, "to": target}
    out: dict[str, Any] = {"launch": step.symbol, "grid": step.grid, "block": step.block, "smem": step.smem}
    every = iter(refs or [_ref_out(r) for r in references(step)])
    out["args"] = [next(every) for _ in step.args]
    if step.values:
        out["values"] = step.values
    if step.tables:
        out["tables"] = [[i, [next(every) for _ in table]] for i, table in sorted(step.tables.items())]
    if step.extents:
        out["extents"] = [[d, e.scalar, e.divisor, e.factor] for d, e in sorted(step.extents.items())]
    if step.cluster:
        out["cluster"] = step.cluster
    if step.maps:
        out["maps"] = [[i, *_map_out(m)] for i, m in sorted(step.maps.items())]
    if step.dependent:
        out["dependent"] = True
    if step.cooperative:
        out["cooperative"] = True
    out["kernel"] = step.kernel
    out["origin"] = step.origin
    return out


def _map_out(spec: TensorMapSpec) -> list:
    im2col = spec.im2col
    more = [] if im2col is None else [[im2col.lower, im2col.upper, im2col.strides]]
    return [spec.dtype, spec.shape, spec.box, spec.swizzle, *more]


def _steps_out(plan: Plan) -> Iterator[dict]:
    """One object for every step that is in no loop, and for every loop."""
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


def json_lines(plan: Plan) -> Iterator[str]:
    """The plan's JSON with one tensor or one step to a line, so that people and diffs can read it."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = {
        "version": SIZES_VERSION if plan.sizes else VERSION,
        "model": plan.model,
        "target": plan.target,
        "versions": plan.versions,
    }
    head |= {"arena_size": plan.arena_size, "unpacked_size": plan.unpacked_size, "setup": plan.setup}
    if plan.draws:
        head["draws"] = plan.draws
    if plan.sizes:
        head["sizes"] = sizes_out(plan.sizes)
    if plan.structure:
        head["structure"] = structure_out(plan.structure)
    if plan.after:
        head["after"] = [[number, waits] for number, waits in sorted(plan.after.items())]
    if plan.weights_checksum:
        head["weights_checksum"] = plan.weights_checksum
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


def from_json(text: str) -> Plan:
    """Reads a plan back; raises MlircError for another version or for JSON that is no valid plan."""
    plan = read_plan(text)
    check_plan(plan)
    return plan


def read_plan(text: str) -> Plan:
    """The plan that a text says, which may still be one that cannot be run. Raises MlircError, which names the place,
    for anything that is not a plan of this version."""
    try:
        data = json.loads(text, parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise MlircError(f"plan: damaged JSON ({type(e).__name__}: {' '.join(str(e).split())}): {_AGAIN}") from e
    version = data.get("version") if isinstance(data, dict) else VERSION
    if type(version) is not int or version not in (VERSION, SIZES_VERSION):
        version = version if type(version) is int else "unknown"
        raise MlircError(
            f"plan: format version {version}, but this mlirc reads {VERSION} and {SIZES_VERSION}: {_AGAIN}"
        )
    maybe = [
        key for key in ("draws", "structure", "after", "weights_checksum") if isinstance(data, dict) and key in data
    ]
    sized = version == SIZES_VERSION
    _keys(data, (*_HEAD, *maybe, *["sizes"] * sized), "plan")
    tables = {name: [_tensor(row, f"{name}[{i}]") for i, row in enumerate(_list(data[name], name))] for name in TABLES}
    versions = data["versions"]
    if not isinstance(versions, dict):
        _wrong(versions, "versions", "names and versions")
    steps, repeats = _steps(data["steps"])
    return Plan(
        model=_str(data["model"], "model"),
        target=_str(data["target"], "target"),
        versions={key: _str(value, "versions") for key, value in versions.items()},
        arena_size=_int(data["arena_size"], "arena_size"),
        unpacked_size=_int(data["unpacked_size"], "unpacked_size"),
        setup=_int(data["setup"], "setup"),
        draws=tuple(_int(n, "draws") for n in _list(data["draws"], "draws")) if "draws" in maybe else (),
        steps=steps,
        repeats=repeats,
        sizes=read_sizes(data["sizes"]) if sized else None,
        structure=read_structure(data["structure"], _wrong) if "structure" in maybe else None,
        weights_checksum=_checksum(data["weights_checksum"]) if "weights_checksum" in maybe else "",
        after=_after(data["after"]) if "after" in maybe else {},
        **tables,
    )


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} where only integers are expected")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _wrong(value: Any, where: str, wanted: str) -> NoReturn:
    raise MlircError(f"plan: {where}: {ascii(value)[:80]} where {wanted} must be: {_AGAIN}")


def _keys(value: Any, keys: Iterable[str], where: str) -> None:
    if not isinstance(value, dict) or set(value) != set(keys):
        _wrong(sorted(value) if isinstance(value, dict) else value, where, f"an object with {', '.join(keys)}")


def _int(value: Any, where: str) -> int:
    if type(value) is not int:  # a bool is none
        _wrong(value, where, "an integer")
    return value


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _wrong(value, where, "a text")
    return value


def _checksum(value: Any) -> str:
    if not re.fullmatch("[0-9a-f]{64}", _str(value, "weights_checksum")):
        _wrong(value, "weights_checksum", "a SHA-256")
    return value


def _list(value: Any, where: str, length: int | None = None) -> list:
    if not isinstance(value, list) or length not in (None, len(value)):
        _wrong(value, where, "a list" if length is None else f"a list of {length}")
    return value


def _after(items: Any) -> dict[int, tuple[int, ...]]:
    rows = [_list(row, "after", 2) for row in _list(items, "after")]
    numbers = _rising([row[0] for row in rows], "after")
    return {n: tuple(_rising(row[1], "after")) if row[1] else () for n, row in zip(numbers, rows, strict=True)}


def _tensor(row: Any, where: str) -> TensorSpec:
    name, dtype, shape, kind = _list(row, where, 4)
    extents = tuple(_int(d, f"{where}, shape") for d in _list(shape, f"{where}, shape"))
    return TensorSpec(_str(name, where), _str(dtype, where), extents, _str(kind, where))


def _ref(item: Any, where: str) -> Ref:
    space, index, offset, size = (_int(n, where) for n in _list(item, where, 4))
    if not 0 <= space < len(SPACES):
        _wrong(space, where, f"one of 0 to {len(SPACES) - 1}")
    return Ref(SPACES[space], index, offset, size)


def _dim3(item: Any, where: str) -> Dim3:
    x, y, z = (_int(n, where) for n in _list(item, where, 3))
    return x, y, z


def _steps(items: Any) -> tuple[list[PlanStep], list[Repeat]]:
    """All steps, every iteration of the loops among them, and where the loops are."""
    steps: list[PlanStep] = []
    repeats: list[Repeat] = []
    for i, item in enumerate(_list(items, "steps")):
        where = f"steps[{i}]"
        if not isinstance(item, dict) or "repeat" not in item:
            steps.append(_step(item, where))
            continue
        _keys(item, ("repeat", "steps"), where)
        count, length = _int(item["repeat"], where), len(_list(item["steps"], where))
        if count < 2 or not length or len(steps) + count * length > MAX_STEPS:
            raise MlircError(
                f"plan: {where}: {count} times {length} steps: a loop repeats at least one step, and a plan has at "
                f"most {MAX_STEPS}: {_AGAIN}"
            )
        motions: list[list[Motion]] = []
        body = [_step(step, f"{where}, steps[{j}]", motions) for j, step in enumerate(item["steps"])]
        for motion in (m for moves in motions for m in moves):
            if not 1 <= motion.wrap <= count or (motion.wrap > 1) != bool(motion.move):
                _wrong([motion.move, motion.wrap], where, f"bytes to move by, and 2 to {count} iterations, or 0 and 1")
        repeats.append(Repeat(len(steps), length, count))
        steps += unroll(body, motions, count)
    return steps, repeats


def _moving(item: Any, where: str) -> tuple[Ref, Motion]:
    """A reference in a loop."""
    *numbers, move, wrap = (_int(n, where) for n in _list(item, where, 6))
    return _ref(numbers, where), Motion(move, wrap)


def _step(item: Any, where: str, motions: list[list[Motion]] | None = None) -> PlanStep:
    """A step; of a loop where `motions` is given, to which how its references move is added."""

    def read(refs: list, where: str) -> list[Ref]:
        if motions is None:
            return [_ref(r, where) for r in refs]
        moving = [_moving(r, where) for r in refs]
        moves.extend(motion for _, motion in moving)
        return [ref for ref, _ in moving]

    moves: list[Motion] = []
    if motions is not None:
        motions.append(moves)

    if isinstance(item, dict) and "copy" in item:
        _keys(item, ("copy", "to"), where)
        return CopyStep(*read([item["copy"], item["to"]], where))
    more = tuple(key for key in _MORE if isinstance(item, dict) and key in item)
    _keys(item, (*_LAUNCH, *more), where)
    for key in ("dependent", "cooperative"):
        if key in more and item[key] is not True:
            _wrong(item[key], f"{where}, {key}", "true, or nothing,")
    args = tuple(read(_list(item["args"], f"{where}, args"), f"{where}, args"))
    tables = {}
    if "tables" in more:
        rows = [_list(row, f"{where}, tables", 2) for row in _list(item["tables"], f"{where}, tables")]
        numbers = _rising([row[0] for row in rows], f"{where}, tables")
        lists = [_list(row[1], f"{where}, tables") for row in rows]
        tables = {n: tuple(read(refs, f"{where}, tables")) for n, refs in zip(numbers, lists, strict=True)}
    return KernelLaunch(
        symbol=_str(item["launch"], where),
        grid=_dim3(item["grid"], f"{where}, grid"),
        block=_dim3(item["block"], f"{where}, block"),
        smem=_int(item["smem"], f"{where}, smem"),
        args=args,
        kernel=_str(item["kernel"], f"{where}, kernel"),
        origin=tuple(_str(n, f"{where}, origin") for n in _list(item["origin"], f"{where}, origin")),
        cluster=_dim3(item["cluster"], f"{where}, cluster") if "cluster" in more else None,
        maps=_maps(item["maps"], f"{where}, maps") if "maps" in more else {},
        dependent="dependent" in more,
        values=tuple(_rising(item["values"], f"{where}, values")) if "values" in more else (),
        tables=tables,
        extents=_extents(item["extents"], f"{where}, extents") if "extents" in more else {},
        cooperative="cooperative" in more,
    )


def _rising(items: Any, where: str) -> list[int]:
    """Numbers that rise, so that none is there twice, at least one."""
    found: list[int] = []
    for number in _list(items, where):
        if found and _int(number, where) <= found[-1]:
            _wrong(number, where, "a number above those before it")
        found.append(_int(number, where))
    if not found:
        _wrong(items, where, "at least one number")
    return found


def _extents(items: Any, where: str) -> dict[int, Extent]:
    rows = [[_int(n, where) for n in _list(item, where, 4)] for item in _list(items, where)]
    _rising([row[0] for row in rows], where)
    return {dim: Extent(*rest) for dim, *rest in rows}


def _ints(items: Any, where: str) -> tuple[int, ...]:
    return tuple(_int(n, where) for n in _list(items, where))


def _maps(items: Any, where: str) -> dict[int, TensorMapSpec]:
    """Tensor maps by the numbers of the parameters that take them, which rise, so that none is there twice."""
    maps: dict[int, TensorMapSpec] = {}
    for item in _list(items, where):
        length = 6 if isinstance(item, list) and len(item) == 6 else 5
        number, dtype, *extents, swizzle = _list(item, where, length)[:5]
        shape, box = (_ints(e, where) for e in extents)
        im2col = Im2col(*(_ints(e, where) for e in _list(item[5], where, 3))) if length == 6 else None
        if _int(number, where) <= max(maps, default=-1):
            _wrong(number, where, "a number above those before it")
        maps[number] = TensorMapSpec(_str(dtype, where), shape, box, _int(swizzle, where), im2col)
    if not maps:
        _wrong(items, where, "at least one tensor map")
    return maps
