"""What a person calls a model that generates, on a device: an artifact's folder, a Hugging Face folder, or a module."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirc.collecting import collecting_rarely
from mlirc.driver.start import end_ahead, spawn_ahead
from mlirc.errors import MlircError, missing_package
from mlirc.files.opening import exists, read_text, shorten
from mlirc.generate.engine import Engine
from mlirc.generate.progress import Progress, silent
from mlirc.generate.tokenizer import Tokenizer, load_tokenizer
from mlirc.runtime.cuda import NO_GPU, Driver
from mlirc.runtime.plan import Plan

ABOUT = "generation.json"
MANY_LAYERS = 7  # from so many on a process of its own lowers the plans
_CONFIG_LIMIT = 1 << 20


@dataclass
class Opened:
    """An engine with what goes with it. `plan` is that of a decoding step, None where none was made (on the CPU)."""

    name: str
    engine: Engine
    tokenizer: Tokenizer | None
    eos: tuple[int, ...]
    plan: Plan | None = None
    arenas: int = 0  # bytes that the plans need for what they compute
    notes: tuple[str, ...] = ()  # what is slower than it could be, a line each
    stops: tuple[str, ...] = ()  # texts in front of which a generation ends

    def close(self) -> None:
        """Frees the device's memory, and ends the tokenizer's process."""
        self.engine.close()
        if self.tokenizer is not None:
            self.tokenizer.close()


def open_generating(
    model: Any,
    *,
    device: int | str = 0,
    tokenizer: str | os.PathLike | None = None,
    weights: str | os.PathLike | Mapping[str, Any] | None = None,
    output: str | os.PathLike | None = None,
    progress: Progress = silent,
    verify: bool = True,
    **options: Any,
) -> Opened:
    """Opens `model` on `device`: a GPU's number, `cpu` or `host` (the host device, which checks every access).

    `model`: an artifact's folder, or a Hugging Face folder or transformers module, which is compiled first with
    `options` (those of `compile_generation`) and written as `output` where that is given. `tokenizer`: another folder
    to take it from. `weights`: an artifact's other weights. `progress` is told of each stage, in a line.
    `verify=False` leaves out the checksums of an artifact's plans, levels and weights. Raises MlircError for anything
    the user can put right.
    """
    if not (device in ("cpu", "host") or (isinstance(device, int) and not isinstance(device, bool) and device >= 0)):
        raise MlircError(f"device {device!r}: give a GPU's number, 'cpu', or 'host', which checks every access")
    folder = Path(model) if isinstance(model, str | os.PathLike) else None
    if folder is not None:
        _check_folder(folder)
    if isinstance(device, int):
        _check_gpu(device)
    words = None
    if tokenizer is not None:
        words = load_tokenizer(Path(tokenizer))
        if words is None:
            raise MlircError(f"{tokenizer}: holds no tokenizer (tokenizer.json)")
    elif folder is not None:
        words = load_tokenizer(folder)
    try:
        if folder is not None and exists(folder / ABOUT):
            opened = _load(folder, device, words, weights, output, options, tokenizer is None, progress, verify)
        else:
            if weights is not None:
                raise MlircError("weights go with a compiled model; one that is compiled has those of its own folder")
            opened = _compile(model, device, words, output, options, progress)
    except BaseException:
        if words is not None:
            words.close()
        raise
    return opened


def _check_gpu(number: int) -> None:
    """Raises MlircError where there is no such GPU, before the minutes that compiling may take."""
    try:
        Driver(number).close()
    except MlircError as e:
        here = "without a GPU, the device cpu runs the model on the CPU, slowly"
        raise MlircError(str(e).replace(NO_GPU, here)) from e


def _check_folder(folder: Path) -> None:
    """Raises MlircError for what is no folder of a model, with what it seems to be."""
    shown = shorten(folder)
    if not exists(folder):
        raise MlircError(f"{shown}: no such folder: give a Hugging Face folder, or one that mlirc-generate -o wrote")
    if folder.is_dir():
        if exists(folder / "adapter_config.json") and not exists(folder / ABOUT):
            raise MlircError(f"{shown}: holds an adapter (adapter_config.json): merge it into its model and save that")
        if not (exists(folder / ABOUT) or exists(folder / "config.json")):
            raise MlircError(
                f"{shown}: neither a compiled generating model ({ABOUT}) nor a Hugging Face folder (config.json)"
            )
        return
    what = "a compiled model without a cache" if folder.suffix == ".ptx" else "a file"
    raise MlircError(
        f"{shown}: {what}: generating text needs a Hugging Face folder, or one that mlirc-generate -o wrote "
        f"(mlirc-run runs a .ptx)"
    )


def compile_only(
    model: str | os.PathLike, output: str | os.PathLike, progress: Progress = silent, **options: Any
) -> tuple[str, ...]:
    """Compiles a Hugging Face folder and writes it as `output`, without a device; returns notes for the user."""
    folder = Path(model)
    _check_folder(folder)
    if exists(folder / ABOUT):
        _refuse_options(folder, {**options, "output": output})
    return _compiled(folder, output, {**options, "progress": progress}).about().notes


def _compiled(model: Any, output: Any, options: dict[str, Any]) -> Any:
    """A `CompiledGenerator`, with nothing of the libraries' warnings on the terminal."""
    with collecting_rarely():
        if isinstance(model, str | os.PathLike) and _layers(Path(model)) >= MANY_LAYERS:
            spawn_ahead()
        try:
            from mlirc.frontend.noise import quiet
            from mlirc.generate.compilation import compile_generation
        except ModuleNotFoundError as e:
            raise missing_package(e) or e from e
        try:
            with quiet():
                return compile_generation(model, output, **_given(options))
        finally:
            end_ahead()


