"""Special functions beside PyTorch in FP64: every size, poles, zeros, NaN and infinities; phases and products."""

from __future__ import annotations

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from support.models.levels import outputs
from support.models.together import Calls, below, check_together, randn

INF, NAN = float("inf"), float("nan")
POINTS = [0.0, -0.0, 1, 2, -2.5, 0.5, -0.5, 1 + 1.2e-7, 1e30, 3e38, INF, -INF, NAN, 1e-45, 100.5, -100.5, 9.99, 25, 26]
UNIT = [0.0, -0.0, 1, -1, 0.5, 1 - 6e-8, 6e-8 - 1, 1.1, -1.1, 1e-30, NAN, INF, 0.25, 0.4, 0.75]


def functions(x, u):
    of_all = (torch.lgamma, torch.special.erfc, torch.digamma, torch.special.erfcx, torch.angle)
    positive = torch.polygamma(1, x.abs()), torch.special.gammaln(x.abs())
    return *(f(x) for f in of_all), *positive, torch.erfinv(u), torch.special.ndtri(u)


@pytest.mark.parametrize("level", ["tiles", "gpu"])
def test_special_functions(level):
    x = torch.cat([torch.tensor(POINTS), torch.randn(100), torch.randn(100).exp() * 4, -torch.rand(50) * 20])
    u = torch.cat([torch.tensor(UNIT), torch.rand(100) * 2 - 1, 1 - torch.exp(-torch.rand(30) * 16)])
    right = functions(x.double(), u.double())
    for number, (got, want) in enumerate(zip(outputs(functions, (x, u), level), right, strict=True)):
        torch.testing.assert_close(got, want.float(), rtol=2e-6, atol=1e-35, equal_nan=True, msg=f"function {number}")
        zero = want == 0
        assert torch.equal(torch.signbit(got[zero]), torch.signbit(want[zero])), number


def test_of_halves_and_integers():
    def function(x, n):
        half = (torch.lgamma(x), torch.erfinv(x / 8), torch.special.erfc(x), torch.digamma(x), torch.angle(x))
        return *half, torch.lgamma(n), torch.angle(n), torch.special.erfc(n)

    integers = torch.arange(-3, 9)
    check_together([(function, (randn(5, 7, dtype=torch.bfloat16), integers))], levels=["tiles"], kinds=["plain"])


BOOLEAN_FACTORS = ({"beta": 3, "alpha": 2}, {"beta": 0}, {"alpha": 0}, {"beta": False, "alpha": True})


def _addr(**factors):
    return lambda *operands: torch.addr(*operands, **factors)


def test_ends_of_linspace_are_numbers_of_its_dtype():
    cases = [
        (lambda a: torch.linspace(4.3, a, 50, dtype=torch.uint8), (torch.tensor(0),)),
        (lambda a: torch.linspace(a, -7.9, 31, dtype=torch.int64), (torch.tensor(3.9),)),
        (lambda a, b: torch.linspace(a, b, 1, dtype=torch.int32), (torch.tensor(3.9), torch.tensor(5))),
        (lambda a: torch.linspace(0.3, a, 7, dtype=torch.bfloat16), (torch.tensor(2.0),)),
    ]
    check_together(cases, levels=["tiles"], kinds=["plain"])


def test_products_with_vectors():
    cases = [
        (torch.addmv, (randn(3), randn(3, 5), randn(5))),
        (lambda x, a, v: torch.addmv(x, a, v, beta=0.5, alpha=2), (randn(1), randn(3, 5), randn(5))),
        *((_addr(**k), (below(2, 3, 5) > 0, below(2, 3) > 0, below(2, 5) == 0)) for k in BOOLEAN_FACTORS),
        (lambda x, a, v: torch.addmv(x * torch.nan, a, v, beta=0), (randn(3), randn(3, 5), randn(5))),
        (torch.addr, (randn(3, 5), randn(3), randn(5))),
        (lambda x, a, b: torch.addbmm(x, a, b, beta=0.5), (randn(3, 4), randn(2, 3, 5), randn(2, 5, 4))),
        (torch.addbmm, tuple(randn(*s, dtype=torch.bfloat16) for s in [(1,), (2, 3, 5), (2, 5, 4)])),
        (torch.addbmm, (below(9, 3, 4), below(7, 2, 3, 5), below(5, 2, 5, 4))),
        (lambda x, a, b: torch.baddbmm(x, a, b, alpha=3), (randn(3, 4), randn(2, 3, 5), randn(2, 5, 4))),
    ]
    check_together(cases, levels=["tiles", "gpu"], kinds=["plain"])


def test_orders_of_polygamma_that_are_not_there():
    with pytest.raises(MlircError, match="polygamma of order 2 is not supported: only of orders 0 and 1"):
        import_torch(from_torch(Calls(lambda x: torch.polygamma(2, x)), (randn(3),)))
