"""One case after another of torch-mlir's end-to-end suite, in a process that may die of any: see torch_mlir_suite.py.

Names come in on standard input, one a line; for each, one line of JSON goes out: outcome, why, seconds.
"""

from __future__ import annotations

import ast
import copy
import importlib
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from case_check import Call, Outcome, check_call, import_mlirc, last_line, own_output, serve

PACKAGE = "torch_mlir_e2e_test"
_SUITE = f"{PACKAGE}.test_suite"


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
        return Outcome("nothing to compare", f"PyTorch cannot run it: {last_line(e)}")
    methods = sorted({call.method for call in calls})
    if methods != ["forward"]:
        return Outcome("nothing to compare", f"calls {', '.join(methods) or 'nothing'}: a model is its forward")
    now = module.state_dict().values()
    if len(calls) > 1 and any(not torch.equal(a, b) for a, b in zip(state.values(), now, strict=True)):
        return Outcome("nothing to compare", "its state changes between its calls")
    say("mlirc")
    found = Outcome("nothing to compare", "")
    for call in calls:
        found = check_call(_fresh(case), case.unique_name, call, level)
        if found.outcome != "right":
            break
    return found


def _fresh(case: Any) -> Any:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    return case.program_factory()


def main() -> None:
    """Runs the cases that standard input names, from the folder and at the level of the command line."""
    folder, level = Path(sys.argv[1]), sys.argv[2]
    with own_output() as out:
        import_mlirc()
        cases, missing = load_cases(folder)

        def run(name: str, say: Callable[[str], None]) -> Outcome:
            if name not in cases:
                return Outcome("nothing to compare", missing.get(name, "the suite does not register it"))
            return run_case(cases[name], level, say)

        serve(run, out)


if __name__ == "__main__":
    main()
