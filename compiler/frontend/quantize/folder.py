"""A Hugging Face folder whose weights are read when they are asked for, packed ones too: never all at once."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from mlirc.errors import MlircError
from mlirc.files.opening import read_bytes
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.quantize.checkpoints import order_of, packed_layer, parts_of
from mlirc.frontend.quantize.layers import Place, placeholder, places_of, replace_layers
from mlirc.frontend.quantize.packing import PANEL
from mlirc.frontend.quantize.rounding import Packed, Weight
from mlirc.frontend.quantize.scheme import Checkpoint
from mlirc.frontend.weight_account import check_stored
from mlirc.frontend.weights import OnDemand, tied_names
from mlirc.runtime.weights import WeightFile

STORED = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "i1": torch.bool, "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
}  # fmt: skip


class FolderTensors(OnDemand):
    """The tensors of a judged folder's safetensors files, each read from its map when it is asked for."""

    def __init__(self, path: Path):
        index = path / "model.safetensors.index.json"
        names = {"model.safetensors"}
        if index.exists():
            names = set(json.loads(read_bytes(index))["weight_map"].values())
        if not all(name.endswith(".safetensors") for name in names) or not all((path / n).exists() for n in names):
            raise MlircError(f"{path}: quantized weights are read from model.safetensors: add it")
        self.files: dict[str, WeightFile] = {}
        self.others: list[str] = []  # of types that nothing here reads
        for name in sorted(names):
            file = WeightFile(path / name)
            self.files |= dict.fromkeys(file.entries, file)
            self.others += file.others
        self.names = self.files

    def __getitem__(self, name: str) -> torch.Tensor:
        file = self.files[name]
        entry = file.entries[name]
        raw = torch.from_numpy(file.array(name).reshape(-1).view("u1").copy())
        return raw.view(STORED[entry.dtype]).view(entry.shape)


def open_weights(
    path: Path, module: torch.nn.Module, about: Checkpoint | None
) -> tuple[CheckpointWeights, list[Place]]:
    """The weights of a model, whose parameters are fake tensors, out of its folder, and the layers that are packed
    there, which this replaces in the model. Raises MlircError where the folder does not have what the model needs."""
    tensors = FolderTensors(path)
    places = [p for p in places_of(module, head=True) if about and f"{sources_of(p)[0]}.{about.marker}" in tensors]
    if about and not places:
        raise MlircError(f"{path}: no layer has weights as its quantization config ({about.method}) says")
    wrong = next((p for p in places if p.transposed and about and about.scheme.format.floating), None)
    if wrong is not None:  # whose weight is [K, N]: nothing says how the folder has it
        raise MlircError(f"{path}: layer '{wrong.name}' is a Conv1D, of which no 8-bit floats are read")
    layers = {p.name: p.shape for p in places}
    dtypes = {p.name: p.weight.dtype for p in places}
    experts = {p.name: sources_of(p) for p in places if p.experts}
    orders = {}
    if about:
        orders = {p.name: order for p in places if (order := _order(tensors, p, about)) is not None}
        for place in places:
            _require_readable_experts(path, place, about)
        put_placeholders(module, about, list(places), set(orders))
    state, buffers = module.state_dict(), dict(module.named_buffers())
    specs = {name: InputSpec.of(name, tensor) for name, tensor in state.items()}
    packed = {name for name in state if _layer_of(name) in layers}
    fixed = {name: tensor for name, tensor in state.items() if name in buffers and name not in packed}
    tied = tied_names(module)
    found = {tied[name]: name for name in tied if name in tensors}  # any of a tensor's names may be in the file
    tied = {name: found.get(other, other) for name, other in tied.items()}
    weights = CheckpointWeights(tensors, about, layers, dtypes, specs, tied, fixed, orders, experts)
    weights.check(path)
    return weights, places


def sources_of(place: Place) -> list[str]:
    """The names that a folder has for the layers of a place: one, or those of its experts one after the other, the
    gate's before the other that goes up."""
    if not place.experts:
        return [place.name]
    owner, _, leaf = place.name.rpartition(".")
    leaves = ["gate_proj", "up_proj"] if leaf == "gate_up_proj" else [leaf]
    return [f"{owner}.{number}.{name}" for number in range(place.experts) for name in leaves]


def _order(tensors: FolderTensors, place: Place, about: Checkpoint) -> torch.Tensor | None:
    """Which k are one behind the other, of a layer with act-order."""
    found = [order_of(tensors, name, place.shape[1], about) for name in sources_of(place)]
    if place.experts and any(order is not None for order in found):
        raise MlircError(f"experts '{place.name}' have act-order (desc_act), with which no experts are read")
    return found[0]


def _require_readable_experts(path: Path, place: Place, about: Checkpoint) -> None:
    """Raises MlircError for experts that are packed in a way in which only layers are read."""
    if not place.experts:
        return
    rows = place.shape[0] // len(sources_of(place))
    reason = "are [K, N] in the model" if place.transposed else ""
    reason = reason or ("round their activations" if about.scheme.activations else "")
    reason = reason or (f"have {rows} rows, no multiple of {PANEL}" if rows % PANEL else "")
    if reason:
        raise MlircError(
            f"{path}: experts '{place.name}' {reason}: such quantized experts are not read: give the unquantized "
            "weights, and --quantize SCHEME"
        )


