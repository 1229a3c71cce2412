"""Which script schedules which kernel, and the application of a script to a kernel.

A script is a Python function registered with `@register(...)`: it gets a `KernelInfo` and the `Target`, takes its
knobs as keyword arguments with defaults, and returns a transform module whose `@__transform_main` is applied to the
kernel's function. The files of `mlirc.scripts` are found by themselves; `--schedule` adds a user's.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlirc.dialects.schedule import defined_in
from mlirc.errors import MlircError
from mlirc.ir.levels import FP32, copy
from mlirc.mlir import context, func, ir
from mlirc.passes import passes_of
from mlirc.passes.distribute import instructions
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.schedule.apply import apply_script, attributes_of, note_chosen
from mlirc.schedule.errors import ValueOutOfRange, VerbError, script_frames
from mlirc.schedule.kernel_info import KernelInfo, describe
from mlirc.schedule.overrides import KNOB_TYPES, Override, check_knobs, knob_types, parse_override
from mlirc.schedule.script import Script
from mlirc.schedule.stated import state_instructions
from mlirc.schedule.time_limit import limited_time
from mlirc.schedule.user import FileScript, call, is_loading, load_mlir, load_python, loading_file, was_loaded
from mlirc.schedule.user_code import UserCode, source_only
from mlirc.targets import Target

__all__ = ["KernelInfo", "Schedules", "ScheduleRecord", "Script", "register", "script_registry"]


@dataclass(frozen=True)
class ScheduleRecord:
    """How a kernel was scheduled: the script's name, the knobs that were given or chosen, and the printed script.
    `reason` says why the generic script has it, "" where another one has."""

    script: str
    knobs: dict[str, Any]
    text: str
    reason: str = ""


GENERIC = "generic"  # the script for what no other one can schedule
GRAPH = "graph"  # the script of the whole model, linalg to kernels
USER_PRIORITY = 1000  # added to a user's scripts, so that they are asked first
_registry: dict[str, Script] = {}
_programs: dict[str, dict[str, Script]] = {}  # of programs that import mlirc, by file: for the kernels of that file


def register(
    *, matches: Callable[[KernelInfo], bool], priority: int = 0, name: str | None = None
) -> Callable[[Callable[..., ir.Module]], Callable[..., ir.Module]]:
    """Registers a script under its function's name. Among the scripts that match a kernel the highest priority is used;
    those of a `--schedule FILE.py` come before the built-in ones.

    The annotation of a knob (`int`, `bool` or `str`, maybe `| None`), or else its default, says what `--schedule` may
    give it. An integer is a size or a count, 1 or more, unless the knob's default is less."""

    def add(build: Callable[..., ir.Module]) -> Callable[..., ir.Module]:
        key = build.__name__ if name is None else name
        _check_registration(key, build, matches, priority)
        user = bool(loading_file(build))
        if user and not is_loading():
            file = os.path.abspath(build.__code__.co_filename)
            made = Script(key, build, matches, priority + USER_PRIORITY, build.__code__.co_filename, True)
            _programs.setdefault(file, {})[key] = made
            return build
        known = _registry.get(key)
        if user and known is not None and key != GRAPH:
            what = f"registered twice, first at {known.place}" if known.user else "the name of a built-in script"
            raise VerbError(f"register: '{key}' is {what}: give yours another name, as register(name=...)")
        bonus = USER_PRIORITY if user else 0
        _registry[key] = Script(key, build, matches, priority + bonus, build.__code__.co_filename, user)
        return build

    return add


