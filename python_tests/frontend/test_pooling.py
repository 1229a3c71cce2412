"""Pooling in all its forms beside PyTorch: windows that do not divide, indices, one image without a batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch, lower_to_linalg
from mlirc.frontend.decompositions_pooling import sliding_windows
from support.models import small as frontend_models
from support.models.together import Calls, check_together, randn

EVERY = dict(padding=1, return_indices=True)
WITH_INDICES = [
    (lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), (2, 3, 7)),
    (lambda x: F.adaptive_max_pool2d(x, (3, None), return_indices=True), (2, 7, 5)),
    (lambda x: F.adaptive_max_pool3d(x, (3, 2, 1), return_indices=True), (1, 2, 7, 5, 4)),
    (lambda x: F.max_pool1d(x, 3, 2, return_indices=True), (3, 8)),
    (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, **EVERY), (2, 3, 8, 7)),
    (lambda x: F.max_pool2d(x, (3, 2), (2, 1), dilation=(1, 2), **EVERY), (2, 8, 7)),
    (lambda x: F.max_pool3d(x, (3, 2, 2), (1, 2, 1), dilation=(2, 1, 3), **EVERY), (1, 2, 8, 7, 5)),
]
UNPOOLED = [
    (lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, 2, return_indices=True), 2, 2), (2, 3, 8)),
    (lambda x: F.max_unpool2d(*F.max_pool2d(x, 3, 2, return_indices=True), 3, 2), (2, 3, 9, 7)),
]
MAXIMA = [
    (lambda x: F.adaptive_max_pool2d(x, (9, 7)), (3, 7, 5)),
    (lambda x: F.adaptive_max_pool3d(x, (3, 2, 1)), (2, 3, 7, 5, 4)),
    (lambda x: F.max_pool1d(x, 3, 2, 1), (3, 11)),
    (lambda x: F.max_pool2d(x, 2, 3, padding=1, ceil_mode=True), (1, 5, 8)),
    (lambda x: F.max_pool3d(x, 3, 2, 1, ceil_mode=True), (3, 8, 7, 6)),
    (lambda x: F.max_pool2d(x, 2560, ceil_mode=True), (2, 3, 7, 5)),
]
AVERAGES = [
    (lambda x: F.adaptive_avg_pool2d(x, (9, 3)), (3, 7, 5)),
    (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 2)), (1, 3, 7, 5, 4)),
    (lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (3, 8)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (3, 8, 7)),
    (lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True, False), (2, 3, 8, 7)),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=7), (2, 3, 8, 7)),
    (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=-2), (2, 3, 8, 7)),
    (lambda x: F.avg_pool3d(x, 2, divisor_override=3), (3, 8, 7, 6)),
    (lambda x: F.avg_pool2d(x, (2560, 2), ceil_mode=True), (2, 3, 7, 5)),
    (lambda x: F.avg_pool2d(x, 99, 99, 40, True, False), (2, 3, 7, 5)),
    (lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (3, 8, 7, 6)),
]


@pytest.mark.parametrize("cases", [WITH_INDICES, UNPOOLED, MAXIMA], ids=["indices", "unpooled", "maxima"])
def test_maxima(cases):
    check_together([(function, (randn(*shape),)) for function, shape in cases])


def test_averages():
    check_together([(function, (randn(*shape),)) for function, shape in AVERAGES], levels=["tiles"])


def test_pooling_of_16_bits_is_rounded_once():
    kernels = [lambda x: F.avg_pool2d(x, 5, 2), lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True)]
    check_together([(f, (randn(3, 11, 7, dtype=torch.bfloat16),)) for f in kernels], levels=["tiles"])


def test_equal_maxima_have_the_first_index():
    x = torch.tensor([[[1.0, 2, 2, 1], [2, 2, 2, 2], [0, 0, 0, 0]]])
    source = from_torch(Calls(lambda x: F.max_pool2d(x, 2, 1, return_indices=True)), (x,))
    imported, module = frontend_models.check(source)
    indices = frontend_models.run_on_host(imported, module, [x])[1]
    assert indices.int().tolist() == [[[1, 1, 2], [4, 5, 6]]]


def test_a_window_of_padding_alone_is_refused():
    with pytest.raises(ValueError, match="only padding"):
        sliding_windows(1, kernel=2, stride=1, padding=2, dilation=3, ceil_mode=False)
    pool = Calls(lambda x: F.max_pool2d(x, (2, 1), 1, (1, 0), (2, 1), return_indices=True))
    source = from_torch(pool, (randn(1, 1, 1, 4),))
    with pytest.raises(MlircError, match="only padding"):
        import_torch(source)


def test_a_window_larger_than_the_image_is_cut():
    module = lower_to_linalg(import_torch(from_torch(nn.AvgPool2d(2560, ceil_mode=True), (randn(1, 3, 7, 7),))))
    assert "2560" not in str(module)  # as EfficientNet's, which would be padded to 2560 x 2560


def test_pooling_beside_writes():
    """PyTorch makes a program with writes functional first, and loses tensors that a decomposition makes there."""

    def unread(x):
        y = x.clone()
        y.diagonal().fill_(1)
        return F.adaptive_max_pool1d(x, 2)

    def read(x):
        y = x.clone()
        y.diagonal().fill_(1)
        return F.adaptive_max_pool1d(y, 2, return_indices=True)

    check_together([(unread, (randn(5, 1, 3),)), (read, (randn(5, 2, 3),))], levels=["tiles"], kinds=["plain"])
