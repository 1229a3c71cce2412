"""Which tensors of a folder a model reads, and what becomes of the others.

A tensor that belongs to quantized weights (scales, zero points, packed numbers) and that nothing reads means that the
weights are read wrongly: that is an error. Others are named in a note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch

from mlirc.errors import MlircError, one_line
from mlirc.files.opening import shorten

# How tools call what goes with the numbers of quantized weights, or those themselves.
_QUANTIZED = re.compile(
    r"(.*_)?(scales?|scale_inv|zeros?|zero_point|qweight|qzeros|g_idx|absmax|amax|quant_map|nested_quant_map|packed"
    r"|scb|blocks|global_scale|scale_2|smooth_factor|bitsandbytes__\w+)",
    re.IGNORECASE,
)
_OF_CACHE = re.compile(r".*\b(k|v|kv|q|qkv|prob)_scale|.*\b[kv]_zero_point")  # of rounding keys, values or scores
_SHOWN = 3
# What transformers leaves out of every folder without a word.
_NO_WEIGHTS = (r"rotary_emb\.inv_freq", r"position_ids$", r"num_batches_tracked$")


def notes_of_unread(path: Path, unread: Iterable[str], ignored: Collection[str] = ()) -> list[str]:
    """What to say of the tensors of a folder that its model does not read, a line or none.

    `ignored`: patterns of names that the model's class leaves out by itself. Raises MlircError for one that belongs to
    quantized weights.
    """
    names = [n for n in unread if not any(re.search(p, n) for p in (*ignored, *_NO_WEIGHTS))]
    names = sorted(names, key=lambda n: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", n)])
    of_cache = [n for n in names if _OF_CACHE.fullmatch(n)]
    wrong = next((n for n in names if n not in of_cache and _QUANTIZED.fullmatch(n.rpartition(".")[2])), None)
    if wrong is not None:
        raise MlircError(
            f"{path}: nothing reads {_shown(wrong)}, which belongs to quantized weights: 'quantization_config' in "
            "config.json says of no layer that it has one: complete it, or give the unquantized weights"
        )
    others = [n for n in names if n not in of_cache]
    notes = [f"{path.name} holds {_counted(others)} that the model does not read"] if others else []
    if of_cache:
        notes.append(
            f"{path.name} holds {_counted(of_cache)} of a cache of 8 bits, which are not read: keys and values are as "
            "--cache-dtype says"
        )
    return notes


def _shown(name: str) -> str:
    return f"'{shorten(one_line(name), 120)}'"


def _counted(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{len(names):,} tensor{'s' * (len(names) != 1)} ({', '.join(map(_shown, names[:_SHOWN]))}{more})"


def check_stored(path: Path, name: str, stored: torch.dtype, wanted: torch.dtype) -> None:
    """Raises MlircError where a folder has numbers of another kind than the model: what would be floats once it is
    multiplied with a scale is none yet."""
    floats = stored.is_floating_point and stored.itemsize > 1
    if wanted.is_floating_point and wanted.itemsize > 1 and not floats:
        what = "8-bit floats" if stored.is_floating_point else str(stored).removeprefix("torch.")
        raise MlircError(
            f"{path}: weight {_shown(name)} is of {what}, and nothing says by which scale: give the unquantized "
            "weights, or the 'quantization_config' of config.json that goes with them"
        )
    if not wanted.is_floating_point and not wanted.is_complex and stored.is_floating_point:
        raise MlircError(f"{path}: weight {_shown(name)} is of floats, but the model has {wanted}")


def check_all_stored(path: Path, stored: Mapping[str, torch.dtype], module: torch.nn.Module) -> None:
    """The same for every tensor of a folder that transformers reads, which gives some of them other names: of those,
    8-bit floats and matrices of integers are refused."""
    state = module.state_dict()
    for name, dtype in stored.items():
        if name in state:
            check_stored(path, name, dtype, state[name].dtype)
        elif name.endswith("weight") or (dtype.is_floating_point and dtype.itemsize == 1):
            check_stored(path, name, dtype, torch.float32)
