"""A graph as a module that the frontend can take: dense tensors in, fresh dense tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mlirc.driver.compilation import Compilation
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.live import this_gpu
from mlirc.files.kept import cache_folder
from mlirc.frontend.graph_copy import copied
from mlirc.targets import DEFAULT_TARGET, get_target
from mlirc.torch_backend.facts import Computed, Facts, like
from mlirc.torch_backend.options import Options
from mlirc.torch_backend.sized import Request

_GRAD_MODE = (
    torch._C._set_grad_enabled,
    torch.autograd.grad_mode._enter_inference_mode,
    torch.autograd.grad_mode._exit_inference_mode,
)


class Program(torch.nn.Module):
    """The graph as a function of the tensors that it reads, each with its dimensions in the order that they have in
    memory; what it computes comes in such an order, too. Complex tensors come and go as pairs of real numbers. Inputs
    that are no tensors are constants, or, where `request` has them, computed from sizes."""

    def __init__(self, graph: torch.fx.GraphModule, args: Sequence[Any], facts: Facts, request: Request | None = None):
        super().__init__()
        self._numbers = request.numbers if request else {}
        self.graph, self.facts = without_grad_modes(graph), facts
        self._complex = {at for at, v in enumerate(args) if isinstance(v, torch.Tensor) and v.is_complex()}
        self._others = [None if isinstance(v, torch.Tensor) else v for v in args]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args: list[Any] = list(self._others)
        for (at, order), tensor in zip(self.facts.read.items(), tensors, strict=True):
            tensor = torch.view_as_complex(tensor) if at in self._complex else tensor
            args[at] = tensor.permute(inverse(order)) if order else tensor
        given = tuple(args)
        for at, number in self._numbers.items():
            args[at] = number(given)
        with torch.fx.traceback.preserve_node_meta():  # the model's modules and lines, not this graph's
            results = list(torch.fx.Interpreter(self.graph).run(*args))
        found = []
        for at, output in enumerate(self.facts.outputs):
            if isinstance(output, Computed):
                found.append(as_real(_dense(results[at], output)))
        if not found:  # a model returns something: this one writes only
            written: list[Any] = [args[at] for at in self.facts.written]
            smallest = min(written, key=torch.Tensor.numel)
            found.append(as_real(smallest.clone()))
        return tuple(found)


def _dense(result: torch.Tensor, output: Computed) -> torch.Tensor:
    """What is computed of a result: all of its storage, or its elements in the order of their memory."""
    result = result.conj() if output.conj else -result if output.neg else result
    if output.whole is not None:
        return result.as_strided((output.whole,), (1,), 0)
    for dim in output.repeated:
        result = result.narrow(dim, 0, 1)
    return result.permute(output.order) if output.order else result


def as_real(value: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of real numbers, in its own memory unless it is to be conjugated or negated first;
    another tensor as it is."""
    value = value.resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def without_grad_modes(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph that needs no gradients, without the calls that turn them on and off."""
    new = copied(graph.graph)
    for node in reversed(list(new.nodes)):
        if node.op == "call_function" and node.target in _GRAD_MODE and not node.users:
            new.erase_node(node)
    return torch.fx.GraphModule(graph, new)


def lowered(
    graph: torch.fx.GraphModule,
    args: Sequence[Any],
    facts: Facts,
    options: Options,
    name: str,
    request: Request | None = None,
) -> Compilation:
    """The compilation of a graph for inputs like these, or, with a request, for all sizes that it speaks of, lowered as
    far as its device needs. Call it `apart_from_tracing`. Raises MlircError for what cannot be compiled."""
    on_gpu = facts.device.type == "cuda"
    target = options.target or (this_gpu() if on_gpu else DEFAULT_TARGET)
    job = Compilation(name, get_target(target), options.schedule, KernelCache(cache_folder()), fp32=options.fp32)
    job.check_schedules()
    with FakeTensorMode(allow_non_fake_inputs=True):
        if request:
            examples = tuple(torch.empty(shape, dtype=args[at].dtype, device=args[at].device)
                             for shape, at in zip(request.shapes, facts.read, strict=True))  # fmt: skip
        else:
            examples = tuple(like(args[at]) for at in facts.read)
            examples = tuple(as_real(v.permute(order) if order else v.contiguous())
                             for v, order in zip(examples, facts.read.values(), strict=True))  # fmt: skip
    sizes = request.sizes if request else None
    job.import_module(Program(graph, args, facts, request), examples, {}, train=True, sizes=sizes)
    job.lower("ptx" if on_gpu or options.device == "host" else options.level)
    return job
