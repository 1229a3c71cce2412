"""`@kernel`: a kernel of one's own as an object that is called with tensors, compiled, checked and looked at."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mlirc.frontend.inputs import DTYPES, dtype_name, sample
from mlirc.frontend.inputs import InputSpec as Described
from mlirc.frontend.source import Given, SourceModel
from mlirc.kernel.places import KernelError
from mlirc.kernel.signature import Bound, Shaped, read_signature
from mlirc.kernel.trace import trace
from mlirc.schedule.registry import scripts_of_file
from mlirc.turns import mlir_turn

LEVELS = ("kernels", "tiles")


class Kernel:
    """A kernel of one's own. Call it with tensors; `options` gives one with another schedule, target or device.

    It is compiled for each dtype, shape and constant that it meets, and kept. `signature` has its inputs and results,
    `reference` what it must compute (a PyTorch function, or None), `tolerance` how far it may be from that.
    """

    is_kernel = True  # by which `mlirc FILE.py:name` knows it

    def __init__(
        self, function: Callable[..., Any], reference: Callable[..., Any] | None, tolerance: float | None, level: str,
        example: Mapping[str, Any], inputs: Callable[..., Any] | None, how: Mapping[str, Any],
    ):  # fmt: skip
        self.function, self.reference, self.tolerance, self.level = function, reference, tolerance, level
        self.signature = read_signature(function)
        self.name = self.signature.name
        self.file = os.path.abspath(function.__code__.co_filename)
        self.__doc__ = function.__doc__
        self._example, self._inputs, self._how = dict(example), inputs, dict(how)
        self._made: dict[Any, Any] = {}

    def options(self, **how: Any) -> Kernel:
        """The same kernel, compiled otherwise: `schedule` (one or several, as `--schedule`), `target`, `fp32`, and
        `device`, `"host"` for the host device. Raises KernelError for another option."""
        made = copy.copy(self)
        made._how, made._made = self._how | _checked(how), {}
        return made

    def __call__(self, *tensors: torch.Tensor, **constants: Any) -> Any:
        """Runs the kernel on tensors: of a GPU there, of the CPU by MLIR's JIT, or on the host device where the options
        say so. Constants are given by name."""
        from mlirc.kernel.running import run

        return run(self, tensors, constants)

    @mlir_turn
    def source(self, shapes: Mapping[str, Any] | None = None) -> SourceModel:
        """The kernel as what `mlirc` compiles, for these extents, dtypes and constants by name; those that are not
        given are the decorator's `example`. Raises KernelError where one is missing."""
        known = self._example | dict(shapes or {})
        symbols, signature = self.signature.symbols, self.signature
        if unknown := [n for n in known if n not in symbols and n not in signature.constants]:
            names = ", ".join((*symbols, *signature.constants))
            raise signature.wrong(f"has no '{unknown[0]}': it has {names or 'no symbols'}")
        if missing := [s for s in symbols if s not in known]:
            form = ",".join(f"{s}=..." for s in symbols)
            raise signature.wrong(f"what is {', '.join(missing)}? give --shapes '{form}', or @kernel(example={{...}})")
        variables = {t.dtype for t in signature.inputs.values() if t.is_variable}
        for s in symbols:
            if (s in variables) != isinstance(known[s], str):
                raise signature.wrong(f"{s} = {known[s]}: {'a dtype' if s in variables else 'an extent'} is wanted")
            if isinstance(known[s], str) and known[s] not in DTYPES:
                raise signature.wrong(f"{s} = {known[s]}: a dtype is one of {', '.join(DTYPES)}")
        bound = Bound(
            {s: known[s] for s in symbols if s not in variables}, {s: known[s] for s in symbols if s in variables}
        )
        given = [found for t in signature.inputs.values() if (found := bound.of(t)) is not None]
        constants = {n: known.get(n, default) for n, default in signature.constants.items()}
        return self._source(given, bound, constants, self._examples(given, known))

    def _examples(self, given: Sequence[Shaped], known: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        if self._inputs is None:
            named = zip(self.signature.inputs, given, strict=True)
            return tuple(sample(Described(name, DTYPES[dtype], shape)) for name, (dtype, shape) in named)
        made = self._inputs(
            **{n: known[n] for n in self._inputs.__code__.co_varnames[: self._inputs.__code__.co_argcount]}
        )
        made = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        have = [(dtype_name(t.dtype), tuple(t.shape)) for t in made]
        if have != list(given):
            raise self.signature.wrong(f"inputs=...: gives {have}, and the kernel takes {list(given)}")
        return made

    def _source(
        self, given: Sequence[Shaped], bound: Bound, constants: Mapping[str, Any], examples: tuple[torch.Tensor, ...]
    ) -> SourceModel:
        results = [bound.of(t) for t in self.signature.results]
        module = trace(self.function, self.signature, given, results, constants, self.level)
        reference = (
            None if self.reference is None else Reference(self.reference, self._given_constants(constants), results)
        )
        stated = f"{self.signature.place}" if self.tolerance is not None else ""
        return SourceModel(
            self.name, "kernel", examples, {}, module=reference, input_names=list(self.signature.inputs),
            given=Given(
                self.level, module, self.schedules, tuple(scripts_of_file(self.file)), self.tolerance, stated
            ),
        )  # fmt: skip

    def _given_constants(self, constants: Mapping[str, Any]) -> dict[str, Any]:
        """The constants that the reference takes."""
        assert self.reference is not None
        code = getattr(self.reference, "__code__", None)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
        return {n: v for n, v in constants.items() if n in names}

    @property
    def schedules(self) -> tuple[str, ...]:
        """The kernel's own `--schedule` values."""
        return tuple(self._how.get("schedule", ()))

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.signature.place}>"


