"""Model files and factories: torch.export archives, TorchScript, pickles, `package.module:function`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pickletools
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mlirc.apart import fails_apart
from mlirc.errors import MlircError
from mlirc.files.opening import open_regular
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.exported import is_exported, read_exported
from mlirc.frontend.inputs import InputSpec, check_names, dtype_name, sample
from mlirc.frontend.judge.archive import Archive, NotJudged, damaged
from mlirc.frontend.judge.torchscript import is_torchscript, judge_torchscript
from mlirc.frontend.source import SourceModel, from_torch, with_numbers

_LOOP_SECONDS, _LOOP_MEMORY = 4, 4 << 30
_EXPORT_HINT = "torch.export.save(torch.export.export(model, args), 'model.pt2')"


def kind_of_file(path: Path) -> str:
    """`pt2`, `torchscript`, `archived pickle` or `pickle`, from the content. Raises MlircError for all else."""
    with open_regular(path) as file:
        head = file.read(16)
    if head.startswith(b"PK"):
        with Archive(path, str(path)) as archive:
            names = archive.names
        if is_exported(names):
            return "pt2"
        if is_torchscript(names):
            return "torchscript"
        if any(name.split("/", 1)[-1] == "data.pkl" for name in names):
            return "archived pickle"
        if any("/data/aotinductor/" in name for name in names):
            raise MlircError(
                f"{path}: compiled by AOTInductor, not a model: export the model itself with {_EXPORT_HINT}"
            )
        raise MlircError(f"{path}: not a model: a zip archive, but neither a torch.export nor a PyTorch one")
    if head[:1] == b"\x80" and len(head) > 2 and head[1] <= 5:
        return "pickle"
    if len(head) > 8 and head[8:9] == b"{":
        raise MlircError(f"{path}: weights alone (safetensors): give the directory that also holds config.json")
    raise MlircError(f"{path}: not a model: no torch.export archive, TorchScript or PyTorch file")


def open_file(path: Path, *, inputs: Mapping[str, InputSpec], allow_pickle: bool) -> SourceModel:
    """Opens a model file of any kind; raises MlircError for a damaged one, and, without `allow_pickle`, for a pickle
    and for an archive that could run code."""
    kind = kind_of_file(path)
    if kind == "pt2":
        return _open_program(path, inputs, allow_pickle)
    if kind == "torchscript":
        return _open_torchscript(path, inputs, allow_pickle)
    if kind == "archived pickle":
        with Archive(path, str(path)) as archive:
            archive.check()
    return _open_pickle(path, inputs, allow_pickle)


def _open_program(path: Path, inputs: Mapping[str, InputSpec], trusted: bool) -> SourceModel:
    with Archive(path, str(path)) as archive:
        try:
            program = read_exported(archive)
        except NotJudged:
            if not trusted:
                raise
            archive.check()
            program = None
    if program is None:
        try:
            program = torch.export.load(str(path))
        except Exception as e:
            raise MlircError(f"{path}: the torch.export archive cannot be loaded: {first_line(str(e))}") from e
    try:
        return from_program(program, path.stem, inputs)
    except MlircError:
        raise
    except Exception as e:  # parts of the archive that do not fit together
        raise damaged(str(path), f"{type(e).__name__}: {first_line(str(e))}") from e


def from_program(program: Any, name: str, inputs: Mapping[str, InputSpec] | None = None) -> SourceModel:
    """A model from an ExportedProgram; `inputs` fix the shapes where it has dynamic ones."""
    specs, dynamic = _program_inputs(program)
    for spec in (inputs or {}).values():
        check_names([spec.name], list(specs), name)
        _check_against(name, spec, specs[spec.name], dynamic[spec.name])
    example: Any = program.example_inputs or ((), {})
    leaves, tree = torch.utils._pytree.tree_flatten(example)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    weights = dict(program.state_dict)
    symbolic = any(any(flags) for flags in dynamic.values())
    if len(tensors) != len(specs):  # an archive without example inputs
        if symbolic and any(any(d) and n not in (inputs or {}) for n, d in dynamic.items()):
            raise MlircError(f"{name}: has dynamic shapes and no example inputs: give --input name=dtype[sizes]")
        values = [
            sample((inputs or {}).get(n, InputSpec(n, d, tuple(int(x) for x in s)))) for n, (d, s) in specs.items()
        ]
        args, kwargs = program.call_spec.in_spec.unflatten(values)
    else:
        for place, spec_name in zip(tensors, specs, strict=True):
            given = (inputs or {}).get(spec_name)
            if given and tuple(leaves[place].shape) != given.shape:
                leaves[place] = sample(given)
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, tree)
    if symbolic:
        module = program.module()
        source = SourceModel(name, "pt2", args, kwargs, module=module, weights=weights)
        return source
    return SourceModel(name, "pt2", args, kwargs, program=program, weights=weights)


def _program_inputs(program: Any) -> tuple[dict[str, tuple[torch.dtype, tuple]], dict[str, list[bool]]]:
    """Dtype and shape of each tensor input by name, and which of its dimensions are dynamic."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    specs, dynamic = {}, {}
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta["val"] if name in nodes else None
        if isinstance(value, torch.Tensor):
            specs[name] = (value.dtype, tuple(value.shape))
            dynamic[name] = [isinstance(n, torch.SymInt) for n in value.shape]
    return specs, dynamic


