"""Factorizations of small matrices: QR as LAPACK's; of eigenvectors and singular vectors what they make up."""

from __future__ import annotations

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.frontend.decompositions_factors import FACTORS
from support.models.levels import outputs
from support.models.together import Calls, check_together, randn

aten = torch.ops.aten


def made_up(a):
    """Of each factorization what is unique."""
    u, s, vh = torch.linalg.svd(a[..., :2], full_matrices=False)
    values, vectors = torch.linalg.eigh(a[:, :2, :2] + a[:, :2, :2].mT, UPLO="U")
    return s, (u * s.unsqueeze(-2)) @ vh, values, (vectors * values.unsqueeze(-2)) @ vectors.mT


def test_rotations_make_up_the_matrix():
    a = torch.randn(2, 3, 3)
    for got, want in zip(outputs(made_up, (a,), "gpu"), made_up(a), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_reflections_are_lapacks():
    cases = [
        (lambda a: torch.linalg.qr(a), (randn(2, 4, 3),)),
        (lambda a: torch.linalg.qr(a, mode="complete"), (randn(3, 2),)),
        *((torch.geqrf, (randn(*shape),)) for shape in ((2, 3), (0, 2), (3, 2, 0))),
        (lambda a: torch.linalg.householder_product(a, a[0].abs()), (randn(3, 2),)),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])


def test_what_follows_from_singular_values():
    cases = [
        (lambda a: torch.linalg.eigvalsh(a + a.mT), (randn(2, 2, 2),)),
        (lambda a: torch.linalg.pinv(a), (randn(3, 2),)),
        (lambda a: torch.linalg.pinv(a[:, :1] * a[:1], rtol=1e-3), (randn(2, 2),)),
        (lambda a: torch.linalg.matrix_rank(a[:, :1] * a[:1]), (randn(2, 2),)),
        (lambda a: (torch.linalg.matrix_norm(a, 2), torch.linalg.matrix_norm(a, "nuc")), (randn(2, 3),)),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])


SHAPES = [(1, 1), (2, 2), (3, 3), (4, 7), (7, 4), (16, 16), (15, 13)]


@pytest.mark.parametrize("dtype, gate", [(torch.float32, 3e-5), (torch.float64, 1e-13)])
def test_the_algorithms(dtype, gate):
    """In PyTorch itself, on full, singular and graded matrices."""
    for m, n in SHAPES:
        a = torch.randn(4, m, n, dtype=dtype)
        a[1] = a[1, :, :1] * a[1, :1]
        a[2] = 0
        a[3] *= torch.logspace(0, -6, n, dtype=dtype)
        size = torch.linalg.matrix_norm(a).clamp(min=1e-3)[:, None, None]
        u, s, vh = FACTORS[aten._linalg_svd.default](a, True)
        k = min(m, n)
        for x in (u.mT @ u - torch.eye(m, dtype=dtype), vh @ vh.mT - torch.eye(n, dtype=dtype)):
            assert x.abs().max() < 2 * gate, (m, n)
        assert (((u[..., :k] * s.unsqueeze(-2)) @ vh[:, :k] - a) / size).abs().max() < gate, (m, n)
        assert ((s - torch.linalg.svdvals(a)) / size[..., 0]).abs().max() < gate, (m, n)
        q, r = FACTORS[aten.linalg_qr.default](a, "complete")
        assert ((q @ r - a) / size).abs().max() < gate and (q.mT @ q - torch.eye(m, dtype=dtype)).abs().max() < gate
        if m == n:
            b = (a + a.mT) / 2
            values, vectors = FACTORS[aten._linalg_eigh.default](b)
            assert (((vectors * values.unsqueeze(-2)) @ vectors.mT - b) / size).abs().max() < gate, n
            assert ((values - torch.linalg.eigvalsh(b)) / size[..., 0]).abs().max() < gate, n


def test_too_large_matrices_are_refused():
    words = "_linalg_svd.* of 17 rows and 17 columns is not supported: it is unrolled, for 16 at most"
    with pytest.raises(MlircError, match=words):
        import_torch(from_torch(Calls(torch.linalg.svdvals), (randn(17, 17),)))
