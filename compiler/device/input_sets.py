"""Sets of inputs that a kernel is tried on besides those that its model gives it.

One set of normal numbers, and a model's own weights, hide much: a softmax without its maximum, another eps, the weights
of a norm that are all 1, an index that is cut to 16 bits. So every kernel runs once more for each set, on made-up
arguments, a few blocks of it, and is compared with its reference."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mlirc.backend.kernel import Launch
from mlirc.check.kinds import ELEMENTS, FLOATS, IDS, INTEGERS, PLAIN, edges
from mlirc.device.launch import DeviceKernel
from mlirc.device.reference import Reference
from mlirc.device.report import Report
from mlirc.dialects.mlirc_dialect import CACHED_ATTENTION, AttentionInfo, scores_operands
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.mlir import ir, nested
from mlirc.passes.loops.row_writes import is_row_write

INPUT_SETS = (PLAIN, *FLOATS, *ELEMENTS, IDS, INTEGERS)
QUICK = (PLAIN, "floats x100", "tiny floats", IDS)
BLOCKS = 4  # of a launch that a set runs
_OF_VALUES = ("bad index", "undefined arithmetic", "undefined value")  # a model may never have such values
_PERIOD = 65537  # of the numbers of large tensors: a prime, so that rows are not alike


def parse_input_sets(text: str) -> tuple[str, ...]:
    """`all`, `none`, `quick`, or names divided by commas; raises MlircError for one that there is not."""
    groups = {"all": INPUT_SETS, "quick": QUICK, "none": ()}
    if text in groups:
        return groups[text]
    names = tuple(x.strip() for x in text.split(","))
    for name in names:
        if name not in INPUT_SETS:
            raise MlircError(f"'{name}' is no set of inputs: give all, quick, none, or some of {', '.join(INPUT_SETS)}")
    return names


def index_limits(function: ir.OpView) -> dict[int, int]:
    """Which integer arguments of a kernel (at the `kernels` level) are indices: the number of the argument to the
    extent of the dimension, the smallest where there are several."""
    return _indices(function)[0]


def _indices(function: ir.OpView) -> tuple[dict[int, int], frozenset[int]]:
    """`index_limits`, and those of them that are places of rows to write, which are different ones or negative."""
    limits: dict[int, int] = {}
    distinct: frozenset[int] = frozenset()
    sources: dict[ir.Value, frozenset[int]] = {
        value: frozenset([i]) for i, value in enumerate(function.regions[0].blocks[0].arguments)
    }
    for op in nested(function.operation):
        if op.name.startswith("linalg.") and op.regions and op.regions[0].blocks:
            for inner, outer in zip(op.regions[0].blocks[0].arguments, op.operands, strict=False):
                sources[inner] = sources.get(outer, frozenset())
        found = frozenset().union(*(sources.get(v, frozenset()) for v in op.operands))
        if op.name == "tensor.extract":
            table = ir.RankedTensorType(op.operands[0].type)
            for index, extent in zip(list(op.operands)[1:], table.shape, strict=True):
                _limit(limits, sources.get(index, frozenset()), extent)
        elif op.name == CACHED_ATTENTION:
            a = AttentionInfo.of(op)
            assert a.pages is not None
            for index, extent in zip(scores_operands(op), (a.pages.pool, a.kv_len + 1), strict=True):
                _limit(limits, sources.get(index, frozenset()), extent)
        elif is_row_write(op):
            places = sources.get(op.operands[1], frozenset())
            _limit(limits, places, ir.RankedTensorType(op.operands[2].type).shape[0])
            distinct |= places
        elif levels.INDEX_BELOW in op.attributes:
            _limit(limits, found, ir.IntegerAttr(op.attributes[levels.INDEX_BELOW]).value)
        for result in op.results:
            sources[result] = found | _inner(op, sources)
    return limits, distinct


def _inner(op: ir.Operation, sources: Mapping[ir.Value, frozenset[int]]) -> frozenset[int]:
    """What a region's result is made of; its operations come before this one is asked for."""
    found: frozenset[int] = frozenset()
    for region in op.regions:
        for block in region.blocks:
            for inside in block.operations:
                for value in inside.operation.operands:
                    found |= sources.get(value, frozenset())
    return found


def _limit(limits: dict[int, int], arguments: frozenset[int], extent: int) -> None:
    for i in arguments:
        limits[i] = min(limits.get(i, extent), extent)


def divides(function: ir.OpView) -> bool:
    """Whether a kernel divides integers: by 0, and the least one by -1, is undefined."""
    return any(op.name.startswith(("arith.divs", "arith.divu", "arith.rem", "arith.ceildiv", "arith.floordiv"))
               for op in nested(function.operation))  # fmt: skip


