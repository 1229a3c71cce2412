"""What a graph does with the memory of its inputs, found by running it on tensors without data.

Compiled code returns fresh tensors. Where PyTorch returns an input, or a view of one, the caller must get just that:
writes into the one show in the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mlirc.errors import MlircError
from mlirc.frontend.data_attribute import DataAttribute
from mlirc.frontend.diagnose import export_error
from mlirc.frontend.item_assignment import ItemAssignment

_LARGEST = 1 << 26  # elements of a storage whose parts are looked at one by one
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


@dataclass(frozen=True)
class Computed:
    """An output that the compiled code computes: its number there, the order of its dimensions in memory, and the
    strides that PyTorch gives it."""

    number: int
    order: tuple[int, ...]
    stride: tuple[int, ...] = ()


@dataclass(frozen=True)
class Looked:
    """An output that looks at the memory of an input, or (`computed`) of another output. No `size`: that tensor
    itself."""

    at: int
    computed: bool = False
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Known:
    """An output that is no tensor."""

    value: Any


@dataclass
class Facts:
    """`read`: the tensor inputs that the graph uses, by position, with the order of their dimensions in memory.
    `written`: those that it writes, by position. `outputs`: what each output is. `computed`: the outputs, by position,
    that are to be computed. `device`: where. `looks`: sizes and strides of the inputs that outputs are views of."""

    read: dict[int, tuple[int, ...]]
    written: list[int]
    outputs: list[Computed | Looked | Known]
    computed: list[int]
    device: torch.device
    looks: dict[int, tuple]


@contextlib.contextmanager
def apart_from_tracing() -> Iterator[None]:
    """Runs the body as if no Dynamo, autograd, autocast or inference mode was at work around it."""
    with (
        tracing(None),
        unset_fake_temporarily(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),  # type: ignore[attr-defined]
    ):
        yield


def study(graph: Callable[..., Any], name: str, used: Sequence[bool], args: Sequence[Any]) -> Facts:
    """The facts about a graph for inputs of these sizes, strides and numbers; `used` says which inputs it uses. Only
    the metadata of tensors is read. Call it `apart_from_tracing`. Raises MlircError for what compiled code cannot
    do."""
    for value in args:
        if isinstance(value, torch.Tensor):
            _require_plain(value)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())  # in which numbers read from tensors are
    with mode, ItemAssignment(), DataAttribute():
        fakes = [like(v) if isinstance(v, torch.Tensor) else v for v in args]
        tensors = {i: v for i, v in enumerate(fakes) if isinstance(v, torch.Tensor)}
        before = {i: (v._version, _place(v)) for i, v in tensors.items()}
        try:
            found = graph(*fakes)
        except Exception as e:
            raise export_error(name, e) from e
        written = [i for i, v in tensors.items() if v._version != before[i][0]]
        for i, v in tensors.items():
            if _place(v) != before[i][1]:
                raise MlircError(f"input {i} gets another shape or other memory in place, which cannot be compiled")
    read = {i: memory_order(v) for i, v in tensors.items() if used[i]}
    results = list(found)
    _require_known_sizes(results)
    devices = {v.device for i, v in tensors.items() if used[i] and not (v.device.type == "cpu" and not v.dim())}
    devices |= {v.device for v in results if isinstance(v, torch.Tensor) and id(v) not in {id(t) for t in fakes}}
    devices = devices or {torch.device("cpu")}
    if len(devices) > 1:
        raise MlircError(f"the graph works on several devices: {', '.join(sorted(map(str, devices)))}")
    outputs, computed = _outputs(results, tensors)
    looked = {o.at for o in outputs if isinstance(o, Looked) and not o.computed and o.size is not None}
    looks = {at: (tuple(tensors[at].shape), tuple(tensors[at].stride())) for at in looked}
    return Facts(read, written, outputs, computed, devices.pop(), looks)


def _require_plain(value: torch.Tensor) -> None:
    if type(value) not in _PLAIN:
        raise MlircError(f"an input is a {type(value).__name__}: only plain tensors can be inputs")
    if value.layout != torch.strided or value.is_conj() or value.is_neg():
        how = value.layout if value.layout != torch.strided else "lazily conjugated or negated"
        raise MlircError(f"an input is a tensor that is {how}: only dense tensors can be inputs")


def _require_known_sizes(results: list[Any]) -> None:
    for place, value in enumerate(results):
        numbers = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
        if any(isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)) for n in numbers):
            what = "the shape of output" if isinstance(value, torch.Tensor) else "output"
            raise MlircError(f"{what} {place} depends on the values of a tensor: a compiled graph has fixed shapes")


def like(value: torch.Tensor) -> torch.Tensor:
    """A tensor without data, of the sizes and strides of another, in the fake mode that is on."""
    size, stride = [int(n) for n in value.shape], [int(n) for n in value.stride()]
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)


def _place(value: torch.Tensor) -> tuple:
    return tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype, _storage(value)


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def memory_order(value: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a dense tensor from the one that moves slowest in memory to the fastest, so that it is
    contiguous once it is permuted so; () where it is contiguous as it is, or not dense."""
    if value.is_contiguous() or value.dim() < 2:
        return ()
    sizes, strides = value.shape, [int(n) for n in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda d: (sizes[d] != 1, -strides[d], d)))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            return ()
        expected *= sizes[d]
    return order


