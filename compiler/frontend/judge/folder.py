"""Hugging Face folders: what config.json may ask for, and which files weights may come from.

transformers opens what the files in a folder name: other folders, the hub, classes of quantizers, kernels. A model
needs none of these, so they are refused before transformers sees the folder, and so is a config of impossible size.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.files.opening import check_inside, open_regular, parse_json, read_bytes, shorten
from mlirc.frontend.judge.archive import Archive
from mlirc.frontend.judge.pickles import check_tensors, scan_pickle
from mlirc.frontend.quantize.checkpoints import checkpoint_of
from mlirc.runtime.weights import WeightFile

_CONFIG_LIMIT = 32 << 20
_LAYERS = 4096  # of any kind; the deepest models have some two hundred
_LABELS = 1 << 20
_MODULES = 250_000  # a mixture of 60 layers of 256 experts, one by one, has a fifth
_DEPTH = 20
_LAYER_KEY = re.compile(
    r"(n|num|number)_?\w*_?(layer|layers|block|blocks|stages|hidden_groups)|depths?|layers|n_layer\w*"
)
# No config class of transformers has a negative number in such a field by default, or gives one a meaning.
_COUNT_KEY = re.compile(
    r"(num|n|d)_.*|dims?|depths?|layers|.*_(sizes?|dims?|layers|heads|groups|positions|channels|length|embeddings)"
)
_EPSILON_KEY = re.compile(r"(.*_)?(eps|epsilon)")
_MOST = 1 << 62
_MOST_COUNT = 1 << 31  # of positions, too: indices and token ids have 32 bits
_QUANTIZED = "its weights are quantized: give the model's unquantized weights, without this entry"
_REASONS = {
    "quantization_config": _QUANTIZED,  # of no weights too: another model is built without it
    "compression_config": _QUANTIZED,
    "transformers_weights": "it takes its weights from another place: give a folder with model.safetensors",
    "use_pretrained_backbone": "it takes a part of its weights from another place: give the whole model's weights",
    "backbone_checkpoint": "it takes a part of its weights from another place: give the whole model's weights",
    "fusion_config": "it replaces parts of the model by others: remove the entry",
    "distributed_config": "it is for several devices: remove the entry",
    "use_kernels": "it takes kernels from the hub: remove the entry",
    "kernel_config": "it takes kernels from the hub: remove the entry",
}


def judge_config(folder: Path) -> None:
    """Raises MlircError for a config.json that is none, that asks for files or code from elsewhere, for quantized
    weights or for a model of impossible size."""
    path = folder / "config.json"
    if (folder / "adapter_config.json").exists():
        raise MlircError(f"{folder}: holds an adapter (adapter_config.json): merge it into its model and save that")
    if not os.path.lexists(path):
        raise MlircError(f"{folder}: not a Hugging Face model: the directory has no config.json")
    check_inside(folder, path)
    config = parse_json(read_bytes(path, limit=_CONFIG_LIMIT), str(path))
    if not isinstance(config, dict):
        raise MlircError(f"{path}: not a usable config: it is no JSON object")
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise MlircError(f"{path}: not a usable config: 'architectures' is no list of names")
    _judge_entries(path, config, 0)


def _judge_entries(path: Path, entries: dict[str, Any], depth: int) -> None:
    if depth > _DEPTH:
        raise MlircError(f"{path}: not a usable config: nested too deep")
    for key, value in entries.items():
        if value and key == "quantization_config" and depth == 0:
            checkpoint_of(value, str(path))
            continue
        if value and key in _REASONS:
            raise MlircError(f"{path}: '{key}': {_REASONS[key]}")
        if key.endswith("_implementation") and not _known_implementation(value):
            raise MlircError(f"{path}: '{key}' is {ascii(shorten(value, 80))}, code from elsewhere: remove the entry")
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if type(number) in (int, float):
                _judge_number(path, key, number)
        for child in numbers:
            if isinstance(child, dict):
                _judge_entries(path, child, depth + 1)


def _known_implementation(value: Any) -> bool:
    """Whether this names one of transformers' own implementations, for the model or for each of its parts."""
    parts = value.values() if isinstance(value, dict) else [value]
    return all(part is None or (isinstance(part, str) and re.fullmatch(r"[a-z0-9_]+", part)) for part in parts)


