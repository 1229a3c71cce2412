"""`--dump-dir`: every level of a compilation in numbered files, and a runnable check of every kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.levels import LEVELS
from mlirc.outputs import write_atomically

_SUFFIX = {"llvm": "llvm.ll", "ptx": "model.ptx"}

_REPRO = '''"""Kernel {name} of {model}: compares the compiled kernel with PyTorch.

module: {origin}
script: {script}
run:    python {file} [--level gpu|kernels|tiles]
"""

from pathlib import Path

import torch

from mlirc.repro import {imports}

HERE = Path(__file__).resolve().parent

{reference}

if __name__ == "__main__":
    g = torch.Generator().manual_seed(0)
    inputs = [
{inputs}
    ]
    raise SystemExit(main(HERE, reference, inputs))
'''


class Dump:
    """Writes into `folder` as the levels of `job` (an `mlirc.driver.Compilation`) appear, so that the levels above an
    error are there to look at."""

    def __init__(self, folder: Path, job: Any) -> None:
        self.folder, self.job = folder, job
        if folder.exists() and not folder.is_dir():
            raise MlircError(f"--dump-dir {folder}: is a file: give a folder")
        self._write("", None)

    def _write(self, name: str, text: str | None) -> None:
        path = self.folder / name
        try:
            (path if text is None else path.parent).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise MlircError(f"--dump-dir: cannot make {path.parent}: {e.strerror}") from e
        if text is not None:
            write_atomically(path, text if text.endswith("\n") else text + "\n")

    def level(self, level: str) -> None:
        """Called when a level is there."""
        self._write(f"{LEVELS.index(level):02}-{_SUFFIX.get(level, level + '.mlir')}", self.job.text(level))
        if level == "ptx":
            for name in self.job.builds:
                self._kernel(name)

    def _kernel(self, name: str) -> None:
        from mlirc import levels
        from mlirc.driver import single_kernel_model

        job, build, folder = self.job, self.job.builds[name], f"kernels/{name}"
        for level in ("kernels", "tiles"):
            if level in job.modules and name in levels.kernels(job.modules[level]):
                alone = levels.isolate(job.modules[level], name)
                self._write(f"{folder}/{level}.mlir", str(alone))
                self._write(f"{folder}/model.levels/{level}.mlir", str(levels.with_main(alone)))
        self._write(f"{folder}/gpu.mlir", build.gpu)
        self._write(f"{folder}/llvm.ll", build.llvm)
        if job.records.get(name):
            self._write(f"{folder}/schedule.mlir", job.records[name].text)
        if name in levels.kernels(job.modules["kernels"]):
            self._write(f"{folder}/model.ptx", single_kernel_model(job, name))
            if job._given != "gpu":
                self._write(f"{folder}/repro.py", repro_source(job, name))


def repro_source(job: Any, name: str) -> str:
    """The text of a kernel's `repro.py`."""
    from mlirc import levels
    from mlirc.repro_inputs import input_source, integer_bound, positive_arguments
    from mlirc.torch_source import Untranslatable, torch_source

    module = job.modules["kernels"]
    function = levels.kernels(module)[name]
    arguments = ", ".join(f"a{i}" for i in range(len(function.type.inputs)))
    imports = "main"
    try:
        body = torch_source(module, name)
        imports = "attention, main" if "attention(" in body else imports
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
        reference=reference,
        inputs="\n".join(
            f"        {input_source(t, bound, i in positive)}," for i, t in enumerate(function.type.inputs)
        ),
    )
