"""Compares random torch functions at every level with PyTorch, with the scripts' own knobs and others.

python python_tests/support/models/every_level.py KIND FIRST LAST   # or `all`: tries seeds, prints those that fail
"""

from __future__ import annotations

import random
import sys
import traceback
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

from mlirc import host
from mlirc.device import DeviceModel
from mlirc.driver.compilation import Compilation
from mlirc.ir import levels
from mlirc.ir.levels import argument_names
from mlirc.targets import get_target

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.models.random_torch import KINDS, Case, Chooser  # noqa: E402

KNOBS = {
    "elementwise": {"warps": [1, 2, 8], "vector": [1, 2], "block_elements": [32, 256]},
    "reduction": {"rows": [1, 2], "warps": [1, 2, 4], "vector": [1, 2]},
    "matmul": {"block_m": [16, 32], "block_n": [16, 32], "block_k": [16, 32], "stages": [1, 2, 3]},
    "attention": {"block_q": [16, 32], "block_kv": [16, 32], "stages": [1, 2], "split": ["true", "false"]},
    "generic": {"threads": [32, 64, 1024], "length": [2, 16, 100]},
}


class Module(torch.nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.function = case.function

    def forward(self, *args: torch.Tensor):
        return self.function(*args)


def array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def flat(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def expected(case: Case) -> list[np.ndarray]:
    """PyTorch's results, computed in f64."""
    wide = [t.double() if t.is_floating_point() else t for t in case.inputs]
    with torch.no_grad():
        return [array(t) for t in flat(case.function(*wide))]


def compare(level: str, found: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> None:
    assert len(found) == len(wanted), level
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape, f"{level}: shape {ours.shape}, not {theirs.shape}"
        if ours.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, theirs, err_msg=level)
        elif ours.size:
            scale = max(float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)), 1e-3)
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=tolerance * scale, err_msg=level
            )


def knobs(scripts: set[str], seed: int) -> tuple[str, ...]:
    """A random value for one or two knobs of every script in use."""
    r = random.Random(seed)
    chosen = []
    for script in sorted(scripts & set(KNOBS)):
        names = r.sample(sorted(KNOBS[script]), r.randint(1, min(2, len(KNOBS[script]))))
        chosen.append(f"{script}:" + ",".join(f"{n}={r.choice(KNOBS[script][n])}" for n in names))
    return tuple(chosen)


def check(kind: str, seed: int, target: str = "sm_90a") -> None:
    """Compiles the seed's function and runs it at every level; an odd seed also tries other knobs."""
    torch.manual_seed(seed)
    case = KINDS[kind](Chooser(f"{kind} {seed}"))
    wanted = expected(case)
    job = Compilation("model", get_target(target), helpers=0)
    job.import_module(Module(case).eval(), case.inputs, {})
    job.lower("ptx")
    given = job.tensors()
    names = argument_names(levels.functions(job.modules["linalg"])["main"])
    remaining = list(case.inputs)
    arguments = [array(given[n]) if n in given else array(remaining.pop(0)) for n in names]
    for level in ("linalg", "kernels", "tiles"):
        compare(level, host.run_module(job.modules[level], arguments), wanted, case.tolerance)
    compare("gpu", on_device(job, arguments), wanted, case.tolerance)
    other = knobs({r.script for r in job.records.values()}, seed)
    if seed % 2 and other:
        again = Compilation("model", get_target(target), other, helpers=0)
        again.modules["linalg"] = job.modules["linalg"]
        again.lower("gpu")
        compare(f"tiles, {other}", host.run_module(again.modules["tiles"], arguments), wanted, case.tolerance)
        compare(f"gpu, {other}", on_device(again, arguments), wanted, case.tolerance)


def on_device(job: Compilation, arguments: list[np.ndarray]) -> list[np.ndarray]:
    results, report = DeviceModel.parse(job.text("gpu")).run([a.copy() for a in arguments])
    assert report.ok, "\n".join(map(str, report.findings))
    return results


if __name__ == "__main__":
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        for name in KINDS if sys.argv[1] == "all" else [sys.argv[1]]:
            try:
                check(name, number)
            except Exception as e:
                where = traceback.extract_tb(e.__traceback__)[-1]
                text = " | ".join(line for line in str(e).splitlines() if line.strip())
                print(
                    f"{name} {number}: {type(e).__name__} {where.filename[-25:]}:{where.lineno} {text[:500]}",
                    flush=True,
                )
