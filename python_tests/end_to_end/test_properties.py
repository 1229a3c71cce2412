"""Random torch functions of odd shapes: every level gives what PyTorch gives, with the scripts' own knobs and others.
`python python_tests/support/models/every_level.py` tries more seeds."""

from __future__ import annotations

import pytest

from support.models.every_level import check
from support.models.random_torch import KINDS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_equals_pytorch(kind, seed):
    check(kind, seed)
