"""Runs one op of a graph on values, real or fake.

Tensors of the levels below are dense, and the graph's copies that only change the order in memory are dropped. So an op
must not depend on strides: `view` works on any tensor here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mlirc.errors import MlircError
from mlirc.frontend.diagnose import first_line

aten = torch.ops.aten
_ANY_STRIDES = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


def evaluate(target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`target(*args, **kwargs)`, whatever the strides of its operands."""
    return _ANY_STRIDES.get(target, target)(*args, **kwargs)


def evaluate_constant(target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """As `evaluate`, of values that are known. Raises MlircError where PyTorch cannot compute it, which a graph from a
    file may ask for."""
    try:
        return evaluate(target, args, kwargs)
    except MemoryError:
        raise
    except Exception as e:
        raise MlircError(f"{target}: cannot be computed of constants: {type(e).__name__}: {first_line(str(e))}") from e


def evaluate_fake(target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The metadata of a call whose arguments are nodes; needs the graph's fake mode where it has no tensor argument."""
    args, kwargs = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    return evaluate(target, args, kwargs)


def place(node: Node) -> dict[str, Any]:
    """The part of a node's metadata that says where in the model it comes from."""
    return {k: node.meta[k] for k in ("nn_module_stack", "stack_trace") if k in node.meta}
