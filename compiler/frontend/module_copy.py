"""A deep copy of a module that has attributes which Python cannot copy: locks, open files, non-leaf tensors."""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mlirc.errors import MlircError

# What `copy.deepcopy` takes as it is.
_ATOMS: tuple[type, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    range,
    types.FunctionType,
    types.BuiltinFunctionType,
)
_ATOMS += (weakref.ref,)


def copied_module(module: torch.nn.Module, memo: dict[int, Any] | None = None) -> torch.nn.Module:
    """A copy of a module with parameters, buffers and other tensors of its own.

    Tensors that autograd computed (the weight of `weight_norm`) are detached, generators of random numbers keep their
    state, and what cannot be copied (locks, files, other libraries' handles) is shared. `memo` is as of
    `copy.deepcopy`. Raises MlircError for a module whose own way to be copied fails.
    """
    memo = dict(memo or {})
    _settle(module, memo, set())
    try:
        return copy.deepcopy(module, memo)
    except Exception as e:
        raise MlircError(
            f"{type(module).__name__} cannot be copied, so that the caller's own would be changed: {type(e).__name__}: "
            f"{' '.join(str(e).split())[:200]}: give it a __deepcopy__"
        ) from e


def _settle(root: Any, memo: dict[int, Any], seen: set[int]) -> None:
    """Enters into `memo` the copies of what `copy.deepcopy` refuses among all that an object holds."""
    todo = [root]
    kept: list[Any] = []  # so that what is made here has a number of its own
    while todo:
        value = todo.pop()
        if id(value) in seen or id(value) in memo:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
        elif isinstance(value, torch.Generator):
            memo[id(value)] = value.clone_state()
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += value
        elif isinstance(value, types.MethodType):
            todo.append(value.__self__)
        elif isinstance(value, torch.nn.Module) and not hasattr(value, "__deepcopy__"):
            todo += vars(value).values()
        elif isinstance(value, torch.nn.Module):
            continue  # shared, its weights would change with the copy's
        elif hasattr(value, "__deepcopy__"):
            _share_unless(partial(copy.deepcopy, value, dict(memo)), value, memo)
        elif not isinstance(value, _ATOMS):
            reduced = _share_unless(partial(value.__reduce_ex__, 4), value, memo)
            kept.append(reduced)
            todo += reduced[1:3] if isinstance(reduced, tuple) else ()


def _share_unless(attempt: Callable[[], Any], value: Any, memo: dict[int, Any]) -> Any:
    """What `attempt` gives; None where it fails, and the copy has `value` itself then."""
    try:
        return attempt()
    except Exception:
        memo[id(value)] = value
        return None
