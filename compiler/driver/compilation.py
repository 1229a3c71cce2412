"""Takes a model down the ladder of levels: the one place that knows the order of the steps."""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirc import internal
from mlirc.driver.kernel_build import KernelBuild, KernelJob
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.modules import FewLayers, Modules
from mlirc.driver.reschedule import Earlier, identity, runs_user_code
from mlirc.errors import MlircError, is_control
from mlirc.files.kept import cache_folder
from mlirc.files.opening import exists, open_regular, read_text, shorten
from mlirc.files.outputs import Outputs, check_model_output, model_files
from mlirc.frontend.names import IN_FILE
from mlirc.ir.levels import LEVELS
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.runtime.weights import WeightFile
from mlirc.targets import DEFAULT_TARGET, Target, get_target
from mlirc.timing import Timer
from mlirc.turns import export_turn, mlir_turn

if TYPE_CHECKING:
    from mlirc.driver.building import Building
    from mlirc.driver.workers import Helpers

# Kept beside the PTX, so that `mlirc-run --level` can run them on the CPU.
HOST_LEVELS = ("linalg", "kernels", "tiles", "gpu")


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
    fork: bool = False  # the helpers, as `mlirc.driver.workers.Pool` has it
    waiting: Helpers | None = None  # helpers that several compilations share, one after the other
    fp32: str = DEFAULT_FP32  # how FP32 products may be made
    imported: Any = None
    modules: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    schedule_text: str = ""
    builds: dict[str, KernelBuild] = field(default_factory=dict)
    plan: Any = None
    ptx: str = ""
    source: str = ""  # what the user named
    observe: Callable[[str], None] = lambda level: None
    checked: Any = None  # the Result of the last check
    offered: tuple[Any, ...] = ()  # scripts of the file that a kernel of the user's own comes from
    few: FewLayers | None = None  # where a few layers stand for all while it is lowered
    _given: str = "torch"
    _gpu_parts: dict[str, Any] = field(default_factory=dict)
    _schedules: Any = None
    _graph: str = ""
    _jobs: dict[str, KernelJob] = field(default_factory=dict)
    _earlier: Earlier = field(default_factory=Earlier)

    def open(self, spec: str, **options: Any) -> None:
        """Reads what the user named, a model or an .mlir file; options as of `mlirc.frontend.open_model`."""
        self.source = spec
        if is_mlir(spec):
            if options.get("quantize") is not None:
                raise MlircError(f"{spec}: --quantize takes a PyTorch model: the weights of MLIR are arguments")
            self.read_levels(Path(spec))
        else:
            self.import_model(spec, **options)

    @export_turn
    def import_model(self, spec: str, **options: Any) -> None:
        """Reads a model; options as of `mlirc.frontend.open_model`."""
        with self.timer.step("load"):
            from mlirc import frontend

            with internal.step(f"opening {spec}"):
                source = frontend.open_model(spec, **options)
        self.import_source(source)

    @export_turn
    def import_module(
        self,
        module: Any,
        args: tuple,
        kwargs: dict,
        train: bool = False,
        scalars: Sequence[str] = (),
        quantize: str | None = None,
        sizes: Mapping[str, Any] | None = None,
        dynamic_shapes: Any = None,
    ) -> None:
        """Takes a live torch module with example inputs; with `train`, in the mode that it is in. `scalars`: inputs
        that are numbers, which kernels take by value. `quantize`: a scheme by which weights are packed. `sizes` or
        `dynamic_shapes`: which sizes a call decides."""
        from mlirc import frontend
        from mlirc.frontend.sizes.request import with_sizes

        source = frontend.from_torch(module, args, kwargs, self.name, train, scalars)
        source = with_sizes(source, sizes, dynamic_shapes)
        self.import_source(frontend.packed_as(source, quantize) if quantize is not None else source)

    @export_turn
    def import_source(self, source: Any) -> None:
        """Takes a `mlirc.frontend.SourceModel`."""
        from mlirc import frontend

        if source.given is not None:
            self._take_kernel(source)
            return
        with self.timer.step("torch"), internal.step(f"importing {source.name} from PyTorch"):
            self.imported = frontend.import_torch(source)
        self.modules["torch"] = self.imported.module
        if self.imported.layers is not None:
            self.of_few_layers(FewLayers(self.imported.layers, self.imported.module))
        self.observe("torch")

    def _take_kernel(self, source: Any) -> None:
        """Takes a kernel of the user's own, which enters at `kernels` or `tiles`. Its own schedules hold where none are
        given."""
        from mlirc import frontend

        given = source.given
        self._given = given.level
        self.schedules, self.offered = self.schedules or given.schedules, given.scripts
        self.helpers = 0 if given.scripts else self.helpers  # what such a file defines is known in this process alone
        self._schedules = None
        self.check_schedules()
        knobs = [s for s in self.schedules if not s.endswith(".py")]
        if given.level == "tiles" and knobs:
            what = "is a block program already: no script makes it. Its constants are given by --shapes"
            raise MlircError(f"--schedule {knobs[0]}: kernel '{source.name}' {what}")
        self.modules[given.level] = self.modules["kernels"] = given.module
        if source.module is not None:
            self.imported = frontend.kernel_reference(source)
        self.observe(given.level)

    def of_few_layers(self, few: FewLayers) -> None:
        """Takes the `torch` level of a few layers that stand for all of the model's."""
        self.few = few
        self.modules.pop("torch", None)
        self.modules = Modules(self.modules, {"torch": few.all_torch})  # type: ignore[assignment]

    @mlir_turn
    def read_levels(self, path: Path) -> None:
        """Takes an .mlir file at any level from `torch` to `gpu`; the level is told by its content."""
        from mlirc import mlir
        from mlirc.ir import levels
        from mlirc.ir.slices_inside import require_slices_inside
        from mlirc.ir.text import SEPARATOR, judge_text
        from mlirc.schedule.places import restore

        text = read_text(path)
        judge_text(text, str(path))
        texts = [t for t in SEPARATOR.split(text) if t.strip()]
        parts = [restore(mlir.parse(t, str(path)), t) for t in texts]
        if not parts:
            raise MlircError(f"{path}: is empty: give a module at level torch, linalg, kernels, tiles, async or gpu")
        for part in parts:
            require_slices_inside(part, str(path))
        level = levels.detect(parts[-1])
        if level == "schedule":
            raise MlircError(f"{path}: a schedule, not a model: give it with --schedule {path}")
        if level == "llvm" or (len(parts) > 1 and level != "gpu"):
            raise MlircError(f"{path}: compilation starts from one module, or from the gpu level: this is {level}")
        self._given = level
        if level == "gpu":
            self._gpu_parts = {levels.host_function(p): p for p in parts[1:] or [levels.copy(parts[0])]}
        module = levels.with_main(parts[0])
        if level in ("tiles", "async"):
            self.modules[level] = module
        if level in ("async", "gpu"):
            module = levels.declare_kernels(module)
        self.modules[level if level in ("torch", "linalg") else "kernels"] = module
        self.observe(level)

    @mlir_turn
    def lower(self, level: str) -> None:
        """Makes every level down to the named one, except those that exist."""
        depth = LEVELS.index(level)
        if depth > LEVELS.index("torch") and "torch" in self.modules and "linalg" not in self.modules:
            self._to_linalg()
        if depth > LEVELS.index("linalg") and "kernels" not in self.modules:
            self._to_kernels()
        until = {"gpu": "gpu", "llvm": "ptx", "ptx": "ptx"}.get(level) if not self.ptx else None
        with self._new_building(until) if until else contextlib.nullcontext() as building:
            if depth > LEVELS.index("kernels") and self._given not in ("async", "gpu") and "tiles" not in self.modules:
                self._to_tiles(building)
            if depth > LEVELS.index("tiles") and "tiles" in self.modules and "async" not in self.modules:
                self.observe("async")
            if building:
                self._build(building)
        if until == "ptx":
            self._to_ptx()

    @export_turn
    def check(self, levels: Sequence[str] = (), *, seed: int = 0, kinds: Sequence[str] | None = None) -> Any:
        """Compares each level (default: linalg, kernels, tiles, gpu) with PyTorch on several kinds of inputs, or with
        the level that the compilation started from, and keeps what was found: a `mlirc.check.Result`."""
        from mlirc.check.run import check_job

        self.checked = check_job(self, levels, seed=seed, kinds=kinds)
        return self.checked

    @property
    def given(self) -> str:
        """The level that the compilation started from."""
        return self._given

    def _to_linalg(self) -> None:
        from mlirc import frontend

        with self.timer.step("linalg"), internal.step("lowering the torch level to linalg"):
            few = self.few
            made = frontend.lower_to_linalg(self.modules["torch"]) if few is None else few.all_linalg()
            self.modules["linalg"] = made
        self.observe("linalg")

    def _to_kernels(self) -> None:
        from mlirc.ir import levels
        from mlirc.mlir import context, ir
        from mlirc.passes.scalar_arguments import mark_scalars
        from mlirc.scripts.graph import to_kernels

        with self.timer.step("kernels"):
            schedules = self._scripts()
            script = schedules.graph_script(self.target)
            graph = identity(script)
            kernels = self._earlier.kernels if graph == self._earlier.graph else None

            def divided(linalg: Any) -> Any:
                with schedules.code.active(), internal.step("dividing the linalg level into kernels"):
                    made = to_kernels(levels.copy(linalg), self.target, script=script)
                with context(), ir.Location.unknown():
                    mark_scalars(made)
                return made

            if kernels is None or runs_user_code(script):
                own = bool(self.schedules)  # the user's may do with a layer what they want
                kernels = None if own or self.few is None else self.few.all_kernels(divided)
                kernels = kernels or divided(self.modules["linalg"])
            self._graph, self.modules["kernels"] = graph, kernels
            self._note_fp32()
        self.observe("kernels")

    def _note_fp32(self) -> None:
        """Writes on every kernel how its FP32 products may be made: what judges the kernel alone needs to know, too."""
        from mlirc.ir import levels
        from mlirc.mlir import context, ir

        if self.fp32 != DEFAULT_FP32:
            with context():
                for function in levels.kernels(self.modules["kernels"]).values():
                    function.attributes[levels.FP32] = ir.StringAttr.get(self.fp32)

    def _scripts(self) -> Any:
        """The scripts of this compilation, with the user's."""
        from mlirc.schedule.registry import Schedules

        if self._schedules is None:
            self._schedules = Schedules(list(self.schedules), self.fp32, self.offered)
        return self._schedules

    @mlir_turn
    def check_schedules(self, spec: str = "") -> None:
        """Reads the user's schedules, which runs their code: a mistake in one need not wait for the model `spec`; those
        of a Python file's kernel do, whose scripts they may name."""
        if self.schedules and not spec.endswith(".py") and not IN_FILE.fullmatch(spec):
            self._scripts()

    def _to_tiles(self, building: Building | None = None) -> None:
        """Schedules every kernel, each by its script, and adds it to what is built."""
        from mlirc.ir import levels

        with self.timer.step("tiles"):
            schedules = self._scripts()
            self._note_fp32()
            module = self.modules["kernels"]
            tiles = {}
            for name in levels.kernels(module):
                alone = levels.isolate(module, name)
                with internal.step(f"scheduling kernel {levels.described(module, name)}"):
                    tiles[name], self.records[name] = schedules.schedule_kernel(alone, self.target)
                if building:
                    building.add(self._job(levels.isolate(tiles[name], name), name, building.until))
            schedules.check_used()
            self.schedule_text = schedules.printed()
            self.modules["tiles"] = levels.replace(module, tiles)
        self.observe("schedule")
        self.observe("tiles")

    def _to_async(self) -> None:
        """The level by itself, to be looked at: what is built goes through it kernel by kernel."""
        from mlirc.driver.kernel_build import to_async
        from mlirc.ir import levels

        with self.timer.step("async"):
            module, made = self.modules["tiles"], {}
            for name in levels.kernels(module):
                made[name] = levels.isolate(module, name)
                with internal.step(f"taking kernel {levels.described(module, name)} from tiles to the async level"):
                    to_async(made[name], name, self.target)
            self.modules["async"] = levels.replace(module, made)

    def _job(self, alone: Any, name: str, until: str) -> KernelJob:
        """What is to be built of the kernel that stands alone in a `tiles`-level module, or in one of the `async` or
        `gpu` level if that was given."""
        from mlirc.driver.kernel_build import takes_user_code
        from mlirc.ir import levels
        from mlirc.schedule.places import annotated

        level = self._given if self._given in ("async", "gpu") else "tiles"
        text = alone.operation.get_asm(enable_debug_info=True)
        own = level != "gpu" and takes_user_code(levels.function(alone, name))
        files = tuple(self._scripts().files) if own else ()
        return KernelJob(name, text, annotated(alone, text), level, self.target.name, until, files)

    def _new_building(self, until: str) -> Building:
        from mlirc.driver.building import Building

        return Building(until, self.cache, self._earlier, self.helpers, fork=self.fork, waiting=self.waiting)

    def _build(self, building: Building) -> None:
        """Finishes every kernel, after adding them if they were scheduled before."""
        from mlirc.ir import levels

        with self.timer.step(building.until):
            if self._given == "gpu":
                parts = self._gpu_parts
            else:
                module = self.modules["async" if self._given == "async" else "tiles"]
                parts = {
                    name: levels.isolate(module, name) for name in levels.kernels(module) if name not in building.jobs
                }
            for name, alone in parts.items():
                building.add(self._job(alone, name, building.until))
            self._jobs, self.builds = building.jobs, building.finish(self.timer)

    def _to_ptx(self) -> None:
        """Makes the PTX file's text, with the plan in it, out of the compiled kernels."""
        from mlirc.backend.plan_builder import build_plan
        from mlirc.backend.ptx import merge_ptx
        from mlirc.runtime import plan_file

        with self.timer.step("plan"), internal.step("making the launch plan"):
            compiled = {name: build.compiled for name, build in self.builds.items()}
            self.plan = build_plan(
                self.modules["kernels"], compiled, model=self.name, target=self.target.name, versions=_versions()
            )
            merged = merge_ptx([build.ptx for build in self.builds.values()], self.target)
            self.ptx = plan_file.embed(merged, self.plan)
        for level in ("gpu", "llvm", "ptx"):
            self.observe(level)

    def reschedule(self, schedules: Sequence[str], level: str = "ptx") -> Compilation:
        """The same model with other schedules (all of them: those of this compilation do not carry over), lowered to
        `level`. Files are read anew. Only what the schedules change is made again: the `kernels` level where the graph
        script differs, and the kernels that come out differently; `rebuilt` names those.

        This compilation stays as it is, also when a script fails. Raises MlircError as `lower` does, and for a model
        that was given at a level below the schedules.
        """
        new = self.derive(schedules)
        new.lower(level)
        return new

    def derive(self, schedules: Sequence[str]) -> Compilation:
        """As `reschedule`, before anything is lowered."""
        if self._given in ("tiles", "async", "gpu"):
            raise MlircError(f"{self.name} was given at level {self._given}: schedules work on the levels above it")
        if self._given != "kernels":
            self.lower("linalg")
        new = Compilation(self.name, self.target, tuple(schedules), self.cache, helpers=self.helpers, fp32=self.fp32)
        new.source, new.offered = self.source, self.offered
        new.imported, new._given, new._earlier = self.imported, self._given, self.results()
        kept = ("torch", "linalg", "kernels") if self._given == "kernels" else ("torch", "linalg")
        new.modules = {name: module for name, module in self.modules.items() if name in kept}
        return new

    def results(self) -> Earlier:
        """What a compilation of the same model can take over from this one."""
        earlier = self._earlier
        graph, kernels = (self._graph, self.modules["kernels"]) if self._graph else (earlier.graph, earlier.kernels)
        jobs, builds = (self._jobs, self.builds) if self._jobs else (earlier.jobs, earlier.builds)
        return Earlier(graph, kernels, jobs, builds)

    @property
    def rebuilt(self) -> list[str]:
        """The kernels that had to be compiled; the others were known."""
        return [name for name, build in self.builds.items() if not build.cached]

    @mlir_turn
    def text(self, level: str) -> str:
        """The level as text. `lower` it first."""
        if level == "async" and "tiles" in self.modules and level not in self.modules:
            self._to_async()
        if level in self.modules:
            return str(self.modules[level])
        if level == "schedule" and self.schedule_text:
            return self.schedule_text
        if level == "gpu":
            return gpu_text(self.modules["kernels"], self.builds.values())
        if level == "llvm":
            return "\n".join(f"; kernel {b.name}\n{b.llvm}" for b in self.builds.values())
        if level == "ptx":
            return self.ptx
        raise MlircError(f"level {level} is not there: the compilation started below it, from {self._given}")

    def tensors(self) -> Mapping[str, Any]:
        """Weights and constants by name; the weights maybe made on demand, so that a large model is never all there."""
        return ChainMap(self.imported.constants, self.imported.weights) if self.imported else {}

    @property
    def reads(self) -> tuple[str, ...]:
        """The user's files and folders that this compilation reads, which no output may replace."""
        return (self.source, *self.schedules) if self.source else self.schedules

    def write(self, output: Path, *, weights: bool = True, keep_weights: bool = False) -> None:
        """Writes OUT.ptx, OUT.safetensors and OUT.levels/, all or none, and takes away what an earlier compilation left
        beside them. Constants, which are in no state dict, go into the safetensors file even where the weights are not
        wanted: nobody else has them. With `keep_weights` that file stays: no schedule changes what is in it."""
        from mlirc.host.level_files import level_mark

        file, folder = model_files(output)
        check_model_output(output, self.reads)
        with self.timer.step("write"), Outputs(self.reads) as outputs:
            tensors = self.tensors() if weights or not self.imported else self.imported.constants
            checksum = ""
            if tensors and keep_weights:
                checksum = WeightFile(file).checksum
            elif tensors:
                from mlirc import frontend

                checksum = outputs.add(file, frontend.weights_writer(tensors))
            else:
                outputs.remove(file)
            self._note_weights(checksum)
            for level in HOST_LEVELS:
                path = folder / f"{level}.mlir"
                if level in self.modules or level == "gpu":
                    text = self.text(level)
                    outputs.add_text(path, text, level_mark(level, text, self.ptx))
                else:
                    outputs.remove(path)
            outputs.add_text(output, self.ptx, "PTX")

    def _note_weights(self, checksum: str) -> None:
        """Writes into the plan which weights were written with it."""
        from mlirc.runtime import plan_file

        if checksum != self.plan.weights_checksum:
            self.plan = replace(self.plan, weights_checksum=checksum)
            self.ptx = plan_file.with_plan(self.ptx, self.plan)


