"""Loops in plans that were changed and signed again: refused at load in one line that says where."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan import CopyStep, KernelLaunch, Plan, Ref, Repeat, TensorSpec
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import from_json, to_json
from support.devices.fake_gpu import FakeDriver
from support.plans.forged import BAD, FOR_PEOPLE, get, places, signed
from support.plans.tiny import KERNELS, N, W, ptx_for, randn

SIZE = 4 * N
COUNT = 3


def looped_plan() -> Plan:
    """A state between two places, from which each iteration adds a weight and copies into a stack: y[t] = x + (t+1) w."""
    one = (1, 1, 1)
    specs = [TensorSpec(n, "f32", s, k) for n, s, k in (
        ("x", (N,), "input"), ("m.w", (1, N), "weight"), ("y", (COUNT, N), "output"),
    )]  # fmt: skip
    steps: list = [CopyStep(Ref("input", 0, 0, SIZE), Ref("arena", 0, 0, SIZE))]
    for t in range(COUNT):
        old, new = (Ref("arena", 0, 512 * (i % 2), SIZE) for i in (t, t + 1))
        steps.append(KernelLaunch("add", one, (64, 1, 1), 0, (old, Ref("weight", 0, 0, SIZE), new), "k", ("rnn",)))
        steps.append(CopyStep(new, Ref("output", 0, t * SIZE, SIZE)))
    used = -(-(512 + SIZE) // 256) * 256
    return Plan("tiny", "sm_90a", specs[:1], specs[2:], specs[1:2], used, steps, 1024, repeats=[Repeat(1, 2, COUNT)])


DATA = json.loads(to_json(looped_plan()))
LOOP = DATA["steps"][1]


def test_a_loop_is_written_once_and_runs_every_iteration():
    assert from_json(to_json(looped_plan())) == looped_plan()
    assert [sorted(item) for item in DATA["steps"]] == [["copy", "to"], ["repeat", "steps"]]
    assert LOOP["steps"][0]["args"] == [[3, 0, 0, SIZE, 512, 2], [1, 0, 0, SIZE, 0, 1], [3, 0, 512, SIZE, -512, 2]]
    assert LOOP["steps"][1]["to"] == [2, 0, 0, SIZE, SIZE, COUNT]
    with load_text(signed(json.dumps(DATA), ptx_for("sm_90a")), {"m.w": W}, driver=FakeDriver(KERNELS)) as model:
        got = model(randn())
    np.testing.assert_allclose(got, np.stack([randn() + (t + 1) * W[0] for t in range(COUNT)]), rtol=1e-6)


def changed(at: tuple, to: Any) -> Any:
    data = copy.deepcopy(DATA)
    get(data, ("steps", 1, *at[:-1]))[at[-1]] = to
    return data


def test_no_bad_value_in_a_loop_is_accepted():
    tried, accepted = 0, []
    for at in places(LOOP):
        for to in BAD[type(get(LOOP, at))] if at and not any(part in FOR_PEOPLE for part in at) else ():
            tried += 1
            try:
                extract(signed(json.dumps(changed(at, to)), ptx_for("sm_90a")))
            except MlircError as error:
                assert str(error).isprintable() and len(str(error)) < 700, (at, to)
            else:
                accepted.append((at, to))
    # Other bytes of the same buffer are as good for a kernel that asks for no alignment.
    assert accepted == [(("steps", 0, "args", 2, 4), -1)] and tried > 300


@pytest.mark.parametrize(
    ("at", "to", "why"),
    [
        (("repeat",), 2**40, "1099511627776 times 2 steps: .* a plan has at most 1048576"),
        (("repeat",), 1, "1 times 2 steps: a loop repeats at least one step"),
        (("repeat",), 4, "nothing"),  # the last iteration writes the first row
        (("repeat",), 2, r"2 to 2 iterations"),
        (("steps",), [], "3 times 0 steps"),
        (("steps",), [LOOP], r"steps\[1\], steps\[0\]: .* where an object with launch"),
        (("steps", 0, "args", 0), [3, 0, 0, SIZE], "where a list of 6 must be"),
        (("steps", 0, "args", 0, 4), 256, "nothing"),
        (("steps", 0, "args", 2, 4), -1024, "step 3 .'add'.* reaches outside of arena 0|step 3 .*outside of arena 0"),
        (("steps", 1, "to", 4), 2 * SIZE, "step 6 reaches outside of output 0"),
        (("steps", 1, "to", 4), SIZE - 4, "no step writes all of output 'y'"),
        (("steps", 1, "to", 4), 0, r"steps\[1\]: \[0, 3\] where bytes to move by"),
        (("steps", 1, "to", 5), 1, r"steps\[1\]: \[\d+, 1\] where bytes to move by"),
        (("steps", 1, "copy", 0), 0, "step 2 reaches outside of input 0"),
    ],
)
def test_the_line_says_what_is_wrong_and_where(at, to, why):
    if why == "nothing":  # another plan, but one that can be run
        extract(signed(json.dumps(changed(at, to)), ptx_for("sm_90a")))
        return
    with pytest.raises(MlircError, match=f"^m.ptx: plan: .*{why}"):
        extract(signed(json.dumps(changed(at, to)), ptx_for("sm_90a")), "m.ptx")
