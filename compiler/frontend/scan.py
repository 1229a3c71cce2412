"""A loop over time steps as one op: `mlirc::scan`, and `scan`, which models' recurrences are written with.

A recurrence that Python loops over is exported once per step; as this op it is one step, whatever the number of steps.
The function of a step is known by a number, since an operator takes no functions (`loops.py` traces it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor
# (carries, slices, closed) -> (carries, slices of the results)
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]

_steps: list[Step] = []
_numbers: dict[Step, int] = {}


def scan(
    step: Step, init: Sequence[Tensor], xs: Sequence[Tensor], closed: Sequence[Tensor] = (), *, reverse: bool = False,
    count: int | None = None,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Runs `step` once per index of the first dimension of `xs`, from the last one with `reverse`.

    `step` takes the carries (first `init`, then what the step before returned), a slice of each of `xs`, and `closed`,
    which is the same for all steps. It returns new carries, of the same shapes and dtypes, and slices of the results.
    Returns the last carries and the results, stacked along a new first dimension in the order of `xs`. `count` is the
    number of steps where there are no `xs`. `step` must be the same object for equal recurrences.
    """
    steps = xs[0].shape[0] if xs else count
    if not steps:
        raise ValueError("a loop over no time steps: give at least one")
    if steps == 1:
        carries, ys = step(list(init), [x[0] for x in xs], list(closed))
        return list(carries), [y.unsqueeze(0) for y in ys]
    out = torch.ops.mlirc.scan(list(init), list(xs), list(closed), steps, reverse, number_of(step))
    return out[: len(init)], out[len(init) :]


def number_of(step: Step) -> int:
    """What the op calls a step's function."""
    if step not in _numbers:
        _numbers[step] = len(_steps)
        _steps.append(step)
    return _numbers[step]


def step_of(number: int) -> Step:
    """The function of a step; raises ValueError for a number that stands for none in this process."""
    if not 0 <= number < len(_steps):
        raise ValueError(f"mlirc::scan names step {number}, which this process does not know")
    return _steps[number]


@torch.library.custom_op("mlirc::scan", mutates_args=())
def scan_op(
    init: list[Tensor], xs: list[Tensor], closed: list[Tensor], count: int, reverse: bool, step: int
) -> list[Tensor]:
    """The last carries and then the stacked results of `count` steps; see `scan`."""
    carries, rows = list(init), []
    order = range(count - 1, -1, -1) if reverse else range(count)
    for i in order:
        carries, ys = one_step(step, carries, [x[i] for x in xs], closed)
        rows.append(ys)
    stacked = [torch.stack(ys[::-1] if reverse else ys) for ys in zip(*rows, strict=True)]
    return [c.clone() for c in carries] + stacked


@scan_op.register_fake
def _(init, xs, closed, count, reverse, step):
    carries, ys = one_step(step, list(init), [x[0] for x in xs], closed)
    return [torch.empty_like(c, memory_format=torch.contiguous_format) for c in init] + [
        y.new_empty((count, *y.shape)) for y in ys
    ]


def one_step(
    step: int, carries: list[Tensor], slices: list[Tensor], closed: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """One step; raises ValueError when the carries come out differently from what went in."""
    new, ys = step_of(step)(list(carries), slices, list(closed))
    for old, now in zip(carries, new, strict=True):
        if old.shape != now.shape or old.dtype != now.dtype:
            raise ValueError(
                f"a loop carries {old.dtype} of shape {list(old.shape)}, but a step makes {now.dtype} of shape "
                f"{list(now.shape)} of it"
            )
    return list(new), list(ys)
