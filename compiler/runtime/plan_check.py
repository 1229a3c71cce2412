"""What a launch plan must fulfil before anything is done with it, however right the checksum of its file is.

`check_plan` judges the plan alone: the driver's limits on launches, every reference inside of its buffer, every output
written. `check_ptx` holds it against the PTX that it launches.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlirc.errors import MlircError, is_control
from mlirc.runtime.plan import DTYPE_BYTES, GIVEN, WRITTEN, CopyStep, KernelLaunch, Plan, Ref, TensorSpec, aligned
from mlirc.runtime.plan_check_terms import POINTER_BYTES, check_after, check_scalar, check_sizes, check_terms
from mlirc.runtime.repeats import references as refs
from mlirc.runtime.tensor_map import ADDRESS_ALIGNMENT, MAP_ALIGNMENT, MAP_BYTES
from mlirc.targets import TARGETS, Target

MAX_BYTES = 1 << 40  # of one buffer: more than any GPU has
MAX_RANK = 64
MAX_NAME = 4096  # characters
# CUDA C++ programming guide, table of technical specifications per compute capability.
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
CLUSTERS_FROM = TENSOR_MAPS_FROM = DEPENDENT_FROM = 90  # compute capability times ten

_KINDS = {"inputs": (*GIVEN, "random"), "outputs": ("output",), "weights": ("weight", "constant", "state")}


def _check_structure(plan: Plan) -> None:
    """A structure has the plan's tensors, and pairs of real numbers where it has complex ones."""
    if plan.structure is None:
        return
    for what, leaves, specs in (("inputs", plan.structure.inputs, plan.asked),
                                ("outputs", plan.structure.result.leaves, plan.outputs)):  # fmt: skip
        if len(leaves) != len(specs):
            raise MlircError(f"plan: structure: {len(leaves)} {what}, but the plan has {len(specs)}")
        for leaf, spec in zip(leaves, specs, strict=True):
            if leaf.kind == "complex" and (spec.dtype not in ("f32", "f64") or spec.shape[-1:] != (2,)):
                raise MlircError(f"plan: structure: {_shown(spec.name)} is {spec}, which holds no complex numbers")
    for text in plan.structure.texts():
        check_text(text, "plan: structure")


def check_plan(plan: Plan) -> None:
    """Raises MlircError, which names the tensor or the step, unless a plan is one that could be run."""
    target = TARGETS.get(plan.target)
    if target is None:
        raise MlircError(f"plan: unknown target {_shown(plan.target)}: this mlirc knows {', '.join(TARGETS)}")
    for key, value in {"model": plan.model, **plan.versions}.items():
        check_text(key, "plan: the name of a version")
        check_text(value, f"plan: {key}")
    for name in _KINDS:
        _check_tensors(name, getattr(plan, name))
    _check_draws(plan)
    check_sizes(plan)
    _check_structure(plan)
    for what, size, limit in (("arena_size", plan.arena_size, MAX_BYTES), ("unpacked_size", plan.unpacked_size, 2**63)):
        if not 0 <= size <= limit:
            raise MlircError(f"plan: {what} is {size} bytes: not between 0 and {limit}")
    if not 0 <= plan.setup <= len(plan.steps):
        raise MlircError(f"plan: the first {plan.setup} of {len(plan.steps)} steps run at load, which is impossible")
    for number, step in enumerate(plan.steps):
        where = f"plan: step {number}"
        for ref in refs(step):
            _check_ref(plan, ref, where, at_load=number < plan.setup)
        if isinstance(step, KernelLaunch):
            _check_launch(step, target, f"{where} ({_shown(step.symbol)})")
            check_terms(plan, step, f"{where} ({_shown(step.symbol)})")
        else:
            _check_copy(plan, step, where)
    used = used_arena(plan.steps)
    if plan.arena_size > used:
        raise MlircError(f"plan: arena_size is {plan.arena_size} bytes, but the steps use {used}")
    _check_order(plan)
    check_after(plan)


