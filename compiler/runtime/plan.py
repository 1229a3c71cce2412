"""The launch plan: all that the runtime needs to run a model. As JSON it is `plan_json.py`'s, in a PTX file
`plan_file.py`'s; `plan_check.py` says whether it could be run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from mlirc.runtime.sizes import Sizes, dims_text
from mlirc.runtime.structure import Structure
from mlirc.runtime.tensor_map import DTYPE_BYTES as DTYPE_BYTES
from mlirc.runtime.tensor_map import TensorMapSpec

VERSION = 4
SIZES_VERSION = 5  # of a plan whose model has symbolic sizes; the others are as before
TABLES = ("inputs", "outputs", "weights")
POINTER_ALIGNMENT = 16  # bytes, of every buffer that a kernel is given: kernels load so many at a time
ARENA_ALIGNMENT = 256  # bytes, of what lies in the arena
SPACES = ("input", "weight", "output", "arena")
GIVEN = ("input", "inout", "scalar")  # kinds of inputs that a caller gives
SCALAR_DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "i1")
WRITTEN = ("inout", "state")  # kinds of inputs and weights that a run changes
Dim3 = tuple[int, int, int]


def aligned(size: int) -> int:
    """`size` in bytes rounded up to ARENA_ALIGNMENT."""
    return -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of the model's boundary: dense, row-major, i1 as one byte per element. `kind` is `input`, `inout`
    (an input that a run changes in place), `scalar` (an input that is one number, which launches may take by value),
    `random` (the generator's state, which comes last of the inputs and which
    the runtime fills in), `output`, `weight` (a state-dict entry), `constant` (a tensor that is in no state dict) or
    `state` (either of them, which a run changes: a loaded model has a copy of its own)."""

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
class Extent:
    """An extent of a grid that a scalar decides: the value of input number `scalar`, divided by `divisor` and rounded
    up, times `factor`. None at all: the launch is left out."""

    scalar: int
    divisor: int = 1
    factor: int = 1

    def blocks(self, value: int) -> int:
        return -(-value // self.divisor) * self.factor


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the PTX entry `symbol` with one parameter per argument. That is a pointer to it, or, for the numbers
    in `maps`, a tensor map of it, for those in `values` the scalar that it is, by value, and for those in `tables` an
    array of pointers, by value: the first to the argument, and the others to what the table lists.

    `extents` has the dimensions of the grid (0 for x) that scalars decide; `grid` is then the most that they may be.
    `smem` is dynamic shared memory in bytes. `dependent`: it may begin before the step in front of it has ended, where
    that is a launch, too (CUDA C++ guide, "Programmatic Dependent Launch").
    `cooperative`: its blocks wait for each other, so that all have to be resident at once (CUDA driver API,
    cuLaunchCooperativeKernel). `kernel` is the kernel function at the
    `kernels` level, `origin` the model's modules that it came from."""

    symbol: str
    grid: Dim3
    block: Dim3
    smem: int
    args: tuple[Ref, ...]
    kernel: str = ""
    origin: tuple[str, ...] = ()
    cluster: Dim3 | None = None
    maps: dict[int, TensorMapSpec] = field(default_factory=dict)
    dependent: bool = False
    values: tuple[int, ...] = ()
    tables: dict[int, tuple[Ref, ...]] = field(default_factory=dict)
    extents: dict[int, Extent] = field(default_factory=dict)
    cooperative: bool = False


@dataclass(frozen=True)
class CopyStep:
    """A device-to-device copy of `source.size` bytes."""

    source: Ref
    target: Ref


def begins_early(step: KernelLaunch | CopyStep, before: KernelLaunch | CopyStep | None) -> bool:
    """Whether a step begins before the one in front of it in a run has ended. The first one of a run does not, since
    nobody knows what is in front of that; nor one next to a copy, or to a launch that a scalar may leave out: whoever
    waits for a launch that is left out would not wait for those before it."""
    if not isinstance(step, KernelLaunch) or not isinstance(before, KernelLaunch):
        return False
    return step.dependent and not step.extents and not before.extents


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
    on weights and constants alone: they run once, when the model is loaded, unless those weights may change.
    `unpacked_size` is what the arena would take with a
    buffer of its own for every intermediate result. `draws` says how the generator of random numbers moves: see
    `mlirc.runtime.random_state`. `sizes` says which sizes a call decides, where there are any: the inputs and outputs
    here are those at the bound then. `structure` says how a caller has the inputs and the outputs, where those are more
    than tensors in a row. `steps` has every iteration of the loops that `repeats` lists; the plan's text
    says them once. `after`: by number, the steps that a step waits for, where those are others than the one in front of
    it: steps that do not wait for each other may run at the same time. `weights_checksum` is that of the safetensors
    file that was written with the plan, if any was."""

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
    sizes: Sizes | None = None
    structure: Structure | None = None
    weights_checksum: str = ""
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def waits(self, number: int) -> tuple[int, ...]:
        """The steps that a step waits for; those that these wait for have ended by then, too."""
        first = (number - 1,) if number else ()
        return self.after.get(number, first) or ((self.setup - 1,) if self.setup else ())

    @property
    def given(self) -> list[TensorSpec]:
        """The inputs that a run is given: what a caller gives, and the sizes."""
        return [spec for spec in self.inputs if spec.kind in GIVEN]

    @property
    def asked(self) -> list[TensorSpec]:
        """The inputs that a caller gives; those with symbolic sizes are at the bound here."""
        names = self.sizes.names if self.sizes else ()
        return [spec for spec in self.given if spec.name not in names]

    @property
    def written(self) -> list[TensorSpec]:
        """What a run changes: the states, then the inputs that it changes in place."""
        return [spec for spec in (*self.weights, *self.inputs) if spec.kind in WRITTEN]

    @property
    def results(self) -> list[TensorSpec]:
        """The outputs, and behind them what is written, under names that none of the others has."""
        found = list(self.outputs)
        for spec in self.written:
            name, taken = spec.name, {other.name for other in found}
            while name in taken:
                name += ".new"
            found.append(replace(spec, name=name))
        return found

    @property
    def launches(self) -> list[KernelLaunch]:
        return [s for s in self.steps if isinstance(s, KernelLaunch)]

    def shown(self, spec: TensorSpec) -> str:
        """A tensor's type for people: `f32[b<=8,7]` where a size is symbolic."""
        sizes = self.sizes or Sizes(())
        dims = (sizes.outputs if spec.kind == "output" else sizes.inputs).get(spec.name)
        return f"{spec.dtype}[{dims_text(dims).replace(', ', ',')}]" if dims else str(spec)

    def signature(self) -> str:
        """The boundary and the number of launches, for people: `model: (inputs) -> (outputs), N launches`."""
        ins, outs = (", ".join(f"{t.name}: {self.shown(t)}" for t in ts) for ts in (self.asked, self.outputs))
        return f"{self.model}: ({ins}) -> ({outs}), {len(self.launches)} launches"
