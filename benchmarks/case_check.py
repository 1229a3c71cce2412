"""One program beside PyTorch: compiled for a call's arguments, run at one level, and how that ended."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


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


def check_call(module: Any, name: str, call: Call, *levels: str) -> Outcome:
    """Compiles a module for the arguments of a call, and compares `levels` of it with PyTorch on these arguments."""
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.live import this_gpu
    from mlirc.errors import MlircError
    from mlirc.internal import InternalError
    from mlirc.targets import get_target

    job = Compilation(name, get_target(this_gpu()), helpers=0)
    module, call = _in_reals(module, call)
    try:
        job.import_module(module, *copy.deepcopy((call.args, call.kwargs)))
        for level in levels:
            job.lower(level)
    except InternalError as e:
        return Outcome("crash", str(e))
    except MlircError as e:
        return Outcome("refused" if _exports(module, call) else "not imported", str(e).removeprefix(f"{name}: "))
    except Exception as e:
        return Outcome("crash", last_line(e))
    outcome = Outcome("right")
    for level in levels:
        try:
            outcome = _compare(job, call, level)
        except MlircError as e:
            outcome = Outcome("wrong", f"the run is refused: {e}")
        except Exception as e:
            outcome = Outcome("crash", f"in the run: {last_line(e)}")
        if outcome.outcome in ("wrong", "crash"):
            outcome.why = f"{level}: {outcome.why}" if len(levels) > 1 else outcome.why
            break
    return outcome


def _in_reals(module: Any, call: Call) -> tuple[Any, Call]:
    """A program as mlirc asks for it: complex tensors come in and go out as pairs of real numbers."""
    import torch

    from mlirc.frontend.boundary import as_real

    def is_complex(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_complex()

    class InReals(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            given = [torch.view_as_complex(a) if c else a for a, c in zip(args, complex_args, strict=True)]
            return tree_map(as_real, self.inner(*given, **kwargs))

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
    main = len(wanted)
    wanted += [Reference(changed[name], changed[name]) for name, _, _ in described[len(wanted) :] if name in changed]
    if len(outputs) != len(wanted):
        return Outcome("wrong", f"has {len(outputs)} outputs, and PyTorch {len(wanted)}")
    moved: Sequence[Any] = ()
    for i, ((name, dtype, _), out, reference) in enumerate(zip(described, outputs, wanted, strict=False)):
        eager = reference.eager
        if dtype != dtype_name(eager.dtype) or out.shape != eager.shape:
            return Outcome("wrong", f"{name} is {dtype}{list(out.shape)}, PyTorch's {eager.dtype}{list(eager.shape)}")
        if not out.is_floating_point() and out.dtype != eager.dtype and out.itemsize == eager.itemsize:
            out = out.view(eager.dtype)  # MLIR's integers have no sign
        if draws and eager.dtype == torch.float64:  # computed from numbers that were drawn in f32
            out, reference = out.float(), Reference(eager.float(), reference.wide)
        difference = compare(out, reference)
        if difference.wrong and eager.is_floating_point() and i < main and not is_random:
            moved = moved or model.moved(inputs)  # how far rounding alone takes it
            difference = compare(out, dataclasses.replace(reference, moved=moved[i]))
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


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:300]}"


def serve(run: Callable[[str, Callable[[str], None]], Outcome], out: Any) -> None:
    """Answers each name on standard input with a line of JSON on `out`: outcome, why, seconds. `run` takes a name, and
    a function that it tells who is at work ("PyTorch", "mlirc")."""
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        name, start = line.strip(), time.monotonic()
        outcome = run(name, lambda who: print(json.dumps({"at": who}), file=out, flush=True))
        result = {"name": name, **dataclasses.asdict(outcome), "seconds": round(time.monotonic() - start, 2)}
        print(json.dumps(result), file=out, flush=True)


@contextlib.contextmanager
def own_output() -> Iterator[Any]:
    """A stream to the parent that nothing else writes to: what cases print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)
        yield stream


def import_mlirc() -> None:
    """Imports what takes seconds, so that it counts for no case."""
    import torch

    import mlirc.check.reference
    import mlirc.frontend.importer  # noqa: F401

    torch.set_num_threads(1)
