"""One kernel from the `tiles` or the `async` level to PTX, with every level between kept as text."""

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
    cache. `level` is the text's level, tiles, async or gpu; `until` is the last level wanted, gpu or ptx. `files` are
    the user's Python files, where a pass or an instruction of theirs takes the kernel down (which no cache can vouch
    for). Plain data: it travels to helper processes."""

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
    what = f"kernel {levels.described(module, job.name)}" if job.level != "gpu" else f"kernel {job.name}"
    build = KernelBuild(job.name)
    if job.level != "gpu":
        with internal.step(f"taking {what} from {job.level} to the gpu level"):
            if job.files:
                from mlirc.schedule.registry import ensure_loaded

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
    """Takes a kernel's `tiles`- or `async`-level module to the `gpu` level in place, by the passes that its schedule
    asked for, decides which products and sums are one `math.fma`, and where a kernel that begins early waits."""
    from mlirc.mlir import context, ir
    from mlirc.passes.branch_loads import branch_loads
    from mlirc.passes.contract import contract
    from mlirc.passes.dependent.launches import begin_early
    from mlirc.passes.scalar_arguments import run as scalar_arguments

    for attribute, pass_name in zip(("to_async", "lowering"), lowering_passes(_function(module, name)), strict=True):
        _run(module, name, target, attribute, pass_name)
    with context(), ir.Location.unknown():
        scalar_arguments(module)
        branch_loads(module.operation)
        contract(module.operation, everywhere=True)
        begin_early(module)


def to_async(module: Any, name: str, target: Target) -> None:
    """Takes a kernel's `tiles`-level module to the `async` level in place, by the pass that its schedule asked for."""
    _run(module, name, target, "to_async", lowering_passes(_function(module, name))[0])


def _function(module: Any, name: str) -> Any:
    from mlirc.ir import levels

    return levels.functions(module)[name]


def _run(module: Any, name: str, target: Target, attribute: str, pass_name: str) -> None:
    """Runs the pass that an attribute of the kernel's function names."""
    from mlirc.mlir import context, ir
    from mlirc.passes import get_pass, is_users
    from mlirc.schedule.places import attribute_place
    from mlirc.schedule.user import call

    function = _function(module, name)
    place = attribute_place(function, attribute)
    start = f"{place + ': ' if place else ''}kernel {name}"
    try:
        lower = get_pass(pass_name)
    except MlircError as e:
        raise MlircError(f"{start}: {e}") from e
    if f"mlirc.{attribute}" in function.attributes and attribute == "to_async":
        del function.attributes["mlirc.to_async"]  # done, by the pass that follows
    options = {"target": target.name} if "target" in inspect.signature(lower).parameters else {}
    with context(), ir.Location.unknown():
        try:
            if is_users(pass_name):
                call(lower.__code__.co_filename, lower, module, **options)
            else:
                lower(module, **options)
        except ir.MLIRError as e:
            raise MlircError(f"{start}: {pass_name}: {' '.join(str(e).split())}") from e


def lowering_passes(function: Any) -> tuple[str, str]:
    """The passes that take a kernel's function to the `async` and on to the `gpu` level: its schedule's choices, or
    `mlirc-async` and `mlirc-distribute`."""
    names = {"mlirc.to_async": "async", "mlirc.lowering": "distribute"}
    chosen = [function.attributes[n].value if n in function.attributes else own for n, own in names.items()]
    return f"mlirc-{chosen[0]}", f"mlirc-{chosen[1]}"


def takes_user_code(function: Any) -> bool:
    """Whether a user's pass takes a scheduled kernel down to the `gpu` level, or a user's instruction makes its
    products."""
    from mlirc.mlir import ir, nested
    from mlirc.passes import is_users
    from mlirc.passes.distribute.instructions import users_instructions

    own = users_instructions()
    named = [op.attributes["mlirc.mma"] for op in nested(function.operation) if own and "mlirc.mma" in op.attributes]
    passes = lowering_passes(function)
    return any(map(is_users, passes)) or any(isinstance(a, ir.StringAttr) and a.value in own for a in named)
