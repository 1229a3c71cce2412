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

from dataclasses import dataclass
from math import prod

from mlirc.mlir import ir

GATHER_WINDOWS = "mlirc.gather_windows"
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
            made = cls(*lists, channels, ir.IntegerAttr(found["groups"]).value if "groups" in found else 1)
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"{GATHER_WINDOWS} = {attributes[GATHER_WINDOWS]} is not of the attribute's form") from e
        positive = (*made.kernel, *made.out, *made.strides, *made.dilations, made.channels, made.groups)
        if not 1 <= made.rank <= 3 or {len(values) for values in lists} != {made.rank} or min(positive) < 1:
            raise ValueError(f"{GATHER_WINDOWS} = {found}: one to three dimensions, of positive sizes")
        return made
