"""From a Hugging Face causal language model to plans that generate, and to what runs them."""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.lowering import Lowerings
from mlirc.driver.start import end_ahead
from mlirc.driver.workers import Helpers, cores
from mlirc.errors import MlircError
from mlirc.files.kept import cache_folder
from mlirc.frontend.importer import ImportedModel
from mlirc.frontend.inputs import dtype_name
from mlirc.frontend.weights import Renamed
from mlirc.generate.artifact import About, check_output, write_artifact
from mlirc.generate.export import Generator, exported, plain_name
from mlirc.generate.families import open_generator
from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.progress import Progress, silent
from mlirc.generate.settings import stop_strings_of
from mlirc.host.level_code import LevelCode, level_code
from mlirc.host.level_files import Levels
from mlirc.ir.layer_names import NotRepeated
from mlirc.mlir import context, ir, parse
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.runtime.plan_file import identity
from mlirc.targets import DEFAULT_TARGET, get_target

_MANY_PARAMETERS = 64  # of a model of seven layers or so
_ON_CPU = ("tiles", "kernels", "linalg")


@dataclass
class CompiledGenerator:
    """The compiled plans of a model by name (`decode`, `sample`, `prefill-C`), down to the level that was asked
    for."""

    generator: Generator
    jobs: dict[str, Compilation]
    source: Path | None  # the Hugging Face folder

    @property
    def notes(self) -> list[str]:
        """What is slower than it could be, a line each."""
        return self.generator.notes

    def tensors(self) -> Mapping[str, Any]:
        """Weights and constants of all plans by name, but not the states, which begin as zeros."""
        states = self.generator.states
        found: list[Mapping[str, Any]] = []
        for job in self.jobs.values():
            imported = job.imported
            names = [n for n in imported.weights if n not in states and not any(n in other for other in found)]
            found += [imported.constants, Renamed(imported.weights, dict(zip(names, names, strict=True)))]
        return ChainMap(*found)  # type: ignore[arg-type]

    def about(self) -> About:
        """What the artifact says of itself."""
        network, sizes = self.generator.network, self.generator.sizes
        config, made = network.config.get_text_config(decoder=True), next(iter(self.jobs.values()))
        chosen = getattr(network, "generation_config", None)
        eos = getattr(chosen, "eos_token_id", None)
        eos = getattr(config, "eos_token_id", None) if eos is None else eos
        eos = [] if eos is None else list(eos) if isinstance(eos, list | tuple) else [eos]
        usable, notes = tuple(t for t in eos if 0 <= t < sizes.vocabulary), self.notes
        if any(t >= sizes.vocabulary for t in eos):
            most = max(eos)
            notes += [f"eos_token_id {most}: the model has {sizes.vocabulary:,} tokens, so that this one ends no text"]
        return About(
            self.generator.name, type(network).__name__, dtype_name(self.generator.dtype), made.target.name, sizes,
            usable, tuple(notes), stops=stop_strings_of(network),
        )  # fmt: skip

    def write(self, folder: str | os.PathLike) -> Path:
        """Writes the artifact, whole or not at all: a folder with the plans, their weights and levels, and the
        tokenizer's files. Raises MlircError where it cannot be written."""
        texts = {
            name: (job.ptx, {level: job.text(level) for level in HOST_LEVELS if level in job.modules or level == "gpu"})
            for name, job in self.jobs.items()
        }
        write_artifact(Path(folder), self.about(), texts, self.tensors(), self.source)
        return Path(folder)

    def engine(self, device: int | str = 0, progress: Progress = silent) -> PlanEngine:
        """What runs the plans: on a GPU by number, on the host device (`host`), or on the CPU (`cpu`)."""
        from mlirc.generate.loading import engine_of

        if device == "cpu":
            codes = {name: partial(_code, name, job) for name, job in self.jobs.items()}
            return engine_of(device, self.generator.sizes, self.tensors(), codes=codes, progress=progress)
        for job in self.jobs.values():
            job.lower("ptx")
        levels = {
            name: Levels.of({level: job.text(level) for level in HOST_LEVELS}, job.plan) if device == "host" else None
            for name, job in self.jobs.items()
        }
        plans = {name: (job.ptx, job.plan, levels[name]) for name, job in self.jobs.items()}
        return engine_of(device, self.generator.sizes, self.tensors(), plans=plans)


