"""What a run changes in place, in the launch plan: the states of a model, and inputs that it writes.

`@main` is a function of values: a result with `mlirc.writes` is an argument's new value. Here it gets to where the
argument lies: behind everything else, unless a kernel has made it there.
"""

from __future__ import annotations

from mlirc.backend.plan_draft import Draft
from mlirc.backend.plan_views import View
from mlirc.errors import MlircError
from mlirc.ir.levels import WRITES
from mlirc.mlir import ir
from mlirc.runtime.plan import WRITTEN, TensorSpec


def written_argument(attributes: ir.DictAttr | None, specs: list[TensorSpec], taken: set[int]) -> int | None:
    """The number of the argument (described by `specs`) whose new value a result is; None for what the model returns.
    Raises MlircError for one that may not be written, or is written twice (`taken`)."""
    if attributes is None or WRITES not in attributes:
        return None
    number = ir.IntegerAttr(attributes[WRITES]).value
    if not 0 <= number < len(specs) or specs[number].kind not in WRITTEN:
        raise MlircError(f"main: a result has {WRITES} = {number}: that is no argument of kind {' or '.join(WRITTEN)}")
    if number in taken:
        raise MlircError(f"main: two results are the new value of '{specs[number].name}'")
    taken.add(number)
    return number


def write_back(draft: Draft, writes: list[tuple[View, View]]) -> None:
    """Copies each value to the state or input that it is the new value of. A value that lies in another of them is
    moved out of the way first: the two may change places."""
    writes = [(value, target) for value, target in writes if value != target and target.size]
    targets = {target.buffer for _, target in writes}
    ready = []
    for value, target in writes:
        if value.buffer in targets:
            aside = draft.new_buffer("arena", value.size)
            draft.copy(value, aside)
            value = aside
        ready.append((value, target))
    for value, target in ready:
        draft.copy(value, target)
