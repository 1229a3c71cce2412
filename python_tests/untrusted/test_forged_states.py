"""Forged plans of models that write: what may be written, and when."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mlirc.errors import MlircError
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from support.plans.forged import signed
from support.plans.stateful import stateful_plan
from support.plans.tiny import PTX

DATA = json.loads(to_json(stateful_plan()))


def kinds(table: str, kind: str) -> Any:
    data = copy.deepcopy(DATA)
    data[table][0][3] = kind
    return data


def cut(*steps: int, **head: Any) -> Any:
    data = copy.deepcopy(DATA) | head
    data["steps"] = [data["steps"][i] for i in steps]
    return data


def test_the_plan_is_good_before_it_is_forged():
    assert extract(signed(json.dumps(DATA), PTX)) == stateful_plan()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (kinds("weights", "weight"), "step 2 overwrites weight 0"),
        (kinds("weights", "constant"), "step 2 overwrites weight 0"),
        (kinds("inputs", "input"), "step 3 overwrites input 0"),
        (kinds("inputs", "state"), "'x' of inputs has kind 'state'"),
        (kinds("weights", "inout"), "'m.w' of weights has kind 'inout'"),
        (kinds("outputs", "state"), "'y' of outputs has kind 'state'"),
        (cut(0, 1, 2, 3, setup=1), "step 0 runs at load but uses input 0"),
        (cut(2, 0, 1, 3, setup=1), "step 0 runs at load but uses weight 0"),
        (cut(2, 0, 1, 3), "step 0 copies from arena 0 what no earlier step made"),
    ],
)
def test_the_line_says_what_is_wrong_and_where(data, why):
    with pytest.raises(MlircError) as raised:
        extract(signed(json.dumps(data), PTX), "m.ptx")
    assert why in str(raised.value) and str(raised.value).isprintable()
