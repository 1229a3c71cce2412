"""Random programs of all kinds of operations, special values and dtypes: `tiles` and `gpu` give what PyTorch gives.
`benchmarks/random_programs.py` tries more seeds."""

from __future__ import annotations

import collections

import pytest
import random_cases

GROUP = 10


@pytest.mark.parametrize("first", range(0, 50, GROUP))
def test_random_programs_are_right(first):
    outcomes = {seed: random_cases.run_case(str(seed), "gpu", lambda who: None) for seed in range(first, first + GROUP)}
    bad = {seed: o for seed, o in outcomes.items() if o.outcome not in ("right", "refused")}
    assert not bad
    assert collections.Counter(o.outcome for o in outcomes.values())["right"] >= GROUP * 0.7, outcomes
