"""Takes a model down the ladder of levels: the one place that knows the order of the steps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.kernel_build import KernelBuild, KernelCache, KernelJob, cache_folder
from mlirc.levels import LEVELS
from mlirc.outputs import Outputs, check_writable
from mlirc.targets import DEFAULT_TARGET, Target, get_target
from mlirc.timing import Timer

# Kept beside the PTX, so that `mlirc-run --level` can run them on the CPU.
HOST_LEVELS = ("linalg", "kernels", "tiles")


@dataclass
class Compilation:
    """One model on its way down. Each level is made on demand by `lower`, once, and stays printable by `text`.

    Start one with `from_model`, `from_file` or `from_torch`.
    """

    name: str
    target: Target
    schedules: tuple[str, ...] = ()
    cache: KernelCache | None = None
    timer: Timer = field(default_factory=Timer)
    helpers: int | None = None
    imported: Any = None
    modules: dict[str, Any] = field(default_factory=dict)
    builds: dict[str, KernelBuild] = field(default_factory=dict)
    plan: Any = None
    ptx: str = ""
    observe: Callable[[str], None] = lambda level: None
    _given: str = "torch"

    def import_model(self, spec: str, **options: Any) -> None:
        """Reads the model that the user named; options as of `mlirc.frontend.open_model`."""
        with self.timer.step("load"):
            from mlirc import frontend

            source = frontend.open_model(spec, **options)
        self._import(source)

    def import_module(self, module: Any, args: tuple, kwargs: dict) -> None:
        """Takes a live torch module with example inputs."""
        from mlirc import frontend

        self._import(frontend.from_torch(module, args, kwargs, self.name))

    def _import(self, source: Any) -> None:
        from mlirc import frontend

        with self.timer.step("torch"):
            self.imported = frontend.import_torch(source)
        self.modules["torch"] = self.imported.module
        self.observe("torch")

    def read_levels(self, path: Path) -> None:
        """Takes an .mlir file at any level from `linalg` to `gpu`; the level is told by its content."""
        from mlirc import levels, mlir

        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise MlircError(f"cannot read {path}: {getattr(e, 'strerror', None) or 'not a text file'}") from e
        parts = [mlir.parse(t, str(path)) for t in re.split(r"^// -----.*\n", text, flags=re.MULTILINE) if t.strip()]
        if not parts:
            raise MlircError(f"{path}: is empty: give a module at level linalg, kernels, tiles or gpu")
        level = levels.detect(parts[-1])
        if level not in ("linalg", "kernels", "tiles", "gpu") or (len(parts) > 1 and level != "gpu"):
            raise MlircError(f"{path}: holds the {level} level: compilation can start from linalg, kernels, tiles, gpu")
        self._given = level
        module = levels.with_main(parts[0])
        if level == "gpu":
            self._gpu_parts = {levels.host_function(p): p for p in parts[1:] or parts}
        self.modules["linalg" if level == "linalg" else "kernels"] = module
        if level == "tiles":
            self.modules["tiles"] = module
        self.observe(level)

    def lower(self, level: str) -> None:
        """Makes every level down to the named one, except those that exist."""
        steps = {
            "linalg": self._to_linalg,
            "kernels": self._to_kernels,
            "schedule": self._to_ptx,
            "tiles": self._to_ptx,
            "gpu": self._to_ptx,
            "llvm": self._to_ptx,
            "ptx": self._to_ptx,
        }
        for name in LEVELS[1 : LEVELS.index(level) + 1]:
            if LEVELS.index(name) > LEVELS.index(self._given) and name not in self.modules and not self.ptx:
                steps[name]()

    def _to_linalg(self) -> None:
        from mlirc import frontend

        with self.timer.step("linalg"):
            self.modules["linalg"] = frontend.lower_to_linalg(self.imported)
        self.observe("linalg")

    def _to_kernels(self) -> None:
        from mlirc import levels
        from mlirc.scripts.graph import to_kernels

        with self.timer.step("kernels"):
            self.modules["kernels"] = to_kernels(levels.copy(self.modules["linalg"]), self.target)
        self.observe("kernels")

    def _jobs(self) -> list[KernelJob]:
        from mlirc import levels

        level = self._given if self._given in ("tiles", "gpu") else "kernels"
        if level == "gpu":
            alone = self._gpu_parts
        else:
            module = self.modules["kernels"]
            alone = {name: levels.isolate(module, name) for name in levels.kernels(module)}
        jobs = []
        for name, module in alone.items():
            text = module.operation.get_asm(enable_debug_info=True)
            jobs.append(KernelJob(name, text, str(module), level, self.target.name, self.schedules))
        return jobs

    def _to_ptx(self) -> None:
        """Compiles the kernels, and makes the PTX file's text with the plan in it."""
        from mlirc.backend.plan_builder import build_plan
        from mlirc.backend.ptx import merge_ptx
        from mlirc.runtime import plan
        from mlirc.workers import build_kernels

        with self.timer.step("kernels to ptx"):
            jobs = {job.name: job for job in self._jobs()}
            found = {name: self.cache.get(job) for name, job in jobs.items()} if self.cache else {}
            built = {name: build for name, build in found.items() if build}
            missing = [job for name, job in jobs.items() if name not in built]
            self.timer.advance(len(built), len(jobs))
            for build in build_kernels(missing, self.helpers):
                built[build.name] = build
                self.timer.advance(len(built), len(jobs))
                if self.cache:
                    self.cache.put(jobs[build.name], build)
            self.builds = {name: built[name] for name in jobs}
        with self.timer.step("plan"):
            compiled = {name: build.compiled for name, build in self.builds.items()}
            self.plan = build_plan(
                self.modules["kernels"], compiled, model=self.name, target=self.target.name, versions=_versions()
            )
            merged = merge_ptx([build.ptx for build in self.builds.values()], self.target)
            self.ptx = plan.embed(merged, self.plan)
        for level in ("schedule", "tiles", "gpu", "llvm", "ptx"):
            self.observe(level)

    def text(self, level: str) -> str:
        """The level as text. `lower` it first."""
        if level == "ptx":
            return self.ptx
        if level in ("torch", "linalg", "kernels") and level in self.modules:
            return str(self.modules[level])
        if level == "tiles":
            return self._tiles_text()
        if level == "schedule":
            return self._schedule_text()
        if level == "gpu":
            return "\n// -----\n\n".join([self._main_text(), *(b.gpu for b in self.builds.values())])
        if level == "llvm":
            return "\n".join(f"; kernel {b.name}\n{b.llvm}" for b in self.builds.values())
        raise MlircError(f"level {level} is not there: the compilation started below it, from {self._given}")

    def _tiles_text(self) -> str:
        from mlirc import levels, mlir

        if self._given == "gpu":
            raise MlircError("level tiles is not there: the compilation started below it, from gpu")
        tiles = {name: mlir.parse(build.tiles, f"kernel {name}") for name, build in self.builds.items()}
        return str(levels.replace(self.modules["kernels"], tiles))

    def _main_text(self) -> str:
        """`@main` with its kernels declared: what the `gpu` level's kernels are called by."""
        from mlirc import levels

        return str(levels.declare_kernels(self.modules["kernels"]))

    def _schedule_text(self) -> str:
        """Every script in use, once, with the kernels that it schedules named in a comment."""
        users: dict[str, list[KernelBuild]] = {}
        for build in self.builds.values():
            users.setdefault(build.schedule, []).append(build)
        parts = []
        for script, builds in users.items():
            knobs = ",".join(f"{k}={v}" for k, v in builds[0].knobs.items())
            head = f"// script: {builds[0].script}{':' if knobs else ''}{knobs}\n"
            head += f"// kernels: {', '.join(b.name for b in builds)}\n"
            parts.append(head + script.strip() + "\n")
        return "\n// -----\n\n".join(parts)

    def write(self, output: Path, *, weights: bool = True) -> None:
        """Writes OUT.ptx, OUT.safetensors (when there are weights and they are wanted) and OUT.levels/, all or none."""
        from mlirc import frontend

        with self.timer.step("write"), Outputs() as outputs:
            tensors = {**self.imported.weights, **self.imported.constants} if self.imported else {}
            if weights and tensors:
                outputs.add(output.with_suffix(".safetensors"), lambda p: frontend.write_weights(p, tensors))
            for level in HOST_LEVELS:
                if level in self.modules or (level == "tiles" and self._given != "gpu"):
                    text = self.text(level)
                    outputs.add(output.with_suffix(".levels") / f"{level}.mlir", lambda p, t=text: p.write_text(t))
            outputs.add(output, lambda p: p.write_text(self.ptx))


