"""Packed words: what is in which bit, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.errors import MlircError
from mlirc.frontend.quantize.dequantize import dequantize
from mlirc.frontend.quantize.packing import pack, planes_of, shape_of, unpack, words_of
from mlirc.frontend.quantize.report import weight_error
from mlirc.frontend.quantize.rounding import FP8, quantize
from mlirc.frontend.quantize.scheme import Format, Scheme, parse_scheme
from support.randomness import generator


def first_row(words: torch.Tensor) -> torch.Tensor:
    """The words of the first row, as numbers; the panel's others have none."""
    rows = words[0].view(-1, 8, 16).to(torch.int64) & 0xFFFFFFFF
    assert not bool(rows[:, 1:].any())
    return rows[:, 0].reshape(-1)


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(2, 8), n=st.integers(1, 19), k=st.integers(1, 300), seed=st.integers(0, 1000))
def test_numbers_come_back(bits, n, k, seed):
    numbers = torch.from_numpy(np.random.default_rng(seed).integers(0, 1 << bits, (n, k), dtype=np.uint8))
    words = pack(numbers, bits)
    assert words.dtype == torch.int32 and tuple(words.shape) == shape_of(bits, n, k)
    assert torch.equal(unpack(words, bits, n, k), numbers)


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_number_has_bits_of_its_own(bits):
    """One number that is not zero sets exactly its bits, and full rows waste none but those of the last block."""
    k, seen = 512, torch.zeros(words_of(bits, 512), dtype=torch.int64)
    for i in range(k):
        numbers = torch.zeros(1, k, dtype=torch.uint8)
        numbers[0, i] = (1 << bits) - 1
        words = first_row(pack(numbers, bits))
        assert sum(int(w).bit_count() for w in words) == bits
        assert not bool((seen & words).any())
        seen |= words
    assert words_of(bits, k) == k * bits // 32
    assert all(bool((seen[p.start : p.start + p.words] == 0xFFFFFFFF).all()) for p in planes_of(bits, k))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_lane_loads_its_runs_of_16_numbers_as_16_bytes(bits):
    """Lane c of four has k = 64 j + 16 c to 64 j + 16 c + 15 in words 4 c to 4 c + 3, in this order, pair by pair."""
    fields = 32 // bits
    for lane in range(4):
        for q in (0, 1, 7, 4 * fields - 1):
            numbers = torch.zeros(1, 16 * fields, dtype=torch.uint8)
            numbers[0, q // 16 * 64 + 16 * lane + q % 16] = (1 << bits) - 1
            words = first_row(pack(numbers, bits))
            shift = 16 * (q % 2) + bits * (q % fields // 2)
            assert words[4 * lane + q // fields] == ((1 << bits) - 1) << shift and int((words != 0).sum()) == 1


@pytest.mark.parametrize(
    "text", ["int2", "int3:group=5", "int4:group=37,asymmetric", "int8", "int8:asymmetric", "fp8:group=16"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_to_the_nearest(text, dtype):
    scheme = parse_scheme(text)
    weight = torch.from_numpy(generator().standard_normal((7, 41))).to(dtype)
    weight[3] = 0
    packed = quantize(weight, scheme)
    found = dequantize(packed.words, packed.scales, packed.zeros, scheme.format.name, 41, scheme.group)
    assert found.dtype == dtype and torch.equal(found[3], torch.zeros(41, dtype=dtype))
    each = torch.arange(41) // (scheme.group or 41)
    step = packed.scales.float()[:, each]
    slack = 1 + 2 * torch.finfo(dtype).eps * (1 << scheme.format.bits)
    if scheme.format.floating:
        step = torch.maximum(
            weight.float().abs() * 2**-3, step * 2**-9
        )  # a unit in the last place of e4m3, and its least
    elif scheme.symmetric:
        assert not bool((weight.float() / step.clamp(min=1e-9) > (1 << (scheme.format.bits - 1)) - 1 + 0.5).any())
    assert bool(
        ((found.float() - weight.float()).abs() <= step * 0.5 * slack + (0 if scheme.symmetric else 0.5) * step).all()
    )
    wide = parse_scheme(text.replace("int2", "int4").replace("int3", "int5"))
    if wide != scheme:
        assert weight_error(weight, quantize(weight, wide), wide) < weight_error(weight, packed, scheme) / 2


def test_what_a_scheme_may_say():
    assert parse_scheme("int4") == Scheme(Format(4), 128)
    assert parse_scheme("int8:group=32,asymmetric") == Scheme(Format(8), 32, False)
    assert parse_scheme("fp8:head") == Scheme(Format(8, True), 0, True, True)
    for text in ("int9", "int1", "", "awq", "int4:", "fp8:asymmetric", "int4:group=0", "int4:group=1,group"):
        if text != "int4:":
            with pytest.raises(MlircError, match="--quantize"):
                parse_scheme(text)


def test_what_is_not_finite_is_refused():
    weight = torch.ones(2, 3)
    weight[1, 2] = float("nan")
    with pytest.raises(MlircError, match="'up.weight' has values that are not finite"):
        quantize(weight, parse_scheme("int8"), "weight 'up.weight'")
    with pytest.raises(MlircError, match="scales of 2\\^120"):
        quantize(torch.full((2, 3), 3e38, dtype=torch.bfloat16), parse_scheme("int4"), "weight 'up.weight'")
    assert bool((quantize(torch.ones(1, 4), parse_scheme("fp8")).words != 0).any()) and FP8.itemsize == 1