def _check_registration(key: Any, build: Any, matches: Any, priority: Any) -> None:
    """Raises VerbError for what cannot be a script."""
    if not inspect.isfunction(build):
        raise VerbError(f"register: decorate a function, not {build!r}")
    if not callable(matches):
        raise VerbError(f"register: matches is a function from a KernelInfo to true or false, not {matches!r}")
    if not isinstance(key, str) or not re.fullmatch(r"\w+", key):
        raise VerbError(f"register: name {key!r}: give letters, digits and underscores")
    if not isinstance(priority, int):
        raise VerbError(f"register: priority {priority!r}: give a whole number")
    parameters = list(inspect.signature(build).parameters.values())
    positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    knobs = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if len(positional) != 2 or len(positional) + len(knobs) != len(parameters):
        raise VerbError(f"register: '{key}' takes (kernel, target, *, knob=default, ...)")
    for knob in knobs:
        types = knob_types(build, knob.name)
        if knob.default is inspect.Parameter.empty:
            raise VerbError(f"register: knob '{knob.name}' of '{key}' needs a default")
        if types - {*KNOB_TYPES, "None"}:
            raise VerbError(
                f"register: knob '{knob.name}' of '{key}' is an int, bool or str or a Literal of words, maybe | None"
            )


def scripts_of_file(file: str) -> list[Script]:
    """The scripts that a program's file has registered in this process, for the kernels that it defines."""
    return list(_programs.get(os.path.abspath(file), {}).values())


def script_registry() -> dict[str, Script]:
    """All scripts by name, with every file of `mlirc.scripts` loaded."""
    from mlirc import scripts

    for info in pkgutil.iter_modules(scripts.__path__):
        if not info.name.startswith("_"):
            importlib.import_module(f"{scripts.__name__}.{info.name}")
    return _registry


def reload_scripts() -> None:
    """Forgets the scripts of `mlirc.scripts`, which are then loaded from their sources again: for a process that goes
    on after they were edited, and in which nothing else holds on to them."""
    from mlirc import scripts

    _registry.clear()
    source_only(scripts.__name__)
    script_registry()


@contextmanager
def _user_registry() -> Iterator[dict[str, Script]]:
    """The registry while a user's file is loaded: what it adds is taken out again and handed to one `Schedules`."""
    saved = dict(script_registry())
    added: dict[str, Script] = {}
    try:
        yield added
        added.update({k: s for k, s in _registry.items() if saved.get(k) is not s})
    finally:
        _registry.clear()
        _registry.update(saved)


def load_user_file(path: str, code: UserCode) -> dict[str, Script]:
    """Runs a `FILE.py` as a part of `code`; returns the scripts that it registered. Raises MlircError at its line, and
    for a file that adds nothing: no script, pass, transform op or instruction."""
    with _user_registry() as added:
        load_python(path, code)
    if not added and not defines_more(path):
        raise MlircError(f"--schedule {path}: it registers no script (decorate one with mlirc.schedule.register)")
    return added


def defines_more(path: str) -> bool:
    """Whether a user's file has defined a pass, a transform op or an instruction."""
    return bool(passes_of(path) or defined_in(path) or instructions.defined_in(path))


def ensure_loaded(path: str) -> None:
    """Runs a user's file unless this process has: a helper that compiles kernels has not, and needs its passes."""
    if not was_loaded(path):
        load_user_file(path, UserCode())