@dataclass
class KernelModel:
    """One kernel as a model of its own: the PTX file's text, and its levels' texts by name."""

    ptx: str
    levels: dict[str, str]


def single_kernel_model(job: Compilation, name: str) -> KernelModel:
    """One kernel of a finished compilation as a model of its own."""
    from mlirc.backend.plan_builder import build_plan
    from mlirc.backend.ptx import merge_ptx
    from mlirc.ir import levels
    from mlirc.runtime import plan_file

    build = job.builds[name]
    texts: dict[str, str] = {}
    for level in ("kernels", "tiles"):
        if level in job.modules and name in levels.kernels(job.modules[level]):
            texts[level] = str(levels.with_main(levels.isolate(job.modules[level], name, reference=True)))
    alone = levels.with_main(levels.isolate(job.modules["kernels"], name))
    texts["gpu"] = gpu_text(alone, [build])
    made = build_plan(alone, {name: build.compiled}, model=name, target=job.target.name, versions=_versions())
    return KernelModel(plan_file.embed(merge_ptx([build.ptx], job.target), made), texts)


def gpu_text(module: Any, builds: Iterable[KernelBuild]) -> str:
    """The `gpu` level as text: `@main` of a `kernels`-level module with its kernels declared, then each kernel."""
    from mlirc.ir import levels

    return "\n// -----\n\n".join([str(levels.declare_kernels(module)), *(b.gpu for b in builds)])


