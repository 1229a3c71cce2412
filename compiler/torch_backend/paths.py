"""Which way a graph of Dynamo's takes: to mlirc as it is, or through PyTorch's AOTAutograd, which makes a graph of the
gradients, too, and writes the casts of autocast out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel

from mlirc.frontend.data_attribute import with_detached_data
from mlirc.frontend.noise import quiet
from mlirc.torch_backend.options import Options
from mlirc.torch_backend.runner import Runner, log

_numbers = itertools.count()
_ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast


def compiled(graph: torch.fx.GraphModule, examples: Sequence[Any], options: Options) -> Callable[..., Any]:
    """A function of the graph's inputs; as `mlirc.torch_backend.compile_graph`."""
    name = f"graph {next(_numbers)}"
    wants = any(isinstance(v, torch.Tensor) and v.requires_grad for v in examples)
    if (not wants or not torch.is_grad_enabled()) and _asks_for_gradients(graph):
        log.warning("%s runs in eager: it turns gradients on, where nothing around it asks for them", name)
        return graph.forward
    graph = with_detached_data(graph)
    if (wants and torch.is_grad_enabled()) or _casts(graph, examples):
        return _through_autograd(graph, examples, options, name)
    return Runner(graph, examples, options, name)


def _asks_for_gradients(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph may make tensors that require a gradient when none that it is given does."""
    for node in graph.graph.nodes:
        turned_on = node.target is torch._C._set_grad_enabled and node.args and node.args[0]
        if node.target == "requires_grad_" or node.kwargs.get("requires_grad") or turned_on:
            return True
    return False


def _casts(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Whether autocast is at work, around the graph or in it."""
    devices = {v.device.type for v in examples if isinstance(v, torch.Tensor)}
    around = any(torch.is_autocast_enabled(d) for d in devices | {"cpu"})
    return around or any(n.target is _ENTER_AUTOCAST for n in graph.graph.nodes)


def _through_autograd(
    graph: torch.fx.GraphModule, examples: Sequence[Any], options: Options, name: str
) -> Callable[..., Any]:
    """The graph, and the one of its gradients, each compiled by itself. Attention is written out, and vendors' fused
    kernels are not used, so that there are no ops that only their own backward can read."""

    def compiler(part: str) -> Callable[..., Any]:
        def compile_part(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(Runner(module, inputs, options, name + part))

        return compile_part

    with (
        quiet(),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.cudnn.flags(enabled=False),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        through = aot_autograd(
            fw_compiler=compiler(", forward"), bw_compiler=compiler(", backward"), inference_compiler=compiler("")
        )
        return through(graph, examples)