def _layer_of(name: str) -> str | None:
    """The layer that a buffer is a part of the weight of."""
    layer, _, part = name.rpartition(".")
    return layer if part.startswith("weight_") else None


def put_placeholders(
    module: torch.nn.Module, about: Checkpoint, places: list[Place], ordered: Collection[str] = ()
) -> None:
    """Packed layers of the right shapes, fake where the model's parameters are; `ordered`: those with act-order."""
    mode = next((p.fake_mode for p in module.parameters() if hasattr(p, "fake_mode")), contextlib.nullcontext())

    def packed(place: Place) -> Weight:
        with mode:
            dtype, ordered_here = place.weight.dtype, place.name in ordered
            return placeholder(place.shape, about.scheme, dtype, ordered_here, place.experts)

    replace_layers(module, about.scheme, places, packed)


class CheckpointWeights(OnDemand):
    """The state dict of a model with packed layers, of a folder's tensors. `layers`: shapes [N, K] by name, and
    `dtypes`; `specs`: what the model has; `tied`: names that are other names' tensors; `fixed`: buffers that the model
    gives itself, where the folder has none; `orders`: of the layers with act-order; `experts`: the folder's names of
    those whose weights are one here. The layer that was asked for last is kept."""

    def __init__(
        self,
        tensors: FolderTensors,
        about: Checkpoint | None,
        layers: Mapping[str, tuple[int, int]],
        dtypes: Mapping[str, torch.dtype],
        specs: Mapping[str, InputSpec],
        tied: Mapping[str, str],
        fixed: Mapping[str, torch.Tensor],
        orders: Mapping[str, torch.Tensor],
        experts: Mapping[str, list[str]],
    ):
        self.tensors, self.about, self.layers, self.specs = tensors, about, dict(layers), dict(specs)
        self.tied, self.fixed, self.names = dict(tied), dict(fixed), self.specs
        self.dtypes, self.orders, self.experts = dict(dtypes), dict(orders), dict(experts)
        self._last: tuple[str, Weight] | None = None

    def check(self, path: Path) -> None:
        """Raises MlircError for a tensor that is missing, or of another shape than the config asks for."""
        for layer in (name for each in self.layers for name in self.experts.get(each, [each])):
            extra = f"{layer}.bias"
            if extra in self.tensors and extra not in self.specs and bool(self.tensors[extra].any()):
                raise MlircError(f"{path}: weight '{extra}' is for a layer that has none")
        for name, spec in self.specs.items():
            if _layer_of(name) in self.layers:
                continue
            found = self.tensors.files.get(self.tied.get(name, name))
            if found is None and name in self.fixed:
                continue
            if found is None:
                raise MlircError(f"{path}: the weights lack '{name}'{self._other_experts()}")
            entry = found.entries[self.tied.get(name, name)]
            shape = entry.shape
            check_stored(path, name, STORED[entry.dtype], spec.dtype)
            if tuple(shape) != tuple(spec.shape):
                wanted = f"the config asks for {list(spec.shape)}"
                raise MlircError(f"{path}: weight '{name}' has shape {list(shape)}, but {wanted}")

    def _other_experts(self) -> str:
        """What to say of packed experts that the folder has under names that are none of the model's."""
        marker = re.escape(self.about.marker) if self.about else "-"
        name = next((n for n in sorted(self.unread()) if re.search(rf"\.experts\.\d+\..*\.{marker}$", n)), None)
        if name is None:
            return ""
        return f": it has quantized experts by other names ('{name}'), which are not read: give the unquantized weights"

    def unread(self) -> set[str]:
        """The folder's tensors that are no part of the model."""
        read = {self.tied.get(name, name) for name in self.specs} | set(self.specs)
        if self.about is not None:
            held = [name for layer in self.layers for name in self.experts.get(layer, [layer])]
            read |= {f"{name}.{part}" for name in held for part in (*parts_of(self.about), "bias")}
        return {*self.tensors.files, *self.tensors.others} - read

    def __getitem__(self, name: str) -> torch.Tensor:
        layer = _layer_of(name)
        if layer is not None and layer in self.layers:
            value = self.packed(layer).parts()[name.rpartition(".")[2]]
        elif name in self.fixed and self.tied.get(name, name) not in self.tensors:
            value = self.fixed[name]
        else:
            value = self.tensors[self.tied.get(name, name)]
        value = value.view(self.specs[name].shape) if layer in self.experts else value
        return value.to(self.specs[name].dtype)

    def packed(self, layer: str) -> Weight:
        """The packed weight of a layer."""
        if self._last is None or self._last[0] != layer:
            assert self.about is not None, "a layer is packed where a config says so"
            shape, order, names = self.layers[layer], self.orders.get(layer), self.experts.get(layer, [layer])
            shape = shape[0] // len(names), shape[1]
            made = [packed_layer(self.tensors, n, shape, self.about, self.dtypes[layer], order) for n in names]
            self._last = layer, made[0] if layer not in self.experts else _together(made)
        return self._last[1]


def _together(weights: list[Weight]) -> Packed:
    """The packed weights of experts one below the other, whose panels are full."""
    made = [w for w in weights if isinstance(w, Packed)]
    zeros = [w.zeros for w in made if w.zeros is not None]
    words, scales = torch.cat([w.words for w in made]), torch.cat([w.scales for w in made])
    return Packed(words, scales, torch.cat(zeros) if zeros else None, experts=len(made))
