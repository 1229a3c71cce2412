"""Scalars by value, tables of pointers and grids that scalars decide, on a fake GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import CudaArray, FakeDriver
from support.plans.terms import KERNELS, PTX, right, terms_plan
from support.plans.tiny import randn

TEXT = embed(PTX, terms_plan())
A, B = randn(0), randn(1)


@pytest.fixture(params=[True, False], ids=["graph", "launches"])
def model(request):
    with load_text(TEXT, {}, driver=FakeDriver(KERNELS), graph=request.param) as model:
        yield model


def test_numbers_go_by_value_and_decide_the_grid(model):
    for n, m in ((3, 0.5), (9, -2), (1, 7.0)):
        np.testing.assert_array_equal(model(A, n, m, B), right(A, n, m, B))
        assert model._driver.grids[-2:] == [(2 * n, 1, 1), (1, 1, 1)]
    np.testing.assert_array_equal(model(A, np.int32(2), np.float32(1), b=B), right(A, 2, 1, B))
    np.testing.assert_array_equal(
        model(torch.from_numpy(A), torch.tensor(2, dtype=torch.int32), torch.tensor(1.0), torch.from_numpy(B)).numpy(),
        right(A, 2, 1, B),
    )


def test_only_what_needs_an_address_has_memory_on_the_device(model):
    model(A, 3, 1, B)
    assert sorted(model._staging) == [0, 2, 3], "a, b and m, which a kernel takes by its address"


def test_the_table_follows_the_addresses(model):
    for seed in range(3):
        a, b = (CudaArray(randn(seed + k)) for k in (0, 7))
        np.testing.assert_array_equal(np.asarray(model(a, 2, 1, b)), right(a.array, 2, 1, b.array))


def test_no_blocks_are_no_launch(model):
    launched = model._driver.launched
    model(A, 0, 1, B)
    assert [symbol for symbol, _ in launched] == ["shift"]
    np.testing.assert_array_equal(model(A, 4, 1, B), right(A, 4, 1, B))


def test_launches_with_bound_numbers(model):
    model.bind(A, 5, 1, B)
    model.launch()
    np.testing.assert_array_equal(model.outputs[0].numpy(), right(A, 5, 1, B))


@pytest.mark.parametrize(
    ("n", "m", "why"),
    [
        (10, 1, "scalar 'n': 10 is not from 0 to 9, as the model was compiled for"),
        (-1, 1, "scalar 'n': -1 is not from 0 to 9"),
        (1 << 31, 1, "scalar 'n': 2147483648 is no i32"),
        (1.5, 1, "scalar 'n': 1.5 is no i32"),
        (np.int64(3), 1, "scalar 'n': got i64.., but the model was compiled for i32.."),
        (np.ones(1, np.int32), 1, r"scalar 'n': got i32.1., but the model was compiled for i32.."),
        (CudaArray(np.array(3, np.int32)), 1, "scalar 'n': lies on GPU 0, but the model takes the number itself"),
        ("3", 1, "a str is no tensor"),
    ],
)
def test_what_is_no_such_number(model, n, m, why):
    model(A, 2, 1, B)
    with pytest.raises(MlircError, match=why):
        model(A, n, m, B)
    np.testing.assert_array_equal(model(A, 2, 1, B), right(A, 2, 1, B))