class InputSets:
    """Arguments of a kernel by the name of a set. `limits`: of those that are indices, how many there are; `distinct`:
    those of them that have no number twice, and may be negative; `bounded`: other integers stay small, too."""

    def __init__(
        self, given: Sequence[np.ndarray], limits: Mapping[int, int], bounded: bool = False,
        distinct: frozenset[int] = frozenset(),
    ):  # fmt: skip
        self.given, self.limits, self.bounded, self.distinct = list(given), dict(limits), bounded, distinct

    @staticmethod
    def of(function: ir.OpView, given: Sequence[np.ndarray]) -> InputSets:
        """For a function at the `kernels` level; `given`: arguments of its types."""
        limits, distinct = _indices(function)
        return InputSets(given, limits, divides(function), distinct)

    def fits(self, name: str) -> bool:
        """Whether a set differs from the plain one for these arguments."""
        integers = [i for i, a in enumerate(self.given) if a.dtype.kind in "iu"]
        if name == IDS:
            return any(i in self.limits for i in integers)
        if name == INTEGERS:
            return not self.bounded and any(i not in self.limits for i in integers)
        return name == PLAIN or any(_is_float(a) for a in self.given)

    def make(self, name: str, seed: int = 0) -> list[np.ndarray]:
        """The arguments of a set: normal floats, booleans at random, indices over their whole tables and other integers
        in -3 to 4, changed as the name says."""
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return [self._one(name, i, a, rng) for i, a in enumerate(self.given)]

    def _one(self, name: str, i: int, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if like.dtype.kind == "b":
            return rng.random(like.shape) < 0.5
        if not _is_float(like):
            return self._integers(name, i, like, rng)
        x = _spread(rng.standard_normal, like)
        if name in FLOATS:
            with np.errstate(all="ignore"):
                x = FLOATS[name](x.astype(np.float64)).astype(like.dtype)
        if name in ELEMENTS and x.size:
            x.reshape(-1)[rng.integers(x.size)] = ELEMENTS[name]
            if name == "one infinity" and x.size > 3:
                x.reshape(-1)[rng.integers(x.size)] = -ELEMENTS[name]
        return x

    def _integers(self, name: str, i: int, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        info = np.iinfo(like.dtype)
        if i in self.limits:
            high = max(min(self.limits[i], info.max), 1)
            if i in self.distinct:
                return self._places(name, high, like, rng)
            if name == IDS:
                return np.resize(np.array([high - 1, 0, high // 2], like.dtype), like.shape)
            return _spread(lambda n: rng.integers(0, high, n), like)
        if name != INTEGERS or self.bounded:
            low = 1 if self.bounded else max(-3, info.min)
            return _spread(lambda n: rng.integers(low, 5, n), like)
        made = _spread(lambda n: rng.integers(info.min, info.max, n, endpoint=True, dtype=like.dtype), like)
        ends = edges(info.min, info.max)[: made.size]
        made.reshape(-1)[: len(ends)] = ends
        return made

    def _places(self, name: str, high: int, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Different places of rows, the first and the last among them, and a negative number for each that is none."""
        nowhere = like.size // 4 + 1
        found = rng.permutation(high + nowhere)[: like.size] - nowhere
        if name == IDS:
            ends = dict.fromkeys([high - 1, 0, high // 2, *found.tolist()])
            found = np.array(list(ends)[: like.size], np.int64)
        few = -1 - nowhere - np.arange(like.size - len(found))  # more rows than places
        return np.concatenate([found, few]).astype(like.dtype).reshape(like.shape)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind not in "iub"


def _spread(draw, like: np.ndarray) -> np.ndarray:
    """Numbers for a tensor, of which a large one repeats."""
    few = draw(min(like.size, _PERIOD)).astype(like.dtype)
    return np.resize(few, like.shape) if like.size else np.empty(like.shape, like.dtype)


def some_blocks(count: int, seed: int = 0) -> list[int] | None:
    """Of a launch of so many blocks the first, the last and two others; None for all."""
    if count <= BLOCKS:
        return None
    inner = np.random.default_rng(seed).choice(np.arange(1, count - 1), BLOCKS - 2, replace=False)
    return sorted({0, count - 1, *(int(b) for b in inner)})


def try_sets(
    kernel: DeviceKernel, reference: Reference, arguments: Sequence[np.ndarray], names: Iterable[str], **options: Any
) -> Report:
    """Runs a kernel on sets of made-up inputs, some blocks of each launch, and reports what is found with the set's
    name. `arguments`: those of a run, inputs and results, whose shapes and types the sets have. `options`: those of
    `DeviceKernel.run`."""
    inputs, results = arguments[: reference.inputs], arguments[reference.inputs :]
    assert reference.function is not None
    sets = InputSets.of(reference.function, inputs)
    report = Report()
    for name in names:
        if not sets.fits(name):
            continue
        chosen, grids = options.get("blocks"), [x.grid for x in kernel.launches if isinstance(x, Launch)]
        if chosen is None and len(kernel.launches) == len(grids) == 1:
            chosen = some_blocks(math.prod(grids[0]), zlib.crc32(name.encode()))
        made = [*sets.make(name), *(np.zeros_like(r) for r in results)]
        for number in {e.scalar for x in kernel.launches if isinstance(x, Launch) for e in x.extents.values()}:
            made[number] = inputs[number]  # a grid is for some numbers only
        found = kernel.run(made, reference=reference, **(options | {"blocks": chosen}))
        found.findings = [f for f in found.findings if f.kind not in _OF_VALUES]
        for finding in found.findings:
            finding.inputs = name
        found.calls, found.blocks, found.compared, found.counters, found.by_operation = {}, 0, 0, {}, {}
        report.merge(found)
        report.sets[kernel.name] = [*report.sets.get(kernel.name, []), name]
    return report