def _judge_number(path: Path, key: str, number: float) -> None:
    no_limit = number == -1 and key.startswith("max_")  # as DeBERTa says it
    if number < 0 and not no_limit and _COUNT_KEY.fullmatch(key):  # transformers takes negative layers for none
        raise MlircError(f"{path}: '{key}' is {shorten(number, 40)}: a size or a count cannot be negative")
    if key.endswith("token_id") and not (type(number) is int and -1 <= number < _MOST_COUNT):
        raise MlircError(f"{path}: '{key}' is {shorten(number, 40)}: a token id is a whole number from 0 on")
    small = 0 <= number < math.inf or not _EPSILON_KEY.fullmatch(key)
    if math.isnan(number) or not small:
        raise MlircError(f"{path}: '{key}' is {number}: give a finite number{' of 0 or more' * (not small)}")
    most = _MOST_COUNT if _COUNT_KEY.fullmatch(key) or key.startswith("max_") else _MOST
    if _LAYER_KEY.fullmatch(key):
        most = _LAYERS
    elif key in ("num_labels", "num_classes"):
        most = _LABELS
    no_limit = math.isinf(number) and key.endswith("_limit")  # as Mamba 2 says it
    if abs(number) > most and not no_limit:
        raise MlircError(f"{path}: '{key}' is {shorten(number, 40)}: no model has more than {most:,}")


def judge_weights(folder: Path) -> list[WeightFile]:
    """The folder's safetensors files. Raises MlircError unless it holds weights, whole ones, in files of its own."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).exists():
            files = _indexed(folder, folder / index)
            break
    else:
        files = [n for n in ("model.safetensors", "pytorch_model.bin") if os.path.lexists(folder / n)][:1]
        if not files:
            other = next((n for n in sorted(os.listdir(folder)) if n.endswith((".safetensors", ".gguf", ".pth"))), None)
            do = "add them" if other is None else f"rename {ascii(shorten(other, 80))}, if it is they"
            raise MlircError(f"{folder}: no weights (model.safetensors): {do}, or give --random-weights SEED")
    read = []
    for file in files:
        path = folder / file
        check_inside(folder, path)
        if file.endswith(".bin"):
            _judge_pickled(path)
        else:
            read.append(WeightFile(path))
    return read


def _indexed(folder: Path, index: Path) -> list[str]:
    """The weight files that an index names: files of the folder itself."""
    check_inside(folder, index)
    found = parse_json(read_bytes(index), str(index))
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise MlircError(f"{index}: not a weight index")
    files = sorted(set(names.values()))
    for name in files:
        if (
            not re.fullmatch(r"[\w.+-]{1,200}", name)
            or name.startswith(".")
            or not name.endswith((".safetensors", ".bin"))
        ):
            raise MlircError(f"{index}: the weight file {ascii(shorten(name, 80))} is none of this folder")
        if not os.path.lexists(folder / name):
            raise MlircError(f"{folder}: the weight file {name} that {index.name} names is missing")
    return files


def _judge_pickled(path: Path) -> None:
    """Weights that PyTorch saved: transformers loads them without running code, but trusts their sizes."""
    with open_regular(path) as file:
        if file.read(2) != b"PK":
            raise MlircError(f"{path}: weights in an old format, or damaged: save them as model.safetensors")
    with Archive(path, str(path)) as archive:
        root = archive.names[0].split("/", 1)[0] + "/" if archive.names else ""
        check_tensors(archive, scan_pickle(archive.read(root + "data.pkl"), str(path)), root + "data/")
        archive.check()


@contextlib.contextmanager
def bounded_building() -> Iterator[None]:
    """A model built inside may have so many modules, and no more: a config of a few bytes can ask for any number.
    Raises MlircError."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1
        if count > _MODULES:
            raise MlircError(f"the config asks for a model of more than {_MODULES:,} modules")

    hook = torch.nn.modules.module.register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()
