"""Loops whose ops are computed ahead (`schedule.rotate`): the same results through the JIT and on the host device, by any
instruction and with copies of any kind; and what is refused."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.own_script import error
from support.kernels.payloads import assert_same, attention, matmul

ONE = (1, 1)
SCRIPT = """from mlirc.schedule import register
from mlirc.schedule.verbs import (
    annotate, collapse_dims, generalize, match, match_contractions, match_operands, match_root, pick, pipeline, rotate,
    script, tidy, tile_reduction, tile_to_blocks,
)

@register(matches=lambda kernel: True)
def mine(kernel, target, *, ahead: int = 1, mma: str = "fma", step: int = 16):
    with script(ahead=ahead, mma=mma, step=step) as (module, function):
        generalize(function)
        collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=[16, 16], keep=[0, 1], order=[])
        tiled, loop = tile_reduction(match_contractions(forall), size=step)
        annotate(tiled, mma=mma, warp_grid=[1, 2])
        {rotated}
        annotate(function, warps=2)
        tidy(function, forall)
    return module
"""
RIGHT = "rotate(loop, match_operands(tiled, number=1), ahead=ahead)"
LEFT = "rotate(loop, match(loop, 'linalg.generic'), ahead=ahead)"  # refused: the product is one of them
PROLOGUE = "rotate(loop, pick(match(loop, 'linalg.generic'), number=0), ahead=ahead)"


@pytest.mark.parametrize("shape", [(2, 3, 71), (17, 19, 53), (33, 40, 64)])
@pytest.mark.parametrize(("mma", "dtype"), [("fma", "f32"), ("mma", "bf16"), ("tf32x3", "f32")])
@pytest.mark.parametrize("ahead", [1, 3])
def test_slices_ahead_in_registers(write, shape, mma, dtype, ahead):
    path = write(SCRIPT.format(rotated=RIGHT))
    tolerance = 1e-2 if dtype == "bf16" else 1e-5
    text, _ = check_schedule(matmul(*shape, dtype), (path, f"mine:ahead={ahead},mma={mma}"), tolerance)
    assert text.count("scf.for ") == 2 * ahead + 1


def test_a_prologue_ahead(write):
    """What is computed of a slice, not the slice, is carried."""
    path = write(SCRIPT.format(rotated=PROLOGUE))
    check_schedule(matmul(17, 19, 53, "bf16", prologue=True), (path, "mine:mma=mma"), 2e-2)
    check_schedule(matmul(17, 19, 70, prologue=True), (path, "mine:ahead=2"))


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(129, 330), dims=(64, 64), heads=(2, 1), causal=True), "block_q=128,block_kv=64"),
        (dict(lengths=(70, 330), dims=(64, 64), heads=(2, 1), causal=True), "block_kv=64,split=False"),
        (dict(lengths=(200, 300), dims=(64, 64), heads=ONE, window=170, causal=True), "block_kv=32"),
        (dict(lengths=(67, 259), dims=(128, 128), heads=ONE), "block_kv=64,rotate=2"),
        (dict(lengths=(131, 200), dims=(128, 128), heads=ONE, causal=True), "block_q=128,block_kv=32,stages=3"),
        (dict(lengths=(131, 67), dims=(64, 64), heads=ONE, causal=True), "block_kv=32,split=False"),  # rows of no key
        (
            dict(lengths=(131, 67), dims=(64, 64), heads=ONE, causal=True),
            "block_kv=16",
        ),  # blocks whose loop has no step
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, mask="tensor<1x1x130x150xbf16>"), "block_kv=32"),
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, mask="tensor<1x1x1x150xf32>"), "block_kv=32"),
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, mask="tensor<1x1x130x150xi1>"), "block_kv=32"),
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, softcap=5.0, dtype="f16"), "block_kv=48"),
        (dict(lengths=(70, 131), dims=(64, 128), heads=(4, 2), causal=True), "block_kv=32,copy=cp_async,stages=3"),
        (dict(lengths=(129, 140), dims=(80, 40), heads=ONE), "block_q=128,block_kv=32,store=vector"),
    ],
)
def test_scores_ahead_by_warpgroups(options: dict, knobs: str) -> None:
    knobs = knobs if "rotate" in knobs else f"{knobs},rotate=1"
    _, record = check_schedule(attention(**{"dtype": "bf16"} | options), (f"attention:mma=wgmma,{knobs}",), 1e-2)
    assert record.knobs["mma"] == "wgmma" and record.knobs["rotate"] in (1, 2)


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(67, 131), dims=(16, 24), heads=(2, 1), causal=True), "mma=mma,block_q=32,block_kv=16"),
        (dict(lengths=(67, 131), dims=(16, 24), heads=ONE, causal=True), "mma=mma,block_q=32,block_kv=16,split=False"),
        (dict(lengths=(19, 71), dims=(64, 64), heads=ONE, window=40), "mma=mma,block_q=16,block_kv=16,stages=3"),
        (
            dict(lengths=(37, 83), dims=(32, 32), heads=ONE, dtype="f32", causal=True),
            "mma=tf32x3,block_q=16,block_kv=16",
        ),
        (dict(lengths=(19, 71), dims=(8, 8), heads=(2, 1), dtype="f32"), "mma=fma,block_q=16,block_kv=16,rotate=3"),
    ],
)
def test_scores_ahead_by_warps(options: dict, knobs: str) -> None:
    knobs = knobs if "rotate" in knobs else f"{knobs},rotate=1"
    text = attention(**{"dtype": "bf16"} | options)
    check_schedule(text, (f"attention:{knobs}",), 1e-5 if options.get("dtype") == "f32" else 1e-2)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("split", [True, False])
def test_through_the_jit(steps: int, split: bool) -> None:
    """Loops of no step, of fewer than are computed ahead, and of many; edges of rows and keys."""
    options = dict(lengths=(67, 131), dims=(8, 12), heads=(2, 1), causal=True)
    knobs = f"attention:block_q=16,block_kv=16,rotate={steps},split={split}"
    text, _ = assert_same(attention(**options), (knobs,))
    assert text.count("scf.for ") == 2 * steps + 1 + split


@pytest.mark.parametrize(
    ("rotated", "says"),
    [
        (LEFT, "reads what the loop carries from the iteration before (number 0)"),
        ("rotate(loop, match(forall, 'linalg.fill'), ahead=1)", "does not stand in the loop"),
        ("rotate(loop, match_operands(tiled, number=0), ahead=0)", "ahead 0: 1 to 4"),
        ("rotate(loop, match_operands(tiled, number=0), ahead=3)", "the loop has 2 steps: none is left"),
        ("rotate(forall, match_operands(tiled, number=0), ahead=1)", "takes one scf.for"),
        ("rotate(loop, pick(match(loop, 'linalg.generic'), number=3), ahead=1)", "number 3 of a handle of 1"),
        ("rotate(loop, match(loop, 'scf.yield'), ahead=1)", "no computation on tiles or numbers"),
    ],
)
def test_refusals_name_the_line(write, rotated: str, says: str) -> None:
    path = write(SCRIPT.format(rotated=rotated))
    message = error(matmul(20, 24, 32), path)
    assert says in message and message.startswith("mine.py:15: "), message


def test_refusals_of_the_knob() -> None:
    text = attention(lengths=(64, 64), dims=(64, 64), dtype="bf16")
    with pytest.raises(MlircError, match="ahead 1: the loop has 1 steps"):
        Schedules(["attention:block_kv=64,rotate=1"]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
