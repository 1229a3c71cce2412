"""One kernel from the `tiles` level to PTX, with every level between kept as text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mlirc import internal
from mlirc.backend.kernel import CompiledKernel, Copy, Launch
from mlirc.errors import MlircError
from mlirc.targets import Target, get_target


@dataclass(frozen=True)
class KernelJob:
    """What has to be compiled. `text` has source locations, for errors; `identity` is the same without them, for the
    cache. `level` is the text's level, tiles or gpu; `until` is the last level wanted, gpu or ptx. Plain data: it
    travels to helper processes."""

    name: str
    text: str
    identity: str
    level: str
    target: str
    until: str = "ptx"


@dataclass
class KernelBuild:
    """A compiled kernel: its text at each level (empty below the last one wanted) and its launches. `seconds` is the
    compile time by step (`gpu`, and `llvm, ptx`), `cached` tells that it was spent earlier."""

    name: str
    gpu: str = ""
    llvm: str = ""
    ptx: str = ""
    launches: list[Launch | Copy] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cached: bool = field(default=False, compare=False)

    @property
    def compiled(self) -> CompiledKernel:
        """The back end's view of it, for the plan builder."""
        return CompiledKernel(self.name, self.ptx, self.llvm, self.launches, self.workspaces)


def build_kernel(job: KernelJob) -> KernelBuild:
    """Takes one kernel down to `job.until`; raises MlircError that names the kernel and the step."""
    from mlirc import levels, mlir
    from mlirc.backend.ptx import compile_kernel
    from mlirc.schedule_places import annotated

    start = time.perf_counter()
    target = get_target(job.target)
    module = mlir.parse(job.text, f"kernel {job.name}")
    what = f"kernel {levels.described(module, job.name)}" if job.level == "tiles" else f"kernel {job.name}"
    build = KernelBuild(job.name)
    if job.level == "tiles":
        with internal.step(f"taking {what} from tiles to the gpu level"):
            to_gpu(module, job.name, target)
    build.gpu = annotated(module)
    build.seconds["gpu"] = time.perf_counter() - start
    if job.until == "ptx":
        with internal.step(f"compiling {what} to PTX"):
            compiled = compile_kernel(module, target)
        build.llvm, build.ptx = compiled.llvm, compiled.ptx
        build.launches, build.workspaces = compiled.launches, compiled.workspaces
        build.seconds["llvm, ptx"] = time.perf_counter() - start - build.seconds["gpu"]
    return build


def to_gpu(module: Any, name: str, target: Target) -> None:
    """Takes a kernel's `tiles`-level module to the `gpu` level in place, by the pass that its schedule asked for."""
    from mlirc import levels
    from mlirc.mlir import context, ir
    from mlirc.passes import get_pass

    function = levels.functions(module)[name]
    pass_name = "mlirc-distribute"
    if "mlirc.lowering" in function.attributes:
        pass_name = "mlirc-" + function.attributes["mlirc.lowering"].value
    with context(), ir.Location.unknown():
        try:
            get_pass(pass_name)(module, target=target.name)
        except ir.MLIRError as e:
            raise MlircError(f"kernel {name}: {pass_name}: {' '.join(str(e).split())}") from e