@dataclass
class Schedules:
    """The scripts of one compilation, with the user's `--schedule` values (see docs/schedules.md for their forms) and
    choice of FP32 products. `offered`: further scripts, which a kernel's own file has; they are used where they match.

    Raises MlircError for a file that cannot be read, a script with a Python error, and an unknown script or knob.
    """

    overrides: list[str] = field(default_factory=list)
    fp32: str = DEFAULT_FP32
    offered: Sequence[Script] = ()

    def __post_init__(self) -> None:
        check_fp32(self.fp32)
        self._scripts = dict(script_registry()) | {s.name: s for s in self.offered}
        self.code = UserCode()
        self._knobs: list[Override] = []
        self._modules: list[FileScript] = []
        self._uses: dict[tuple[str, str], list[str]] = {}  # (script, its text) to kernels
        self._used_scripts: set[str] = set()
        self._seen: list[str] = []
        self.files: list[str] = []  # the user's Python files
        for text in self.overrides:
            if text.endswith(".py"):
                self._add_file(text)
            elif text.endswith(".mlir"):
                self._modules += load_mlir(text)
            else:
                self._knobs.append(parse_override(text))
        for o in self._knobs:
            if o.script is not None and o.script not in self._scripts:
                raise MlircError(
                    f"--schedule '{o.text}': no script '{o.script}': choose one of {', '.join(self._scripts)}"
                )
            named = self._scripts.get(o.script or o.target)
            if named is not None:
                check_knobs(o, named)  # here, too: no model is needed to see a misspelt one

    def _add_file(self, path: str) -> None:
        added = load_user_file(path, self.code)
        for name, script in added.items():
            if name in self._scripts and self._scripts[name].user and self._scripts[name] not in self.offered:
                raise MlircError(f"{script.place}: script '{name}' is registered twice: {self._scripts[name].place}")
        self._scripts |= added
        self.files.append(path)

    def users_scripts(self) -> list[str]:
        """Names of the scripts of the user's Python files."""
        return [name for name, s in self._scripts.items() if s.user and s not in self.offered]

    def script(self, name: str) -> Script:
        """The script of this name, a user's or a built-in one."""
        return self._scripts[name]

    def graph_script(self, target: Target) -> ir.Module:
        """The script that takes the `linalg` level to the `kernels` level, which is named `graph`: from the user's
        `.mlir` or `.py` file, or the built-in one, with the user's knobs."""
        chosen = next((m for m in reversed(self._modules) if GRAPH in m.kernels), None)
        self._used_scripts.add(GRAPH)
        if chosen is not None:
            chosen.met.add(GRAPH)
            module = chosen.module
        else:
            script = self._scripts[GRAPH]
            knobs: dict[str, Any] = {}
            for o in self._knobs:
                if o.target == GRAPH and o.script is None:
                    o.used = True
                    check_knobs(o, script)
                    knobs |= o.knobs
            with context(), ir.Location.unknown(), self.code.active():
                module = _build(script, None, target, knobs)
        self._uses.setdefault((GRAPH, str(module).rstrip() + "\n"), []).append(GRAPH)
        return module

    def select(self, kernel: KernelInfo) -> Script:
        """The script for a kernel: one that the user named, else the matching one of the highest priority."""
        o = self._named(kernel)
        if o is not None:
            o.used = True
            script = self._scripts[str(o.script)]
            if not call(script.file, script.matches, kernel):
                raise MlircError(
                    f"--schedule '{o.text}': script '{o.script}' cannot schedule kernel '{kernel.name}' of kind "
                    f"'{kernel.kind}': choose a script that matches it, or generic"
                )
            return script
        with limited_time():  # a clock for all of them takes less than one for each
            matching = [s for s in self._scripts.values() if call(s.file, s.matches, kernel)]
        if not matching:
            why = f" ({kernel.obstacle})" if kernel.obstacle else ""
            raise MlircError(f"kernel '{kernel.name}' of kind '{kernel.kind}': no script can schedule it{why}")
        best = max(matching, key=lambda s: s.priority)
        equal = [s for s in matching if s.user and s.priority == best.priority and s is not best]
        if equal:
            raise MlircError(
                f"{equal[0].place}: kernel '{kernel.name}': scripts '{best.name}' and '{equal[0].name}' both match it "
                "with one priority: give one of them a higher one, register(priority=...)"
            )
        return best

    def _named(self, kernel: KernelInfo) -> Override | None:
        """The most specific `TARGET=SCRIPT` for a kernel, the last of equals."""
        ranks = _ranks(kernel)
        found = [o for o in self._knobs if o.script is not None and o.target in ranks]
        return max(reversed(found), key=lambda o: ranks[o.target], default=None)

    def _module_for(self, kernel: KernelInfo) -> FileScript | None:
        """The user's `.mlir` script for a kernel, unless a `TARGET=SCRIPT` is more specific; notes what it keeps from
        taking effect. Raises MlircError when two files claim it alike."""
        ranks = _ranks(kernel)
        for m in self._modules:
            m.met.update(k for k in m.kernels if k in ranks)
        claims = [(max(ranks[k] for k in m.kernels if k in ranks), m) for m in self._modules if {*m.kernels} & {*ranks}]
        if not claims:
            return None
        rank, chosen = max(claims, key=lambda claim: claim[0])
        others = [m for r, m in claims if r == rank and m is not chosen]
        if others:
            raise MlircError(f"{others[0].place}: a second script for kernel '{kernel.name}': {chosen.place} has one")
        named = self._named(kernel)
        if named is not None and ranks[named.target] >= rank:
            if ranks[named.target] == rank:
                raise MlircError(f"--schedule '{named.text}': {chosen.place} schedules kernel '{kernel.name}' as well")
            return None
        for o in self._knobs:
            if o.target in ranks:
                o.obstacle = f"kernel '{kernel.name}' is scheduled by {chosen.place}: edit the values there"
        return chosen

    def knobs_for(self, kernel: KernelInfo, script: Script) -> dict[str, Any]:
        """The user's knob values for this kernel, the most specific last; raises MlircError for an unknown knob."""
        rank = {"*": 0, kernel.kind: 1, script.name: 2, kernel.name: 3}
        found = sorted((o for o in self._knobs if o.target in rank), key=lambda o: rank[o.target])
        values: dict[str, Any] = {}
        for o in found:
            # `matmul:...` speaks of the script `matmul`, not of another script that got a kernel of that kind
            if o.target not in (script.name, kernel.name) and o.target in self._scripts and o.script is None:
                o.obstacle = f"script '{script.name}' got kernel '{kernel.name}': name that script, or the kernel"
                continue
            if o.script is not None and o.script != script.name:
                continue  # another script was named more specifically, and these knobs are of this one
            o.used = True
            check_knobs(o, script)
            values |= o.knobs
        return values

    def schedule_kernel(self, module: ir.Module, target: Target) -> tuple[ir.Module, ScheduleRecord]:
        """Applies the script for the kernel that stands alone in `module`, which is left as it is.

        Returns the module at the `tiles` level (or, for the generic script, annotated for `mlirc-loops`) and the
        record.
        """
        with context(), ir.Location.unknown(), self.code.active():
            tiles = copy(module)
            function = _kernel_function(tiles)
            if self.fp32 != DEFAULT_FP32:
                function.attributes[FP32] = ir.StringAttr.get(self.fp32)
            kernel = describe(function)
            self._seen.append(kernel.name)
            file_script, reason = self._module_for(kernel), ""
            if file_script:
                script_module, name, knobs = file_script.module, file_script.file, {}
            else:
                script = self.select(kernel)
                self._used_scripts.add(script.name)
                given = self.knobs_for(kernel, script)
                script_module = _build(script, kernel, target, given)
                name, knobs = _text(script_module, "mlirc.script") or script.name, _chosen_knobs(script_module, given)
                if name == GENERIC and name not in {o.script for o in self._knobs}:
                    no_script = f"no other script matches a kernel of kind '{kernel.kind}'"
                    reason = _text(script_module, "mlirc.reason") or kernel.obstacle or no_script
            with contextlib.redirect_stdout(sys.stderr):  # a user's transform op may print
                apply_script(script_module, function, kernel.name)
            state_instructions(function)
        text = str(script_module).rstrip() + "\n"
        self._uses.setdefault((name, text), []).append(kernel.name)
        return tiles, ScheduleRecord(name, knobs, text, reason)

    def printed(self) -> str:
        """All scripts used so far, each once, with the kernels it scheduled; `--schedule FILE.mlir` takes it back."""
        parts = []
        for (name, text), kernels in self._uses.items():
            with context(), ir.Location.unknown():
                module = ir.Module.parse(text)
                module.operation.attributes["mlirc.kernels"] = ir.ArrayAttr.get([ir.StringAttr.get(k) for k in kernels])
                parts.append(f"// script: {name}\n// kernels: {', '.join(kernels)}\n{str(module).rstrip()}\n")
        return "\n// -----\n\n".join(parts)

    def check_used(self, whole: bool = True) -> None:
        """Raises MlircError when a `--schedule` value met no kernel: a misspelt name must not pass unnoticed. `whole`:
        the kernels were those of a model, so that all that a `.mlir` file lists must be there."""
        for o in self._knobs:
            if not o.used:
                why = o.obstacle or f"no kernel has the name or kind '{o.target}' (see -v for the names)"
                raise MlircError(f"--schedule '{o.text}': {why}")
        for path in self.files:
            own = [s for s in self._scripts.values() if s.user and s.file == path]
            if defines_more(path):
                continue  # transform ops, passes or instructions, which another script may use
            if own and not any(s.name in self._used_scripts for s in own):
                names = ", ".join(s.name for s in own)
                kernels = ", ".join(self._seen[:8]) + (", ..." if len(self._seen) > 8 else "")
                raise MlircError(f"{own[0].place}: no kernel got a script of this file ({names}): {kernels or 'none'}")
        for m in self._modules:
            missing = [k for k in m.kernels if k not in m.met] if whole else []
            if missing or not any(n.met for n in self._modules if n.file == m.file):
                what = f"no kernel has the name or kind '{(missing or m.kernels)[0]}' of its mlirc.kernels"
                raise MlircError(f"--schedule {m.place}: {what} (see -v for the names)")


