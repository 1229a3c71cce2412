"""Folders whose linear layers are packed already: what their config says, and a layer's tensors as we have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.quantize import float_checkpoints, integer_checkpoints
from mlirc.frontend.quantize.rounding import Weight
from mlirc.frontend.quantize.scheme import Checkpoint

_INTEGERS = tuple(integer_checkpoints.BITS)
_FLOATS = {"fp8": float_checkpoints.read_blocks, "compressed-tensors": float_checkpoints.read_compressed}


def checkpoint_of(config: Any, where: str) -> Checkpoint:
    """Reads a `quantization_config`. Raises MlircError for another method, and for what would be read wrongly."""
    method = config.get("quant_method") if isinstance(config, dict) else None

    def refuse(what: str) -> MlircError:
        return MlircError(f"{where}: 'quantization_config' ({method}): {what}: give the unquantized weights")

    if method in _INTEGERS:
        return integer_checkpoints.read_config(config, method, refuse)
    if isinstance(method, str) and method in _FLOATS:
        return _FLOATS[method](config, refuse)
    raise MlircError(
        f"{where}: 'quantization_config': its weights are quantized by {str(method)[:40]!r}: AWQ, GPTQ and fp8 "
        "are read; give the unquantized weights, and --quantize SCHEME"
    )


def order_of(tensors: Mapping[str, torch.Tensor], layer: str, k: int, about: Checkpoint) -> torch.Tensor | None:
    """int64 [K], the inputs that a layer's columns are for; None where they are in order."""
    return integer_checkpoints.order_of(tensors, layer, k, about) if about.method == "gptq" else None


def packed_layer(
    tensors: Mapping[str, torch.Tensor],
    layer: str,
    shape: tuple[int, int],
    about: Checkpoint,
    dtype: torch.dtype,
    order: torch.Tensor | None = None,
) -> Weight:
    """The weight [N, K] of a layer of a model that computes in `dtype`, its columns in `order`. `tensors`: the
    folder's, by name. Raises MlircError for tensors that are missing or do not fit."""
    if about.method in _INTEGERS:
        return integer_checkpoints.packed_layer(tensors, layer, shape, about, dtype, order)
    return float_checkpoints.float_layer(tensors, layer, shape, about, dtype)
