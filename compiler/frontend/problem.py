"""Problem files, as KernelBench writes them: a Python file with `Model`, `get_inputs` and `get_init_inputs`.

The module is `Model(*get_init_inputs())`, its inputs are `get_inputs()`, both seeded. Compiling reads no values of
either: parameters and inputs are fake tensors then, of any size, and real ones are made when somebody asks. Needs no
MLIR.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mlirc.errors import MlircError
from mlirc.files.opening import read_text
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.source import SourceModel

NAMES = ("Model", "get_inputs", "get_init_inputs")
_SEED = 0


@dataclass(frozen=True)
class Problem:
    """The parts of a problem file; `dtype` is PyTorch's default type while its code runs, `path` is for messages."""

    name: str
    path: str
    model: Callable[..., nn.Module]
    get_inputs: Callable[[], Any]
    get_init_inputs: Callable[[], Any]
    dtype: torch.dtype = torch.float32

    def module(self, device: str = "cpu") -> nn.Module:
        """The module in eval mode, its parameters from the seed alone. Raises MlircError when it cannot be made."""
        with self._running("get_init_inputs()", device):
            init = self.get_init_inputs()
        with self._running("Model(...)", device):
            if isinstance(init, Mapping):
                made = self.model(**init)
            elif len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], Mapping):
                made = self.model(*init[0], **init[1])
            else:
                made = self.model(*init)
        if not isinstance(made, nn.Module):
            raise MlircError(f"{self.path}: Model must make a torch.nn.Module, not {type(made).__name__}")
        if not any(isinstance(p, torch._subclasses.FakeTensor) for p in made.parameters()):  # those cannot move
            made = made.to(device, None if self.dtype == torch.float32 else self.dtype)
        return _with_buffers(made).eval()

    def inputs(self, device: str = "cpu") -> tuple:
        """What the module is called with, from the seed alone. Raises MlircError when it cannot be made."""
        with self._running("get_inputs()", device):
            found = self.get_inputs()
        if isinstance(found, Tensor):
            found = (found,)
        if not isinstance(found, (list, tuple)):
            raise MlircError(f"{self.path}: get_inputs() must return a list of inputs, not {type(found).__name__}")
        return tuple(self._placed(x, device) for x in found)

    def _placed(self, value: Any, device: str) -> Any:
        if not isinstance(value, Tensor):
            return value
        if isinstance(value, torch._subclasses.FakeTensor):
            return value
        return value.detach().to(device)

    @contextlib.contextmanager
    def _running(self, what: str, device: str) -> Iterator[None]:
        """Seeds, and makes tensors on the device; the problem's own errors become one line."""
        before = torch.get_default_dtype()
        torch.manual_seed(_SEED)
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(device):
                yield
        except (MlircError, MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as e:
            raise MlircError(f"{self.path}: {what} failed: {type(e).__name__}: {first_line(str(e))}") from e
        finally:
            torch.set_default_dtype(before)


def load_problem(path: str, text: str | None = None, dtype: torch.dtype = torch.float32) -> Problem:
    """Runs a problem file's code (or `text` in its place) and returns its parts; raises MlircError naming what is not
    there."""
    source = read_text(Path(path)) if text is None else text
    name = Path(path).stem
    module = types.ModuleType(f"mlirc_problem_{name}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look their module up
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except SyntaxError as e:
        raise MlircError(f"{path}:{e.lineno}: {e.msg}") from e
    except (Exception, SystemExit) as e:
        raise MlircError(f"{path}: running it failed: {type(e).__name__}: {first_line(str(e))}") from e
    finally:
        sys.path.remove(folder)
    missing = [n for n in NAMES if not callable(getattr(module, n, None))]
    if missing:
        raise MlircError(
            f"{path}: has no {' and no '.join(missing)}: a Python file needs Model, get_inputs() and "
            "get_init_inputs(); a function that returns (module, example inputs) is named package.module:function"
        )
    return Problem(name, path, *(getattr(module, n) for n in NAMES), dtype)  # type: ignore[call-arg, misc]


def open_problem(path: str, text: str | None = None, dtype: torch.dtype = torch.float32) -> SourceModel:
    """A problem file as a source: fake parameters and inputs, values on demand. Raises MlircError."""
    problem = load_problem(path, text, dtype)
    module, args = _abstract(problem)
    loose = loose_tensors(module)

    def build() -> nn.Module:
        return adopt(problem.module(), loose)

    shapes = dict(module.state_dict())
    source = SourceModel(problem.name, "problem", args, {}, module=module, weights=_Made(build, shapes), build=build)
    source.values = problem.inputs
    return source


def _abstract(problem: Problem) -> tuple[nn.Module, tuple]:
    """The module and its inputs without storage; buffers stay real. Real ones of a problem that looks at values."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(tracked_fakes=[]))
    try:
        with fake_parameters(mode):
            module = problem.module()
        with mode:
            return module, problem.inputs()
    except MlircError:
        return problem.module(), problem.inputs()


@contextlib.contextmanager
def fake_parameters(mode: Any) -> Iterator[None]:
    """Every parameter that a module gets inside becomes a fake tensor of this mode; buffers stay real."""
    original, original_apply = nn.Module.register_parameter, nn.Module._apply
    fakes = torch._subclasses.FakeTensor
    moved: dict[tuple[int, int], tuple[Any, Tensor, nn.Parameter]] = {}  # holds what the numbers are of

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not isinstance(param, fakes):
            with mode:
                param = nn.Parameter(torch.empty(param.shape, dtype=param.dtype), requires_grad=False)
        original(self, name, param)

    def apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """A conversion (`Module.to`) replaces fake parameters, which PyTorch would swap and cannot; one that several
        modules have stays one."""
        parameters = dict(self._parameters)
        self._parameters = {k: p for k, p in parameters.items() if not isinstance(p, fakes)}
        original_apply(self, fn, recurse)
        for name, param in parameters.items():
            if isinstance(param, fakes):
                key = id(fn), id(param)
                if key not in moved:
                    moved[key] = fn, param, nn.Parameter(fn(param), requires_grad=False)
                self._parameters[name] = moved[key][2]
        self._parameters = {k: self._parameters[k] for k in parameters}
        return self

    nn.Module.register_parameter, nn.Module._apply = register, apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter, nn.Module._apply = original, original_apply  # type: ignore[method-assign]


def _with_buffers(module: nn.Module) -> nn.Module:
    """Makes buffers of the tensors that its modules keep as plain attributes: PyTorch exports one that the module
    changes, a hidden state say, only so."""
    for child in module.modules():
        for key, value in list(vars(child).items()):
            if isinstance(value, Tensor):
                delattr(child, key)
                child.register_buffer(key, value.detach(), persistent=False)
    return module


def loose_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of a module that are in no state dict, by path: they are compiled in, and may be random."""
    stored = set(module.state_dict())
    found = {name: b.detach() for name, b in module.named_buffers() if name not in stored}
    return {k: v for k, v in found.items() if not isinstance(v, torch._subclasses.FakeTensor)}


def adopt(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Gives the module's loose tensors the values that were compiled in; the rest of `values` is not looked at."""
    for name, own in loose_tensors(module).items():
        if name in values and values[name].shape == own.shape:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, values[name].to(own.device))
    return module


class _Made(Mapping[str, Tensor]):
    """A state dict whose values are made when the first of them is asked for; its names are known before."""

    def __init__(self, build: Callable[[], nn.Module], shapes: Mapping[str, Tensor]):
        self._build, self._shapes = build, dict(shapes)
        self._values: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._values is None:
            self._values = dict(self._build().state_dict())
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
