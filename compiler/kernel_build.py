"""One kernel from the `tiles` level to PTX, with every level between kept as text; and the folder that caches it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirc.backend.kernel import CompiledKernel, Copy, Launch
from mlirc.errors import MlircError
from mlirc.targets import Target, get_target


@dataclass(frozen=True)
class KernelJob:
    """What has to be compiled. `text` has source locations, for errors; `identity` is the same without them, for the
    cache. `level` is the text's level, tiles or gpu; `until` is the last level wanted, gpu or ptx. Plain data: it
    travels to helper processes."""

    name: str
    text: str
    identity: str
    level: str
    target: str
    until: str = "ptx"


@dataclass
class KernelBuild:
    """A compiled kernel: its text at each level (empty below the last one wanted) and its launches. `seconds` is the
    compile time by step (`gpu`, and `llvm, ptx`), `cached` tells that it was spent earlier."""

    name: str
    gpu: str = ""
    llvm: str = ""
    ptx: str = ""
    launches: list[Launch | Copy] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cached: bool = field(default=False, compare=False)

    @property
    def compiled(self) -> CompiledKernel:
        """The back end's view of it, for the plan builder."""
        return CompiledKernel(self.name, self.ptx, self.llvm, self.launches, self.workspaces)


def build_kernel(job: KernelJob) -> KernelBuild:
    """Takes one kernel down to `job.until`; raises MlircError that names the kernel and the step."""
    from mlirc import mlir
    from mlirc.backend.ptx import compile_kernel
    from mlirc.schedule_places import annotated

    start = time.perf_counter()
    target = get_target(job.target)
    module = mlir.parse(job.text, f"kernel {job.name}")
    build = KernelBuild(job.name)
    if job.level == "tiles":
        to_gpu(module, job.name, target)
    build.gpu = annotated(module)
    build.seconds["gpu"] = time.perf_counter() - start
    if job.until == "ptx":
        compiled = compile_kernel(module, target)
        build.llvm, build.ptx = compiled.llvm, compiled.ptx
        build.launches, build.workspaces = compiled.launches, compiled.workspaces
        build.seconds["llvm, ptx"] = time.perf_counter() - start - build.seconds["gpu"]
    return build


def to_gpu(module: Any, name: str, target: Target) -> None:
    """Takes a kernel's `tiles`-level module to the `gpu` level in place, by the pass that its schedule asked for."""
    from mlirc import levels
    from mlirc.mlir import context, ir
    from mlirc.passes import get_pass

    function = levels.functions(module)[name]
    pass_name = "mlirc-distribute"
    if "mlirc.lowering" in function.attributes:
        pass_name = "mlirc-" + function.attributes["mlirc.lowering"].value
    with context(), ir.Location.unknown():
        try:
            get_pass(pass_name)(module, target=target.name)
        except ir.MLIRError as e:
            raise MlircError(f"kernel {name}: {pass_name}: {' '.join(str(e).split())}") from e


@functools.cache
def _versions_digest() -> str:
    """A hash over everything that decides what a kernel compiles to: our own sources and the tools' versions."""
    from importlib import metadata

    import mlirc.dialects
    import mlirc.passes
    import mlirc.scripts

    digest = hashlib.sha256()
    for package in ("torch-mlir", "llvmlite"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    roots = [Path(p) for m in (mlirc, mlirc.dialects, mlirc.passes, mlirc.scripts) for p in m.__path__]
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """`$MLIRC_CACHE_DIR`, or `mlirc` in the user's cache folder."""
    given = os.environ.get("MLIRC_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlirc"


class KernelCache:
    """A folder with one JSON file per compiled kernel, named by a hash of its scheduled text, the target, and the
    versions of the tools and of our sources.

    Several processes may use it at once: a file appears whole, by a rename. A file that cannot be read is as good as
    absent, and a folder that cannot be written only costs time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, job: KernelJob) -> str:
        digest = hashlib.sha256(_versions_digest().encode())
        for part in (job.name, job.identity, job.level, job.target):
            digest.update(f"{len(part)} {part}\n".encode())
        return digest.hexdigest()

    def get(self, job: KernelJob) -> KernelBuild | None:
        """The kernel compiled earlier, or None."""
        try:
            return _from_json(json.loads((self.folder / f"{self.key(job)}.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, job: KernelJob, build: KernelBuild) -> None:
        """Keeps a compiled kernel for later."""
        from mlirc.outputs import write_atomically

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"{self.key(job)}.json", json.dumps(_to_json(build)))
        except (OSError, MlircError):
            pass  # documented: a cache that cannot be written is no error


def _to_json(build: KernelBuild) -> dict[str, Any]:
    record = {f.name: getattr(build, f.name) for f in dataclasses.fields(build) if f.name != "cached"}
    record["launches"] = [{"kind": type(x).__name__, **dataclasses.asdict(x)} for x in build.launches]
    return record


def _from_json(record: Mapping[str, Any]) -> KernelBuild:
    launches: list[Launch | Copy] = []
    for item in record["launches"]:
        fields: dict[str, Any] = {k: v for k, v in item.items() if k != "kind"}
        for name in ("grid", "block", "cluster"):
            if fields.get(name):
                fields[name] = tuple(fields[name])
        launches.append(Launch(**fields) if item["kind"] == "Launch" else Copy(**fields))
    return KernelBuild(**{**record, "launches": launches}, cached=True)
