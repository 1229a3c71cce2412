"""Opening a compiled model: the PTX file with its plan, and the weights beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError, missing_package, require_type
from mlirc.files.opening import open_regular, read_bytes
from mlirc.runtime.model import CompiledModel
from mlirc.runtime.plan import Plan
from mlirc.runtime.plan_file import extract
from mlirc.runtime.weights import WeightFile
from mlirc.turns import LoadedModel


def read_model(path: str | os.PathLike) -> tuple[str, Plan]:
    """Reads a compiled model file: (the file's text, its plan). Raises MlircError when it is not one."""
    try:
        text = read_bytes(path).decode()  # not as text: the checksum is over the bytes
    except UnicodeDecodeError as e:
        raise MlircError(f"{path}: damaged, or no PTX file: it is not text") from e
    return text, extract(text, str(path))


def check_unchanged(path: str | os.PathLike, text: str) -> None:
    """Raises MlircError unless a model's file is still the one that `text` was read from: what was found beside it
    since then would be another compilation's (`mlirc.files.outputs` takes the file away first, and puts it in last)."""
    first = text.partition("\n")[0].encode()
    try:
        with open_regular(path) as file:
            same = file.readline(len(first) + 1).rstrip(b"\n") == first
    except MlircError:
        same = False
    if not same:
        raise MlircError(f"{path}: was compiled anew while it was read: load it again")


class Weights(Mapping[str, Any]):
    """A plan's weights by name, each as a tensor or as a view of a file, made when it is asked for."""

    def __init__(self, sources: Mapping[str, Any]):
        self._sources = sources

    def __getitem__(self, name: str) -> Any:
        source = self._sources[name]
        return source.view(name) if isinstance(source, WeightFile) else source[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def find_weights(
    path: str | os.PathLike, plan: Plan, weights: str | os.PathLike | Mapping[str, Any] | None, verify: bool = True
) -> Mapping[str, Any]:
    """The plan's weights by name. Files that mlirc wrote are held against their checksums (`verify`).

    They come from `weights` (a safetensors file, or tensors by name), or, where that is None, from the safetensors file
    beside the model. Constants, which are in no state dict, are looked up there in any case, and so are states' initial
    values that `weights` does not have. A name found nowhere is
    left out; a missing file raises MlircError, and so does one beside the model that was not written with it.
    """
    kinds = (type(None), str, os.PathLike, Mapping)
    require_type(weights, kinds, "weights", "a safetensors file, or tensors by name (a state_dict())")
    given: Any = WeightFile(weights) if isinstance(weights, str | os.PathLike) else weights
    if not plan.weights:
        return {}
    file = Path(path).with_suffix(".safetensors")
    beside = WeightFile(file) if file.exists() else None
    if given is None and beside is None:
        raise MlircError(f"{path}: its weights are missing: expected {file}; give them with --weights FILE or weights=")
    if beside is not None and plan.weights_checksum not in ("", beside.checksum):
        raise MlircError(
            f"{file}: damaged, or not the weights that were written with {path}: compile the model again, or give them "
            "with --weights FILE or weights= if they are meant"
        )
    for each in {id(f): f for f in (beside, given) if isinstance(f, WeightFile)}.values() if verify else ():
        each.verify()
    sources: dict[str, Any] = {}
    for spec in plan.weights:
        source = given
        if given is None or (spec.kind in ("constant", "state") and spec.name not in given):
            source = beside
        if source is not None and spec.name in source:
            sources[spec.name] = source
    return Weights(sources)


def check_device(device: Any) -> Any:
    """The device as it is; raises MlircError unless it is a GPU's number or `host`."""
    if device != "host" and (not isinstance(device, int) or isinstance(device, bool) or device < 0):
        raise MlircError(f"device '{device}': give a GPU's number, or 'host'")
    return device


def check_share(share: Any, device: Any) -> None:
    """Raises MlircError unless what a model on this device is to share with is a loaded model on it, or None."""
    if share is None:
        return
    require_type(share, LoadedModel, "share", "a loaded model (mlirc.load), or None")
    if share.device != device:
        raise MlircError(
            f"share is on device {share.device}, and the model is loaded onto {device}: choose one of them"
        )
    with share._turn:  # not closed
        pass


def load(
    path: str | os.PathLike,
    weights: str | os.PathLike | Mapping[str, Any] | None = None,
    device: int | str = 0,
    *,
    graph: bool = True,
    driver: Any = None,
    share: Any = None,
    verify: bool = True,
    frozen: bool = False,
) -> Any:
    """Loads a compiled model file onto a GPU: a `CompiledModel`. With `device="host"` onto the host device, which needs
    no GPU but MLIR: a `mlirc.device.HostModel`, which is called in the same way.

    `weights`: None for the safetensors file beside it, another such file, or tensors by name (a live module's
    `state_dict()`): those on the GPU are used in place. `graph=False` launches kernel by kernel. `share`: a loaded
    model on the same device whose weights and states this one uses where it has them, by name. `verify=False` leaves
    out the checksums of weights' files, and of levels that the host device reads. `frozen`: weights that are used in
    place do not change any more, so that what the model computes of weights alone is computed once, at load. Raises
    MlircError for a damaged file, missing or unfitting weights, a GPU that the file was not compiled for, or no GPU.
    """
    require_type(path, (str, os.PathLike), "path", "the name of a file that mlirc wrote")
    check_device(device)
    check_share(share, device)
    text, plan = read_model(path)
    found = find_weights(path, plan, weights, verify)
    check_unchanged(path, text)
    if isinstance(device, int):
        return CompiledModel(text, plan, found, device, graph, driver, str(path), share, frozen)
    try:
        from mlirc.device import HostModel  # here, because the runtime stands without MLIR
    except ModuleNotFoundError as e:
        raise missing_package(e) or e from e
    return HostModel(Path(path), plan, found, ptx=text, share=share, verify=verify)


def load_text(
    text: str,
    weights: Mapping[str, Any],
    device: int = 0,
    *,
    graph: bool = True,
    driver: Any = None,
    share: CompiledModel | None = None,
    frozen: bool = False,
) -> CompiledModel:
    """Loads a compiled model from its text, as `load` does from a file, with weights and constants by name."""
    plan = extract(text, "model")
    return CompiledModel(text, plan, weights, device, graph, driver, plan.model, share, frozen)
