"""Folders whose linear layers are 8-bit floats (e4m3), as transformers and vLLM's tools write them.

"fp8" (transformers' FineGrainedFP8Config; DeepSeek-V3): weight f8 [N, K], weight_scale_inv f32, one for a block of
weight_block_size, or one in all. Activations stay as they are: rounding them block by block along K is for products
that add up blocks.
"compressed-tensors" (vllm-project/compressed-tensors, formats float-quantized and naive-quantized): weight f8 [N, K],
weight_scale [N, 1], [1] or of blocks; with a token's scale for activations products are of 8-bit floats, and so they
are with the layer's input_scale [1].
"modelopt" (NVIDIA/TensorRT-Model-Optimizer, quant_algo FP8; its own hf_quant_config.json says the same): weight f8
[N, K], weight_scale [], and input_scale [], by which activations are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.quantize.packing import pack
from mlirc.frontend.quantize.rounding import Packed, Rounded, Weight, check_scales
from mlirc.frontend.quantize.scheme import FP8, Checkpoint, Format, Refuse, Scheme, groups_of

_FORMATS = ("float-quantized", "naive-quantized")
_E4M3 = Format(8, True)


def read_blocks(config: Mapping[str, Any], refuse: Refuse) -> Checkpoint:
    """What a `quantization_config` of transformers' fp8 says. Raises MlircError, which `refuse` makes."""
    if config.get("fmt", "e4m3") != "e4m3":
        raise refuse(f"fmt is {str(config['fmt'])[:20]!r}, not 'e4m3'")
    if config.get("scale_fmt", "float") != "float":
        raise refuse(f"scale_fmt is {str(config['scale_fmt'])[:20]!r}, not 'float'")
    block = _block(config.get("weight_block_size", [128, 128]), refuse)
    return Checkpoint("fp8", Scheme(_E4M3, block[1]), "weight_scale_inv", block=block)


def _block(sizes: Any, refuse: Refuse) -> tuple[int, int]:
    if sizes is None:
        return 0, 0
    if not isinstance(sizes, list) or len(sizes) != 2 or any(type(n) is not int or not 0 < n < 1 << 24 for n in sizes):
        raise refuse(f"blocks of {str(sizes)[:40]}")
    return sizes[0], sizes[1]


def read_compressed(config: Mapping[str, Any], refuse: Refuse) -> Checkpoint:
    """What a `quantization_config` of compressed-tensors says, of one group of layers in 8-bit floats. Raises
    MlircError, which `refuse` makes."""
    form = config.get("format")
    if form not in _FORMATS:
        raise refuse(f"its format is {str(form)[:40]!r}: 8-bit floats ('float-quantized') are read")
    for key in ("sparsity_config", "transform_config"):
        if config.get(key):
            raise refuse(f"'{key}' is not supported")
    groups = config.get("config_groups")
    found = list(groups.values()) if isinstance(groups, dict) else []
    if len(found) != 1 or not isinstance(found[0], dict):
        raise refuse("'config_groups' has layers of several schemes, or none")
    weights: Any = found[0].get("weights")
    inputs = found[0].get("input_activations")
    if not _is_e4m3(weights) or weights.get("dynamic") or weights.get("symmetric", True) is not True:
        raise refuse("its weights are no 8-bit floats with scales alone")
    strategy = weights.get("strategy")
    if strategy not in ("tensor", "channel", "block"):
        raise refuse(f"its weights have scales for each {str(strategy)[:20]!r}")
    if found[0].get("output_activations"):
        raise refuse("it rounds what layers give")
    block = _block(weights.get("block_structure"), refuse) if strategy == "block" else (int(strategy == "channel"), 0)
    activations = "" if inputs is None or strategy == "block" else _activations(inputs, refuse)
    return Checkpoint(
        "compressed-tensors", Scheme(_E4M3, block[1], activations=activations), "weight_scale", block=block
    )


def read_modelopt(config: Mapping[str, Any], refuse: Refuse) -> Checkpoint:
    """What a `quantization_config` or a hf_quant_config.json of ModelOpt says. Raises MlircError, which `refuse`
    makes."""
    algorithm = config.get("quant_algo")
    if algorithm != "FP8":
        raise refuse(f"quant_algo is {str(algorithm)[:40]!r}, not 'FP8'")
    return Checkpoint("modelopt", Scheme(_E4M3, activations="static"), "weight_scale")


def _is_e4m3(about: Any) -> bool:
    return isinstance(about, dict) and about.get("num_bits") == 8 and about.get("type") == "float"


def _activations(inputs: Any, refuse: Refuse) -> str:
    """How activations are rounded: `dynamic`, row by row, or `static`."""
    if _is_e4m3(inputs) and inputs.get("symmetric", True) is True:
        kind = inputs.get("strategy"), inputs.get("dynamic")
        if kind in (("token", True), ("tensor", False)):
            return "dynamic" if kind[1] else "static"
    raise refuse(
        "activations are rounded to 8-bit floats by a scale of each token, or by one that the layer has, alone"
    )


def float_layer(
    tensors: Mapping[str, torch.Tensor], layer: str, shape: tuple[int, int], about: Checkpoint, dtype: torch.dtype
) -> Weight:
    """The weight [N, K] of a layer: as it is where activations are rounded, too; else packed, its scales in `dtype`.
    `tensors`: the folder's, by name. Raises MlircError for tensors that are missing or do not fit."""
    (n, k), (rows, columns) = shape, about.block
    weight = _tensor(tensors, f"{layer}.weight", FP8)
    if tuple(weight.shape) != shape:
        raise MlircError(f"weight '{layer}.weight' has shape {list(weight.shape)}, but the config asks for {[n, k]}")
    if bool((weight.view(torch.uint8) & 0x7F == 0x7F).any()):
        raise MlircError(f"weight '{layer}.weight' has values that are not finite")
    name = f"{layer}.{about.marker}"
    wanted = (groups_of(n, rows), groups_of(k, columns))
    scales = _scales(tensors, name)
    if scales.numel() != wanted[0] * wanted[1] or (scales.dim() > 1 and tuple(scales.shape) != wanted):
        raise MlircError(f"weight '{name}' is {list(scales.shape)}: a layer of {n} x {k} has {list(wanted)} scales")
    each = torch.arange(n) // (rows or n)
    scales = scales.reshape(wanted)[each].contiguous()
    if about.scheme.activations:
        fixed = _scales(tensors, f"{layer}.input_scale") if about.scheme.activations == "static" else None
        if fixed is not None and (fixed.numel() != 1 or not bool((fixed > 0).all())):
            raise MlircError(f"weight '{layer}.input_scale' is not one number greater than 0")
        return Rounded(weight, scales, fixed if fixed is None else fixed.reshape(1))
    rounded = scales.to(dtype)
    if not bool(torch.isfinite(rounded).all()):
        raise MlircError(f"weight '{name}' has values that are too large for {dtype}")
    check_scales(rounded, f"layer '{layer}'")
    return Packed(pack(weight.view(torch.uint8), 8), rounded)


def _scales(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Scales in f32."""
    found = _tensor(tensors, name).float()
    if not bool(torch.isfinite(found).all()):
        raise MlircError(f"weight '{name}' has values that are not finite")
    return found


def _tensor(tensors: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of a dtype, or of floats of 16 bits or more."""
    if name not in tensors:
        raise MlircError(f"the weights lack '{name}'")
    found = tensors[name]
    if found.dtype != dtype if dtype else not (found.is_floating_point() and found.element_size() > 1):
        raise MlircError(f"weight '{name}' is {found.dtype}, not {dtype or 'of floats'}")
    return found