def used_arena(steps: Iterable[KernelLaunch | CopyStep]) -> int:
    """The arena's size that the steps need, in bytes."""
    last = max((r.offset + r.size for s in steps for r in refs(s) if r.space == "arena"), default=0)
    return aligned(last)


def check_text(text: str, what: str) -> None:
    """Raises MlircError for a name that is empty, too long, or has characters that are not to be seen."""
    if not text or len(text) > MAX_NAME:
        raise MlircError(f"{what} has {len(text)} characters: not between 1 and {MAX_NAME}")
    for c in "" if text.isprintable() else text:  # what is printable has no control characters
        if is_control(c):
            raise MlircError(f"{what}: {_shown(text)} has the control character U+{ord(c):04X}")


def _shown(text: str) -> str:
    """A name that is not trusted, so that one line of text stays one line of text."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def _check_tensors(table: str, specs: list[TensorSpec]) -> None:
    names: set[str] = set()
    for spec in specs:
        check_text(spec.name, f"plan: {table}")
        if spec.name in names:
            raise MlircError(f"plan: two {table} are called '{spec.name}': names must be unique")
        names.add(spec.name)
        if spec.kind not in _KINDS[table]:
            raise MlircError(f"plan: '{spec.name}' of {table} has kind {_shown(spec.kind)}")
        if spec.dtype not in DTYPE_BYTES:
            raise MlircError(f"plan: tensor '{spec.name}' has an invalid type: {_shown(spec.dtype)}")
        if len(spec.shape) > MAX_RANK or any(not 0 <= d <= MAX_BYTES for d in spec.shape):
            raise MlircError(f"plan: tensor '{spec.name}' has an invalid type: {_shown(str(spec))}")
        if math.prod(spec.shape) * DTYPE_BYTES[spec.dtype] > MAX_BYTES:
            raise MlircError(f"plan: tensor '{spec.name}', {_shown(str(spec))}, has more than {MAX_BYTES} bytes")
        check_scalar(spec)


def _check_draws(plan: Plan) -> None:
    """The state of the generator is the last input, has a row for the seed and one per draw, and moves forward."""
    kinds = [spec.kind for spec in plan.inputs]
    if kinds.count("random") != bool(plan.draws) or "random" in kinds[:-1]:
        raise MlircError("plan: a model that draws random numbers has one input of kind 'random', the last one")
    if not plan.draws:
        return
    spec = plan.inputs[-1]
    if spec.dtype != "i64" or spec.shape != (len(plan.draws), 2):
        raise MlircError(f"plan: the generator's state is {_shown(str(spec))}: not i64[{len(plan.draws)},2]")
    if any(not 0 <= n < 1 << 62 or n % 4 for n in plan.draws) or list(plan.draws) != sorted(plan.draws):
        raise MlircError("plan: draws are no rising numbers of words, four to a block")


def _check_ref(plan: Plan, ref: Ref, where: str, at_load: bool) -> None:
    tables = {"input": plan.inputs, "weight": plan.weights, "output": plan.outputs}
    if ref.space == "arena" and ref.index == 0:
        room = plan.arena_size
    elif ref.space in tables and 0 <= ref.index < len(tables[ref.space]):
        room = tables[ref.space][ref.index].nbytes
    else:
        raise MlircError(f"{where} names buffer {ref.space} {ref.index}, which is not there")
    if at_load and (ref.space in ("input", "output") or is_written(plan, ref)):
        raise MlircError(f"{where} runs at load but uses {ref.space} {ref.index}")
    if ref.offset < 0 or ref.size < 0 or ref.offset + ref.size > room:
        raise MlircError(f"{where} reaches outside of {ref.space} {ref.index}, which has {room} bytes")


def _check_launch(step: KernelLaunch, target: Target, where: str) -> None:
    check_text(step.kernel, f"{where}: kernel") if step.kernel else None
    for name in step.origin:
        check_text(name, f"{where}: origin")
    if not re.fullmatch(r"[A-Za-z_$%][\w$]*", step.symbol, flags=re.ASCII):
        raise MlircError(f"{where}: no name of a kernel")
    for what, sizes, limits in (("grid", step.grid, MAX_GRID), ("block", step.block, MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise MlircError(f"{where}: {what} {_times(sizes)}: each must be from 1 to {_times(limits)}")
    if math.prod(step.block) > MAX_THREADS:
        raise MlircError(f"{where}: block {_times(step.block)}: at most {MAX_THREADS} threads fit")
    if not 0 <= step.smem <= target.max_smem:
        raise MlircError(
            f"{where}: {step.smem} bytes of shared memory: {target.name} has 0 to {target.max_smem} per block"
        )
    _check_maps(step, target, where)
    if step.dependent and target.cc < DEPENDENT_FROM:
        raise MlircError(f"{where}: {target.name} launches nothing before what is in front of it has ended")
    if step.cooperative and (step.dependent or step.extents):
        raise MlircError(f"{where}: blocks that wait for each other begin together, all of a grid that is known")
    if step.cluster is None:
        return
    if target.cc < CLUSTERS_FROM:
        raise MlircError(f"{where}: cluster {_times(step.cluster)}: {target.name} has no clusters")
    if any(c < 1 or g % c for c, g in zip(step.cluster, step.grid, strict=True)):
        raise MlircError(f"{where}: cluster {_times(step.cluster)}: does not divide grid {_times(step.grid)}")
    if math.prod(step.cluster) > target.max_cluster:
        raise MlircError(f"{where}: cluster {_times(step.cluster)}: at most {target.max_cluster} blocks fit")


def _check_maps(step: KernelLaunch, target: Target, where: str) -> None:
    """Tensor maps must be what the driver can make, of memory that is there."""
    if step.maps and target.cc < TENSOR_MAPS_FROM:
        raise MlircError(f"{where}: {target.name} has no tensor maps")
    for number, spec in step.maps.items():
        if not 0 <= number < len(step.args):
            raise MlircError(f"{where}: a tensor map as argument {number} of {len(step.args)}")
        ref = step.args[number]
        what = f"{where}: argument {number}, a tensor map"
        if problem := spec.problem():
            raise MlircError(f"{what}: {problem[:200]}")
        if spec.nbytes > ref.size:
            raise MlircError(f"{what} of {spec.nbytes} bytes: it is given {ref.size}")
        if ref.offset % ADDRESS_ALIGNMENT:
            raise MlircError(
                f"{what}: is given byte {ref.offset} of {ref.space} {ref.index}: not a multiple of {ADDRESS_ALIGNMENT}"
            )


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def is_written(plan: Plan, ref: Ref) -> bool:
    """Whether a reference is one to a state, or to an input that a run changes in place."""
    tables = {"input": plan.inputs, "weight": plan.weights}
    return ref.space in tables and tables[ref.space][ref.index].kind in WRITTEN


def _check_copy(plan: Plan, step: CopyStep, where: str) -> None:
    source, target = step.source, step.target
    if source.size != target.size or not source.size:
        raise MlircError(f"{where} copies {source.size} bytes onto {target.size}")
    if target.space in ("input", "weight") and not is_written(plan, target):
        raise MlircError(f"{where} overwrites {target.space} {target.index}")
    if (source.space, source.index) == (target.space, target.index) and abs(
        source.offset - target.offset
    ) < source.size:
        raise MlircError(f"{where} copies {source.space} {source.index} onto itself")


def _check_order(plan: Plan) -> None:
    """Nothing is copied that no earlier step made, and every byte of every output is made. A launch may have made
    whatever it is given: which of its arguments it writes is in the PTX alone."""
    made = _Made()
    for number, step in enumerate(plan.steps):
        if isinstance(step, CopyStep) and step.source.space in ("arena", "output") and not made.holds(step.source):
            name = f"{step.source.space} {step.source.index}"
            raise MlircError(f"plan: step {number} copies from {name} what no earlier step made")
        for ref in refs(step)[isinstance(step, CopyStep) :]:
            made.add(ref)
    for index, spec in enumerate(plan.outputs):
        if spec.nbytes and not made.covers("output", index, 0, spec.nbytes):
            raise MlircError(f"plan: no step writes all of output '{spec.name}'")


class _Made:
    """The ranges of each buffer that steps may have written, merged and in order."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, int], tuple[list[int], list[int]]] = {}  # starts and ends, without overlaps

    def add(self, ref: Ref) -> None:
        if ref.space not in ("arena", "output") or not ref.size:
            return
        start, end = ref.offset, ref.offset + ref.size
        starts, ends = self._ranges.setdefault((ref.space, ref.index), ([], []))
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last], ends[first:last] = [start], [end]

    def covers(self, space: str, index: int, start: int, end: int) -> bool:
        starts, ends = self._ranges.get((space, index), ([], []))
        at = bisect_right(starts, start) - 1
        return at >= 0 and end <= ends[at]

    def holds(self, ref: Ref) -> bool:
        return self.covers(ref.space, ref.index, ref.offset, ref.offset + ref.size)