def _layers(folder: Path) -> int:
    """How many layers a folder's config.json says that the model has, 0 where it says nothing: whether to start a
    process is all that depends on it."""
    try:
        config = json.loads(read_text(folder / "config.json", limit=_CONFIG_LIMIT))
    except (MlircError, ValueError, RecursionError):
        return 0
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    found = [p.get(name) for p in parts if isinstance(p, dict) for name in ("num_hidden_layers", "n_layer")]
    return max((n for n in found if type(n) is int), default=0)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_options(folder: Path, options: dict[str, Any]) -> None:
    """Raises MlircError where a compiled model is given what only compiling can heed."""
    for name in _given(options):
        raise MlircError(f"{folder}: is compiled already, and {name} is for compiling: give the Hugging Face folder")


def _load(
    folder: Path,
    device: int | str,
    words: Tokenizer | None,
    weights: Any,
    output: Any,
    options: dict,
    own: bool,  # whether the tokenizer is the folder's
    progress: Progress,
    verify: bool,
) -> Opened:
    from mlirc.generate.artifact import check_tokenizer, read_about
    from mlirc.generate.loading import load_engine
    from mlirc.runtime.loading import read_model

    _refuse_options(folder, {**options, "output": output})
    about = read_about(folder)
    if own:
        check_tokenizer(folder, about)
    plans = {name: read_model(folder / f"{name}.ptx")[1] for name in about.plans}
    engine = load_engine(folder, device, weights, progress, verify)
    arenas = sum(plan.arena_size for plan in plans.values())
    return Opened(about.name, engine, words, about.eos, plans["decode"], arenas, about.notes, about.stops)


def _compile(
    model: Any, device: int | str, words: Tokenizer | None, output: Any, options: dict, progress: Progress
) -> Opened:
    level = "kernels" if device == "cpu" and output is None else "ptx"  # there equal parts are compiled once
    made = _compiled(model, output, {**options, "level": level, "progress": progress})
    about = made.about()
    engine = made.engine(device, progress)
    plans = {name: job.plan for name, job in made.jobs.items()} if level == "ptx" else {}
    arenas = sum(plan.arena_size for plan in plans.values())
    return Opened(about.name, engine, words, about.eos, plans.get("decode"), arenas, about.notes, about.stops)
