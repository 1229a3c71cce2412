"""Models given at the `gpu` level, and what becomes of their files when somebody has changed the plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from mlirc.device import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from mlirc.targets import get_target
from support.mutants.plans import ptx_of
from support.plans.forged import signed


def compiled(text: str, folder: Path) -> tuple[Compilation, Path]:
    """A model's compilation for sm_90a, and its file."""
    (folder / "m.mlir").write_text(text)
    job = Compilation("m", get_target("sm_90a"), helpers=1)
    job.open(str(folder / "m.mlir"))
    job.lower("ptx")
    job.write(folder / "m.ptx")
    return job, folder / "m.ptx"


def assert_refused_or_found(job: Compilation, change: Callable[[dict], object], why: str) -> None:
    """With its first step changed, and signed again, the file is refused when it is read, or the check of its plan
    finds what matches `why`."""
    data = json.loads(to_json(job.plan))
    change(data["steps"][0])
    text = signed(json.dumps(data), ptx_of(job.ptx))
    try:
        plan = extract(text)
    except MlircError as e:
        assert re.search(why, str(e)), e
        return
    found = FileCheck(plan, DeviceModel.parse(job.text("gpu")), job.text("gpu"), Path("m.ptx"), text).of_plan()
    assert re.search(why, " ".join(map(str, found))), found