def _versions() -> dict[str, str]:
    from importlib import metadata

    import mlirc

    versions = {p: metadata.version(p) for p in ("torch-mlir", "llvmlite")}
    return {"mlirc": mlirc.__version__, **versions}


def model_name(spec: str) -> str:
    """A short name for a model: the last part of its path, or its factory function."""
    return Path(spec).stem if Path(spec).exists() else re.split(r"[./:]", spec)[-1]


def compile_model(
    spec: str,
    output: str | Path | None = None,
    *,
    target: str = DEFAULT_TARGET,
    schedule: Sequence[str] = (),
    weights: bool = True,
    cache: bool = True,
    timer: Timer | None = None,
    **options: Any,
) -> Compilation:
    """Compiles what `mlirc MODEL` takes, all the way, and writes it when `output` is given.

    `options` as of `mlirc.frontend.open_model`. Raises MlircError for anything the user can put right.
    """
    path = Path(output) if output else None
    if path:
        check_writable(path)
    folder = KernelCache(cache_folder()) if cache else None
    job = Compilation(model_name(spec), get_target(target), tuple(schedule), folder, timer or Timer())
    if spec.endswith(".mlir"):
        job.read_levels(Path(spec))
    else:
        job.import_model(spec, **options)
    job.lower("ptx")
    if path:
        job.write(path, weights=weights)
    return job