def compile_generation(
    model: Any,
    output: str | os.PathLike | None = None,
    *,
    slots: int = 1,
    context: int | None = None,
    page_size: int = 64,
    pages: int | None = None,
    chunks: Sequence[int] | None = None,
    dtype: str | None = None,
    random_weights: int | None = None,
    quantize: str | None = None,
    source_tokens: int | None = None,
    cache_dtype: str | None = None,
    target: str = DEFAULT_TARGET,
    schedule: Sequence[str] = (),
    cache: bool = True,
    fp32: str = DEFAULT_FP32,
    level: str = "ptx",
    progress: Progress = silent,
) -> CompiledGenerator:
    """Compiles what generates with a transformers causal language model (a module in this process, one that was opened,
    or a Hugging Face folder), and writes it as a folder when `output` is given.

    `slots` sequences run at once, each of at most `context` tokens (the model's, at most 2,048, where it is not given).
    The cache has `pages` of `page_size` tokens (enough for all slots at their longest). `chunks`: how many tokens of a
    prompt are read at once, ascending, the first 1. `dtype` and `random_weights` (a seed) are for folders. `quantize`:
    a scheme for the weights (`int4:group=128`). `source_tokens`: of the source of an encoder-decoder, at most (512).
    `cache_dtype`: `fp8` for a cache of 8-bit floats (e4m3, no scales), half of one of 16 bits.
    `level`: as far as it is compiled; `kernels` is enough for the CPU. `progress` is told of each stage, in a line.
    Raises MlircError for anything the user can put right.
    """
    if output is not None:
        check_output(Path(output))
    generator = open_generator(
        model, slots=slots, context=context, page_size=page_size, pages=pages, chunks=chunks, dtype=dtype,
        random_weights=random_weights, quantize=quantize, source_tokens=source_tokens,
        cache_dtype=cache_dtype,
    )  # fmt: skip
    kernels = KernelCache(cache_folder()) if cache else None
    jobs: dict[str, Compilation] = {}
    constants: dict[str, torch.Tensor] = {}
    with Helpers() as helpers, _apart(generator, level) as lowerings:
        for number, name in enumerate(generator.steps, 1):
            progress(f"{name} ({number} of {len(generator.steps)} plans)")
            job = Compilation(
                f"{generator.name}.{name}", get_target(target), tuple(schedule), kernels, fp32=check_fp32(fp32)
            )
            job.waiting = helpers
            job.check_schedules()
            _import(job, generator, name)
            _rename(job.imported, name, constants)
            if lowerings:
                lowerings.add(job, level)
            else:
                job.lower(level)
            job.waiting = None
            jobs[name] = job
        if lowerings:
            progress("lowering what is left of the plans")
            lowerings.finish()
    source = Path(model) if isinstance(model, str | os.PathLike) else None
    made = CompiledGenerator(generator, jobs, source)
    if output is not None:
        progress(f"writing {output}")
        made.write(output)
    return made


def _code(name: str, job: Compilation, starts: Callable[[], object]) -> LevelCode:
    """A plan's code for the CPU: lower levels have one function for equal parts of the graph, much less to compile."""
    level = next(x for x in _ON_CPU if x in job.modules)
    if job.ptx:
        return Levels.of({level: job.text(level)}, job.plan, identity(job.ptx)).code(level, name, starts)
    text = job.text(level).rstrip()
    return level_code(text, lambda: parse(text, name), name, "", starts)


def _import(job: Compilation, generator: Generator, name: str) -> None:
    """Takes a step, with a few layers where these can stand for all."""
    if generator.few is not None:
        try:
            return job.import_source(exported(generator, name))
        except NotRepeated:
            generator.few = None
    job.import_source(exported(generator, name))


def _apart(generator: Generator, level: str) -> contextlib.AbstractContextManager[Lowerings | None]:
    """Processes that lower the plans while the next ones are imported; None where starting one takes longer than that
    saves, which it does for models of a few layers."""
    count = min(cores() - 1, len(generator.steps))
    parameters = sum(1 for _ in generator.network.parameters())
    if count < 1 or parameters < _MANY_PARAMETERS or level in ("torch", "linalg"):
        end_ahead()
        return contextlib.nullcontext()
    return Lowerings(count, (cores() - 1) // count)  # this process takes a core


def _rename(imported: ImportedModel, plan: str, constants: dict[str, torch.Tensor]) -> None:
    """Gives weights the names that they have in the model itself, and constants names that no other plan has for other
    values: `constants` are those of the plans so far."""
    names = {name: plain_name(name) for name in imported.weights}
    for name, tensor in imported.constants.items():
        plain = plain_name(name)
        known = constants.get(plain)
        if plain in names.values() or (known is not None and not _equal(known, tensor)):
            plain = f"{plain}@{plan}"
        names[name] = plain
        constants[plain] = tensor
    if len(set(names.values())) < len(names):
        raise MlircError(f"{imported.name}: two tensors of the model have one name")
    with context():
        main = next(op for op in imported.module.body.operations if "arg_attrs" in op.attributes and _is_main(op))
        for key in ("arg_attrs", "res_attrs"):
            changed = []
            for about in map(ir.DictAttr, ir.ArrayAttr(main.attributes[key])):
                entries = {a.name: a.attr for a in about}
                old = ir.StringAttr(entries["mlirc.name"]).value if "mlirc.name" in entries else ""
                if old in names:
                    entries["mlirc.name"] = ir.StringAttr.get(names[old])
                changed.append(ir.DictAttr.get(entries))
            main.attributes[key] = ir.ArrayAttr.get(changed)
    imported.weights = Renamed(imported.weights, {names[n]: n for n in imported.weights})
    imported.constants = {names[n]: t for n, t in imported.constants.items()}


def _is_main(op: Any) -> bool:
    return ir.StringAttr(op.attributes["sym_name"]).value == "main"


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
