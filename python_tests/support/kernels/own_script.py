"""A researcher's script with one line changed, and what compiling with it says."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import KernelBuild, KernelJob, build_kernel
from mlirc.errors import MlircError
from mlirc.schedule.places import annotated
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.payloads import matmul

KERNEL = matmul(20, 24, 32)
HEAD = """from mlirc.schedule import register
from mlirc.schedule.verbs import annotate, collapse_dims, generalize, match, match_contractions, match_root
from mlirc.schedule.verbs import script, tidy, tile_reduction, tile_to_blocks

@register(matches=lambda kernel: True)
def mine(kernel, target, *, block: int = 16):
    with script(block=block) as (module, function):
"""
STEPS = [
    "generalize(function); collapse_dims(function)",
    "root = match_root(function)",
    "forall = tile_to_blocks(root, sizes=[16, 16], keep=[0, 1], order=[])",
    "tiled, loop = tile_reduction(match_contractions(forall), size=16)",
    "annotate(tiled, mma='fma', warp_grid=[2, 1])",
    "annotate(loop, stages=2)",
    "annotate(function, warps=2)",
    "tidy(function, forall)",
]
FIRST = HEAD.count("\n") + 1  # the line of STEPS[0]
BLOCKS, REDUCE, INSTRUCTION, STAGES, WARPS, LAST = range(2, 8)


def compile_kernel(text: str, *overrides: str, target: str = "sm_90a") -> KernelBuild:
    """Schedules the one kernel and takes it down to PTX, as `mlirc` does."""
    schedules = Schedules(list(overrides))
    tiles, _ = schedules.schedule_kernel(mlir.parse(text, "kernel.mlir"), get_target(target))
    schedules.check_used()
    name = next(n for n in ("matmul_0", "reduction_0") if f"@{n}(" in text)
    located = tiles.operation.get_asm(enable_debug_info=True)
    return build_kernel(KernelJob(name, located, annotated(tiles), "tiles", target))


def error(text: str, *overrides: str, target: str = "sm_90a") -> str:
    with pytest.raises(MlircError) as caught:
        compile_kernel(text, *overrides, target=target)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500 and "Traceback" not in message
    return message


def source(step: int | None = None, line: str = "", tail: str = "    return module\n") -> str:
    if step == REDUCE and not line.startswith("tiled"):
        line += f"; {STEPS[REDUCE]}"  # later lines need its handles
    steps = [line if i == step else s for i, s in enumerate(STEPS)]
    return HEAD + "".join(f"        {s}\n" for s in steps) + tail