def compile_torch(
    module: Any,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    target: str | None = None,
    schedule: Sequence[str] = (),
    cache: bool = True,
    name: str = "model",
    **load_options: Any,
) -> Any:
    """Compiles a live torch module for its example inputs and returns the loaded `mlirc.runtime` model.

    The weights are the module's own: bound without a copy where they are on the GPU. `target` defaults to the GPU of
    this machine. `load_options` go to `mlirc.runtime.load`.
    """
    from mlirc.runtime import load

    folder = KernelCache(cache_folder()) if cache else None
    job = Compilation(name, get_target(target or _this_gpu()), tuple(schedule), folder)
    job.import_module(module, tuple(args), dict(kwargs or {}))
    job.lower("ptx")
    tensors = {**job.imported.weights, **job.imported.constants}
    digest = hashlib.sha256(job.ptx.encode()).hexdigest()[:16]
    path = cache_folder() / "models" / f"{name}-{digest}.ptx"
    with Outputs() as outputs:
        outputs.add(path, lambda p: p.write_text(job.ptx))
    return load(str(path), weights=tensors, **load_options)


def _this_gpu() -> str:
    """The best target for the GPU that torch uses; the default where there is none."""
    import torch

    from mlirc.targets import TARGETS

    if not torch.cuda.is_available():
        return DEFAULT_TARGET
    major, minor = torch.cuda.get_device_capability()
    found = [t for t in TARGETS.values() if t.cc == major * 10 + minor]
    older = [t for t in TARGETS.values() if t.cc <= major * 10 + minor and not t.name.endswith("a")]
    if not found and not older:
        raise MlircError(
            f"the GPU's compute capability {major}.{minor} is older than every target: {', '.join(TARGETS)}"
        )
    return (found or older)[-1].name
