"""Folders whose linear layers are packed already: what their config says, and a layer's tensors as we have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.files.opening import check_inside, parse_json, read_bytes
from mlirc.frontend.quantize import float_checkpoints, integer_checkpoints
from mlirc.frontend.quantize.rounding import Weight
from mlirc.frontend.quantize.scheme import Checkpoint

_INTEGERS = tuple(integer_checkpoints.BITS)
_FLOATS = {
    "fp8": float_checkpoints.read_blocks,
    "compressed-tensors": float_checkpoints.read_compressed,
    "modelopt": float_checkpoints.read_modelopt,
}
_LIMIT = 32 << 20
# Where tools keep it that have none of it in config.json: the file, and the method that it is of.
_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
_AWQ_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}  # of the last one


def config_beside(folder: Path) -> tuple[dict[str, Any], Path] | None:
    """What a folder says of its quantized weights in a file beside config.json, as `quantization_config` would, and the
    file; None where it has no such file. Raises MlircError for a damaged one."""
    for name, method in _BESIDE.items():
        path = folder / name
        if not os.path.lexists(path):
            continue
        check_inside(folder, path)
        found = parse_json(read_bytes(path, limit=_LIMIT), str(path))
        if isinstance(found, dict) and method == "modelopt":
            found = found.get("quantization")
        if not isinstance(found, dict):
            raise MlircError(f"{path}: says nothing of quantized weights: remove it, or give the unquantized weights")
        if method == "awq":
            found = {_AWQ_NAMES.get(key, key): value for key, value in found.items()}
        return {"quant_method": method, **found}, path
    return None


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
        f"{where}: 'quantization_config': its weights are quantized by {str(method)[:40]!r}: AWQ, GPTQ, fp8 "
        "and ModelOpt's FP8 are read; give the unquantized weights, and --quantize SCHEME"
    )


def parts_of(about: Checkpoint) -> tuple[str, ...]:
    """The tensors of a packed layer, by the last part of their names."""
    if about.method in _INTEGERS:
        return ("qweight", "qzeros", "scales", *(["g_idx"] if about.method == "gptq" else []))
    return ("weight", about.marker, *(["input_scale"] if about.scheme.activations == "static" else []))


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
