"""Which script schedules which kernel, and the application of a script to a kernel.

A script is a Python function registered with `@register(...)`: it gets a `KernelInfo` and the `Target`, takes its
knobs as keyword arguments with defaults, and returns a transform module whose `@__transform_main` is applied to the
kernel's function. The files of `mlirc.scripts` are found by themselves; `--schedule` adds a user's.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlirc.errors import MlircError
from mlirc.files import exists, read_text, shorten
from mlirc.kernel_info import KernelInfo, describe
from mlirc.mlir import context, func, ir
from mlirc.mlir_text import judge_text
from mlirc.schedule_apply import apply_script
from mlirc.schedule_errors import python_error, script_frames
from mlirc.targets import Target
from mlirc.user_code import UserCode, source_only

__all__ = ["KernelInfo", "Schedules", "ScheduleRecord", "Script", "register", "script_registry"]


@dataclass(frozen=True)
class Script:
    """A registered script. `matches(kernel)` must be exact: a script that matches must be able to schedule."""

    name: str
    build: Callable[..., ir.Module]
    matches: Callable[[KernelInfo], bool]
    priority: int
    file: str

    @property
    def knobs(self) -> dict[str, Any]:
        """Knob names and their defaults (None: chosen from the kernel's shapes)."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True)
class ScheduleRecord:
    """How a kernel was scheduled: the script's name, the knobs that were given or chosen, and the printed script."""

    script: str
    knobs: dict[str, Any]
    text: str


GRAPH = "graph"  # the script of the whole model, linalg to kernels
USER_PRIORITY = 1000  # added to a user's scripts, so that they are asked first
_registry: dict[str, Script] = {}
_loading_user_file = False


def register(
    *, matches: Callable[[KernelInfo], bool], priority: int = 0, name: str | None = None
) -> Callable[[Callable[..., ir.Module]], Callable[..., ir.Module]]:
    """Registers a script under its function's name. Among the scripts that match a kernel the highest priority is used;
    those of a `--schedule FILE.py` come before the built-in ones.

    The annotation of a knob (`int`, `bool` or `str`, maybe `| None`) says what `--schedule` may give it. An integer is
    a size or a count, 1 or more, unless the knob's default is less."""

    def add(build: Callable[..., ir.Module]) -> Callable[..., ir.Module]:
        bonus = USER_PRIORITY if _loading_user_file else 0
        key = name or build.__name__
        _registry[key] = Script(key, build, matches, priority + bonus, build.__code__.co_filename)
        return build

    return add


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
    global _loading_user_file
    saved = dict(script_registry())
    added: dict[str, Script] = {}
    _loading_user_file = True
    try:
        yield added
        added.update({k: s for k, s in _registry.items() if saved.get(k) is not s})
    finally:
        _loading_user_file = False
        _registry.clear()
        _registry.update(saved)


@dataclass
class _Override:
    """`TARGET[=SCRIPT][:knob=value,...]`; the target is a kernel's name, its kind, a script's name or `*`."""

    text: str
    target: str
    script: str | None
    knobs: dict[str, Any]
    used: bool = False


@dataclass
class _FileScript:
    """A transform module from a .mlir file, for the kernels (names or kinds) that its `mlirc.kernels` lists."""

    file: str
    module: ir.Module
    kernels: list[str]
    used: bool = False


@dataclass
class Schedules:
    """The scripts of one compilation, with the user's `--schedule` values; see docs/schedules.md for their forms.

    Raises MlircError for a file that cannot be read, a script with a Python error, and an unknown script or knob.
    """

    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scripts = dict(script_registry())
        self.code = UserCode()
        self._knobs: list[_Override] = []
        self._modules: list[_FileScript] = []
        self._uses: dict[tuple[str, str], list[str]] = {}  # (script, its text) to kernels
        for text in self.overrides:
            if text.endswith(".py"):
                self._scripts |= _load_python(text, self.code)
            elif text.endswith(".mlir"):
                self._modules += _load_mlir(text)
            else:
                self._knobs.append(parse_override(text))
        for o in self._knobs:
            if o.script is not None and o.script not in self._scripts:
                raise MlircError(
                    f"--schedule '{o.text}': no script '{o.script}': choose one of {', '.join(self._scripts)}"
                )

    def graph_script(self, target: Target) -> ir.Module:
        """The script that takes the `linalg` level to the `kernels` level, which is named `graph`: from the user's
        `.mlir` or `.py` file, or the built-in one, with the user's knobs."""
        chosen = next((m for m in reversed(self._modules) if GRAPH in m.kernels), None)
        if chosen is not None:
            chosen.used = True
            module = chosen.module
        else:
            script = self._scripts[GRAPH]
            knobs: dict[str, Any] = {}
            for o in self._knobs:
                if o.target == GRAPH and o.script is None:
                    o.used = True
                    _check_knobs(o, script)
                    knobs |= o.knobs
            with context(), ir.Location.unknown(), self.code.active():
                module = _build(script, None, target, knobs)
        self._uses.setdefault((GRAPH, str(module).rstrip() + "\n"), []).append(GRAPH)
        return module

    def select(self, kernel: KernelInfo) -> Script:
        """The script for a kernel: one that the user named, else the matching one of the highest priority."""
        for o in reversed(self._knobs):
            if o.script is not None and o.target in (kernel.name, kernel.kind, "*"):
                o.used = True
                script = self._scripts[o.script]
                if not _matches(script, kernel):
                    raise MlircError(
                        f"--schedule '{o.text}': script '{o.script}' cannot schedule kernel '{kernel.name}' of kind "
                        f"'{kernel.kind}': choose a script that matches it, or generic"
                    )
                return script
        matching = [s for s in self._scripts.values() if _matches(s, kernel)]
        if not matching:
            why = f" ({kernel.obstacle})" if kernel.obstacle else ""
            raise MlircError(f"kernel '{kernel.name}' of kind '{kernel.kind}': no script can schedule it{why}")
        return max(matching, key=lambda s: s.priority)

    def knobs_for(self, kernel: KernelInfo, script: Script) -> dict[str, Any]:
        """The user's knob values for this kernel, the most specific last; raises MlircError for an unknown knob."""
        rank = {"*": 0, kernel.kind: 1, script.name: 2, kernel.name: 3}
        found = sorted((o for o in self._knobs if o.target in rank), key=lambda o: rank[o.target])
        values: dict[str, Any] = {}
        for o in found:
            # `matmul:...` speaks of the script `matmul`, not of another script that got a kernel of that kind
            if o.target not in (script.name, kernel.name) and o.target in self._scripts and o.script is None:
                continue
            o.used = True
            _check_knobs(o, script)
            values |= o.knobs
        return values

    def schedule_kernel(self, module: ir.Module, target: Target) -> tuple[ir.Module, ScheduleRecord]:
        """Applies the script for the kernel that stands alone in `module`, which is left as it is.

        Returns the module at the `tiles` level (or, for the generic script, annotated for `mlirc-loops`) and the
        record.
        """
        with context(), ir.Location.unknown(), self.code.active():
            tiles = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
            function = _kernel_function(tiles)
            kernel = describe(function)
            file_script = next(
                (m for m in reversed(self._modules) if {kernel.name, kernel.kind, "*"} & {*m.kernels}), None
            )
            if file_script:
                file_script.used = True
                script_module, name, knobs = file_script.module, file_script.file, {}
            else:
                script = self.select(kernel)
                given = self.knobs_for(kernel, script)
                script_module = _build(script, kernel, target, given)
                name, knobs = script.name, _chosen_knobs(script_module, given)
            apply_script(script_module, function, kernel.name, file_script.file if file_script else "")
        text = str(script_module).rstrip() + "\n"
        self._uses.setdefault((name, text), []).append(kernel.name)
        return tiles, ScheduleRecord(name, knobs, text)

    def printed(self) -> str:
        """All scripts used so far, each once, with the kernels it scheduled; `--schedule FILE.mlir` takes it back."""
        parts = []
        for (name, text), kernels in self._uses.items():
            with context(), ir.Location.unknown():
                module = ir.Module.parse(text)
                module.operation.attributes["mlirc.kernels"] = ir.ArrayAttr.get([ir.StringAttr.get(k) for k in kernels])
                parts.append(f"// script: {name}\n// kernels: {', '.join(kernels)}\n{str(module).rstrip()}\n")
        return "\n// -----\n\n".join(parts)

    def check_used(self) -> None:
        """Raises MlircError when a `--schedule` value met no kernel: a misspelt name must not pass unnoticed."""
        for o in self._knobs:
            if not o.used:
                raise MlircError(
                    f"--schedule '{o.text}': no kernel has the name or kind '{o.target}' (see -v for the names)"
                )
        for m in self._modules:
            if not m.used:
                raise MlircError(f"--schedule {m.file}: no kernel has a name or kind in its mlirc.kernels {m.kernels}")


def _matches(script: Script, kernel: KernelInfo) -> bool:
    try:
        return script.matches(kernel)
    except Exception as e:
        raise python_error(script.file, e) from e


def _check_knobs(override: _Override, script: Script) -> None:
    """Raises MlircError for a knob that the script does not have, or a value that its annotation does not allow."""
    for knob, value in override.knobs.items():
        if knob not in script.knobs:
            valid = ", ".join(script.knobs) or "none"
            what = f"script '{script.name}' has no knob '{knob}': it has {valid}"
            raise MlircError(f"--schedule '{override.text}': {what}")
        wanted = _wanted(script, knob, value)
        if wanted:
            what = f"knob '{knob}' of script '{script.name}' takes {wanted}, not {value}"
            raise MlircError(f"--schedule '{override.text}': {what}")


def _wanted(script: Script, knob: str, value: Any) -> str:
    """What a knob takes, when that is not `value`; "" when it is."""
    annotation = inspect.get_annotations(script.build).get(knob)
    allowed = {part.strip() for part in str(getattr(annotation, "__name__", annotation)).split("|")}
    default = script.knobs[knob]
    if value is None:
        return "" if default is None or "None" in allowed or annotation is None else "a value"
    if "int" in allowed:
        least = 1 if default is None else min(1, default)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return "" if fits else f"an integer of at least {least}"
    if "bool" in allowed:
        return "" if isinstance(value, bool) else "true or false"
    if "str" in allowed:
        return "" if isinstance(value, str) else "a word"
    return ""


def parse_override(text: str) -> _Override:
    """Parses `TARGET[=SCRIPT][:knob=value,...]`; raises MlircError for another form."""
    head, colon, tail = text.partition(":")
    target, equals, script = head.partition("=")
    form = "expected FILE.py, FILE.mlir, or TARGET[=SCRIPT][:knob=value,...]"
    if not target or (equals and not script) or not (equals or colon) or (colon and not tail):
        raise MlircError(f"--schedule '{text}': {form}")
    knobs: dict[str, Any] = {}
    for item in tail.split(",") if tail else []:
        name, eq, value = item.partition("=")
        if not eq or not name.strip() or not value.strip():
            raise MlircError(f"--schedule '{text}': '{item}' is not of the form knob=value: {form}")
        knobs[name.strip()] = _parse_value(value.strip())
    return _Override(text, target, script or None, knobs)


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        return text


def _load_python(path: str, code: UserCode) -> dict[str, Script]:
    if not exists(path):
        raise MlircError(f"--schedule {shorten(path)}: no such file")
    read_text(path, "--schedule")
    with _user_registry() as added:
        try:
            with context(), ir.Location.unknown():
                code.load(path)
        except MlircError:
            raise
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            raise python_error(path, e) from e
    if not added:
        raise MlircError(f"--schedule {path}: it registers no script (decorate one with mlirc.schedule.register)")
    return added


def _load_mlir(path: str) -> list[_FileScript]:
    if not exists(path):
        raise MlircError(f"--schedule {shorten(path)}: no such file")
    text = read_text(path, "--schedule")
    judge_text(text, f"--schedule {path}")
    lines = text.split("\n")
    found, start = [], 0
    for end in [i for i, line in enumerate(lines) if line.startswith("// -----")] + [len(lines)]:
        chunk = "\n".join(lines[start:end])
        # empty lines in front keep the file's line numbers in the locations
        padded = "\n" * start + chunk
        start = end + 1
        if not chunk.strip():
            continue
        with context():
            try:
                module = ir.Module.parse(padded)
            except ir.MLIRError as e:
                what = " ".join(str(e).split()).replace('"-":', f"{path}:")
                raise MlircError(f"--schedule {path}: not valid MLIR: {what}") from e
            if "mlirc.kernels" not in module.operation.attributes:
                raise MlircError(
                    f'{path}:{end}: name the kernels or kinds: module attributes {{mlirc.kernels = ["matmul"]}}'
                )
            kernels = [ir.StringAttr(a).value for a in ir.ArrayAttr(module.operation.attributes["mlirc.kernels"])]
            found.append(_FileScript(path, module, kernels))
    if not found:
        raise MlircError(f"--schedule {path}: is empty: give a transform module")
    return found


def _kernel_function(module: ir.Module) -> func.FuncOp:
    functions = [o for o in module.body.operations if o.operation.name == "func.func"]
    if len(functions) != 1:
        raise MlircError(f"a kernel's module holds one function, this one has {len(functions)}")
    return functions[0].operation


def _build(script: Script, kernel: KernelInfo | None, target: Target, knobs: dict[str, Any]) -> ir.Module:
    try:
        with script_frames():
            module = script.build(kernel, target, **knobs)
    except MlircError:
        raise
    except Exception as e:
        raise python_error(script.file, e) from e
    if not isinstance(module, ir.Module):
        raise MlircError(
            f"{script.file}: script '{script.name}' returned {type(module).__name__}, not a transform module"
        )
    return module


def _chosen_knobs(module: ir.Module, given: dict[str, Any]) -> dict[str, Any]:
    attributes = module.operation.attributes
    if "mlirc.knobs" not in attributes:
        return given
    knobs = {}
    for named in ir.DictAttr(attributes["mlirc.knobs"]):
        value = getattr(named.attr, "value", named.attr)
        knobs[named.name] = value
    return knobs
