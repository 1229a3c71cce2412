"""The function that Dynamo calls in a graph's stead: compiled, or eager where that failed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from mlirc import internal
from mlirc.errors import MlircError
from mlirc.torch_backend.executors import Executor, executor, sizes_of
from mlirc.torch_backend.facts import Computed, Facts, Known, Looked, apart_from_tracing, study
from mlirc.torch_backend.options import Options
from mlirc.torch_backend.program import as_real, inverse, lowered
from mlirc.torch_backend.sized import Bound, Request, Sized
from mlirc.turns import exporting

log = logging.getLogger("mlirc.torch_backend")
log.setLevel(logging.WARNING)  # of its own: while a model is imported, other loggers are quiet

SIZES_KEPT = 32  # compiled by themselves, of one graph; the least recently used are compiled again when they come back
SIZES_KNOWN = 1024  # of one graph, that share code: what results look at is found again when they come back

_NEW = object()  # sizes that nothing was made for


class Compiled:
    """A graph for inputs of one set of sizes; `alone` says that its code is for those only."""

    def __init__(
        self, graph: torch.fx.GraphModule, args: Sequence[Any], options: Options, name: str, sized: Sized | None = None
    ):
        users = [n.users for n in graph.graph.nodes if n.op == "placeholder"]
        used = [any(user.op != "output" for user in u) for u in users]
        self.graph, self.name = graph, name
        self.facts: Facts = study(graph, name, used, args)
        self._run: Executor | None = None
        self.alone = False
        if self.facts.computed or self.facts.written:
            self._run = sized.executor(args, self.facts) if sized else None
            self.alone = self._run is None
            if self._run is None:
                job = lowered(graph, args, self.facts, options, name)
                self._run = executor(job, self.facts.device, options)
        self._told = False

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        if self.facts.written and self._shared(args):
            return self._eager(args, "an input that it writes shares memory with another input")
        if any(_layout(args[at]) != (*seen, False) for at, seen in self.facts.looks.items()):
            return self._eager(args, "an input that it returns a view of has other strides than it was made for")
        with torch.no_grad():
            return self._outputs(args, self._computed(args))

    def _eager(self, args: Sequence[Any], why: str) -> list[Any]:
        if not self._told:
            log.warning("%s runs in eager: %s", self.name, why)
            self._told = True
        return list(self.graph(*args))

    def _shared(self, args: Sequence[Any]) -> bool:
        """Whether an input that is written shares memory with another one: compiled code takes them for apart."""
        memory = [_memory(v) if isinstance(v, torch.Tensor) else None for v in args]
        return any(memory[at] is not None and memory.count(memory[at]) > 1 for at in self.facts.written)

    def _computed(self, args: Sequence[Any]) -> list[torch.Tensor]:
        if self._run is None:
            return []
        dense = []
        for at, order in self.facts.read.items():
            tensor = args[at].detach()
            tensor = tensor.permute(order) if order else tensor
            dense.append(as_real(tensor if tensor.is_contiguous() else tensor.contiguous()))
        results = self._run(dense)
        for (at, order), tensor in zip(self.facts.read.items(), dense, strict=True):
            if at in self.facts.written and tensor.data_ptr() != args[at].data_ptr():
                tensor = torch.view_as_complex(tensor) if args[at].is_complex() else tensor
                args[at].copy_(tensor.permute(inverse(order)) if order else tensor)
        return results

    def _outputs(self, args: Sequence[Any], results: list[torch.Tensor]) -> list[Any]:
        found: list[Any] = [None] * len(self.facts.outputs)
        for at, output in enumerate(self.facts.outputs):
            if isinstance(output, Known):
                found[at] = output.value
            elif isinstance(output, Computed):
                found[at] = _laid_out(results[output.number], output)
        for at, output in enumerate(self.facts.outputs):
            if isinstance(output, Looked):
                found[at] = _view(found[output.at] if output.computed else args[output.at], output)
        return found


def _laid_out(result: torch.Tensor, output: Computed) -> torch.Tensor:
    """What the code gave for an output, with PyTorch's strides, in memory that PyTorch allocated and may resize."""
    return _with_bits(_strided(result, output), output)


def _with_bits(value: torch.Tensor, output: Computed | Looked) -> torch.Tensor:
    """Memory as PyTorch looks at it: lazily conjugated or negated."""
    value = value.conj() if output.conj else value
    return torch._neg_view(value) if output.neg else value


