"""One kernel from the `tiles` level to PTX, with every level between kept as text."""

from __future__ import annotations

import inspect
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
    cache. `level` is the text's level, tiles or gpu; `until` is the last level wanted, gpu or ptx. `files` are
    the user's Python files, where the kernel's lowering is a pass of theirs (which no cache can vouch for). Plain data:
    it travels to helper processes."""

    name: str
    text: str
    identity: str
    level: str
    target: str
    until: str = "ptx"
    files: tuple[str, ...] = ()


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
    from mlirc import mlir
    from mlirc.backend.ptx import compile_kernel
    from mlirc.backend.target_check import check_instructions
    from mlirc.ir import levels
    from mlirc.schedule.places import annotated

    start = time.perf_counter()
    target = get_target(job.target)
    module = mlir.parse(job.text, f"kernel {job.name}")
    what = f"kernel {levels.described(module, job.name)}" if job.level == "tiles" else f"kernel {job.name}"
    build = KernelBuild(job.name)
    if job.level == "tiles":
        with internal.step(f"taking {what} from tiles to the gpu level"):
            if job.files:
                from mlirc.schedule.user import ensure_loaded

                for file in job.files:
                    ensure_loaded(file)
            to_gpu(module, job.name, target)
    build.gpu = annotated(module)
    build.seconds["gpu"] = time.perf_counter() - start
    if job.until == "ptx":
        with internal.step(f"compiling {what} to PTX"):
            check_instructions(module, job.name, target)
            compiled = compile_kernel(module, target)
        build.llvm, build.ptx = compiled.llvm, compiled.ptx
        build.launches, build.workspaces = compiled.launches, compiled.workspaces
        build.seconds["llvm, ptx"] = time.perf_counter() - start - build.seconds["gpu"]
    return build


def to_gpu(module: Any, name: str, target: Target) -> None:
    """Takes a kernel's `tiles`-level module to the `gpu` level in place, by the pass that its schedule asked for, and
    decides which products and sums are one `math.fma`."""
    from mlirc.ir import levels
    from mlirc.mlir import context, ir
    from mlirc.passes import get_pass, is_users
    from mlirc.passes.contract import contract
    from mlirc.schedule.places import attribute_place
    from mlirc.schedule.user import call

    function = levels.functions(module)[name]
    pass_name = lowering_pass(function)
    place = attribute_place(function, "lowering")
    start = f"{place + ': ' if place else ''}kernel {name}"
    try:
        lower = get_pass(pass_name)
    except MlircError as e:
        raise MlircError(f"{start}: {e}") from e
    options = {"target": target.name} if "target" in inspect.signature(lower).parameters else {}
    with context(), ir.Location.unknown():
        try:
            if is_users(pass_name):
                call(lower.__code__.co_filename, lower, module, **options)
            else:
                lower(module, **options)
            contract(module.operation, everywhere=True)
        except ir.MLIRError as e:
            raise MlircError(f"{start}: {pass_name}: {' '.join(str(e).split())}") from e


def lowering_pass(function: Any) -> str:
    """The pass that takes a kernel's function to the `gpu` level: its schedule's choice, or `mlirc-distribute`."""
    if "mlirc.lowering" in function.attributes:
        return "mlirc-" + function.attributes["mlirc.lowering"].value
    return "mlirc-distribute"