def _check_against(name: str, spec: InputSpec, found: tuple[torch.dtype, tuple], dynamic: list[bool]) -> None:
    dtype, shape = found
    if spec.dtype != dtype:
        raise MlircError(f"{name}: input '{spec.name}' has the dtype {dtype_name(dtype)} in the archive, not {spec}")
    fits = len(spec.shape) == len(shape) and all(
        free or a == b for a, b, free in zip(spec.shape, shape, dynamic, strict=True)
    )
    if not fits:
        sizes = ",".join("?" if free else str(n) for n, free in zip(shape, dynamic, strict=True))
        raise MlircError(f"{name}: input '{spec.name}' has the fixed shape [{sizes}] in the archive, not {spec}")


def _open_torchscript(path: Path, inputs: Mapping[str, InputSpec], trusted: bool) -> SourceModel:
    from torch._export.converter import TS2EPConverter

    with Archive(path, str(path)) as archive:
        loops = judge_torchscript(archive, trusted)
    try:
        script = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as e:
        raise MlircError(f"{path}: the TorchScript archive cannot be loaded: {first_line(str(e))}") from e
    arguments = script.forward.schema.arguments[1:]
    known = [a.name for a in arguments]
    check_names(list(inputs), known, str(path))
    needed = [a.name for a in arguments if not a.has_default_value()]
    _require_inputs(path, needed, inputs, "TorchScript holds no example inputs")
    count = max((known.index(name) + 1 for name in inputs), default=0)
    missing = [n for n in known[:count] if n not in inputs]
    if missing:
        raise MlircError(f"{path}: give --input for '{missing[0]}' too: TorchScript takes its inputs in order")
    args = tuple(sample(inputs[name]) for name in known[:count])

    def convert() -> Any:
        with torch.no_grad():
            return TS2EPConverter(script, args, {}).convert()

    def convert_alone() -> None:
        torch.set_num_threads(1)  # a copy of a process does not have its threads
        convert()

    # Conversion computes what depends on constants alone, so a loop over them may never end, or fill the memory.
    if loops and not trusted and (why := fails_apart(convert_alone, seconds=_LOOP_SECONDS, memory=_LOOP_MEMORY)):
        raise MlircError(f"{path}: a loop in it cannot be converted ({why}): export it with {_EXPORT_HINT}")
    try:
        program = convert()
    except Exception as e:
        raise MlircError(
            f"{path}: TorchScript cannot be converted: {first_line(str(e))}; export it with {_EXPORT_HINT}"
        ) from e
    source = from_program(program, path.stem)
    source.kind, source.args, source.kwargs = "torchscript", args, {}
    source.input_names = known[:count]
    source.build = lambda: script
    return source


def _require_inputs(path: Path, needed: list[str], inputs: Mapping[str, InputSpec], why: str) -> None:
    missing = [name for name in needed if name not in inputs]
    if missing:
        raise MlircError(f"{path}: {why}: give --input '{missing[0]}=dtype[sizes]' (inputs: {', '.join(needed)})")


def _open_pickle(path: Path, inputs: Mapping[str, InputSpec], allow_pickle: bool) -> SourceModel:
    if not allow_pickle:
        raise _pickle_refusal(path)
    with cwd_importable():
        try:
            module = torch.load(str(path), map_location="cpu", weights_only=False)
        except (Exception, SystemExit) as e:
            raise MlircError(f"{path}: the pickle cannot be loaded: {type(e).__name__}: {first_line(str(e))}") from e
    if not isinstance(module, torch.nn.Module):
        raise MlircError(_no_module(path, module))
    parameters = inspect.signature(module.forward).parameters.values()
    known = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    check_names(list(inputs), known, str(path))
    needed = [p.name for p in parameters if p.name in known and p.default is p.empty]
    _require_inputs(path, needed, inputs, "a pickled module has no example inputs")
    kwargs = {name: sample(inputs[name]) for name in known if name in inputs}
    return from_torch(module, (), kwargs, path.stem)


