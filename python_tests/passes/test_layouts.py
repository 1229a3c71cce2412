"""Layouts as maps: composition, inverses, XORs and numberings, beside tables of every element."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.passes.distribute.layouts.maps import Map, NotAligned, Row, identity
from mlirc.passes.distribute.layouts.registers import Layout, Xor, lane, reg, row_layout, warp
from mlirc.passes.distribute.layouts.shuffles import Shuffles, flip, plan
from support.kernels.layouts import random_layout

SEEDS = st.integers(0, 2**32 - 1)


def table(layout: Layout, warps: int, shape: tuple[int, ...]) -> np.ndarray:
    """The number of each element, [registers, warps, lanes], by factors alone."""
    r, w, l = np.arange(layout.num_regs), np.arange(warps), np.arange(32)
    total = np.zeros((len(r), len(w), len(l)), np.int64)
    step = 1  # of the registers' numbers, where they have the usual ones
    for d in reversed(range(layout.rank)):
        weight = math.prod(shape[d + 1 :])
        for f in reversed(layout.dims[d]):
            number = {"r": r[:, None, None], "w": w[None, :, None], "l": l[None, None, :]}[f.kind]
            total = total + number // (f.stride or step) % f.size * weight
            weight, step = weight * f.size, step * (f.size if f.kind == "r" else 1)
    return total


def any_layout(random: np.random.Generator, warps: int, rank: int) -> Layout:
    """A random one: of bits, or as rows are loaded."""
    if random.random() < 0.3:
        shape = tuple(int(random.integers(1, 70)) for _ in range(rank))
        return row_layout(shape, warps, int(random.choice([1, 2, 4, 8])))
    bits = [int(n) for n in random.integers(0, 6, rank)]
    return random_layout(random, bits, [int(n) for n in random.choice([1, 1, 3, 5], rank)], warps)


@given(SEEDS, st.sampled_from([1, 2, 4, 6, 7, 8]), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_a_layout_is_its_table(seed, warps, rank):
    layout = any_layout(np.random.default_rng(seed), warps, rank)
    found = layout.coordinates(
        r=np.arange(layout.num_regs)[:, None, None], w=np.arange(warps)[None, :, None], l=np.arange(32)[None, None, :]
    )
    weights = [math.prod(layout.shape[d + 1 :]) for d in range(rank)]
    np.testing.assert_array_equal((found * weights).sum(-1), table(layout, warps, layout.shape))


@given(SEEDS, st.sampled_from([1, 2, 4, 6, 7, 8]), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_the_inverse_undoes_a_map(seed, warps, rank):
    layout = any_layout(np.random.default_rng(seed), warps, rank).map
    inverse = layout.inverse()
    assert inverse.then(layout) == identity(layout.extents)
    assert inverse.inverse() == layout


def random_map(random: np.random.Generator, bits: int) -> Map:
    """A bijection of `bits` bits on two axes, with XORs, on both sides of a digit of 3."""
    places = [
        (axis, s) for axis, count in (("a", bits // 2), ("b", bits - bits // 2)) for s in (1 << i for i in range(count))
    ]
    order = list(range(bits))
    random.shuffle(order)
    rows = [
        Row(
            *places[i], 2, frozenset({places[order[i]]} | {places[order[j]] for j in range(i) if random.random() < 0.3})
        )
        for i in range(bits)
    ]
    return Map.of([*rows, Row("c", 1, 3, frozenset({("c", 1)}))])


@given(SEEDS, st.integers(2, 7))
@settings(max_examples=150, deadline=None)
def test_xors_compose_and_invert(seed, bits):
    random = np.random.default_rng(seed)
    first, second = random_map(random, bits), random_map(random, bits)
    assert first.inverse().then(first) == first.then(first.inverse()) == identity(first.extents)
    numbers = {"a": np.arange(1 << bits // 2)[:, None], "b": np.arange(1 << bits - bits // 2)[None, :], "c": 2}
    one = second(**first(**numbers))
    two = first.then(second)(**numbers)
    for axis in one:
        np.testing.assert_array_equal(one[axis], two.get(axis, np.zeros_like(one[axis])))


def test_digits_are_cut_where_the_other_map_needs_it():
    twelve = Map.of([Row("x", 1, 12, frozenset({("i", 1)}))])
    split = Map.of([Row("row", 1, 3, frozenset({("x", 4)})), Row("column", 1, 4, frozenset({("x", 1)}))])
    assert twelve.then(split) == Map.of(
        [Row("row", 1, 3, frozenset({("i", 4)})), Row("column", 1, 4, frozenset({("i", 1)}))]
    )
    with pytest.raises(NotAligned, match="digit"):
        Map.of([Row("x", 1, 3, frozenset({("i", 1)})), Row("x", 3, 4, frozenset({("j", 1)}))]).then(split)
    with pytest.raises(NotAligned, match="not independent"):
        Map.of([Row("x", 1, 2, frozenset({("i", 1)})), Row("x", 2, 2, frozenset({("i", 1)}))]).inverse()


@given(SEEDS, st.sampled_from([1, 2, 4, 6, 7, 8]), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_registers_that_stay_are_found_as_by_tables(seed, warps, rank):
    random = np.random.default_rng(seed)
    one = any_layout(random, warps, rank)
    shuffled = [[*d] for d in one.dims]
    for d in shuffled:  # often the same threads, with registers elsewhere
        registers = [i for i, f in enumerate(d) if f.kind == "r"]
        order = list(random.permutation(registers))
        d[:] = [d[order[registers.index(i)]] if i in registers else f for i, f in enumerate(d)]
    other = Layout.of(*shuffled) if random.random() < 0.5 else any_layout(random, warps, rank)
    shape = tuple(max(a, b) for a, b in zip(one.shape, other.shape, strict=True))
    mine, theirs = (table(x, warps, shape).reshape(x.num_regs, -1) for x in (one, other))
    by_elements = {tuple(row): i for i, row in enumerate(theirs)}
    wanted = [by_elements.get(tuple(row)) for row in mine]
    found = one.register_map(other, warps)
    assert found == (None if None in wanted else wanted)


def test_registers_have_numbers_of_their_own():
    usual, other = (
        Layout.of((reg(4), lane(8, 4)), (lane(4), reg(2))),
        Layout.of((reg(4, 1), lane(8, 4)), (lane(4), reg(2, 4))),
    )
    assert str(other) == "(r4 l8:4) x (l4 r2:4)" and usual.run == 2 and other.run == 1
    assert usual.register_map(other, 1) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert other.project([1]) == Layout.of((lane(4), reg(2))) == usual.project([1])
    assert Layout.of((reg(4, 2),), (reg(2, 1),)) == Layout.of((reg(4),), (reg(2),))
    with pytest.raises(NotAligned, match="either all"):
        Layout.of((reg(4, 2),), (reg(2),))


def test_a_xor_moves_elements():
    layout = Layout.of((lane(8, 4),), (reg(2), lane(4)), xors=[Xor(1, 1, lane(4, 4))])
    found = layout.coordinates(r=np.arange(2)[:, None], l=np.arange(32)[None, :])
    for r in range(2):
        for l in range(32):
            assert tuple(found[r, l]) == (l // 4, 4 * r + (l % 4 ^ l // 4 % 4))
    assert layout.map.inverse().then(layout.map) == identity({"d0": 8, "d1": 8})
    with pytest.raises(NotAligned, match="no sums of factors"):
        layout.thread_factors(1, "l")


def test_the_first_copies_are_one_of_each():
    for warps, layout in [
        (7, Layout.of((warp(3, 2),), (lane(4, 8), reg(2)))), (8, Layout.of((warp(2, 4), lane(2, 4)), (lane(4),))),
        (4, Layout.of((lane(2, 16),), (warp(2),))),
    ]:  # fmt: skip
        elements = table(layout, warps, layout.shape)[0]
        first = np.ones(elements.shape, bool)
        for kind, number, count in (("l", np.arange(32)[None, :], 32), ("w", np.arange(warps)[:, None], warps)):
            for stride, size in layout.free(kind, count):
                first &= number // stride % size == 0
        kept = elements[first]
        assert len(set(kept)) == len(kept) and set(kept) == set(elements.ravel())


def with_xors(random: np.random.Generator, layout: Layout, bits: list[int]) -> Layout:
    """The layout with a few XORs, of lanes and registers, by which it still has every element."""
    registers = [s for row in layout.map.rows for axis, s in row.sources if axis == "r" and row.size % 2 == 0]
    for _ in range(3):
        d = int(random.integers(0, len(bits)))
        by = lane(2, 1 << int(random.integers(0, 5)))
        if registers and random.random() < 0.4:
            by = reg(2, int(random.choice(registers)))
        if bits[d] == 0:
            continue
        more = Xor(d, 1 << int(random.integers(0, bits[d])), by)
        found = Layout(layout.dims, (*layout.xors, more))
        try:
            found.map.inverse()
        except NotAligned:
            continue
        if len(set(found.registers)) == found.num_regs:  # else it has registers that are copies
            layout = found
    return layout


def elements(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """The number of each element of one warp, [registers, lanes]."""
    found = layout.coordinates(r=np.arange(layout.num_regs)[:, None], l=np.arange(32)[None, :])
    return (found * [math.prod(shape[d + 1 :]) for d in range(layout.rank)]).sum(-1)


@given(SEEDS, st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_layouts_with_xors_have_every_element_once(seed, rank):
    random = np.random.default_rng(seed)
    bits = [int(n) for n in random.integers(0, 5, rank)]
    layout = with_xors(random, random_layout(random, bits, [1] * rank, 1), bits)
    first = np.ones(32, bool)
    for stride, size in layout.free("l", 32):
        first &= np.arange(32) // stride % size == 0
    kept = elements(layout, layout.shape)[:, first].ravel()
    assert sorted(kept) == list(range(math.prod(layout.shape)))


@given(SEEDS, st.integers(1, 2), st.sampled_from([2, 4]))
@settings(max_examples=150, deadline=None)
def test_shuffles_between_layouts_with_xors(seed, rank, size):
    random = np.random.default_rng(seed)
    bits = [int(n) for n in random.integers(0, 5, rank)]
    one, other = (with_xors(random, random_layout(random, bits, [1] * rank, 1), bits) for _ in range(2))
    found = plan(one, other, 1, size)
    assert found is not None or other.map.free  # copies that only several lanes' numbers tell apart
    if found is None:
        return
    np.testing.assert_array_equal(simulated(found, elements(other, one.shape)), elements(one, one.shape))


# -- shuffles


def simulated(shuffles: Shuffles, registers: np.ndarray) -> np.ndarray:
    """What shuffles make of one warp's registers, [source registers, 32] to [target registers, 32]."""
    lanes = np.arange(32)

    def chosen(values, choices):
        for choice in choices:
            odd = np.array([bin(i & choice.mask).count("1") % 2 for i in lanes], bool)
            values = {x: np.where(odd, values[flip(x, choice.bits)], v) for x, v in values.items()}
        return values

    words = {x: registers[x : x + shuffles.word] for x in range(0, len(registers), shuffles.word)}
    provided = chosen(words, shuffles.before)
    base = np.array([shuffles.lane(n) for n in lanes])
    found = chosen({r.result: provided[r.register][:, base ^ r.lane] for r in shuffles.rounds}, shuffles.after)
    return np.concatenate([found[x] for x in sorted(found)])


@given(SEEDS, st.integers(1, 2), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=200, deadline=None)
def test_shuffles_bring_every_element_to_its_place(seed, rank, size):
    random = np.random.default_rng(seed)
    bits, odd = [int(n) for n in random.integers(0, 5, rank)], [int(n) for n in random.choice([1, 3], rank)]
    one, other = random_layout(random, bits, odd, 1), random_layout(random, bits, odd, 1)
    found = plan(one, other, 1, size)
    assert found is not None
    a, b = (table(x, 1, one.shape)[:, 0] for x in (one, other))
    np.testing.assert_array_equal(simulated(found, b), a)


def test_elements_that_leave_their_warp_are_not_shuffled():
    assert plan(Layout.of((warp(2), reg(2))), Layout.of((reg(2), warp(2))), 2, 4) is None
