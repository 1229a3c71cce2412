"""The PTX of a compiled model's kernels beside their `gpu` level: each call runs through both, and must give the same
bits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mlirc.backend.kernel import CompiledKernel, Launch, launches_from_gpu_module
from mlirc.backend.ptx import entry_name
from mlirc.device.numbers import different
from mlirc.device.ptx.parse import Unknown
from mlirc.device.ptx.plan import run_plan
from mlirc.device.ptx.run import run_kernel
from mlirc.device.report import Finding
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.runtime.plan import Plan

_ENTRY = re.compile(r"^\.visible \.entry (\w+)", re.MULTILINE)


class PtxBeside:
    """`text`: a PTX file's, with its plan or without; `modules`: the kernels at the `gpu` level, by name, which say
    what is launched. After a run, `calls` were executed, and `refused` has the reason why a kernel was not, by name;
    `planned`: the whole plan was run, too."""

    def __init__(self, text: str, modules: Mapping[str, ir.Module]):
        starts = [(m[1], m.start()) for m in _ENTRY.finditer(text)]
        ends = [at for _, at in starts[1:]] + [len(text)]
        self._head = text[: starts[0][1]] if starts else ""
        self._entries = {name: text[at:end] for (name, at), end in zip(starts, ends, strict=True)}
        self._text, self._modules = text, modules
        self._kernels: dict[str, CompiledKernel] = {}
        self.calls, self.refused, self.planned = 0, dict[str, str](), False

    def __call__(self, name: str, arguments: Sequence[np.ndarray], results: int) -> list[Finding]:
        """Executes a kernel's PTX on a call's arguments, of which the last `results` hold what the `gpu` level
        computed; returns what is wrong."""
        if name in self.refused:
            return []
        right = arguments[len(arguments) - results :]
        made = [np.zeros_like(a) for a in right]
        try:
            run_kernel(self._kernel(name), [*arguments[: len(arguments) - results], *made])
        except Unknown as e:
            self.refused[name] = str(e)
            return []
        except MlircError as e:
            return [Finding("wrong PTX", str(e), "", "its PTX", name)]
        self.calls += 1
        names = [f"result {i}" for i in range(results)]
        found, count = _difference("its instructions", "the gpu level", names, made, right)
        return [Finding("wrong PTX", found, "", "its PTX", name, count)] if count else []

    def whole_plan(self, plan: Plan, given: Mapping[str, np.ndarray], right: Sequence[np.ndarray]) -> list[Finding]:
        """Runs the plan as it is in its arena, unless a kernel was refused; `right`: what `@main` computes."""
        if self.refused:
            return []
        try:
            made = run_plan(self._text, plan, given)
        except MlircError as e:
            return [Finding("wrong plan", str(e), "", "its launches", plan.model)]
        self.planned = True
        names = [f"'{spec.name}'" for spec in plan.results]
        found, count = _difference("its launches", "@main", names, made, right)
        return [Finding("wrong plan", found, "", "its launches", plan.model, count)] if count else []

    def _kernel(self, name: str) -> CompiledKernel:
        if name not in self._kernels:
            launches, workspaces = launches_from_gpu_module(self._modules[name])
            named = [replace(x, symbol=entry_name(name, x.symbol)) if isinstance(x, Launch) else x for x in launches]
            symbols = {x.symbol for x in named if isinstance(x, Launch)}
            ptx = self._head + "".join(
                entry if symbol in symbols else "\n" * entry.count("\n")  # so that lines are those of the file
                for symbol, entry in self._entries.items()
            )
            self._kernels[name] = CompiledKernel(name, ptx, "", named, workspaces)
        return self._kernels[name]


def _difference(
    ours: str, theirs: str, names: Sequence[str], made: Sequence[np.ndarray], right: Sequence[np.ndarray]
) -> tuple[str, int]:
    """The first of some results that differ, in words, and in how many elements; "" and 0 where all bits are equal."""
    for name, a, b in zip(names, made, right, strict=True):
        bad = different(a, b)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            what = f"{ours} compute {a[at]} as element {list(at)} of {name}, where {theirs} computes {b[at]}"
            return what, int(bad.sum())
    return "", 0
