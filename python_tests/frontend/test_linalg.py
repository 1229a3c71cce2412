"""Small matrices, losses and batch norms beside PyTorch, and reductions of tensors without dimensions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from support.models.together import Calls, below, check_together, randn


def positive(x):
    return x @ x.mT + 3 * torch.eye(x.shape[-1])


MATRICES = [
    (torch.det, (4, 4)),
    (torch.det, (2, 1, 1)),
    (torch.slogdet, (2, 3, 3)),
    (lambda x: torch.logdet(positive(x)), (3, 3)),
    (lambda x: torch.det(torch.stack([x[0], x[1], x[0]])), (2, 3)),  # singular
    (torch.inverse, (2, 5, 5)),
    (lambda x: torch.linalg.inv_ex(x), (1, 1)),
    (lambda x: torch.linalg.solve(x, x[:, 0]), (3, 3)),
    (lambda x: torch.linalg.solve(x, x[..., :2].mT, left=False), (2, 3, 3)),
    (lambda x: torch.linalg.cholesky(positive(x), upper=True), (2, 4, 4)),
    (lambda x: torch.cholesky_solve(x[:, :2], torch.linalg.cholesky(positive(x))), (4, 4)),
    (lambda x: torch.linalg.solve_triangular(x.triu() + 3 * torch.eye(3), x, upper=True), (2, 3, 3)),
    (lambda x: torch.linalg.solve_triangular(x.tril(), x, upper=False, left=False, unitriangular=True), (3, 3)),
    (lambda x: torch.linalg.matrix_power(x, -2), (3, 3)),
]


def test_small_matrices():
    cases = [
        (lambda x, f=function: f(x + torch.eye(x.shape[-1])[: x.shape[-2]]), (randn(*s),)) for function, s in MATRICES
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])


def test_elimination_on_the_host_device():
    check_together([(torch.inverse, (randn(2, 3, 3),)), (torch.slogdet, (randn(3, 3),))], kinds=["plain"])


@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (torch.det, randn(33, 33), "33 rows is not supported: it is unrolled, for 32 at most"),
        (torch.linalg.eig, randn(3, 3), "linalg_eig"),
    ],
)
def test_what_is_too_large_or_not_there_is_refused(function, x, words):
    with pytest.raises(MlircError, match=words):
        import_lower(Calls(function), x)


def import_lower(module, *inputs):
    from mlirc.frontend import lower_to_linalg

    return lower_to_linalg(import_torch(from_torch(module, inputs)))


WEIGHTS = torch.arange(1.0, 6)
SIGNS = torch.tensor([1, -1, 1, 1, -1, 1, 1])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction):
    scores, classes = randn(7, 5), below(5, 7)
    check_together(
        [
            (lambda x, t: F.nll_loss(x, t, WEIGHTS, ignore_index=2, reduction=reduction), (scores, classes)),
            (lambda x, t: F.nll_loss(x, t, reduction=reduction), (randn(2, 5, 3, 1), below(5, 2, 3, 1))),
            (lambda x, t: F.nll_loss(x, t, reduction=reduction), (randn(5), torch.tensor(3))),
            (
                lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction=reduction),
                (randn(7, 5, 3), below(5, 7, 3)),
            ),
            (
                lambda x, t: F.cross_entropy(x, t, WEIGHTS, ignore_index=3, label_smoothing=0.1, reduction=reduction),
                (scores, classes),
            ),
            (lambda x, t: F.cross_entropy(x, t.softmax(1), reduction=reduction), (scores, scores)),
            (lambda x: F.multilabel_margin_loss(x, below(5, 7, 5) - 1, reduction=reduction), (scores,)),
            (lambda x: F.multilabel_margin_loss(x, torch.tensor([3, 0, -1, 1]), reduction=reduction), (randn(4),)),
            (lambda x, y: F.cosine_embedding_loss(x, y, SIGNS, reduction=reduction), (scores, scores)),
            (lambda x, y: F.kl_div(x, y.softmax(1), reduction=reduction), (scores, scores)),
        ],
        levels=["tiles"],
        kinds=["plain"],
    )


def test_norms_by_the_statistics_of_the_batch():
    affine = (torch.arange(1.0, 4), torch.arange(3.0))
    eval_mode = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval()
    eval_mode.running_mean += torch.arange(3.0)
    check_together(
        [
            (lambda x: F.batch_norm(x, None, None, *affine, training=True), (randn(5, 3, 7, 2),)),
            (lambda x: F.batch_norm(x, None, None, training=True), (randn(5, 3),)),
            (lambda x: F.instance_norm(x, weight=affine[0]), (randn(2, 3, 7),)),
            (lambda x: F.instance_norm(x), (randn(2, 3, 7, dtype=torch.bfloat16),)),
            (eval_mode, (randn(2, 3, 5),)),
            (lambda x: F.group_norm(x, 3, torch.arange(6.0)), (randn(2, 6, 7),)),
        ]
    )


def test_reductions_of_one_number():
    cases = [
        lambda x: (x.mean(0), x.mean(-1, keepdim=True), x.sum(0), x.prod(0)),
        lambda x: (x.amax(0), *x.max(0), x.argmax(0), *torch.aminmax(x, dim=0)),
        lambda x: ((x > 0).all(0), (x > 0).any(-1)),
        lambda x: (x.softmax(0), x.log_softmax(0), x.logsumexp(0), x.cumsum(0), x.cumprod(0)),
        lambda x: (x.var(0, correction=0), x.std(0, correction=0), torch.linalg.vector_norm(x, dim=0), *x.sort(0)),
    ]
    check_together([(f, (torch.tensor(3.0),)) for f in cases])


def test_reductions_of_no_dimensions_and_of_nothing():
    cases = [
        (lambda x: (x.sum([]), x.mean(()), x.amax([]), *torch.aminmax(x)), (randn(3, 5),)),
        (lambda x: (x.norm(torch.inf), x.norm(0), x.norm(3, dim=1), x.norm(-torch.inf, dim=0)), (randn(3, 5),)),
        (lambda x: (x.sum(0), x.prod(0), x.mean(0), (x > 0).all(0)), (randn(0, 5),)),
        (lambda x, w: F.linear(x, w), (randn(2, 7, 5), randn(5))),
        (lambda x, w, b: F.linear(x, w, b), (randn(5), randn(3, 5), randn(3))),
    ]
    check_together(cases, levels=["tiles"])
