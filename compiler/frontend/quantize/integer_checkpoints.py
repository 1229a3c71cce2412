"""AWQ and GPTQ: folders whose linear layers are packed already, as their authors' tools write them. Their numbers are
put into our words one layer at a time; nothing is rounded again.

AWQ (casper-hansen/AutoAWQ, version "gemm"): qweight int32 [K, N / 8], eight columns to a word in the order below;
qzeros int32 [K / group, N / 8] alike; scales f16 [K / group, N].
GPTQ (AutoGPTQ/AutoGPTQ): qweight int32 [K bits / 32, N] and qzeros int32 [K / group, N bits / 32], numbers of a column
or row one behind the other in a stream of bits; zero points are stored less 1 (checkpoint_format "gptq") or as they are
("gptq_v2"); scales f16 [K / group, N]; g_idx int32 [K], the group of each k, in any order (`desc_act`, act-order).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.quantize.packing import pack
from mlirc.frontend.quantize.rounding import Packed, check_scales
from mlirc.frontend.quantize.scheme import Checkpoint, Format, Refuse, Scheme, groups_of

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the nibbles of a word, from the lowest
BITS = {"awq": (4,), "gptq": (2, 3, 4, 8)}


def read_config(config: Mapping[str, Any], method: str, refuse: Refuse) -> Checkpoint:
    """What a `quantization_config` of AWQ or GPTQ says. Raises MlircError, which `refuse` makes."""
    bits, group = config.get("bits"), config.get("group_size", 128)
    if type(bits) is not int or bits not in BITS[method]:
        raise refuse(f"bits is {str(bits)[:20]}, not {' or '.join(map(str, BITS[method]))}")
    if type(group) is not int or group == 0 or group < -1 or group > 1 << 24:
        raise refuse(f"group_size is {str(group)[:20]}")
    if method == "awq":
        for key in ("version", "format", "checkpoint_format"):
            if str(config.get(key) or "gemm").lower() != "gemm":
                raise refuse(f"{key} is {str(config[key])[:20]!r}, not 'gemm'")
        if config.get("zero_point", True) is not True:
            raise refuse("it has no zero points")
        bias = 0
    else:
        forms = {str(config[key]) for key in ("checkpoint_format", "format") if config.get(key)} or {"gptq"}
        form = min(forms)
        if not forms <= {"gptq", "gptq_v2"} or config.get("is_marlin_format"):
            raise refuse(f"checkpoint_format is {'marlin' if forms <= {'gptq', 'gptq_v2'} else max(forms)[:20]!r}")
        if len(forms) > 1:
            raise refuse("checkpoint_format and format differ: correct the wrong one")
        if config.get("dynamic"):
            raise refuse("'dynamic': layers of several schemes")
        bias = 1 if form == "gptq" else 0
    scheme, act_order = (
        Scheme(Format(bits), max(group, 0), symmetric=False),
        method == "gptq" and bool(config.get("desc_act")),
    )
    return Checkpoint(method, scheme, "qweight", zero_bias=bias, act_order=act_order)


def order_of(tensors: Mapping[str, torch.Tensor], layer: str, k: int, about: Checkpoint) -> torch.Tensor | None:
    """int64 [K]: which k are one behind the other once each group's are, of a layer of GPTQ with act-order; None where
    they are in order. Raises MlircError for a `g_idx` that is none of full groups, and where act-order needs one."""
    name, group = f"{layer}.g_idx", about.scheme.group or k
    if name not in tensors:
        if about.act_order and group < k:
            raise MlircError(f"the weights lack '{name}', by which layers with act-order (desc_act) are read")
        return None
    stored, usual = tensors[name], torch.arange(k) // group
    found = stored.flatten().to(torch.int64)
    if stored.dtype.is_floating_point or not torch.equal(found.sort().values, usual):
        raise MlircError(f"'{name}' is not the group of each of {k} inputs, in groups of {group}")
    return None if torch.equal(found, usual) else torch.argsort(found, stable=True)


def packed_layer(
    tensors: Mapping[str, torch.Tensor],
    layer: str,
    shape: tuple[int, int],
    about: Checkpoint,
    dtype: torch.dtype,
    order: torch.Tensor | None = None,
) -> Packed:
    """The packed weight [N, K] of a layer, its scales and zero points in `dtype`, its k in `order` (`order_of`).
    `tensors`: the folder's, by name. Raises MlircError for tensors that are missing or do not fit."""
    (n, k), bits = shape, about.scheme.format.bits
    groups = groups_of(k, about.scheme.group)
    awq = about.method == "awq"
    per_word = 32 // bits
    if awq:
        shapes = {"qweight": (k, n // per_word), "qzeros": (groups, n // per_word)}
    else:
        shapes = {"qweight": (k * bits // 32, n), "qzeros": (groups, n * bits // 32)}
    found = {}
    for part, wanted in (shapes | {"scales": (groups, n)}).items():
        if f"{layer}.{part}" not in tensors:
            raise MlircError(f"the weights lack '{layer}.{part}', which {about.method.upper()} has")
        tensor = found[part] = tensors[f"{layer}.{part}"]
        fits = tensor.is_floating_point() if part == "scales" else tensor.dtype == torch.int32
        divides = (n if awq else k) * bits % 32 == 0 and n * bits % 32 == 0
        if tuple(tensor.shape) != wanted or not fits or not divides:
            raise MlircError(
                f"weight '{layer}.{part}' is {tensor.dtype} {list(tensor.shape)}: a layer of {n} x {k} with "
                f"{bits} bits in groups of {about.scheme.group or k} has {list(wanted)}"
            )
    scales = found["scales"].t().to(dtype).contiguous()
    if not bool(torch.isfinite(scales).all()):
        raise MlircError(f"weight '{layer}.scales' has values that are not finite, or too large for {dtype}")
    check_scales(scales, f"layer '{layer}'")
    if awq:
        numbers, zeros = (_nibbles(found[part]) for part in ("qweight", "qzeros"))
    else:
        numbers, zeros = _stream(found["qweight"].t(), bits).t(), _stream(found["qzeros"], bits)
    zeros = (zeros.to(torch.int32) + about.zero_bias) & ((1 << bits) - 1)
    numbers = numbers if order is None else numbers[order]
    return Packed(pack(numbers.t().contiguous(), bits), scales, zeros.t().contiguous().to(dtype), order)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """uint8 [R, 8 C] of AWQ's words [R, C]."""
    rows, columns = words.shape
    found = torch.empty(rows, columns, 8, dtype=torch.uint8)
    for place, column in enumerate(_AWQ_COLUMNS):
        found[:, :, column] = ((words >> (4 * place)) & 15).to(torch.uint8)
    return found.view(rows, columns * 8)


def _stream(words: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [R, 32 C / bits] of words [R, C]: number i has bits [bits * i, bits * (i + 1)) of a row."""
    wide = torch.nn.functional.pad(words.to(torch.int64) & 0xFFFFFFFF, (0, 1))
    at = torch.arange(words.shape[1] * 32 // bits) * bits
    both = wide[:, at // 32] | (wide[:, at // 32 + 1] << 32)
    return ((both >> (at % 32)) & ((1 << bits) - 1)).to(torch.uint8)
