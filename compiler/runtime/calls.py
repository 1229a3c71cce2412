"""The inputs and the result of a call as the module has them: in lists, dicts and records, and complex."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlirc.errors import MlircError
from mlirc.runtime.arrays import match
from mlirc.runtime.lazy import is_lazy
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.structure import as_complex, as_pairs, built


def arguments_of(plan: Plan, tensors: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The tensors that a call gives, in the plan's order, of complex ones the pairs of real numbers.

    They are given as the module takes them, or one by one, by position or by the plan's names. Raises MlircError for
    what the model does not take."""
    specs, structure = plan.asked, plan.structure
    if structure is None:
        return match(specs, tensors, named)
    names = {spec.name for spec in specs}
    alone = all(hasattr(v, "shape") or isinstance(v, (int, float)) for v in (*tensors, *named.values()))
    if alone and len(tensors) + len(named) == len(specs) and set(named) <= names:
        given = match(specs, tensors, named)
    else:
        given = structure.tensors_of(tensors, named)
    leaves = structure.inputs
    return [_pairs(v, s) if leaf.kind == "complex" else v for v, s, leaf in zip(given, specs, leaves, strict=True)]


def _pairs(value: Any, spec: TensorSpec) -> Any:
    found = as_pairs(value)
    dense = value.flags.c_contiguous if hasattr(value, "flags") else True
    if found is not value and spec.kind == "inout" and (not dense or is_lazy(value)):
        raise MlircError(
            f"input '{spec.name}' is changed by the model, and lazily conjugated or negated, or not dense: "
            "give a dense one"
        )
    return found


def result_of(plan: Plan, tensors: Sequence[Any], rebuild: Callable[[Sequence[Any]], Any] | None = None) -> Any:
    """What a call returns, of the plan's outputs: as the module has it, where `rebuild` makes its own classes, else in
    tuples, lists and dicts. Without a structure one output is as it is, and several are a tuple."""
    if plan.structure is None:
        return tensors[0] if len(tensors) == 1 else tuple(tensors)
    tree = plan.structure.result
    found = [as_complex(t) if leaf.kind == "complex" else t for t, leaf in zip(tensors, tree.leaves, strict=True)]
    return built(tree, iter(found)) if rebuild is None else rebuild(found)
