"""The dropouts, made of random ops that are whole."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """`torch.dropout`."""
    if not train or p == 0 or not x.numel():
        return x.clone()
    return x * 0.0 if p == 1 else aten.native_dropout.default(x, p, True)[0]


def _noise(x: Tensor, p: float, features: bool) -> Tensor:
    """Zeros and ones for each element, or each feature: the rows of all but the first two dimensions."""
    shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if features else list(x.shape)
    return aten.bernoulli.p(x.new_empty(shape), 1 - p)


def _feature_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or not x.numel():
        return x.clone()
    return x * 0.0 if p == 1 else x * (_noise(x, p, True) / (1 - p))


def _alpha(features: bool) -> Callable:
    def alpha_dropout(x: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0 or not x.numel():
            return x.clone()
        if p == 1:
            return x * 0.0
        alpha = 1.7580993408473766  # SELU's scale times its alpha
        a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
        noise = _noise(x, p, features)
        return x * (noise * a) + ((noise - 1) * (alpha * a) + alpha * a * p)

    return alpha_dropout


DROPOUTS = {
    aten.dropout.default: dropout,
    aten.feature_dropout.default: _feature_dropout,
    aten.alpha_dropout.default: _alpha(False),
    aten.feature_alpha_dropout.default: _alpha(True),
}


@contextlib.contextmanager
def dropouts_as_on_a_gpu() -> Iterator[None]:
    """Inside, dropout of tensors on the CPU, real or fake, is one op, as on a GPU, also where PyTorch's own code calls
    it."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("dropout", dropout, "AutogradCPU")
        yield
    finally:
        library._destroy()
