"""Kernels that break no rule and compute something else are wrong on some set of inputs: mutants of softmax, norms,
tables, casts, masks and products. `benchmarks/mutants_numbers.py` tries them all; here each kind of change at once in all of its
places, and some in one place."""

from __future__ import annotations

from collections import Counter

import pytest

from support.kernels.number_cases import NUMBERS, number_case
from support.mutants.numbers import number_mutants

EVERY = 13  # of the changes in one place
UNDEFINED = {("to 8 bits", "of numbers alone")}  # which integer NaN becomes
LONG = ("product, f32", "attention, bf16, causal", "attention, f32, mask")


@pytest.mark.parametrize("name", [n for n in NUMBERS if n not in LONG])
def test_mutants_of_numbers(name):
    kernel = number_case(name)  # which is right on every set
    verdicts: Counter[str] = Counter()
    missed = []
    for number, mutant in enumerate(number_mutants(kernel.text)):
        everywhere = mutant.how.endswith("everywhere")
        if not everywhere and number % EVERY:
            continue
        if (name, mutant.how.removesuffix(" everywhere")) in UNDEFINED:
            continue
        if not everywhere and mutant.what == "accumulator" and "bf16" in name:  # at most the rounding of the result
            continue
        verdict = kernel.judge(mutant)
        verdicts[verdict] += 1
        if verdict == "close" and everywhere:
            missed.append(str(mutant))
    assert not missed, "\n".join(missed)
    found = verdicts["wrong"] + verdicts["rule"]
    assert verdicts["wrong"] and found >= 0.9 * (found + verdicts["close"]) and not verdicts["invalid"]


@pytest.mark.parametrize(
    "name, what, how",
    [
        ("softmax, f32", "subtrahend", "not applied everywhere"),
        ("softmax, bf16", "lowest", "a small number"),
        ("layer norm, bf16", "eps", "times 100"),
        ("layer norm, f32", "eps", "0"),
        ("layer norm, f32", "factor", "not applied everywhere"),
        ("lookup", "index", "of 16 bits everywhere"),
        ("lookup", "index", "below 2^15 everywhere"),
        ("from 8 bits", "sign", "the other extension"),
        ("to 8 bits", "maximum", "or limit not applied"),
        ("product, bf16", "accumulator", "in bf16 everywhere"),
    ],
)
def test_what_one_set_of_normal_numbers_hides(name, what, how):
    kernel = number_case(name)
    found = [m for m in number_mutants(kernel.text) if (m.what, m.how) == (what, how)]
    verdicts = {kernel.judge(m) for m in found} - {"same"}
    assert verdicts and verdicts <= {"wrong", "rule"}  # out of the range of 8 bits is undefined arithmetic
