"""Kernels compiled before, as files of the folder of what is kept: by their scheduled text and the target."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from mlirc.backend.kernel import Copy, Launch
from mlirc.driver.kernel_build import KernelBuild, KernelJob
from mlirc.files.kept import KERNEL, KeptFolder, key_of
from mlirc.runtime.plan import Extent
from mlirc.runtime.tensor_map import maps_from_json


class KernelCache(KeptFolder):
    """The folder's compiled kernels."""

    def key(self, job: KernelJob) -> str:
        """The name of what a job compiles to."""
        return key_of((job.name, job.identity, job.level, job.target))

    def get(self, job: KernelJob) -> KernelBuild | None:
        """The kernel compiled earlier, or None."""
        content = self.read(self.key(job), KERNEL)
        try:
            return None if content is None else _from_json(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def put(self, job: KernelJob, build: KernelBuild) -> None:
        """Keeps a compiled kernel for later."""
        self.write(self.key(job), KERNEL, json.dumps(_to_json(build)).encode())


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
        if "maps" in fields:
            fields["maps"] = maps_from_json(fields["maps"])
            fields["values"], fields["given"] = tuple(fields["values"]), tuple(fields["given"])
            fields["extents"] = {int(d): Extent(**e) for d, e in fields["extents"].items()}
            fields["tables"] = {int(i): [(b, o) for b, o in t] for i, t in fields["tables"].items()}
        launches.append(Launch(**fields) if item["kind"] == "Launch" else Copy(**fields))
    return KernelBuild(**{**record, "launches": launches}, cached=True)
