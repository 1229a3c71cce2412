"""`x.data`, for torch.export and for Dynamo's graphs: PyTorch's way around autograd, which neither can follow."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mlirc.errors import MlircError
from mlirc.frontend.graph_copy import copied

_DATA = torch.Tensor.data
_GET = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]


class DataAttribute(TorchFunctionMode):
    """Reads `x.data` as `x.detach()`, the same memory without gradients, whose writes are followed; `x.data = y`, which
    gives a tensor other memory, is an MlircError."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _DATA.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if func == _DATA.__set__:  # type: ignore[attr-defined]
            raise MlircError(
                "forward replaces the data of a tensor (x.data = ...), which cannot be followed: use copy_ on a buffer"
            )
        return func(*args, **(kwargs or {}))


def with_detached_data(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, or a copy of it, in which reading `x.data` is `x.detach()`. Dynamo writes a function that the version
    of `x` does not count the writes of, and in which PyTorch's functionalization crashes."""
    if not any(node.target is _GET for node in graph.graph.nodes):
        return graph
    new = copied(graph.graph)
    for node in new.nodes:
        if node.target is _GET:
            node.target = torch.Tensor.detach
    return torch.fx.GraphModule(graph, new)
