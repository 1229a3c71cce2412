"""Factors of matrices in a check: signs and bases that are not unique are no error, and all that is unique is compared."""

from __future__ import annotations

import pytest
import torch

from mlirc.check import check_torch
from mlirc.check.factors import UniqueFactors
from support.models.together import Calls, check_together, randn


def rank_one(a):
    return a[:, :1] * a[:1]


def test_what_is_not_unique_is_no_false_alarm():
    cases = [
        (torch.linalg.svd, (randn(2, 4, 2),)),
        (lambda a: torch.linalg.svd(a, full_matrices=False), (randn(2, 3),)),
        (lambda a: torch.linalg.svd(rank_one(a), full_matrices=False), (randn(3, 2),)),
        (lambda a: torch.linalg.eigh(torch.tensor([[1.0, 2], [2, 1]]) + 0 * a), (randn(2, 2),)),  # a tie of signs
        (lambda a: torch.linalg.qr(rank_one(a)), (randn(3, 2),)),
        (lambda a: torch.linalg.pinv(a, hermitian=True), (randn(2, 2),)),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain", "zeros"])


def factors_of_nothing(a):
    return (
        *torch.linalg.svd(a),
        *torch.linalg.qr(a, mode="complete"),
        torch.linalg.pinv(a),
        *torch.linalg.eigh(a @ a.mT),
    )


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 3), (0, 0)])
def test_factors_of_no_elements(shape):
    result = check_torch(Calls(factors_of_nothing), (torch.zeros(shape),), levels=["tiles"], kinds=["plain"])
    assert result.ok, result.reason()


def test_low_rank_by_numbers_that_are_drawn():
    result = check_torch(
        Calls(lambda a: torch.svd_lowrank(a, 2, niter=1)), (randn(3, 2),), levels=["tiles"], kinds=["plain"]
    )
    assert result.ok, result.reason()


class Wrong(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, a):
        found = torch.linalg.svd(a + torch.diag(torch.tensor([4.0, 2.0])), full_matrices=False)
        return self.change(*found) if torch.compiler.is_compiling() else found


@pytest.mark.parametrize(
    "change",
    [
        lambda u, s, vh: (u.flip(-1), s, vh),
        lambda u, s, vh: (-u, s, vh),
        lambda u, s, vh: (u, s, -vh),
        lambda u, s, vh: (u, s * 1.001, vh),
    ],
)
def test_a_wrong_factor_is_reported(change):
    assert not check_torch(Wrong(change), (randn(2, 2) * 0.1,), levels=["linalg"], kinds=["plain"]).ok


def test_a_reference_makes_up_the_matrix_and_knows_its_signs():
    a = randn(2, 3, 5, dtype=torch.float64)
    with UniqueFactors() as factors:
        u, s, vh = torch.linalg.svd(a)
        values, vectors = torch.linalg.eigh(a @ a.mT)
    assert factors.found
    torch.testing.assert_close((u * s[:, None]) @ vh[:, :3], a)
    torch.testing.assert_close((vectors * values[:, None]) @ vectors.mT, a @ a.mT)
    assert bool((vh.amax(-1) >= -vh.amin(-1)).all()) and bool((vectors.amax(-2) >= -vectors.amin(-2)).all())
