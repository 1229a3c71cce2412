"""Weights by name: random ones made on demand, and the safetensors file beside a compiled model."""

from __future__ import annotations

import json
import math
import os
import struct
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import torch

from mlirc.files.checksums import sum_of
from mlirc.files.marks import METADATA
from mlirc.files.outputs import Outputs, check_writable
from mlirc.frontend.inputs import InputSpec, name_seed
from mlirc.runtime.lazy import resolved
from mlirc.runtime.weights import CHECKSUM, checksum_place

_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_MAKERS = 4  # threads that make random weights, each with one in memory, in f32, too


class OnDemand(Mapping[str, torch.Tensor]):
    """Tensors by name, each made or read when it is asked for; those of `names`."""

    names: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:  # Mapping's own would make the tensor
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class RandomWeights(OnDemand):
    """A state dict whose tensors are made when they are asked for, each from (seed, name, shape) alone.

    Not cached: a model of any size costs no memory until its weights are read, and any process gets the same values.
    """

    def __init__(
        self,
        specs: Mapping[str, InputSpec],
        seed: int,
        fixed: Mapping[str, torch.Tensor] | None = None,
        tied: Mapping[str, str] | None = None,
    ):
        """`fixed`: tensors that are not random; `tied`: names that share the value of another name."""
        self.specs, self.seed, self.fixed, self.tied = dict(specs), seed, dict(fixed or {}), dict(tied or {})
        self.names = self.specs

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.fixed:
            return self.fixed[name]
        return random_weight(self.specs[self.tied.get(name, name)], self.seed)


class Renamed(OnDemand):
    """A mapping seen under other names, still lazy: `names` maps the new name to the old one."""

    def __init__(self, source: Mapping[str, torch.Tensor], names: Mapping[str, str]):
        self.source, self.names = source, dict(names)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.source[self.names[name]]


def tied_names(module: torch.nn.Module) -> dict[str, str]:
    """For each name of a parameter the first name of the same parameter."""
    first: dict[int, str] = {}
    return {n: first.setdefault(id(p), n) for n, p in module.named_parameters(remove_duplicate=False)}


def random_weight(spec: InputSpec, seed: int) -> torch.Tensor:
    """The random value of one weight, made in f32 and rounded to the spec's dtype.

    Generator seed: `name_seed(name, seed)`. With n standard normal: norm weights, scales and variances (vectors whose
    name does not say bias or mean) 1 + n/50 (variances 1 + |n|/50); convolutions n * sqrt(2/fan_in); everything else
    n/50. Integer buffers are 0.
    """
    if not spec.dtype.is_floating_point:
        return torch.zeros(spec.shape, dtype=spec.dtype)
    generator = torch.Generator().manual_seed(name_seed(spec.name, seed))
    value = torch.randn(spec.shape, generator=generator)
    leaf = spec.name.rsplit(".", 1)[-1].lower()
    if len(spec.shape) > 2 and leaf == "weight":
        value.mul_(math.sqrt(2.0 / max(1, math.prod(spec.shape[1:]))))
    else:
        value.mul_(0.02)
    if "var" in leaf:
        value.abs_().add_(1.0)
    elif len(spec.shape) == 1 and not any(word in leaf for word in ("bias", "mean", "token", "embed")):
        value.add_(1.0)
    return value.to(spec.dtype)


def write_weights(
    path: str | Path, weights: Mapping[str, torch.Tensor], progress: Callable[[int, int], None] | None = None
) -> int:
    """Writes a safetensors file, one tensor in memory at a time (of random ones `_MAKERS`), and puts it in place only
    when it is whole.

    `progress(done_bytes, all_bytes)` is called after each tensor. Returns the file's size in bytes. Raises MlircError
    when the file cannot be written.
    """
    check_writable(Path(path))
    with Outputs() as outputs:
        outputs.add(Path(path), weights_writer(weights, progress))
    return Path(path).stat().st_size


def weights_writer(
    weights: Mapping[str, torch.Tensor], progress: Callable[[int, int], None] | None = None
) -> Callable[[Path], str]:
    """What writes the weights to a path, for `Outputs.add`, and returns their checksum; arguments as of
    `write_weights`."""
    specs = {name: _spec(weights, name) for name in weights}
    header: dict[str, dict[str, Any]] = {"__metadata__": {**METADATA, CHECKSUM: "0" * 64}}
    at = 0
    for name, spec in specs.items():
        size = math.prod(spec.shape) * spec.dtype.itemsize
        header[name] = {
            "dtype": _SAFETENSORS[spec.dtype], "shape": list(spec.shape), "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    start = 8 + len(text)

    def put(file: BinaryIO, name: str) -> None:
        tensor = resolved(weights[name]).cpu().contiguous()
        file.seek(start + header[name]["data_offsets"][0])
        file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]

    def put_apart(path: Path, name: str) -> None:
        with path.open("r+b") as file:
            put(file, name)

    def write(temporary: Path) -> str:
        with temporary.open("wb") as file, ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MAKERS)) as makers:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(start + at)
            made = {name: makers.submit(put_apart, temporary, name) for name in specs if _is_made(weights, name)}
            try:
                for name in specs:
                    made[name].result() if name in made else put(file, name)
                    if progress:
                        progress(header[name]["data_offsets"][1], at)
            except BaseException:
                makers.shutdown(cancel_futures=True)
                raise
        with temporary.open("r+b") as file:
            place = checksum_place(8 + len(text))
            found = sum_of(file.fileno(), place)
            file.seek(place.start)
            file.write(found.encode())
        return found

    return write


def _is_made(weights: Mapping[str, torch.Tensor], name: str) -> bool:
    """Whether a weight is random numbers, which take longer to make than to write: several at a time, then."""
    if isinstance(weights, ChainMap):
        return _is_made(next(m for m in weights.maps if name in m), name)
    if isinstance(weights, Renamed):
        return _is_made(weights.source, weights.names[name])
    return isinstance(weights, RandomWeights)


def _spec(weights: Mapping[str, torch.Tensor], name: str) -> InputSpec:
    """The description of one weight, without making it where that is possible."""
    if isinstance(weights, ChainMap):
        return _spec(next(m for m in weights.maps if name in m), name)
    if isinstance(weights, Renamed):
        return _spec(weights.source, weights.names[name])
    specs = getattr(weights, "specs", None)  # of those that are made on demand
    return specs[name] if specs is not None else InputSpec.of(name, weights[name])
