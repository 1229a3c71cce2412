"""Products that stay an iteration behind the rest of their loop (`rotate(..., behind=1)`), and groups of warps that take
turns at them (`take_turns`): attention gives the same results through the JIT and on the host device, for masks, edges and
functions of any kind; what is refused; and what the host device says where a turn is missing."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.launch import DeviceKernel
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.own_script import error
from support.kernels.payloads import assert_same, attention, inputs_of, matmul

ONE = (1, 1)
SCRIPT = """from mlirc.schedule import register
from mlirc.schedule.verbs import (
    annotate, match, match_contractions, match_root, pick, rotate, script, take_turns, tidy, tile_reduction,
    tile_to_blocks, generalize, collapse_dims,
)

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        generalize(function)
        collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=[16, 16], keep=[0, 1], order=[])
        tiled, loop = tile_reduction(match_contractions(forall), size=16)
        annotate(tiled, mma="fma", warp_grid=[1, 2])
        {said}
        annotate(function, warps=2)
        tidy(function, forall)
    return module
"""


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(129, 200), dims=(32, 32), heads=(2, 1), causal=True), "block_q=128,block_kv=64,turns=2"),
        (dict(lengths=(70, 200), dims=(32, 64), heads=ONE, causal=True), "block_kv=64,split=False"),
        (dict(lengths=(67, 130), dims=(32, 32), heads=ONE, window=90, causal=True), "block_q=128,block_kv=32,turns=2"),
        (dict(lengths=(67, 131), dims=(64, 32), heads=ONE), "block_q=128,block_kv=64,turns=2"),
        (
            dict(lengths=(131, 67), dims=(32, 32), heads=ONE, causal=True),
            "block_kv=16",
        ),  # blocks whose loop has no step
        (dict(lengths=(67, 100), dims=(32, 32), heads=ONE, mask="tensor<1x1x67x100xbf16>"), "block_kv=32"),
        (
            dict(lengths=(67, 150), dims=(32, 32), heads=ONE, softcap=5.0, dtype="f16"),
            "block_q=128,block_kv=48,turns=2",
        ),
        (dict(lengths=(193, 70), dims=(40, 24), heads=ONE), "block_q=192,block_kv=32,turns=3,stages=3"),
        (dict(lengths=(67, 100), dims=(32, 64), heads=(2, 1), causal=True), "block_kv=32,copy=cp_async,stages=3"),
    ],
)
def test_values_behind_by_warpgroups(options: dict, knobs: str) -> None:
    text, record = check_schedule(
        attention(**{"dtype": "bf16"} | options), (f"attention:mma=wgmma,{knobs},behind=1",), 1e-2
    )
    assert record.knobs["mma"] == "wgmma" and record.knobs["behind"] == 1
    assert ("mlirc.turns" in text) == ("turns" in knobs)


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(67, 131), dims=(16, 24), heads=(2, 1), causal=True), "mma=mma,block_q=32,block_kv=16"),
        (dict(lengths=(37, 83), dims=(32, 32), heads=ONE, dtype="f32"), "mma=tf32x3,block_q=16,block_kv=16"),
        (dict(lengths=(19, 71), dims=(8, 8), heads=(2, 1), dtype="f32"), "mma=fma,block_q=16,block_kv=16,behind=3"),
    ],
)
def test_values_behind_by_warps(options: dict, knobs: str) -> None:
    knobs = knobs if "behind" in knobs else f"{knobs},behind=1"
    text = attention(**{"dtype": "bf16"} | options)
    check_schedule(text, (f"attention:{knobs}",), 1e-5 if options.get("dtype") == "f32" else 1e-2)


@pytest.mark.parametrize("steps", [1, 2])
def test_through_the_jit(steps: int) -> None:
    """Loops of no step, of fewer than stay behind, and of many; edges of rows and keys."""
    options = dict(lengths=(67, 131), dims=(8, 12), heads=(2, 1), causal=True)
    text, _ = assert_same(attention(**options), (f"attention:block_q=16,block_kv=16,behind={steps}",))
    assert text.count("scf.for ") == 2 * steps + 2


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("rotate(loop, tiled, behind=1)", "all of the loop depends on it: there is nothing to compute ahead"),
        ("rotate(loop, tiled, ahead=1, behind=1)", "ahead or behind, not both"),
        ("rotate(loop, tiled, behind=7)", "behind 7: 1 to 4"),
        ("rotate(loop, tiled)", "ahead 0: 1 to 4"),
        ("take_turns(loop, groups=9)", "turns = 9: takes 1 to 8"),
    ],
)
def test_refusals_name_the_line(write, said: str, says: str) -> None:
    message = error(matmul(20, 24, 32), write(SCRIPT.format(said=said)))
    assert says in message and message.startswith("mine.py:15: "), message


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ("block_q=128,turns=3", "8 warps that compute are not 3 groups of whole warpgroups"),
        ("block_q=64,turns=2", "4 warps that compute are not 2 groups"),
        ("block_q=128,mma=mma,turns=2", "no product of warpgroups"),
        ("behind=1,rotate=1", "rotate or behind"),
    ],
)
def test_refusals_of_knobs(knobs: str, says: str) -> None:
    module = mlir.parse(attention(lengths=(130, 200), dims=(64, 64), dtype="bf16"))
    with pytest.raises(MlircError, match=says):
        tiles, _ = Schedules([f"attention:block_kv=32,{knobs}"]).schedule_kernel(module, get_target("sm_90a"))
        to_gpu(tiles, "attention_0", get_target("sm_90a"))


def _gpu_level(knobs: str) -> tuple[str, list[np.ndarray]]:
    """An attention of one block's queries at the `gpu` level, and what it takes."""
    module = mlir.parse(attention(lengths=(127, 200), dims=(16, 16), heads=ONE, dtype="bf16"))
    tiles, _ = Schedules([f"attention:block_q=128,block_kv=64,{knobs}"]).schedule_kernel(module, get_target("sm_90a"))
    with mlir.context():
        arguments = inputs_of(module)
    name = str(tiles.body.operations[0].attributes["sym_name"]).strip('"')
    with mlir.context(), mlir.ir.Location.unknown():
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, name, get_target("sm_90a"))
    return str(tiles), [*arguments, np.zeros((1, 1, 127, 16), arguments[0].dtype)]


def test_a_missing_turn_is_reported() -> None:
    """Every turn that is not given is a deadlock. (A wait that is left out is none, always: turns guard no memory.)"""
    text, arguments = _gpu_level("behind=1,turns=2")
    assert DeviceKernel(mlir.parse(text)).run(arguments).ok
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if "nvvm.barrier.arrive" in line]
    assert len(places) == 3  # in front of the loop, and of either group in it
    for i in places:
        report = DeviceKernel(mlir.parse("\n".join(lines[:i] + lines[i + 1 :]))).run(arguments)
        assert any("deadlock" in str(f) for f in report.findings), lines[i]
