"""The campaigns of benchmarks/hostile_campaigns.py in small."""

from __future__ import annotations

import itertools

import pytest

from support import randomness
from support.hostile.campaigns import CAMPAIGNS, World

TRIALS = {"flips": 42, "headers": 60, "signals": 2, "caches": 6, "threads": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World.make(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_is_lost_and_nothing_wrong(world, name):
    trials = CAMPAIGNS[name](world, randomness.generator())
    assert len(list(itertools.islice(trials, TRIALS[name]))) == TRIALS[name]
    trials.close()
