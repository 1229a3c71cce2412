"""`@main` of a level as code for this processor, which is kept: a large model takes a minute to compile for it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.files.kept import CODE, KeptFolder, cache_folder, key_of
from mlirc.host.jit import HostFunction, TensorSpec
from mlirc.ir import levels
from mlirc.mlir import context, ir
from mlirc.runtime.arrays import NUMPY_DTYPES

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


@dataclass(frozen=True)
class LevelCode:
    """A level's `@main`, compiled. `names` and `kinds` (`mlirc.kind`) are its arguments'; `writes` says for each result
    which argument's new value it is, None for what is returned."""

    function: HostFunction
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    writes: tuple[int | None, ...]

    @staticmethod
    def compiled(module: ir.Module, source: str = "") -> LevelCode:
        """That of a `linalg`-, `kernels`- or `tiles`-level module, whose text errors call `source`. Raises MlircError
        as HostFunction, and for a model that draws random numbers."""
        main = levels.functions(module)["main"]
        with context():
            about = [ir.DictAttr(a) for a in main.operation.attributes["arg_attrs"]] if main.type.inputs else []
            kinds = tuple(ir.StringAttr(a["mlirc.kind"]).value for a in about)
        if "random" in kinds:
            raise MlircError("a model that draws random numbers cannot be run so on the CPU")
        names, writes = tuple(levels.argument_names(main)), tuple(levels.writes(main))
        return LevelCode(HostFunction(module, source=source), names, kinds, writes)

    def to_bytes(self) -> bytes:
        """A line of JSON and an object file, which `from_bytes` reads on the same kind of processor."""
        function = self.function
        about = {
            "names": self.names, "kinds": self.kinds, "writes": self.writes, "places": function.strays.places,
            "inputs": _to_json(function.inputs), "outputs": _to_json(function.outputs),
        }  # fmt: skip
        return json.dumps(about).encode() + b"\n" + function.object_file()

    @staticmethod
    def from_bytes(data: bytes) -> LevelCode:
        """The code in what `to_bytes` made and nobody has changed: nothing of it is checked here."""
        line, _, code = data.partition(b"\n")
        about = json.loads(line)
        places = [(extent, place) for extent, place in about["places"]]
        function = HostFunction.loaded(code, _from_json(about["inputs"]), _from_json(about["outputs"]), places)
        return LevelCode(function, tuple(about["names"]), tuple(about["kinds"]), tuple(about["writes"]))


def level_code(
    text: str, parsed: Callable[[], ir.Module], source: str, owner: str = "", starts: Callable[[], object] = object
) -> LevelCode:
    """The code of a level's text, from the folder of what was compiled before where it lies there.

    Else `starts` is called, and `parsed`, which gives the module of the text or raises MlircError; `owner` is what else
    that depends on. `source` names the text in errors.
    """
    folder, key = KeptFolder(cache_folder()), key_of(("level", *_processor(), source, owner, text))
    data = folder.read(key, CODE)
    if data is not None:
        return LevelCode.from_bytes(data)
    starts()
    code = LevelCode.compiled(parsed(), source)
    with contextlib.suppress(OSError):  # then it is compiled again
        folder.write(key, CODE, code.to_bytes())
    return code


@functools.cache
def _processor() -> tuple[str, ...]:
    """What code runs on: the processor with what it can do, and the C library that it calls."""
    import llvmlite.binding as llvm

    machine = (platform.machine(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return *machine, platform.python_version(), os.confstr("CS_GNU_LIBC_VERSION") or ""


def _to_json(specs: list[TensorSpec]) -> list[Any]:
    return [[_NAMES[spec.dtype], *spec.shape] for spec in specs]


def _from_json(found: list[Any]) -> list[TensorSpec]:
    return [TensorSpec(tuple(shape), np.dtype(NUMPY_DTYPES[name])) for name, *shape in found]
