"""How products are laid over warps: plain data, which instructions decide (`instructions/base.py`), and copies, rings
and the products themselves ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.products.matching import Contraction
from mlirc.passes.distribute.tiles.accumulators import AccumulatorFragment

HALF = ("bf16", "f16")


class ElementTypes(NamedTuple):
    """The element types of a product's operands and sums, as MLIR prints them."""

    a: str
    b: str
    sums: str

    def __str__(self) -> str:
        operands = self.a if self.a == self.b else f"{self.a} and {self.b}"
        return f"operands of {operands} with sums of {self.sums}"

    @property
    def half(self) -> bool:
        """Whether tensor cores take them as they are: two 16-bit floats of one type, summed in f32."""
        return self.a in HALF and self.a == self.b and self.sums == "f32"


@dataclass(frozen=True)
class BlockProduct:
    """What one step of a block multiplies: C[m, n] += A[m, k] * B[n, k], the extents as they are. `grid`: over how many
    of the block's `warps` m and n are spread; `k_last`: whether rows of A and of B run along k."""

    m: int
    n: int
    k: int
    types: ElementTypes
    grid: tuple[int, int]
    warps: int
    k_last: tuple[bool, bool]


@dataclass(frozen=True)
class Spread:
    """How an instruction lays a `BlockProduct` over warps. `sums`: the accumulator's layout, dims (m, n); its shape is
    m and n rounded up to whole instructions; `k` is rounded up, too. `warps_k`: warps that share out k. `form`: the
    accumulator as the instruction takes it where that is no plain fragment, which a loop then carries; `tiles`: how
    many values along m and n it has.
    `rewrites`: how A and B are written anew in shared memory for it (`rewriting.py`), "" for as they are."""

    sums: Layout
    k: int
    warps_k: int = 1
    form: type[AccumulatorFragment] | None = None
    tiles: tuple[int, int] = (0, 0)
    rewrites: tuple[str, str] = ("", "")


def round_up(extent: int, step: int) -> int:
    """The least multiple of `step` that is no less."""
    return -(-extent // step) * step


class Traits(Protocol):
    """What a product's surroundings ask of its instruction (`Instruction` says what they mean)."""

    name: ClassVar[str]
    asynchronous: ClassVar[bool]
    reads_padding: ClassVar[bool]
    reads_global: ClassVar[bool]
    reads_narrow: ClassVar[bool]
    unpacks: ClassVar[bool]


def place(dims: list[int | None], major: int | None, minor: int | None, layout: Layout) -> Layout:
    """Spreads a two-dimensional layout over an operand's dimensions (all others have size 1)."""
    out: list[tuple] = [()] * len(dims)
    for i, d in enumerate(dims):
        if d is not None and d == major:
            out[i] = layout.dims[0]
        elif d is not None and d == minor:
            out[i] = layout.dims[1]
    return Layout(tuple(out))


@dataclass(frozen=True)
class Geometry:
    """How one product is spread over a team: decided by types, extents and the schedule's attributes alone. `panels`:
    whether A and B lie in shared memory in panels of 128 bytes a row; `finishes`: when all of its operands have been
    read (`Instruction.finishes`)."""

    info: Contraction
    instruction: Traits
    block: BlockProduct
    spread: Spread
    panels: tuple[bool, bool]
    finishes: str

    @property
    def layout(self) -> Layout:
        """The sums', over the dimensions of C."""
        return place(self.info.maps[2], self.info.m, self.info.n, self.spread.sums)

    def operand_extents(self, which: int, shape: list[int]) -> list[int]:
        """What a shared memory buffer of operand 0 (A) or 1 (B) must cover."""
        outer = self.info.m if which == 0 else self.info.n
        padded = {outer: self.spread.sums.shape[which], self.info.k: self.spread.k}
        return [padded.get(d, n) if d is not None else n for d, n in zip(self.info.maps[which], shape, strict=True)]
