"""One case after another of torch-mlir's end-to-end suite, in a process that may die of any: see torch_mlir_suite.py.

Names come in on standard input, one a line; for each, one line of JSON goes out: outcome, why, seconds.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import importlib
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGE = "torch_mlir_e2e_test"
_SUITE = f"{PACKAGE}.test_suite"


@dataclasses.dataclass
class Outcome:
    """How a case ended, as docs/checking.md lists it."""

    outcome: str
    why: str = ""


@dataclasses.dataclass
class Call:
    """One call of a program: the method's name, and copies of its arguments from before it."""

    method: str
    args: tuple
    kwargs: dict[str, Any]


class Recorder:
    """A module whose calls, of whatever method, are recorded."""

    def __init__(self, module: Any, calls: list[Call], path: str = ""):
        self._module, self._calls, self._path = module, calls, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append(Call(self._path or "forward", *copy.deepcopy((args, kwargs))))
        return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return Recorder(getattr(self._module, name), self._calls, f"{self._path}.{name}" if self._path else name)


def case_names(folder: Path) -> list[str]:
    """The names of all cases in a folder that holds the package, without running any of it."""
    found = []
    for path in sorted((folder / PACKAGE / "test_suite").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(
                "register_test_case" in ast.dump(d) for d in node.decorator_list
            ):
                found.append(node.name)
    return found


def load_cases(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Cases by name, and why the files that cannot be imported cannot, by the names of their cases."""
    sys.path.insert(0, str(folder))
    _stand_in("multiprocess", set_start_method=lambda *a, **k: None)  # what runs the suite's own processes
    for name in ("torchvision", "torchvision.models", "torchvision.ops"):  # a few cases need it, their files hold more
        _stand_in(name)
    package = types.ModuleType(_SUITE)
    package.__path__ = [str(folder / PACKAGE / "test_suite")]  # its __init__ imports what only torch-mlir's build has
    sys.modules[_SUITE] = package
    failed = {}
    for path in sorted(Path(package.__path__[0]).glob("*.py")):
        if path.stem != "__init__":
            try:
                importlib.import_module(f"{_SUITE}.{path.stem}")
            except Exception as e:
                failed[path] = f"{path.name} cannot be imported: {type(e).__name__}: {e}"
    registry = importlib.import_module(f"{PACKAGE}.registry").GLOBAL_TEST_REGISTRY
    cases = {case.unique_name: case for case in registry}
    missing = {}
    for path, why in failed.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name not in cases:
                missing[node.name] = why
    return cases, missing


def _stand_in(name: str, **members: Any) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)


def run_case(case: Any, level: str, say: Callable[[str], None]) -> Outcome:
    """Records the calls that a case makes, compiles its module for the arguments of each, and compares `level` of it
    with PyTorch on these arguments. `say` is told who is at work."""
    import torch

    from mlirc.frontend.source import in_eval_mode

    say("PyTorch")
    try:
        module = _fresh(case)
        calls: list[Call] = []
        state = copy.deepcopy(module.state_dict())
        utilities = importlib.import_module(f"{PACKAGE}.framework").TestUtils()
        with torch.no_grad(), in_eval_mode(module):
            case.program_invoker(Recorder(module, calls), utilities)
    except Exception as e:
        return Outcome("nothing to compare", f"PyTorch cannot run it: {_last_line(e)}")
    methods = sorted({call.method for call in calls})
    if methods != ["forward"]:
        return Outcome("nothing to compare", f"calls {', '.join(methods) or 'nothing'}: a model is its forward")
    now = module.state_dict().values()
    if len(calls) > 1 and any(not torch.equal(a, b) for a, b in zip(state.values(), now, strict=True)):
        return Outcome("nothing to compare", "its state changes between its calls")
    say("mlirc")
    found = Outcome("nothing to compare", "")
    for call in calls:
        found = _check_call(_fresh(case), case.unique_name, call, level)
        if found.outcome != "right":
            break
    return found


def _fresh(case: Any) -> Any:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    return case.program_factory()


def _check_call(module: Any, name: str, call: Call, level: str) -> Outcome:
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.live import this_gpu
    from mlirc.errors import MlircError
    from mlirc.internal import InternalError
    from mlirc.targets import get_target

    job = Compilation(name, get_target(this_gpu()), helpers=0)
    module, call = _in_reals(module, call)
    try:
        job.import_module(module, *copy.deepcopy((call.args, call.kwargs)))
        job.lower(level)
    except InternalError as e:
        return Outcome("crash", str(e))
    except MlircError as e:
        return Outcome("refused" if _exports(module, call) else "not imported", str(e).removeprefix(f"{name}: "))
    except Exception as e:
        return Outcome("crash", _last_line(e))
    try:
        return _compare(job, call, level)
    except MlircError as e:
        return Outcome("wrong", f"the run is refused: {e}")
    except Exception as e:
        return Outcome("crash", f"in the run: {_last_line(e)}")


def _in_reals(module: Any, call: Call) -> tuple[Any, Call]:
    """A program as mlirc asks for it: complex tensors come in and go out as pairs of real numbers."""
    import torch

    def is_complex(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_complex()

    class InReals(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            given = [torch.view_as_complex(a) if c else a for a, c in zip(args, complex_args, strict=True)]
            return tree_map(lambda x: torch.view_as_real(x) if is_complex(x) else x, self.inner(*given, **kwargs))

    tree_map, tree_leaves = torch.utils._pytree.tree_map, torch.utils._pytree.tree_leaves
    complex_args = [is_complex(a) for a in call.args]
    with torch.no_grad():
        outputs = copy.deepcopy(module)(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs))
    if not any(complex_args) and not any(map(is_complex, tree_leaves(outputs))):
        return module, call
    args = tuple(torch.view_as_real(a).contiguous() if c else a for a, c in zip(call.args, complex_args, strict=True))
    return InReals(), Call(call.method, args, call.kwargs)


def _exports(module: Any, call: Call) -> bool:
    """Whether torch.export takes the program, so that what refuses it comes after."""
    import torch

    from mlirc.frontend.source import in_eval_mode

    try:
        with torch.no_grad(), in_eval_mode(module):
            torch.export.export(module, *copy.deepcopy((call.args, call.kwargs)), strict=False)
    except Exception:
        return False
    return True


def _compare(job: Any, call: Call, level: str) -> Outcome:
    """Runs a compilation's level on a call's arguments and compares outputs, and what is changed in place."""
    import torch

    from mlirc.check.compare import Reference, compare
    from mlirc.check.levels import level_runner
    from mlirc.check.reference import TorchModel
    from mlirc.frontend.inputs import dtype_name
    from mlirc.ir.levels import random_state

    draws = bool(random_state(job.modules["torch"]))
    model = TorchModel(job.imported.source, draws)
    weights = {name: tensor.clone() for name, tensor in model.tensors(job).items()}
    leaves = torch.utils._pytree.tree_leaves((call.args, call.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    changed = _changed_in_place(job, copy.deepcopy(model.module), [t.clone() for t in inputs])
    torch.manual_seed(1)
    again = copy.deepcopy(model).run(inputs)
    torch.manual_seed(0)
    wanted = copy.deepcopy(model).references(inputs)
    outputs = level_runner(job, level, weights)([t.clone() for t in inputs])
    is_random = not all(torch.equal(r.eager.nan_to_num(), b.nan_to_num()) for r, b in zip(wanted, again, strict=True))
    described = job.imported.outputs
    if draws:  # PyTorch's own numbers are others
        changed, outputs = {}, outputs[: len(wanted)]
    wanted += [Reference(changed[name], changed[name]) for name, _, _ in described[len(wanted) :] if name in changed]
    if len(outputs) != len(wanted):
        return Outcome("wrong", f"has {len(outputs)} outputs, and PyTorch {len(wanted)}")
    for (name, dtype, _), out, reference in zip(described, outputs, wanted, strict=False):
        eager = reference.eager
        if dtype != dtype_name(eager.dtype) or out.shape != eager.shape:
            return Outcome("wrong", f"{name} is {dtype}{list(out.shape)}, PyTorch's {eager.dtype}{list(eager.shape)}")
        if not out.is_floating_point() and out.dtype != eager.dtype and out.itemsize == eager.itemsize:
            out = out.view(eager.dtype)  # MLIR's integers have no sign
        if draws and eager.dtype == torch.float64:  # computed from numbers that were drawn in f32
            out, reference = out.float(), Reference(eager.float(), reference.wide)
        difference = compare(out, reference)
        if difference.wrong and not is_random:
            return Outcome("wrong", f"{name}: {difference.reason}")
    if is_random:
        return Outcome("nothing to compare", "random: compiled and run, and right in dtypes and shapes")
    return Outcome("right")


def _changed_in_place(job: Any, module: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Buffers and inputs, by name, after PyTorch has run the module on `inputs`."""
    import torch

    from mlirc.frontend.source import in_eval_mode

    source = job.imported.source
    args, kwargs = source.bind(inputs)
    with torch.no_grad(), in_eval_mode(module):
        module(*args, **kwargs)
    named = {spec.name: tensor for spec, tensor in zip(source.input_specs(), inputs, strict=True)}
    return {**named, **dict(module.named_buffers()), **dict(module.named_parameters())}


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:300]}"


@contextlib.contextmanager
def _own_output() -> Iterator[Any]:
    """A stream to the parent that nothing else writes to: what cases print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)
        yield stream


def main() -> None:
    """Runs the cases that standard input names, from the folder and at the level of the command line."""
    folder, level = Path(sys.argv[1]), sys.argv[2]
    with _own_output() as out:
        import torch

        import mlirc.check.reference
        import mlirc.frontend.importer  # noqa: F401  (what takes seconds counts for no case)

        torch.set_num_threads(1)
        cases, missing = load_cases(folder)
        print(json.dumps({"ready": True}), file=out, flush=True)
        for line in sys.stdin:
            name, start = line.strip(), time.monotonic()
            if name in cases:
                found = run_case(cases[name], level, lambda who: print(json.dumps({"at": who}), file=out, flush=True))
            else:
                found = Outcome("nothing to compare", missing.get(name, "the suite does not register it"))
            result = {"name": name, **dataclasses.asdict(found), "seconds": round(time.monotonic() - start, 2)}
            print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
