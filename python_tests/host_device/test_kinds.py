"""Mutants of kinds of kernels that PyTorch operators become are reported on the default sets of made-up inputs.
`benchmarks/mutants_numbers.py` tries them all; here some changes that sets of normal numbers hide, and a sample."""

from __future__ import annotations

import random

import pytest

from support.mutants.numbers import number_mutants
from support.mutants.tried import tried

HIDDEN = [  # a kind of kernel, what is changed in it, and how
    ("argmax", "lanes", "shuffle up"),
    ("comparisons", "comparison", "off by one"),
    ("heaviside", "element", "exchanged"),
    ("roundings", "function", "round for roundeven"),
    ("integer division", "sign", "of a comparison"),
    ("variance", "count", "one more everywhere"),
    ("activation, bf16", "rounding", "saturating"),
    ("linear, bf16", "rounding", "cut off"),
    ("linear, f16", "rounding", "cut off"),
    ("attention, bf16", "rounding", "cut off everywhere"),
    ("log-softmax", "lanes", "shuffle down"),
]
SAMPLED = ("comparisons", "gather", "scatter", "maximum pooling", "embedding bag", "resize")


@pytest.mark.parametrize("name, what, how", HIDDEN)
def test_what_normal_numbers_hide_is_reported_by_default(name, what, how):
    words = []
    for kernel in tried(name):
        found = [m for m in number_mutants(kernel.text) if m.what == what and m.how == how]
        words += [verdict.word for m in found[:2] if (verdict := kernel.judge(m)) is not None]
    assert "default" in words and set(words) <= {"default", "same"}


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_of_all_changes(name):
    words = []
    for kernel in tried(name):
        mutants = list(number_mutants(kernel.text))
        for mutant in random.Random(name).sample(mutants, min(6, len(mutants))):
            verdict = kernel.judge(mutant)
            words.append(verdict.word if verdict is not None else "invalid")
            assert words[-1] in ("default", "same"), mutant
    assert "default" in words