# The PTX

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(r"\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)[{;]")
_POINTER = re.compile(r"\.param\s+\.[ub]64\s+(?:\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+(\d+))?\s+)?[\w$%]+")
_VALUE = re.compile(r"\.param\s+\.[bsuf](8|16|32|64)\s+[\w$%]+")
_BYTES = re.compile(r"\.param\s+\.align\s+(\d+)\s+\.b8\s+[\w$%]+\[(\d{1,5})\]")
_SIZES = re.compile(r"\.(reqntid|maxntid|reqnctapercluster)\s+(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+))?")


def check_ptx(plan: Plan, ptx: str) -> None:
    """Raises MlircError unless the PTX is for the plan's target and defines every kernel that it launches, with a
    pointer or a tensor map for each argument of the launch, the alignment that it counts on, and the block that it was
    made for."""
    text = _COMMENT.sub(" ", ptx)
    target = _TARGET.search(text)
    if target is None or target[1] != plan.target:
        raise MlircError(f"plan: is for {plan.target}, but the PTX for {target[1] if target else 'no target'}")
    entries = dict(_entries(text))
    for number, launch in ((n, s) for n, s in enumerate(plan.steps) if isinstance(s, KernelLaunch)):
        where = f"plan: step {number}"
        if launch.symbol not in entries:
            raise MlircError(f"{where}: kernel {_shown(launch.symbol)} is launched but the PTX defines no such entry")
        entry = entries[launch.symbol]
        parameters = entry.parameters
        if parameters is None:
            raise MlircError(f"{where}: kernel {_shown(launch.symbol)} takes something else than pointers")
        if len(parameters) != len(launch.args):
            raise MlircError(
                f"{where}: kernel {_shown(launch.symbol)} takes {len(parameters)} pointers, not {len(launch.args)}"
            )
        for number, parameter in enumerate(parameters):
            what = f"{where}: kernel {_shown(launch.symbol)}"
            ref, given = launch.args[number], _given(launch, number)
            if not parameter.takes(given):
                raise MlircError(f"{what} takes as argument {number} {parameter}, not {given}")
            if given.kind == "pointer" and ref.size and ref.offset % parameter.alignment:
                raise MlircError(
                    f"{what} is given byte {ref.offset} of {ref.space} {ref.index}: not a multiple of "
                    f"{parameter.alignment}"
                )
        if launch.dependent and not entry.waits:
            raise MlircError(
                f"{where}: kernel {_shown(launch.symbol)} may begin before the step in front of it has ended, but has "
                "no griddepcontrol.wait"
            )
        _check_sizes(launch, entry.sizes, where)


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes, or a launch gives, as one argument: a `pointer` (`alignment`: of what it points to), a
    `tensor map` or a `table` of pointers of so many bytes (`alignment`: its own), or a `value` of so many bytes."""

    kind: str
    size: int = POINTER_BYTES
    alignment: int = 1
    plain: bool = True  # a pointer that is not told from a number

    def takes(self, given: Parameter) -> bool:
        if given.kind == "value" and self.kind == "pointer":
            return self.plain and given.size == self.size
        if self.kind == "tensor map" and self.alignment % MAP_ALIGNMENT:
            return False
        return (self.kind, self.size) == (given.kind, given.size)

    def __str__(self) -> str:
        words = {"pointer": "a pointer", "tensor map": "a tensor map", "value": f"a value of {self.size} bytes",
                 "table": f"a table of {self.size // POINTER_BYTES} pointers"}  # fmt: skip
        loose = self.kind == "tensor map" and self.alignment % MAP_ALIGNMENT
        return words[self.kind] + (f" at a multiple of {self.alignment}" if loose else "")


def _given(launch: KernelLaunch, number: int) -> Parameter:
    """What a launch gives as an argument."""
    if number in launch.maps:
        return Parameter("tensor map", MAP_BYTES, MAP_ALIGNMENT)
    if number in launch.tables:
        return Parameter("table", POINTER_BYTES * (1 + len(launch.tables[number])), POINTER_BYTES)
    return Parameter("value", launch.args[number].size) if number in launch.values else Parameter("pointer")


def _parameter(text: str) -> Parameter | None:
    """A parameter of an entry; None for one that no launch can give."""
    if match := _POINTER.fullmatch(text):
        return Parameter("pointer", alignment=int(match[1] or 1), plain=".ptr" not in text)
    if match := _VALUE.fullmatch(text):
        return Parameter("value", int(match[1]) // 8)
    if match := _BYTES.fullmatch(text):
        alignment, size = int(match[1]), int(match[2])
        if size == MAP_BYTES and alignment > POINTER_BYTES:
            return Parameter("tensor map", size, alignment)
        if size == alignment == 2:
            return Parameter("value", size)  # a float of 16 bits
        whole = size and size % POINTER_BYTES == 0 and alignment == POINTER_BYTES
        return Parameter("table", size, alignment) if whole else None
    return None


@dataclass(frozen=True)
class _Entry:
    """What an entry of the PTX demands. `parameters`: None unless all are such as a launch can give. `waits`: for
    earlier launches."""

    parameters: list[Parameter] | None
    sizes: dict[str, tuple[int, ...]]
    waits: bool


def _entries(text: str) -> Iterator[tuple[str, _Entry]]:
    """The entries by name."""
    for part in text.split(".entry")[1:]:
        if (match := _ENTRY.match(part)) is None:
            continue
        name, parameters, directives = match[1], match[2] or "", match[3]
        found = [_parameter(p.strip()) for p in parameters.split(",") if p.strip()]
        known = [p for p in found if p]
        sizes = {m[1]: tuple(int(n or 1) for n in m.groups()[1:]) for m in _SIZES.finditer(directives)}
        waits = "griddepcontrol.wait" in part
        yield name, _Entry(known if len(known) == len(found) else None, sizes, waits)


def _check_sizes(launch: KernelLaunch, sizes: dict[str, tuple[int, ...]], where: str) -> None:
    wanted = sizes.get("reqntid", launch.block)
    if launch.block != wanted or math.prod(launch.block) > math.prod(sizes.get("maxntid", MAX_BLOCK)):
        limit = wanted if launch.block != wanted else sizes["maxntid"]
        raise MlircError(
            f"{where}: kernel {_shown(launch.symbol)} is for blocks of {_times(limit)}, not {_times(launch.block)}"
        )
    cluster = sizes.get("reqnctapercluster")
    if cluster and (launch.cluster or cluster) != cluster:
        raise MlircError(f"{where}: kernel {_shown(launch.symbol)} is for clusters of {_times(cluster)}")
