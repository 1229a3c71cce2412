"""Forged plans of launches with scalars, tables of pointers and grids that scalars decide."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mlirc.errors import MlircError
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from support.plans.forged import BAD, get, places, signed
from support.plans.terms import PTX, terms_plan

DATA = json.loads(to_json(terms_plan()))


def pick(**fields: Any) -> Any:
    data = copy.deepcopy(DATA)
    data["steps"][0] |= fields
    return data


def scalar(which: int, to: Any) -> Any:
    data = copy.deepcopy(DATA)
    data["inputs"][1][which] = to
    return data


ARGS = DATA["steps"][0]["args"]


def test_the_plan_is_good_before_it_is_forged():
    assert extract(signed(json.dumps(DATA), PTX)) == terms_plan()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (scalar(2, [1]), "scalar 'n' is i32[1]: not one number"),
        (scalar(1, "i64"), "argument 1, a value, is input 1: that is no scalar"),
        (scalar(1, "f32"), "decided by input 1: no integer"),
        (scalar(3, "input"), "argument 1, a value, is input 1: that is no scalar"),
        (pick(values=[0]), "argument 0, a value, is output 0: that is no scalar"),
        (pick(values=[2]), "argument 2 is given in two ways"),
        (pick(values=[3]), "argument 3 of 3 is a value or a table"),
        (pick(values=[]), "where at least one number must be"),
        (pick(values=[1, 1]), "1 where a number above those before it must be"),
        (pick(tables=[]), "where at least one number must be"),
        (pick(tables=[[2, [ARGS[2]] * 3]]), "takes as argument 2 a table of 2 pointers, not a table of 4 pointers"),
        (pick(tables=[[2, [ARGS[2]] * 600]]), "its parameters have 4820 bytes: a launch takes at most 4096"),
        (pick(tables=[[2, [[0, 9, 0, 4]]]]), "names buffer input 9"),
        (pick(tables=[[2, [[0, 0, 4, 148]]]]), "reaches outside of input 0"),
        (pick(tables=[[2, [[0, 0, 4, 4]]]]), "argument 2, a table, has byte 4 of input 0: not a multiple of 8"),
        (pick(extents=[]), "where at least one number must be"),
        (pick(extents=[[3, 1, 1, 2]]), "a grid has no dimension 3"),
        (pick(extents=[[0, 0, 1, 2]]), "dimension 0 of its grid is decided by input 0: no integer"),
        (pick(extents=[[0, 7, 1, 2]]), "dimension 0 of its grid is decided by input 7: no integer"),
        (pick(extents=[[0, 1, 0, 2]]), "dimension 0 of its grid: 0 and 2: not above 0"),
        (pick(extents=[[0, 1, 1, -2]]), "1 and -2: not above 0"),
        (pick(extents=[[0, 1, 1, 4]]), "is at most 18: no multiple of 4"),
        (pick(extents=[[0, 1, 1, 1]], cluster=[2, 1, 1]), "is made of 1 blocks, and its clusters of 2"),
        (pick(args=[ARGS[0], ARGS[2], ARGS[1]]), "argument 1, a value, is input 0: that is no scalar"),
        ({k: v for k, v in pick().items() if k != "setup"}, "where an object with"),
    ],
)
def test_the_line_says_what_is_wrong_and_where(data, why):
    with pytest.raises(MlircError) as raised:
        extract(signed(json.dumps(data), PTX), "m.ptx")
    assert why in str(raised.value) and str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (".param .u32 n", ".param .u64 n", "takes as argument 1 a pointer, not a value of 4 bytes"),
        (".param .u32 n", ".param .b16 n", "takes as argument 1 a value of 2 bytes, not a value of 4 bytes"),
        ("table[16]", "table[24]", "takes as argument 2 a table of 3 pointers, not a table of 2 pointers"),
        (".param .align 8 .b8 table[16]", ".param .u64 table", "argument 2 a pointer, not a table of 2 pointers"),
        ("table[16]", "table[12]", "takes something else than pointers"),
    ],
)
def test_a_plan_has_to_fit_its_ptx(old, new, why):
    with pytest.raises(MlircError) as raised:
        extract(signed(json.dumps(DATA), PTX.replace(old, new)))
    assert why in str(raised.value)


def test_every_bad_value_is_refused_in_a_line():
    for at in places(DATA["steps"][0]):
        if at and at[0] in ("values", "tables", "extents"):
            for to in BAD[type(get(DATA["steps"][0], at))]:
                data = copy.deepcopy(DATA)
                get(data["steps"][0], at[:-1])[at[-1]] = to
                with pytest.raises(MlircError) as raised:
                    extract(signed(json.dumps(data), PTX))
                assert str(raised.value).isprintable() and len(str(raised.value)) < 700
