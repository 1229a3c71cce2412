"""Tiles that change their registers' layout, on the host device: by registers, shuffles, stmatrix and shared memory."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mlirc.passes.distribute.layouts.conversion import Exchange, Moves, Scratch, cheapest
from mlirc.passes.distribute.layouts.registers import (
    Layout,
    Xor,
    fma_accumulator,
    lane,
    mma_accumulator,
    reg,
    row_layout,
    warp,
)
from support.kernels.check import check_tiles
from support.kernels.layouts import conversion, random_layout, run
from support.randomness import generator

DTYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i64": np.int64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
LIT = Path(__file__).resolve().parents[2] / "lit_tests" / "passes" / "distribute_layouts.mlir"
ROWS, SUMS = row_layout((32, 64), 2, 8), mma_accumulator(32, 64, 2, 1)


def numbers(shape: list[int], element: str) -> np.ndarray:
    if element == "i1":
        return generator().integers(0, 2, shape).astype(np.int8)
    bits = np.dtype(DTYPES[element]).itemsize
    return generator().integers(0, 120, shape).astype(f"i{bits}").view(DTYPES[element]).copy()


def check(
    source: Layout, target: Layout, shape: list[int], element: str, warps: int, for_target: str = "sm_90a"
) -> str:
    """Converts random numbers there, bit by bit the same; returns how, in words."""
    module, em = conversion(source, target, shape, element, warps, for_target)
    x = numbers(shape, element)
    np.testing.assert_array_equal(run(module, em, x).view(np.uint8), x.view(np.uint8))
    return em.conversions[0] if em.conversions else ""


@pytest.mark.parametrize("element", [*DTYPES, "i1"])
@pytest.mark.parametrize("shape", [(32, 64), (29, 61), (1, 1)], ids=str)
def test_sums_become_rows_and_back(element, shape):
    for source, target in ((SUMS, ROWS), (ROWS, SUMS)):
        assert "through" in check(source, target, list(shape), element, 2)


@pytest.mark.parametrize("element", ["f32", "bf16", "i8", "i1", "f64"])
@pytest.mark.parametrize("seed", range(6))
def test_random_layouts(element, seed):
    random = np.random.default_rng(seed)
    warps = int(random.choice([1, 2, 4]))
    bits, odd = [int(n) for n in random.integers(1, 5, 2)], [int(n) for n in random.choice([1, 1, 3], 2)]
    one, other = random_layout(random, bits, odd, warps), random_layout(random, bits, odd, warps)
    check(one, other, [max(n - seed % 3, 1) for n in one.shape], element, warps)


@pytest.mark.parametrize("warps", [1, 3, 7])
@pytest.mark.parametrize("shape", [(7,), (5, 33), (3, 1, 70)], ids=str)
def test_rows_of_any_length(warps, shape):
    for vectors in ((1, 4), (8, 1), (2, 8)):
        one, other = (row_layout(shape, warps, v) for v in vectors)
        check(one, other, list(shape), "f16", warps)


def test_copies_are_written_once_and_read_by_all():
    one = Layout.of((lane(8, 4),), (reg(4),))  # four copies of each element in a warp, and as many in others
    check(one, Layout.of((warp(4), lane(2)), (lane(4, 2),)), [8, 4], "f32", 4)
    check(Layout.of((warp(4), lane(2)), (lane(4, 2),)), one, [8, 4], "f32", 4)


def test_xors_and_numberings_of_their_own():
    plain = Layout.of((lane(8, 4),), (reg(2), lane(4)))
    moved = Layout.of((lane(8, 4),), (reg(2), lane(4)), xors=[Xor(1, 4, lane(2, 4)), Xor(1, 1, lane(4, 4))])
    # The store by a XORed layout has addresses that are no sums; so has the load.
    assert "shuffles" in check(plain, moved, [8, 8], "f32", 1)
    assert "shuffles" in check(moved, plain, [8, 8], "f32", 1)
    numbered = Layout.of((reg(2, 1), lane(8, 4)), (reg(2, 2), lane(4)))
    assert check(Layout.of((reg(2), lane(8, 4)), (reg(2), lane(4))), numbered, [16, 8], "bf16", 1) == ""


# -- which one


def kind(target: Layout, source: Layout, warps: int, size: int, stmatrix: bool = False):
    return cheapest(target, source, warps, size, stmatrix)


def test_registers_that_stay_cost_nothing():
    found = kind(Layout.of((reg(3), lane(32)), (reg(2),)), Layout.of((reg(3, 1), lane(32)), (reg(2, 3),)), 4, 4)
    assert isinstance(found, Moves) and found.registers == (0, 3, 1, 4, 2, 5) and found.cost == 0


def test_few_words_are_shuffled():
    """Neighbouring lanes exchange a word: no memory, no barrier, and of two bytes each half as many words."""
    one, other = (
        Layout.of((warp(4), lane(16, 2)), (reg(2), lane(2))),
        Layout.of((warp(4), lane(16, 2)), (lane(2), reg(2))),
    )
    found = kind(other, one, 4, 4)
    assert isinstance(found, Exchange) and found.shuffles.shuffles == 1 + 1 - 1
    wide = Layout.of((lane(16, 2),), (reg(2), lane(2), reg(2))), Layout.of((lane(16, 2),), (lane(2), reg(2), reg(2)))
    assert [kind(wide[1], wide[0], 1, size).shuffles.word for size in (2, 4)] == [2, 1]


def test_a_reversal_of_lanes_takes_a_shuffle_a_word_and_no_selection():
    found = kind(Layout.of((lane(2), lane(16, 2), reg(4))), Layout.of((lane(32), reg(4))), 1, 4)
    assert isinstance(found, Exchange)
    assert (found.shuffles.shuffles, found.shuffles.selections, found.shuffles.direct) == (4, 0, False)


def test_elements_of_other_warps_go_through_memory():
    found = kind(ROWS, SUMS, 2, 4)
    assert isinstance(found, Scratch) and not found.within_warp and found.matrices is None


def test_stmatrix_where_there_is_one():
    with_it, without = kind(ROWS, SUMS, 2, 2, True), kind(ROWS, SUMS, 2, 2)
    assert isinstance(with_it, Scratch) and with_it.matrices is not None and with_it.matrices.each == 4
    assert isinstance(without, Scratch) and without.matrices is None and with_it.cost < without.cost
    assert kind(ROWS, fma_accumulator(32, 64, 2, 1), 2, 2, True).matrices is None
    assert "stmatrix" in check(SUMS, ROWS, [31, 63], "bf16", 2)
    assert "stmatrix" not in check(SUMS, ROWS, [31, 63], "bf16", 2, "sm_89")


@pytest.mark.parametrize("tiles", [(1, 1), (1, 2), (3, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize("warps", [(1, 1), (2, 1), (1, 3), (4, 1)])
def test_stmatrix_of_any_number_of_tiles(tiles, warps):
    shape = 16 * tiles[0] * warps[0], 8 * tiles[1] * warps[1]
    count = warps[0] * warps[1]
    check(mma_accumulator(*shape, *warps), row_layout(shape, count, 8), [shape[0] - 1, shape[1]], "f16", count)


def test_memory_is_swizzled_where_that_saves_conflicts():
    """Rows of 64 bytes would meet in banks: the pad of longer rows is for those alone."""
    shape = (64, 32)
    found = kind(row_layout(shape, 2, 8), mma_accumulator(*shape, 2, 1), 2, 2)
    assert isinstance(found, Scratch) and found.shared.swizzle == 64 and found.conflicts == 0


# -- in tile programs


@pytest.mark.parametrize("name", ["shuffles", "matrices"])
def test_tile_programs_that_convert(name):
    """Two reductions whose rows lie in other lanes, and products by two instructions."""
    text = LIT.read_text().split(f"func.func @{name}(%x")[1].split("// -----")[0]
    check_tiles(f"func.func @{name}(%x{text}", 1e-3)
