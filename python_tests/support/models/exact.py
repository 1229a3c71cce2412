"""Many small functions beside eager PyTorch to the last bit: values, dtypes, NaN and signs of zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from mlirc.check.levels import level_runner
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls

Programs = Mapping[str, Callable]


def differences(programs: Programs, inputs: Sequence[torch.Tensor], levels: Sequence[str]) -> list[str]:
    """What differs, in words. Every program takes all inputs and gives a tensor or a tuple of them; all are compiled as
    one model."""

    def everything(*args: torch.Tensor) -> list[torch.Tensor]:
        return [out for function in programs.values() for out in _flat(function(*args))]

    wanted = {f"{name} [{i}]": out for name, f in programs.items() for i, out in enumerate(_flat(f(*inputs)))}
    job = Compilation("exact", get_target("sm_90a"), ())
    job.import_module(Calls(everything), tuple(inputs), {}, False)
    found = []
    for level in levels:
        job.lower(level)
        outputs = level_runner(job, level, job.imported.constants)([x.clone() for x in inputs])
        assert len(outputs) == len(wanted)
        for (name, want), got in zip(wanted.items(), outputs, strict=True):
            if difference := _difference(got, want):
                found.append(f"{name} at {level}: {difference}")
    return found


def _flat(value) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _difference(got: torch.Tensor, want: torch.Tensor) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {list(got.shape)} for {want.dtype} {list(want.shape)}"
    got, want = got.reshape(-1), want.reshape(-1)
    same = got == want
    if want.is_floating_point():
        same = same & (torch.signbit(got) == torch.signbit(want)) | (got != got) & (want != want)
    if bool(same.all()):
        return ""
    first = int(torch.nonzero(~same)[0])
    return f"{int((~same).sum())} of {same.numel()} elements, [{first}] is {got[first]} for {want[first]}"
