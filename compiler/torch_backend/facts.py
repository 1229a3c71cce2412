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
    """An output that the compiled code computes: its number there, the order of its dimensions in memory, and the shape
    and strides that PyTorch gives it. Of the dimensions in `repeated`, whose stride is 0, only the first index is
    computed. `whole`: the code gives all of the output's storage, flat, as other outputs look at it, too."""

    number: int
    order: tuple[int, ...]
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    whole: int | None = None  # elements of that storage
    offset: int = 0  # of the output's first element in it
    is_complex: bool = False  # the code gives pairs of real numbers
    conj: bool = False  # its conjugate bit; the code gives what lies in memory
    neg: bool = False


@dataclass(frozen=True)
class Looked:
    """An output that looks at the memory of an input, or (`computed`) of another output. No `size`: that tensor
    itself. `dtype`: what it takes the memory's bytes for, where not as the other; `conj` and `neg`: its conjugate and
    negative bits."""

    at: int
    computed: bool = False
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype | None = None
    conj: bool = False
    neg: bool = False


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
    has_complex: bool = False  # among what is read or computed


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
    pairs = any(v.is_complex() for v in (*(tensors[at] for at in read), *(results[at] for at in computed)))
    return Facts(read, written, outputs, computed, devices.pop(), looks, pairs)


def _require_plain(value: torch.Tensor) -> None:
    if type(value) not in _PLAIN:
        raise MlircError(f"an input is a {type(value).__name__}: only plain tensors can be inputs")
    if value.layout != torch.strided:
        raise MlircError(f"an input is a tensor of layout {value.layout}: only dense tensors can be inputs")


def _require_known_sizes(results: list[Any]) -> None:
    for place, value in enumerate(results):
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise MlircError(
                f"output {place} is a tensor of layout {value.layout}: only dense tensors can be outputs (an "
                "embedding's gradient is one with sparse=False)"
            )
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
    order = _stride_order(value)
    expected = 1
    for d in reversed(order):
        if value.shape[d] != 1 and value.stride(d) != expected:
            return ()
        expected *= value.shape[d]
    return order


def _stride_order(value: torch.Tensor) -> tuple[int, ...]:
    """The dimensions by their strides, the greatest first."""
    return tuple(sorted(range(value.dim()), key=lambda d: (value.shape[d] != 1, -int(value.stride()[d]), d)))


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
            shared = base is not None and (len(fresh[_storage(value)]) > 1 or _overlaps(value))
            outputs.append(_computed(value, len(computed), shared))
            computed.append(place)
    return outputs, computed


def _computed(value: torch.Tensor, number: int, shared: bool) -> Computed:
    """An output that is computed, and whose storage others look at where `shared`."""
    size, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    bits = value.is_complex(), value.is_conj(), value.is_neg()
    if shared and not _is_whole(value):
        elements = value.untyped_storage().nbytes() // value.element_size()
        return Computed(number, (), size, stride, (), elements, int(value.storage_offset()), *bits)
    repeated = tuple(d for d in range(value.dim()) if stride[d] == 0 and size[d] > 1)
    alone = value
    for d in repeated:
        alone = alone.narrow(d, 0, 1)
    order = () if alone.is_contiguous() else _stride_order(alone)
    order = () if order == tuple(range(value.dim())) else order
    return Computed(number, order, size, stride, repeated, None, 0, *bits)


def _plain(value: Any, place: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise MlircError(f"output {place} is a {type(value).__name__}, which cannot be compiled")


def _looked(value: torch.Tensor, owner: torch.Tensor, at: int, computed: bool) -> Looked:
    if value is owner:
        return Looked(at, computed)
    dtype = value.dtype if value.dtype != owner.dtype else None
    size, stride, offset = tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    return Looked(at, computed, size, stride, offset, dtype, value.is_conj(), value.is_neg())


def _base(results: list[Any], places: list[int]) -> int | None:
    """The output that holds all memory which these share, and which the others look at: one that is all of it, or one
    whose storage is computed instead; None where each can be computed by itself, as no two share an element."""
    if len(places) == 1:
        return places[0] if _overlaps(results[places[0]]) else None
    for place in places:
        if _is_whole(results[place]):
            return place
    distinct: list[torch.Tensor] = []
    for place in places:
        if not any(results[place] is other for other in distinct):
            distinct.append(results[place])
    if len(distinct) == len(places) and _disjoint(distinct):
        return None
    return places[0]


def _is_whole(value: torch.Tensor) -> bool:
    """Whether a tensor is dense, and all of its storage."""
    dense = value.is_contiguous() or memory_order(value)
    return bool(dense) and value.numel() * value.element_size() == value.untyped_storage().nbytes()


def _overlaps(value: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory, but for dimensions that repeat all of it."""
    if not value.numel():
        return False
    reach = 0  # of the dimensions so far, from their first element to their last
    for stride, size in sorted((int(value.stride()[d]), int(n)) for d, n in enumerate(value.shape)):
        if stride and size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


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