def _ranks(kernel: KernelInfo) -> dict[str, int]:
    """What may name a kernel, with how specific it is."""
    return {"*": 0, kernel.kind: 1, kernel.name: 2}


def _kernel_function(module: ir.Module) -> func.FuncOp:
    functions = [o for o in module.body.operations if o.operation.name == "func.func"]
    if len(functions) != 1:
        raise MlircError(f"a kernel's module holds one function, this one has {len(functions)}")
    return functions[0].operation


def _build(script: Script, kernel: KernelInfo | None, target: Target, knobs: dict[str, Any]) -> ir.Module:
    try:
        with script_frames():
            module = call(script.file, script.build, kernel, target, **knobs)
    except MlircError as e:
        if isinstance(e.__cause__, ValueOutOfRange) and knobs and not script.user:
            raise _knob_error(script, kernel, knobs, e.__cause__) from e
        raise
    if not isinstance(module, ir.Module):
        raise MlircError(
            f"{script.place}: script '{script.name}' returned {type(module).__name__}, not a transform module: end it "
            "with `return module`"
        )
    if not script.user:
        note_chosen(module, knobs)
    return module


def _knob_error(script: Script, kernel: KernelInfo | None, knobs: dict[str, Any], error: ValueOutOfRange) -> MlircError:
    """The error for a user's knobs of a built-in script: it names the knob that decides the attribute, else all."""
    named = [k for k in knobs if error.attribute in attributes_of(k)] or list(knobs)
    shown = ",".join(f"{k}={knobs[k]}" for k in named)
    name = kernel.name if kernel else GRAPH
    return MlircError(f"--schedule '{script.name}:{shown}': kernel '{name}': {error.problem}")


def _text(module: ir.Module, name: str) -> str:
    attributes = module.operation.attributes
    return ir.StringAttr(attributes[name]).value if name in attributes else ""


def _chosen_knobs(module: ir.Module, given: dict[str, Any]) -> dict[str, Any]:
    attributes = module.operation.attributes
    if "mlirc.knobs" not in attributes:
        return given
    knobs = {}
    for named in ir.DictAttr(attributes["mlirc.knobs"]):
        value = getattr(named.attr, "value", named.attr)
        knobs[named.name] = value
    return knobs
