"""The attribute that marks the windows of a convolution reads as it was written, and refuses other forms."""

from math import prod

import pytest

from mlirc.dialects.windows import GATHER_WINDOWS, Windows
from mlirc.mlir import context, ir
from support.randomness import generator


def _marked(attribute: ir.Attribute) -> ir.Operation:
    op = ir.Operation.create("tensor.empty", [ir.RankedTensorType.get([2], ir.F32Type.get())])
    op.attributes[GATHER_WINDOWS] = attribute
    return op


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_geometry_is_read_as_it_was_written(rank: int, groups: int) -> None:
    random = generator()
    sizes = [tuple(random.integers(-3 if low else 1, 9, rank).tolist()) for low in (0, 0, 0, 0, 1)]
    windows = Windows(*sizes, 24, groups)
    with context(), ir.Location.unknown():
        op = _marked(windows.attribute())
        assert Windows.of(op) == windows
        assert ("groups" in str(windows.attribute())) == (groups != 1)
        again = ir.Attribute.parse(str(windows.attribute()))
        assert Windows.of(_marked(again)) == windows
    assert windows.rank == rank and windows.taps == prod(windows.kernel)


def test_an_op_without_the_attribute_has_none() -> None:
    with context(), ir.Location.unknown():
        assert Windows.of(ir.Operation.create("tensor.empty", [ir.RankedTensorType.get([2], ir.F32Type.get())])) is None


@pytest.mark.parametrize(
    "attribute",
    [
        "unit",
        "{kernel = array<i64: 3>}",
        "{kernel = array<i64: 3>, out = array<i64: 3, 3>, strides = array<i64: 1>, dilations = array<i64: 1>, "
        "low = array<i64: 1>, channels = 8 : i64}",
        "{kernel = array<i64: 3>, out = array<i64: 3>, strides = array<i64: 0>, dilations = array<i64: 1>, "
        "low = array<i64: 1>, channels = 8 : i64}",
        "{kernel = array<i64: 3>, out = array<i64: 3>, strides = array<i64: 1>, dilations = array<i64: 1>, "
        "low = array<i64: 1>, groups = 2 : i64}",
    ],
)
def test_other_forms_are_refused(attribute: str) -> None:
    with context(), ir.Location.unknown(), pytest.raises(ValueError, match=r"mlirc\.gather_windows"):
        Windows.of(_marked(ir.Attribute.parse(attribute)))
