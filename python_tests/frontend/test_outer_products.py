"""Batched products over one element, as the angles of rotary embeddings are: maps, which join who reads them."""

from __future__ import annotations

import pytest
import torch

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.ir.levels import kernels
from mlirc.targets import DEFAULT_TARGET, get_target
from support.models.together import Calls
from support.randomness import generator


def angles(frequencies, positions):
    """As transformers has them."""
    made = (frequencies[None, :, None] @ positions[:, None, :]).transpose(1, 2)
    return torch.cat([made, made], -1).cos()


def inputs(*shapes):
    return [torch.from_numpy(generator().standard_normal(shape, "float32")) for shape in shapes]


def kinds_of(function, given) -> list[str]:
    """Those of the kernels that a function becomes."""
    job = Compilation("model", get_target(DEFAULT_TARGET), ())
    job.import_module(Calls(function), tuple(given), {})
    job.lower("kernels")
    return [name.rpartition("_")[0] for name in kernels(job.modules["kernels"])]


@pytest.mark.parametrize("tokens", [1, 5])
def test_angles_are_one_map(tokens: int) -> None:
    given = inputs((7,), (1, tokens))
    assert kinds_of(angles, given) == ["elementwise"]
    result = check_torch(Calls(angles), tuple(given), levels=["tiles"])
    assert result.ok, result.reason()


def test_other_products_stay_products() -> None:
    x, y = inputs((3, 5, 1), (3, 1, 4))
    assert kinds_of(torch.bmm, (x.bfloat16(), y.bfloat16())) == ["matmul"]
    assert kinds_of(torch.bmm, inputs((3, 5, 2), (3, 2, 4))) == ["matmul"]
