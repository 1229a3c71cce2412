"""Packed sequences (`torch.nn.utils.rnn`) of a fixed size, while a model is exported.

PyTorch packs the time steps of sequences of several lengths without gaps, so that sizes depend on the lengths' values.
Here they keep their gaps: `PackedSequence.data` [T·B, ...] has all T steps of all B sequences, and recurrent layers
leave a state as it is where its sequence has ended. So `data` is PyTorch's own functions' alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from mlirc.frontend.diagnose import DataDependent
from mlirc.frontend.recurrent import STEPS, layers_of
from mlirc.frontend.scan import Step

_HOMES = (torch.nn.utils.rnn, torch.nn.modules.rnn)  # which call `torch._VF`'s functions
_NO_LENGTH = (
    "the size of what pad_packed_sequence gives depends on the lengths' values: give it total_length=x.size(1), or "
    "x.size(0) without batch_first"
)
_NO_DATA = (
    "the size of a packed sequence's data depends on the lengths' values: unpack it first, by pad_packed_sequence with "
    "total_length=..."
)


@contextlib.contextmanager
def padded_sequences() -> Iterator[None]:
    """Runs the body with sequences packed with gaps."""
    changed: list[tuple[Any, str, Any]] = [(home, "_VF", _Functions()) for home in _HOMES]
    changed += [(PackedSequence, name, _for_torch(getattr(tuple, name))) for name in ("__iter__", "__getitem__")]
    changed += [(PackedSequence, "data", property(_for_torch(lambda packed: tuple(packed)[0])))]
    before = [vars(owner).get(name) for owner, name, _ in changed]
    for owner, name, value in changed:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changed, before, strict=True):
            delattr(owner, name) if value is None else setattr(owner, name, value)


def _for_torch(function: Callable) -> Callable:
    """A method of packed sequences that only PyTorch may call."""

    def method(packed: Any, *args: Any) -> Any:
        if sys._getframe(1).f_code.co_filename not in (__file__, *(home.__file__ for home in _HOMES)):
            raise DataDependent(_NO_DATA)
        return function(packed, *args)

    return method


class _BatchSizes:
    """In the place of the tensor `batch_sizes`: `lengths` [B], int64, from the longest, of sequences of at most `steps`
    steps. PyTorch reads its first number, B, and its size, which is the longest length."""

    device = torch.device("cpu")  # where PyTorch wants it

    def __init__(self, lengths: Tensor, steps: int) -> None:
        self.lengths, self.steps = lengths, steps

    def __getitem__(self, index: int) -> int:
        if index != 0:
            raise DataDependent(
                "batch_sizes of a packed sequence depend on the lengths' values: only the first is known"
            )
        return int(self.lengths.shape[0])

    def size(self, _: int) -> int:
        return _Unknown(self.steps)

    def running(self) -> Tensor:
        """Bool [T,B]: where a step is one of the sequence's."""
        return torch.arange(self.steps, device=self.lengths.device)[:, None] < self.lengths


class _Unknown(int):
    """A size that may be less."""


class _Functions:
    """`torch._VF`, but for what takes or makes packed sequences."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(torch._VF, name)
        if name not in STEPS:
            return function

        def run(data: Tensor, sizes: Any, *args: Any) -> Any:
            packed = isinstance(sizes, _BatchSizes)
            return _recurrent(STEPS[name], data, sizes, *args) if packed else function(data, sizes, *args)

        return run

    @staticmethod
    def _pack_padded_sequence(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, _BatchSizes]:
        """x [T,B,...] or, `batch_first`, [B,T,...]; lengths [B], from the longest."""
        x = x.transpose(0, 1) if batch_first else x
        return x.flatten(0, 1), _BatchSizes(lengths, x.shape[0])

    @staticmethod
    def _pad_packed_sequence(
        data: Tensor, sizes: _BatchSizes, batch_first: bool, padding: float, total: int
    ) -> tuple[Tensor, Tensor]:
        """[total,B,...] or, `batch_first`, [B,total,...], and the lengths [B]."""
        if isinstance(total, _Unknown):
            raise DataDependent(_NO_LENGTH)
        x = data.unflatten(0, (sizes.steps, -1))
        inside = sizes.running().reshape(*x.shape[:2], *[1] * (x.dim() - 2))
        x = torch.where(inside, x, padding)
        if total > sizes.steps:
            x = torch.cat([x, x.new_full((total - sizes.steps, *x.shape[1:]), padding)])
        return x.transpose(0, 1) if batch_first else x, sizes.lengths


def _recurrent(
    step: Step, data: Tensor, sizes: _BatchSizes, states: Any, params: Sequence[Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As `torch._VF.lstm` and its like: the output's data [T·B,...], and each state's last values."""
    x = data.unflatten(0, (sizes.steps, -1))
    states = [states] if isinstance(states, Tensor) else list(states)
    out, *finals = layers_of(
        step, x, states, params, has_biases, layers, dropout, train, bidirectional, False, sizes.running()
    )
    return out.flatten(0, 1), *finals
