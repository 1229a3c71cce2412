"""Tensors that a model overwrites as a whole are constants: what kernels of every kind make of them."""

from __future__ import annotations

from support.models.together import check_together, randn


def overwritten(x):
    x = x.clone()
    x[0] = 1
    return *(x + 1).max(-1), x.argmin(1), x.argmax(), x.sum(1), x.sort(1)[0]


def test_reductions_of_a_constant() -> None:
    shapes = [(1, 6, 4, 1), (1, 3, 5, 7), (1, 300, 1)]
    check_together([(overwritten, (randn(*shape),)) for shape in shapes], kinds=("plain",))