def _strided(result: torch.Tensor, output: Computed) -> torch.Tensor:
    result = torch.view_as_complex(result) if output.is_complex else result
    if output.whole is not None:
        return _owned(result).as_strided(output.size, output.stride, output.offset)
    result = result.permute(inverse(output.order)) if output.order else result
    pairs = zip(result.shape, result.stride(), output.stride, strict=True)
    if not result.numel() or any(size != 1 and here != there for size, here, there in pairs):
        made = torch.empty_strided(result.shape, output.stride, dtype=result.dtype, device=result.device)
        made.copy_(result)
        return made.expand(output.size) if output.repeated else made
    # Along dimensions of one element strides reach nothing, and are PyTorch's none the less.
    result = _owned(result)
    result = result if result.stride() == output.stride else result.as_strided(result.shape, output.stride)
    return result.expand(output.size) if output.repeated else result


def _owned(result: torch.Tensor) -> torch.Tensor:
    """A dense tensor in memory of its own, which PyTorch may resize; NumPy's may not be."""
    return result if result.untyped_storage().resizable() and not result.storage_offset() else result.clone()


def _view(owner: torch.Tensor, output: Looked) -> torch.Tensor:
    """The view of a tensor that an output is."""
    if output.size is None:
        return owner
    owner = owner.conj() if owner.is_conj() else torch._neg_view(owner) if owner.is_neg() else owner
    start = 0 if output.computed else owner.storage_offset()  # what the offset counts from
    if output.dtype is not None:
        elements = owner.untyped_storage().nbytes() // owner.element_size() - start
        owner = owner.as_strided((elements,), (1,), start).view(output.dtype)
        start = owner.storage_offset()
    return _with_bits(owner.as_strided(output.size, output.stride, start + output.offset), output)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.is_conj() or tensor.is_neg()


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else None


class Runner:
    """A graph, compiled when it is made if its sizes are known, and else when sizes first come: for all up to a bound,
    or, where that cannot be, for each set of sizes.

    With the option `fallback`, what cannot be compiled runs in eager, after one warning that says why; without, that is
    an MlircError.
    """

    def __init__(self, graph: torch.fx.GraphModule, examples: Sequence[Any], options: Options, name: str):
        self.graph, self.options, self.name = graph, options, name
        self._varies = any(map(_is_symbolic, examples))
        self._made: OrderedDict[Any, Compiled | None] = OrderedDict()
        self._warned: set[str] = set()
        self._lock = threading.Lock()  # of what was made; nothing else is taken with it
        self._sized = Sized(graph, self._bound, self._note_alone) if self._varies else None
        if not self._varies:
            self._made[None] = self._compiled(examples)

    def __call__(self, *args: Any) -> list[Any]:
        key = _sizes(args) if self._varies else None
        if (made := self._known(key)) is _NEW:
            with exporting():
                if (made := self._known(key)) is _NEW:
                    made = self._compiled(args)
                    self._keep(key, made)
        return list(self.graph(*args)) if made is None else made(args)

    def _known(self, key: Any) -> Any:
        """What was made for these sizes, used last now; _NEW where nothing was."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
            return self._made.get(key, _NEW)

    def _compiled(self, args: Sequence[Any]) -> Compiled | None:
        try:
            with exporting(), apart_from_tracing(), internal.step(f"compiling {self.name} of torch.compile"):
                return Compiled(self.graph, args, self.options, self.name, self._sized)
        except Exception as e:
            if not self.options.fallback:
                raise
            reason = str(e) if isinstance(e, MlircError) else f"{type(e).__name__}: {e}"
            reason = " ".join(reason.removeprefix(f"{self.name}: ").split())
            self._note(f"{self.name} runs in eager: {reason}")
            return None

    def _bound(self, args: Sequence[Any], facts: Facts, request: Request) -> Bound:
        """The graph compiled for all sizes of a request."""
        job = lowered(self.graph, args, facts, self.options, self.name, request)
        sizes = sizes_of(job, self.options)
        assert sizes is not None
        return Bound(sizes, executor(job, facts.device, self.options))

    def _note_alone(self, why: str) -> None:
        why = why.removeprefix(f"{self.name}: ")
        self._note(f"{self.name} is compiled for each set of sizes, of which {SIZES_KEPT} are kept: {why}")

    def _keep(self, key: Any, made: Compiled | None) -> None:
        """Keeps what was made for some sizes; drops the sizes least recently used where there are too many."""
        with self._lock:
            self._made[key] = made
            alone = [key for key, made in self._made.items() if made is None or made.alone]
            for old in [*alone[:-SIZES_KEPT], *list(self._made)[:-SIZES_KNOWN]]:
                self._made.pop(old, None)

    def _note(self, text: str) -> None:
        """Warns, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def _is_symbolic(value: Any) -> bool:
    """Whether an example has no numbers yet: a symbol, or a tensor whose sizes hold one."""
    if isinstance(value, torch.Tensor):
        numbers = [*value.shape, *value.stride()]
        return isinstance(value, FakeTensor) and any(isinstance(n, torch.SymInt) for n in numbers)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _sizes(args: Sequence[Any]) -> tuple:
    return tuple((v.shape, v.stride()) if isinstance(v, torch.Tensor) else v for v in args)