@functools.cache
def _versions() -> dict[str, str]:
    from importlib import metadata

    from mlirc.version import __version__

    versions = {p: metadata.version(p) for p in ("torch-mlir", "llvmlite")}
    return {"mlirc": __version__, **versions}


def is_mlir(spec: str) -> bool:
    """Whether a path names MLIR: told by its content, and by its name only where there is no telling."""
    if not exists(spec) or Path(spec).is_dir():
        return spec.endswith(".mlir")
    with open_regular(spec) as file:
        head = file.read(4096)
    if head.startswith((b"PK", b"\x80")):  # a zip archive, a pickle
        return False
    starts = rb"\s*(//.*\s*|#\w+ = .*\s*)*(builtin\.)?(module|func\.func|\"builtin\.module\")\b"
    return spec.endswith(".mlir") or re.match(starts, head) is not None


def model_name(spec: str) -> str:
    """A short name for a model: the last part of its path, or its factory function. Raises MlircError for a file's name
    that can be in no plan."""
    name = Path(spec).stem if exists(spec) else re.split(r"[./:]", spec)[-1]
    if wrong := next(filter(is_control, name), None):
        what = "bytes that are no UTF-8" if unicodedata.category(wrong) == "Cs" else f"the character U+{ord(wrong):04X}"
        raise MlircError(f"{ascii(shorten(spec))}: the file's name has {what}: rename it")
    return name


def compile_model(
    spec: str,
    output: str | Path | None = None,
    *,
    target: str = DEFAULT_TARGET,
    schedule: Sequence[str] = (),
    weights: bool = True,
    cache: bool = True,
    timer: Timer | None = None,
    fp32: str = DEFAULT_FP32,
    **options: Any,
) -> Compilation:
    """Compiles what `mlirc MODEL` takes, all the way, and writes it when `output` is given.

    `options` as of `mlirc.frontend.open_model`. Raises MlircError for anything the user can put right.
    """
    path = Path(output) if output else None
    if path:
        check_model_output(path, (spec, *schedule))
    folder = KernelCache(cache_folder()) if cache else None
    job = Compilation(
        model_name(spec), get_target(target), tuple(schedule), folder, timer or Timer(), fp32=check_fp32(fp32)
    )
    job.check_schedules(spec)
    job.open(spec, **options)
    job.lower("ptx")
    if path:
        job.write(path, weights=weights)
    return job