def _outputs(results: list[Any], inputs: dict[int, torch.Tensor]) -> tuple[list, list[int]]:
    """What each output is, and which are to be computed."""
    owners = {_storage(v): i for i, v in inputs.items()}
    fresh: dict[int, list[int]] = {}
    for place, value in enumerate(results):
        if isinstance(value, torch.Tensor) and _storage(value) not in owners:
            if value.layout != torch.strided:
                raise MlircError(f"output {place} is a tensor of layout {value.layout}, which cannot be compiled")
            fresh.setdefault(_storage(value), []).append(place)
    bases = {storage: _base(results, places) for storage, places in fresh.items()}
    outputs: list[Computed | Looked | Known] = []
    computed: list[int] = []
    for place, value in enumerate(results):
        if not isinstance(value, torch.Tensor):
            outputs.append(Known(_plain(value, place)))
        elif _storage(value) in owners:
            at = owners[_storage(value)]
            outputs.append(_looked(value, inputs[at], at, False))
        elif (base := bases[_storage(value)]) is not None and base != place:
            outputs.append(_looked(value, results[base], base, True))
        else:
            outputs.append(Computed(len(computed), memory_order(value), tuple(map(int, value.stride()))))
            computed.append(place)
    return outputs, computed


def _plain(value: Any, place: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise MlircError(f"output {place} is a {type(value).__name__}, which cannot be compiled")


def _looked(value: torch.Tensor, owner: torch.Tensor, at: int, computed: bool) -> Looked:
    if value is owner:
        return Looked(at, computed)
    if value.dtype != owner.dtype or value.is_conj() or value.is_neg():
        raise MlircError(f"a result is a view of a tensor of {owner.dtype} as {value.dtype}, which cannot be compiled")
    return Looked(at, computed, tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))


def _base(results: list[Any], places: list[int]) -> int | None:
    """The output that holds all memory which these share, and which the others look at; None where each can be
    computed by itself, since no two share an element."""
    if len(places) == 1:
        return None
    for place in places:
        value = results[place]
        dense = value.is_contiguous() or memory_order(value)
        if dense and value.numel() * value.element_size() == value.untyped_storage().nbytes():
            return place
    distinct: list[torch.Tensor] = []
    for place in places:
        if not any(results[place] is other for other in distinct):
            distinct.append(results[place])
    if len(distinct) == len(places) and _disjoint(distinct):
        return None
    raise MlircError(f"outputs {', '.join(map(str, places))} look at the same memory, which is no output")


def _disjoint(values: list[torch.Tensor]) -> bool:
    """Whether no two of these views of one storage share an element; False where that is too much to look at."""
    size = values[0].untyped_storage().nbytes() // values[0].element_size()
    if size > _LARGEST or len({v.dtype for v in values}) > 1:
        return False
    taken = np.zeros(size, bool)
    for value in values:
        item = taken.itemsize
        window = np.lib.stride_tricks.as_strided(
            taken[value.storage_offset() :], tuple(value.shape), tuple(s * item for s in value.stride())
        )
        if window.any():
            return False
        window[...] = True
    return True
