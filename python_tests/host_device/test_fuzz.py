"""Kernels spoiled at random: whatever they do, the host device ends with a report, within limits of time and memory.
`python python_tests/support/kernels/spoiled.py --seeds 0-9999` tries more."""

from __future__ import annotations

import pytest

from mlirc import mlir
from support.kernels.mutant_cases import KERNELS
from support.kernels.spoiled import End, run_apart, spoil, subject, try_seed

ROUNDS = 2


@pytest.mark.parametrize("number", range(len(KERNELS)), ids=KERNELS)
def test_spoiled_kernels_end_with_a_report(number):
    for seed in range(number, ROUNDS * len(KERNELS), len(KERNELS)):
        end = try_seed(seed, seconds=1.0)
        assert end.well, f"seed {seed}, {end.what}: {end.how}: {end.text}"
        assert end.seconds < 20 and end.memory < 2 << 30, (
            f"seed {seed}, {end.what}: {end.seconds} s, {end.memory} bytes"
        )


def test_spoiled_kernels_are_valid_and_differ_from_each_other():
    text = subject("norm, 4 warps").text
    spoiled = {spoil(text, seed)[0] for seed in range(10)}
    assert len(spoiled) > 8 and text not in spoiled
    for one in spoiled:
        mlir.parse(one)


def ends(say) -> End:
    say("to end")
    return End("report", "fine")


def dies(say) -> End:
    say("to die")
    raise SystemExit


def sleeps(say) -> End:
    say("to work for ever")
    while True:
        pass


def test_the_tester_sees_what_ends_badly(monkeypatch):
    monkeypatch.setattr("support.kernels.spoiled.SECONDS", 1)
    assert run_apart(ends).well
    assert run_apart(dies).how == "killed"
    assert run_apart(sleeps).how == "killed"
