"""What the host device says of a PTX file, beyond its kernels at the `gpu` level: findings about plan and text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlirc.device.model import SEPARATOR, DeviceModel
from mlirc.device.plan.boundary import check_boundary
from mlirc.device.plan.flow import PlanFlow, Problem, compare_mains
from mlirc.device.plan.kernels import read_kernel
from mlirc.device.plan.text import compare_text
from mlirc.device.report import Finding
from mlirc.driver.kernel_cache import KernelCache
from mlirc.files.kept import cache_folder
from mlirc.mlir import ir
from mlirc.runtime.plan import Plan


class FileCheck:
    """Holds a compiled model's plan, and the text of its PTX file where there is one, against the `gpu` level: a parsed
    model and its text. What was looked at once is not looked at again."""

    def __init__(self, plan: Plan, model: DeviceModel, gpu_level: str, file: Path, text: str | None):
        self.plan, self.model, self.gpu_level, self.file, self.text = plan, model, gpu_level, file, text
        self._plan: list[Finding] | None = None
        self._text: list[Finding] | None = None

    def of_plan(self, above: Mapping[str, ir.Module] | None = None) -> list[Finding]:
        """What is wrong with the plan, and where `@main` is not that of the levels `above`; takes no kernel to run."""
        if self._plan is None:
            problems = check_boundary(self.plan, self.model.main)
            if not problems:
                functions, parts = self.model.functions, self.model.parts
                kernels = {name: read_kernel(name, len(functions[name].type.inputs), p) for name, p in parts.items()}
                problems = PlanFlow(self.plan, self.model.module, kernels).problems()
                for level, module in (above or {}).items():
                    problems += compare_mains(self.plan, self.model.module, module, level, kernels)
            self._plan = self._findings("wrong plan", problems)
        return self._plan

    def of_text(self) -> list[Finding]:
        """The kernels whose PTX is not what the `gpu` level compiles to; compiles them, unless they are known."""
        if self._text is None:
            texts = [part for part in SEPARATOR.split(self.gpu_level) if part.strip()][1:]
            kernels: Mapping[str, str] = dict(zip(self.model.parts, texts, strict=True))
            cache = KernelCache(cache_folder())
            problems = compare_text(self.text, self.plan, kernels, cache) if self.text is not None else []
            self._text = self._findings("wrong PTX", problems)
        return self._text

    def _findings(self, kind: str, problems: list[Problem]) -> list[Finding]:
        return [
            Finding(kind, p.message, "", f"{p.place} of {self.file}", p.kernel or str(self.file),
                    origin=self.model.origins.get(p.kernel, ""))
            for p in problems
        ]  # fmt: skip
