"""`--dump-dir`: every level of a compilation in numbered files, and a runnable check of every kernel."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.outputs import LEVEL_FILES, check_replaceable, write_atomically
from mlirc.ir.levels import LEVELS
from mlirc.precision import DEFAULT_FP32

_SUFFIX = {"llvm": "llvm.ll", "ptx": "model.ptx"}
_KERNEL_FILES = {"model.ptx", "async.mlir", "schedule.mlir", "llvm.ll", "repro.py", *LEVEL_FILES}

_REPRO = '''"""Kernel {name} of {model}: compares the compiled kernel with PyTorch.

module: {origin}
script: {script}
run:    python {file} [--level gpu|kernels|tiles|host]
"""

from pathlib import Path

import torch

from mlirc.repro.kernel import {imports}

HERE = Path(__file__).resolve().parent

{reference}

if __name__ == "__main__":
    g = torch.Generator().manual_seed(0)
    inputs = [
{inputs}
    ]
    raise SystemExit(main(HERE, reference, inputs{fp32}))
'''


def _level_file(level: str) -> str:
    return f"{LEVELS.index(level):02}-{_SUFFIX.get(level, level + '.mlir')}"


class Dump:
    """Writes into `folder` as the levels of `job`, a `Compilation`, appear, so that the levels above an error are there
    to look at. What an earlier dump left there goes away first. Raises MlircError where the folder holds files of the
    same names that are not mlirc's, or that are among `inputs`."""

    def __init__(self, folder: Path, job: Any, inputs: Sequence[str] = ()) -> None:
        self.folder, self.job, self.inputs = folder, job, inputs
        self._old: list[Path] | None = None
        if folder.exists() and not folder.is_dir():
            raise MlircError(f"--dump-dir {folder}: is a file: give a folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._old = list(self._dumped())
        except OSError as e:
            raise MlircError(f"--dump-dir: cannot make {folder}: {e.strerror}") from e
        for path in self._old:
            check_replaceable(path, inputs)

    def _dumped(self) -> Iterator[Path]:
        """What has the name of a dump's file, in the folder and the folders of the kernels."""
        for path in (self.folder / _level_file(level) for level in LEVELS):
            if os.path.lexists(path):
                yield path
        for root, folders, files in os.walk(self.folder / "kernels"):
            yield from (Path(root, name) for name in (*files, *folders) if name in _KERNEL_FILES)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        write_atomically(path, text, f"{path.stem} of {path.parent.name}" if "/" in name else path.stem, self.inputs)

    def _clear(self) -> None:
        """Removes what an earlier dump left; files of others, such as notes, stay."""
        for path in self._old or ():
            path.unlink(missing_ok=True)
        for root, *_ in os.walk(self.folder / "kernels", topdown=False):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(root)
        self._old = None

    def level(self, level: str) -> None:
        """Called when a level is there."""
        self._clear()
        self._write(_level_file(level), self.job.text(level))
        if level == "ptx":
            for name in self.job.builds:
                self._kernel(name)

    def _kernel(self, name: str) -> None:
        from mlirc.driver.compilation import single_kernel_model
        from mlirc.host.level_files import level_mark
        from mlirc.ir import levels

        job, build, folder = self.job, self.job.builds[name], f"kernels/{name}"
        for level in ("kernels", "tiles", "async"):
            if level in job.modules and name in levels.kernels(job.modules[level]):
                self._write(f"{folder}/{level}.mlir", str(levels.isolate(job.modules[level], name)))
        self._write(f"{folder}/gpu.mlir", build.gpu)
        self._write(f"{folder}/llvm.ll", build.llvm)
        if job.records.get(name):
            self._write(f"{folder}/schedule.mlir", job.records[name].text)
        if name in levels.kernels(job.modules["kernels"]):
            alone = single_kernel_model(job, name)
            self._write(f"{folder}/model.ptx", alone.ptx)
            for level, text in alone.levels.items():
                path = self.folder / folder / "model.levels" / f"{level}.mlir"
                write_atomically(path, text, level_mark(level, text, alone.ptx), self.inputs)
            if job._given not in ("async", "gpu"):
                self._write(f"{folder}/repro.py", repro_source(job, name))


def repro_source(job: Any, name: str) -> str:
    """The text of a kernel's `repro.py`."""
    from mlirc.ir import levels
    from mlirc.repro.inputs import input_source, integer_bound, positive_arguments
    from mlirc.repro.torch_source import Untranslatable, torch_source

    module = job.modules["kernels"]
    function = levels.kernels(module)[name]
    arguments = ", ".join(f"a{i}" for i in range(len(function.type.inputs)))
    imports = "main"
    try:
        body = torch_source(module, name)
        used = [name for name in ("attention", "cached_attention") if re.search(rf"\b{name}\(", body)]
        imports = ", ".join([*used, "main"])
        reference = f"\ndef reference({arguments}):\n{body}\n"
    except Untranslatable as e:
        imports = "host_reference, main"
        reference = f"# PyTorch has no short form of {e}: the reference is the `kernels` level on the CPU.\n"
        reference += f'reference = host_reference(HERE, "{name}")\n'
    bound, positive = integer_bound(function), positive_arguments(function)
    record = job.records.get(name)
    return _REPRO.format(
        name=name,
        model=job.name,
        origin=", ".join(levels.strings(function, "mlirc.origin")) or "unknown",
        script=record.script if record else "given",
        file=f"kernels/{name}/repro.py",
        imports=imports,
        fp32="" if job.fp32 == DEFAULT_FP32 else f', "{job.fp32}"',
        reference=reference,
        inputs="\n".join(
            f"        {input_source(t, bound, i in positive)}," for i, t in enumerate(function.type.inputs)
        ),
    )
