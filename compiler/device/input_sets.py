"""Sets of inputs that a kernel is tried on besides those that its model gives it.

One set of normal numbers, and a model's own weights, hide much: a softmax without its maximum, another eps, the weights
of a norm that are all 1, an index that is cut to 16 bits. So every kernel runs once more for each set, on made-up
arguments, a few blocks of it, and is compared with its reference."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlirc.backend.kernel import Launch
from mlirc.check.kinds import ELEMENTS, FLOATS, IDS, INTEGERS, PLAIN, edges
from mlirc.device.input_values import VALUES, extremes
from mlirc.device.kernel_traits import Traits
from mlirc.device.launch import DeviceKernel
from mlirc.device.reference import Reference
from mlirc.device.report import Report
from mlirc.errors import MlircError
from mlirc.mlir import ir

EXTREMES, INFINITY = "maximum in turn", "one infinity"
INPUT_SETS = (PLAIN, *FLOATS, *VALUES, EXTREMES, *ELEMENTS, IDS, INTEGERS)
QUICK = tuple(name for name in INPUT_SETS if name not in ("zeros", INTEGERS))
BLOCKS = 4  # of a launch that a set runs
TURNS = 16  # runs of the set whose extremes change their places
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


class InputSets:
    """Arguments of a kernel by the name of a set; `traits`: what is known of it."""

    def __init__(self, given: Sequence[np.ndarray], traits: Traits | None = None):
        self.given, self.traits = list(given), traits or Traits()

    @staticmethod
    def of(function: ir.OpView, given: Sequence[np.ndarray]) -> InputSets:
        """For a function at the `kernels` level; `given`: arguments of its types."""
        return InputSets(given, Traits.of(function))

    def fits(self, name: str) -> bool:
        """Whether a set differs from the plain one for these arguments, in what the kernel looks at."""
        integers = [i for i, a in enumerate(self.given) if a.dtype.kind in "iu"]
        if name == IDS:
            return any(i in self.traits.limits for i in integers)
        if name == INTEGERS:
            return not self.traits.divides and any(i not in self.traits.limits for i in integers)
        if name == EXTREMES:
            return any(self._axis(i) is not None for i in range(len(self.given)))
        reduces = self.traits.reduces  # where nothing is, the special values are enough of their kind
        needed = {"multiples of a half": self.traits.decides, "far from 0": reduces, "every magnitude": not reduces,
                  "large negative": reduces, **dict.fromkeys(ELEMENTS, reduces)}  # fmt: skip
        return name == PLAIN or (any(_is_float(a) for a in self.given) and needed.get(name, True))

    def turns(self, name: str) -> int:
        """How many runs a set is."""
        if name == INFINITY:
            return min(2, max(1, len(self._changed())))
        if name != EXTREMES:
            return 1
        searched = [(a, axis) for i, a in enumerate(self.given) if (axis := self._axis(i)) is not None]
        counts = [-(-(a.shape[axis] ** 2) // max(a.size, 1)) for a, axis in searched]
        return min(TURNS, max(counts, default=1))

    def make(self, name: str, seed: int = 0, turn: int = 0) -> list[np.ndarray]:
        """The arguments of a set: normal floats, booleans at random, indices over their whole tables and other integers
        in -3 to 4, changed as the name says. `turn`: which of the set's runs."""
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), turn])
        return [self._one(name, i, a, rng, turn) for i, a in enumerate(self.given)]

    def _axis(self, i: int) -> int | None:
        """The dimension along which a kernel looks for an extreme of an argument."""
        array = self.given[i]
        if i in self.traits.limits or array.dtype.kind == "b" or not array.size:
            return None
        return self.traits.axes.get(array.shape)

    def _one(self, name: str, i: int, like: np.ndarray, rng: np.random.Generator, turn: int) -> np.ndarray:
        if like.dtype.kind == "b":
            return rng.random(like.shape) < 0.5
        x = _spread(rng.standard_normal, like) if _is_float(like) else self._integers(name, i, like, rng)
        if name == EXTREMES and (axis := self._axis(i)) is not None:
            return extremes(x, axis, turn, self.turns(name), rng)
        if not _is_float(like) or name in ("special values", *ELEMENTS) and i not in self._changed():
            return x
        if name == INFINITY and self._changed().index(i) % self.turns(name) != turn:
            return x
        return self._floats(name, x, rng)

    def _changed(self) -> list[int]:
        """The arguments that may hold what is no number."""
        return [i for i, a in enumerate(self.given) if _is_float(a) and i not in self.traits.scales]

    def _floats(self, name: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if name in FLOATS:
            with np.errstate(all="ignore"):
                x = FLOATS[name](x.astype(np.float64)).astype(x.dtype)
        if name in VALUES and x.size:
            x = VALUES[name](x, rng)
        if name in ELEMENTS and x.size:
            x.reshape(-1)[rng.integers(x.size)] = ELEMENTS[name]
            if name == INFINITY and x.size > 3:
                x.reshape(-1)[rng.integers(x.size, size=2)] = -ELEMENTS[name]
        return x

    def _integers(self, name: str, i: int, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        info, limits = np.iinfo(like.dtype), self.traits.limits
        if i in limits:
            high = max(min(limits[i], info.max), 1)
            if i in self.traits.distinct:
                return self._places(name, high, like, rng)
            if name == IDS:
                return np.resize(np.array([high - 1, 0, high // 2], like.dtype), like.shape)
            return _spread(lambda n: rng.integers(0, high, n), like)
        if self.traits.divides:
            divisors = [k for k in range(-7, 8) if k and k >= info.min]
            return _spread(lambda n: rng.choice(divisors, n), like)
        if name != INTEGERS:
            return _spread(lambda n: rng.integers(max(-3, info.min), 5, n), like)
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
        for turn in range(sets.turns(name)):
            made = [*sets.make(name, turn=turn), *(np.zeros_like(r) for r in results)]
            for number in {e.scalar for x in kernel.launches if isinstance(x, Launch) for e in x.extents.values()}:
                made[number] = inputs[number]  # a grid is for some numbers only
            random = name == PLAIN and sets.traits.weighs
            found = kernel.run(made, reference=reference, random=random, **(options | {"blocks": chosen}))
            found.findings = [f for f in found.findings if f.kind not in _OF_VALUES]
            for finding in found.findings:
                finding.inputs = name
            found.calls, found.blocks, found.compared, found.counters, found.by_operation = {}, 0, 0, {}, {}
            found.judged = {}
            report.merge(found)
            if found.findings:
                break
        report.sets[kernel.name] = [*report.sets.get(kernel.name, []), name]
    return report
