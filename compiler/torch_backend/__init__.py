"""`torch.compile(model, backend="mlirc")`: the graphs that Dynamo finds, compiled by mlirc.

PyTorch looks this up among its installed backends by the entry point in pyproject.toml, when the backend is asked for:
until then neither mlirc nor MLIR is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def compile_graph(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's, an `fx.GraphModule`, for inputs like the examples; returns a function of the
    graph's inputs that returns a sequence of its outputs. What cannot be compiled runs in eager, with a warning.

    `options` are those of `mlirc.torch_backend.options.Options`. Raises MlircError for an option that is wrong, for any
    `mode`, and, with `fallback=False`, for what cannot be compiled.
    """
    try:
        from mlirc.torch_backend.options import read_options
        from mlirc.torch_backend.paths import compiled
    except ModuleNotFoundError as e:
        from mlirc.errors import missing_package

        raise missing_package(e) or e from e
    return compiled(graph, example_inputs, read_options(options, mode))
