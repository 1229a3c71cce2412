"""Sizes that an export sets apart, such as 1, and that are none: whether the program is the same there.

PyTorch decides some things by whether a size is 1, or another number: so exported, the program is for all sizes but
that one. Exported once more with just that number in the size's place, it often is the same: a batch of one is what
most calls have. The two are compared as torch levels, with their constants, to the letter.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.sizes.at_bound import parts_as_in
from mlirc.frontend.sizes.request import SizeRequest

_CONDITIONS = re.compile(r'mlirc\.conditions = "([^"]*)"')
_APART = re.compile(r"(?:(\w+) != (\d+)|(\d+) != (\w+))")


def set_apart(condition: str, request: SizeRequest) -> tuple[str, int] | None:
    """The symbol and the number of a condition such as `b != 1`; None for another condition."""
    match = _APART.fullmatch(condition)
    if not match:
        return None
    name, number = (match[1], match[2]) if match[1] in request.ranges else (match[4], match[3])
    return (name, int(number)) if name in request.ranges and number and number.isdecimal() else None


def without_apart(source: Any, program: Any, conditions: Sequence[str], imported: Callable[[Any], Any]) -> list[str]:
    """The conditions without those that set numbers apart at which the program is the same. `imported` makes a torch
    level of a source, which has a program or is exported."""
    request: SizeRequest = source.sizes
    found = {c: a for c in conditions if (a := set_apart(c, request))}
    gone: dict[str, tuple[str, int]] = {}
    for condition, apart in found.items():
        least, most = request.ranges[apart[0]]
        if not least <= apart[1] <= most:
            gone[condition] = apart
            continue
        others = [dict(o) for n in range(len(gone) + 1) for o in itertools.combinations(gone.values(), n)]
        if all(_same_there(source, program, o | dict([apart]), imported) for o in others if apart[0] not in o):
            gone[condition] = apart
    return [c for c in conditions if c not in gone]


def _same_there(source: Any, program: Any, numbers: Mapping[str, int], imported: Callable[[Any], Any]) -> bool:
    """Whether the program, exported for other sizes, is what an export of just these numbers is."""
    there = _fixed(source, numbers)
    try:
        with parts_as_in(program):
            exported = imported(there)
        instance = imported(dataclasses.replace(there, program=program))
    except MlircError:  # one of the two cannot be: then they are not the same
        return False
    return _same(exported, instance)


def _fixed(source: Any, numbers: Mapping[str, int]) -> Any:
    """The source with numbers in the place of symbols."""
    request: SizeRequest = source.sizes
    leaves = []
    for spec, tensor in zip(source.input_specs(), source.example_inputs(), strict=True):
        for dim, name in enumerate(request.dims.get(spec.name, ())):
            tensor = tensor.narrow(dim, 0, numbers[name]).contiguous() if name and name in numbers else tensor
        leaves.append(tensor)
    dims = {n: tuple(None if s in numbers else s for s in row) for n, row in request.dims.items()}
    ranges = {s: r for s, r in request.ranges.items() if s not in numbers}
    new = dataclasses.replace(source, sizes=SizeRequest(dims, ranges))
    new.args, new.kwargs = new.bind(leaves)
    return new


def _same(exported: Any, instance: Any) -> bool:
    texts, conditions = zip(*(_text(m) for m in (exported, instance)), strict=True)
    if texts[0] != texts[1] or not conditions[0] <= conditions[1]:
        return False
    one, other = exported.constants, instance.constants
    return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())


def _text(model: Any) -> tuple[str, set[str]]:
    """A torch level without its conditions, and these."""
    text = str(model.module)
    said = {c for found in _CONDITIONS.findall(text) for c in found.split("; ") if c}
    return _CONDITIONS.sub("", text), said


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if any(isinstance(t, torch._subclasses.FakeTensor) for t in (a, b)):
        return a is b
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
