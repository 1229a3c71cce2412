"""Constants of kernels as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.numbers import constant_array
from mlirc.mlir import ir


@pytest.mark.parametrize("element", ["f32", "f16", "bf16", "f8E4M3FN", "f8E5M2"])
@pytest.mark.parametrize("count", [2, 3, 131])  # MLIR prints more than 100 as bytes
def test_floats_that_differ(element, count):
    numbers = [(-1) ** i * (i % 7) / 4 for i in range(count)]
    with mlir.context():
        attr = ir.Attribute.parse(f"dense<[{', '.join(map(str, numbers))}]> : vector<{count}x{element}>")
        found = constant_array(attr, attr.type)
    assert found.shape == (1, 1, count) and np.array_equal(found.astype(np.float64).ravel(), numbers)


def test_bits_and_rows():
    with mlir.context():
        attr = ir.Attribute.parse("dense<[[0x7F80, -2.5], [1.701410e+38, 0.0]]> : vector<2x2xbf16>")
        found = constant_array(attr, attr.type).astype(np.float64)[0, 0]
    assert np.isinf(found[0, 0]) and found[0, 1] == -2.5 and found[1].tolist() == [2.0**127, 0]


@pytest.mark.parametrize("element", ["index", "i64", "i32"])
def test_integers_below_zero(element):
    with mlir.context():
        attr = ir.Attribute.parse(f"dense<[0, -2, 7]> : vector<3x{element}>")
        assert constant_array(attr, attr.type).ravel().tolist() == [0, -2, 7]