class Reference(torch.nn.Module):
    """What a kernel must compute, as a module; results have the kernel's dtypes, of floats in FP64 that."""

    def __init__(self, function: Callable[..., Any], constants: Mapping[str, Any], results: Sequence[Shaped | None]):
        super().__init__()
        self._function, self._constants, self._results = function, dict(constants), list(results)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The reference's results."""
        found = self._function(*tensors, **self._constants)
        listed = found if isinstance(found, (tuple, list)) else [found]
        wanted = self._results or [None] * len(listed)
        made = tuple(_as(x, shaped) for x, shaped in zip(listed, wanted, strict=True))
        return made if isinstance(found, (tuple, list)) else made[0]


def _as(x: torch.Tensor, shaped: Shaped | None) -> torch.Tensor:
    if shaped is None or x.dtype == torch.float64:
        return x
    return x.to(DTYPES[shaped[0]])


def _checked(how: Mapping[str, Any]) -> dict[str, Any]:
    known = ("schedule", "target", "fp32", "device")
    if unknown := [n for n in how if n not in known]:
        raise KernelError(f"options: no option '{unknown[0]}': there are {', '.join(known)}")
    schedule = how.get("schedule", ())
    listed = (schedule,) if isinstance(schedule, str) else tuple(schedule)
    return dict(how) | ({"schedule": listed} if "schedule" in how else {})


def kernel(
    function: Callable[..., Any] | None = None, *, reference: Callable[..., Any] | None = None,
    tolerance: float | None = None, level: str = "kernels", example: Mapping[str, Any] | None = None,
    inputs: Callable[..., Any] | None = None, schedule: str | Sequence[str] = (), fp32: str | None = None,
) -> Any:  # fmt: skip
    """Makes a kernel of a function that builds it; with or without arguments.

    The function's parameters are tensors, annotated as `"bf16[M,K]"` (extents are numbers or symbols; an upper-case
    dtype is any), and constants, which have defaults. At level `kernels` it is written with `mlirc.kernel.ops`, and a
    script schedules it; at level `tiles` with `mlirc.kernel.blocks`, as the block program itself. Either way it is one
    kernel, and never split.

    `reference`: a PyTorch function of the same tensors, with which results are compared; `tolerance`: the relative
    error that it may have, for one that approximates on purpose (default: the gates of docs/checking.md). `example`:
    extents, dtypes and constants by name where none are given; `inputs`: a function of those that makes example
    inputs. `schedule`, `fp32`: as the options of `mlirc`. Raises KernelError, at the function's line, for what is
    wrong."""

    def make(function: Callable[..., Any]) -> Kernel:
        read = read_signature(function)
        if level not in LEVELS:
            raise read.wrong(f"level={level!r}: a kernel enters at {' or '.join(LEVELS)}")
        if tolerance is not None and not 0 < tolerance < 1:
            raise read.wrong(f"tolerance={tolerance}: a relative error between 0 and 1")
        how = _checked({"schedule": schedule} if schedule else {}) | ({} if fp32 is None else {"fp32": fp32})
        return Kernel(function, reference, tolerance, level, example or {}, inputs, how)

    return make if function is None else make(function)
