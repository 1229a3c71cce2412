"""benchmarks/opinfo_suite.py: a seeded part of PyTorch's own samples is right or refused; every outcome has its name."""

from __future__ import annotations

import random

import opinfo_cases
import pytest

ONCE_WRONG = [  # samples that were wrong, or ended in an internal error
    "native_layer_norm/bfloat16/0", "native_batch_norm/bfloat16/0", "_native_batch_norm_legit/bfloat16/3",
    "nn.functional.batch_norm/float32/4", "argsort/bfloat16/0", "topk/int64/0", "kthvalue/int64/3", "any/uint8/3",
    "all/float32/3", "permute_copy/float32/1", "to_sparse/bool/0", "chalf/float32/0", "fft.ifft/float32/0",
    "fft.ihfftn/bool/3", "square/bool/0", "geqrf/float32/7", "nn.functional.avg_pool2d/bfloat16/4",
]  # fmt: skip


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_samples_that_were_wrong(name):
    outcome = opinfo_cases.run_case(name, "tiles", lambda who: None)
    refused = name.startswith(("to_sparse", "chalf"))
    assert outcome.outcome == ("refused" if refused else "right"), outcome.why
    assert not refused or "is not supported: use" in outcome.why


def test_a_seeded_part_of_the_samples_is_right_or_refused():
    chooser, bad = random.Random(3), []
    operators = sorted(opinfo_cases.operators())
    for operator in chooser.sample(operators, 60):
        dtype = chooser.choice(opinfo_cases.DTYPES)
        if count := len(opinfo_cases.samples(operator, dtype)):
            name = f"{operator}/{dtype}/{chooser.randrange(count)}"
            outcome = opinfo_cases.run_case(name, "tiles", lambda who: None)
            bad += [(name, outcome)] if outcome.outcome in ("wrong", "crash") else []
    assert not bad


def test_every_outcome_has_its_name():
    names = opinfo_cases.case_names(1, ("float32",), "^(abs|empty|nonzero)$")
    outcomes = {name: opinfo_cases.run_case(name, "linalg", lambda who: None).outcome for name in names}
    assert outcomes == {
        "abs/float32/0": "right", "empty/float32/0": "nothing to compare", "nonzero/float32/0": "refused"
    }  # fmt: skip
