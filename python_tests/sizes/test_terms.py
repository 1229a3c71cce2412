"""Terms, dimensions and sizes as the plan has them: read back, solved, and refused where they say nothing sensible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.runtime.fitting import cut, put, rows_of, shape_of
from mlirc.runtime.sizes import Sizes, check_term, dims_text, parse_dims, parse_symbol, term_value
from mlirc.runtime.sizes_json import read_sizes, sizes_out
from support.randomness import generator

GIVEN = {"b": 3, "s": 11}


@pytest.mark.parametrize(
    ("text", "value"),
    [("s", 11), ("b * s + 1", 34), ("(s - 1) // 2", 5), ("s % 4", 3), ("min(s, 7) - max(b, 5)", 2), ("-b", -3)],
)
def test_a_term_has_its_value(text, value):
    check_term(text, ("b", "s"))
    assert term_value(text, GIVEN) == value


@pytest.mark.parametrize(
    "text",
    ["", "t", "s ** 9", "s.real", "__import__('os')", "s if b else 1", "[s]", "1.5", "True", "s(1)", "min(s)", "(" * 300,
     "min(s, *b)", "s == 1", "lambda: 1", "'s'", "9" * 30, "s\n+1 1", "(s:=1)"],
)  # fmt: skip
def test_what_is_no_term_is_refused(text):
    with pytest.raises(MlircError, match="^sizes: "):
        check_term(text, ("b", "s"))


def test_dimensions_are_read_back():
    for text in ("8, b<=8 ; s<=16", "min(b, s)<=3, 1", "(s + 1)<=17", "2 ; s<=5, 7"):
        assert dims_text(parse_dims(text)) == text
    for text in ("s", "s<=", "<=3", "s<=-1", "x<=y", "8,"):
        with pytest.raises(MlircError):
            parse_dims(text)
    for text in ("s<=3", "1<=s", "1<=2<=3", "1<=s<=3<=4"):
        with pytest.raises(MlircError):
            parse_symbol(text)


def sizes(**more) -> Sizes:
    given = {
        "symbols": (parse_symbol("1<=b<=4"), parse_symbol("2<=s<=16")),
        "inputs": {"x": parse_dims("b<=4, s<=16, 3"), "y": parse_dims("2 * s<=32, b<=4")},
        "outputs": {"z": parse_dims("b<=4 ; s<=16")},
        "conditions": ("s % 2 == 0", "b * s <= 40"),
    }
    return Sizes(**given | more)


SHAPES = {"x": (4, 16, 3), "y": (32, 4), "b": (), "s": ()}


def test_sizes_are_solved_and_checked():
    known = sizes()
    known.check(SHAPES, {"z": (64,)})
    assert read_sizes(sizes_out(known)) == known
    assert known.solve({"x": (2, 4, 3), "y": (8, 2)}) == {"b": 2, "s": 4}
    for shapes, why in (
        ({"x": (5, 4, 3), "y": (8, 5)}, "dimension 0 of input 'x': b is 5, but the model was compiled for 1 to 4"),
        ({"x": (0, 4, 3), "y": (8, 0)}, "b is 0, but the model was compiled for 1 to 4"),
        ({"x": (2, 4, 3), "y": (9, 2)}, "dimension 0 of input 'y' is 9, but must be 2 \\* s: s is 4 by dimension 1 of"),
        ({"x": (2, 4, 3), "y": (8, 3)}, "dimension 1 of input 'y' is 3, but must be b: b is 2 by dimension 0 of"),
        ({"x": (2, 5, 3), "y": (10, 2)}, "compiled for s % 2 == 0, which b = 2, s = 5 does not fulfil"),
        ({"x": (4, 12, 3), "y": (24, 4)}, "compiled for b \\* s <= 40"),
        ({"x": (2, 4, 2), "y": (8, 2)}, "got \\[2,4,2\\], but the model was compiled for \\[b<=4, s<=16, 3\\]"),
        ({"x": (2, 4), "y": (8, 2)}, "got \\[2,4\\], but"),
    ):
        with pytest.raises(MlircError, match=why):
            known.solve(shapes)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (dict(symbols=()), "at least one"),
        (dict(symbols=(parse_symbol("1<=s<=16"),) * 2), "a name of its own"),
        (dict(symbols=(parse_symbol("1<=t<=16"),)), "'t' is no scalar input"),
        (dict(symbols=(parse_symbol("1<=x<=16"),)), "'x' is no scalar input"),
        (dict(symbols=(parse_symbol("5<=b<=4"), parse_symbol("2<=s<=16"))), "has no range"),
        (dict(symbols=(parse_symbol("1<=b<=5"), parse_symbol("2<=s<=16"))), "'b' may be 5, and input 'x' has 4"),
        (dict(inputs={"x": parse_dims("b<=4, s<=15, 3")}), "input 'x' has not the shape"),
        (dict(inputs={"x": parse_dims("b<=4, 16, 3")}), "no input's dimension is 's'"),
        (dict(inputs={"x": parse_dims("b<=4 ; s<=4, 4, 3")}), "input 'x' has not the shape"),
        (dict(inputs={"s": parse_dims("")}), "input 's' has a dimension that no call could tell"),
        (dict(outputs={"w": parse_dims("b<=4")}), "output 'w' has not the shape"),
        (dict(outputs={"z": parse_dims("t<=64")}), "no size is called 't'"),
        (dict(conditions=("s",)), "'s' is no condition"),
        (dict(conditions=("t < 3",)), "no size is called 't'"),
        (dict(conditions=("1 < s < 3",)), "is no condition"),
    ],
)
def test_sizes_that_no_call_could_have_are_refused(more, why):
    with pytest.raises(MlircError, match=why):
        sizes(**more).check(SHAPES, {"z": (64,)})


@pytest.mark.parametrize("text", ["b<=3, s<=5, 2", "2, b<=3, 2, s<=5", "b<=3 ; s<=5, 7", "4, 2 ; s<=5 ; b<=3", "s<=5"])
def test_what_is_put_in_place_is_cut_out_again(text):
    dims = parse_dims(text)
    rng = generator()
    for b, s in itertools.product((1, 2, 3), (1, 4, 5)):
        found = {"b": b, "s": s}
        array = rng.standard_normal(shape_of(dims, found)).astype(np.float32)
        room = np.full([f.bound for factors in dims for f in factors], np.nan, np.float32)
        put(array, room, dims, found)
        np.testing.assert_array_equal(cut(room, dims, found), array)
        assert np.isfinite(room).sum() == array.size
        flat, dense = np.full(room.nbytes, 0xCD, np.uint8), array.reshape(-1).view(np.uint8)
        for rows in rows_of(dims, found, 4):  # the same as copies of bytes
            for i in range(rows.count):
                start = rows.outer + i * rows.pitch
                flat[start : start + rows.width] = dense[rows.inner + i * rows.width :][: rows.width]
        np.testing.assert_array_equal(cut(flat.view(np.float32).reshape(room.shape), dims, found), array)
