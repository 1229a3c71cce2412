"""The attribute that marks the windows of a convolution, which a kernel's GEMM reads as its left operand (im2col).

At the `kernels` level a convolution is a plain contraction [M, K] x [Co, K] -> [M, Co] whose left operand is a map of
an image [N, *spatial, C] (channels last): a `linalg.generic` with one result and no inputs, whose body is one
`tensor.extract` at indices kept inside of the image, and a select of 0 where they were not. It carries

    mlirc.gather_windows = {kernel = array<i64: R, S>, out = array<i64: P, Q>, strides = array<i64: ...>,
                            dilations = array<i64: ...>, low = array<i64: ...>, channels = Cp : i64}

with one, two or three spatial dimensions (`kernel` to `low` have one number for each, outermost first). Rows and
columns are

    m = (n*P + p)*Q + q            M = N * prod(out)
    k = (r*S + s)*Cp + c           K = prod(kernel) * Cp, the channel innermost

and the element is image[n, p*stride + r*dilation - low, ..., c], or 0 where that lies outside of the image or c >= C.
Cp is C, or more: zeros that make a step along K one of a single tap.

The windows of a grouped convolution are [G, M, K], with `groups = G : i64` beside the others: C and Cp are those of a
group there, and c of the group g is the image's channel g*C + c. Without `groups` there is one, and no dimension of it.

The map is never materialized: it always joins its contraction's kernel. Its image exists in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlirc.mlir import ir
from mlirc.runtime.tensor_map import ADDRESS_ALIGNMENT, Im2col

GATHER_WINDOWS = "mlirc.gather_windows"
# By spatial dimensions, the largest offset of an im2col copy (PTX ISA, "im2col mode").
OFFSETS = {1: (1 << 16) - 1, 2: (1 << 8) - 1, 3: (1 << 5) - 1}
_PER_DIMENSION = ("kernel", "out", "strides", "dilations", "low")


@dataclass(frozen=True)
class Windows:
    """The geometry of the windows that a convolution's GEMM reads; see the module's docstring."""

    kernel: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    channels: int  # of a tap in a row of the GEMM's operand: Cp
    groups: int = 1

    @property
    def rank(self) -> int:
        """How many spatial dimensions there are."""
        return len(self.kernel)

    @property
    def taps(self) -> int:
        """How many pixels a window has."""
        return prod(self.kernel)

    def shape(self, images: int) -> list[int]:
        """The extents of the windows of so many images."""
        rows = [images * prod(self.out), self.taps * self.channels]
        return rows if self.groups == 1 else [self.groups, *rows]

    def shape_of_each(self, images: int) -> list[int]:
        """The same with the windows of each image apart: [N, prod(out), K]."""
        return [images, prod(self.out), self.taps * self.channels]

    def corners(self, image: Sequence[int]) -> Im2col:
        """Where the windows of an image of these spatial extents begin."""
        ends = zip(self.out, self.strides, self.low, image, strict=True)
        upper = tuple((n - 1) * stride + 1 - low - extent for n, stride, low, extent in ends)
        return Im2col(tuple(-n for n in self.low), upper, self.strides)

    def row_bytes(self, element: int) -> int:
        """Bytes of a tap's channels, of so many bytes each, that a row of shared memory takes: 128, 64, 32, or 0."""
        return next((n for n in (128, 64, 32) if self.channels * element % n == 0), 0)

    def copied(self, image: Sequence[int], element: int) -> str:
        """Why im2col copies cannot bring the windows of an image [N, *spatial, C] whose elements have so many bytes, a
        tap after the other; "" where they can."""
        if self.groups != 1:
            return "a grouped convolution"
        if image[-1] * element % ADDRESS_ALIGNMENT:
            return f"pixels of {image[-1] * element} bytes: im2col copies take multiples of {ADDRESS_ALIGNMENT}"
        far = max((n - 1) * d for n, d in zip(self.kernel, self.dilations, strict=True))
        if far > OFFSETS[self.rank]:
            return f"a tap {far} elements from the first: im2col copies reach {OFFSETS[self.rank]}"
        return self.corners(image[1:-1]).problem(image[1:-1])

    def attribute(self) -> ir.DictAttr:
        """The geometry as the attribute's value."""
        i64 = ir.IntegerType.get_signless(64)
        found: dict[str, ir.Attribute] = {
            name: ir.DenseI64ArrayAttr.get(getattr(self, name)) for name in _PER_DIMENSION
        }
        found["channels"] = ir.IntegerAttr.get(i64, self.channels)
        if self.groups != 1:
            found["groups"] = ir.IntegerAttr.get(i64, self.groups)
        return ir.DictAttr.get(found)

    @classmethod
    def of(cls, op: ir.Operation) -> Windows | None:
        """The geometry that an op's attribute says; None for an op without one. Raises ValueError where it is not of
        the attribute's form."""
        attributes = op.operation.attributes
        if GATHER_WINDOWS not in attributes:
            return None
        try:
            found = ir.DictAttr(attributes[GATHER_WINDOWS])
            lists = [tuple(ir.DenseI64ArrayAttr(found[name])) for name in _PER_DIMENSION]
            channels = ir.IntegerAttr(found["channels"]).value
            kernel, out, strides, dilations, low = lists
            groups = ir.IntegerAttr(found["groups"]).value if "groups" in found else 1
            made = cls(kernel, out, strides, dilations, low, channels, groups)
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"{GATHER_WINDOWS} = {attributes[GATHER_WINDOWS]} is not of the attribute's form") from e
        positive = (*made.kernel, *made.out, *made.strides, *made.dilations, made.channels, made.groups)
        if not 1 <= made.rank <= 3 or {len(values) for values in lists} != {made.rank} or min(positive) < 1:
            raise ValueError(f"{GATHER_WINDOWS} = {found}: one to three dimensions, of positive sizes")
        return made


def image_of(op: ir.Operation) -> ir.Value:
    """The image [N, *spatial, C] that a map of windows reads."""
    reads = (o.operation for o in op.regions[0].blocks[0].operations if o.operation.name == "tensor.extract")
    return next(reads).operands[0]