def _pickle_refusal(path: Path) -> MlircError:
    """The error for a pickle without the flag; nothing in the file is executed to make it."""
    try:
        found = torch.load(str(path), map_location="meta", weights_only=True)
        return MlircError(_no_module(path, found))
    except Exception:
        pass
    try:
        if zipfile.is_zipfile(path):
            classes = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
        else:
            classes = _classes_of_legacy_pickle(path)
    except Exception as e:
        return MlircError(f"{path}: damaged PyTorch file: {first_line(str(e))}")
    listed = ", ".join(classes[:8]) + (f" and {len(classes) - 8} more" if len(classes) > 8 else "")
    return MlircError(
        f"{path}: a pickle, which runs code when loaded (it wants {listed or 'no classes'}): pass --allow-pickle if "
        f"you trust it, or export the model with {_EXPORT_HINT}"
    )


def _classes_of_legacy_pickle(path: Path) -> list[str]:
    """The classes that a file of PyTorch's old format wants; its fourth pickle is the saved object."""
    found: set[str] = set()
    with path.open("rb") as file:
        for _ in range(4):
            strings: list[str] = []
            for op, argument, _ in pickletools.genops(file):
                if op.name == "GLOBAL":
                    found.add(str(argument).replace(" ", "."))
                elif op.name == "STACK_GLOBAL":
                    found.add(".".join(strings[-2:]))
                elif isinstance(argument, str):
                    strings.append(argument)
    return sorted(c for c in found if not re.match(r"(torch\._utils|torch\.\w+Storage|collections)\b", c))


def _no_module(path: Path, found: Any) -> str:
    if isinstance(found, Mapping) and found and all(isinstance(v, torch.Tensor) for v in found.values()):
        return (
            f"{path}: a state dict (weights without a model): load it into its module and save that with {_EXPORT_HINT}"
        )
    return f"{path}: holds a {type(found).__name__}, not a torch.nn.Module: save the model with {_EXPORT_HINT}"


@contextlib.contextmanager
def cwd_importable() -> Iterator[None]:
    """Lets the body import modules from the current directory."""
    added = "" not in sys.path
    if added:
        sys.path.insert(0, "")
    try:
        yield
    finally:
        if added:
            sys.path.remove("")


def load_factory(spec: str) -> Any:
    """What `package.module:function` names. Raises MlircError where there is nothing."""
    module_name, _, function_name = spec.partition(":")
    with cwd_importable():
        try:
            return getattr(importlib.import_module(module_name), function_name)
        except ModuleNotFoundError as e:
            raise MlircError(f"{spec}: no module '{e.name}': it must be importable from here") from e
        except AttributeError as e:
            raise MlircError(f"{spec}: module '{module_name}' has no function '{function_name}'") from e
        except MlircError:
            raise
        except (Exception, SystemExit) as e:
            raise MlircError(
                f"{spec}: importing '{module_name}' failed: {type(e).__name__}: {first_line(str(e))}"
            ) from e


def open_factory(spec: str, function: Any, inputs: Mapping[str, InputSpec]) -> SourceModel:
    """Calls a factory, which `spec` names and which returns (module, example inputs), and opens the result.

    Example inputs are a tensor, a tuple of arguments, a dict of keyword arguments, or (module, args, kwargs) in all.
    """
    with cwd_importable():
        try:
            result = function()
        except (Exception, SystemExit) as e:
            raise MlircError(f"{spec}: the factory failed: {type(e).__name__}: {first_line(str(e))}") from e
    if not (isinstance(result, tuple) and len(result) in (2, 3) and isinstance(result[0], torch.nn.Module)):
        raise MlircError(f"{spec}: must return (module, example inputs), not {type(result).__name__}")
    module, example = result[0], result[1]
    args: tuple = example if isinstance(example, tuple) else tuple(example) if isinstance(example, list) else (example,)
    kwargs = dict(result[2]) if len(result) == 3 else {}
    if isinstance(example, dict):
        args, kwargs = (), dict(example)
    source = from_torch(module, args, kwargs, spec.rpartition(":")[2])
    return _with_inputs(source, spec, inputs)


def _with_inputs(source: SourceModel, what: str, inputs: Mapping[str, InputSpec]) -> SourceModel:
    """The source with example tensors of the shapes asked for, and numbers."""
    source = with_numbers(source, [name for name, given in inputs.items() if given.scalar])
    specs = source.input_specs()
    check_names(list(inputs), [s.name for s in specs], what)
    tensors = source.example_inputs()
    for i, spec in enumerate(specs):
        given = inputs.get(spec.name)
        if given and (given.shape, given.dtype) != (spec.shape, spec.dtype):
            tensors[i] = sample(given)
    source.args, source.kwargs = source.bind(tensors)
    return source
