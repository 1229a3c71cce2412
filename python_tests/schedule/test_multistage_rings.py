"""Rings that the warps fill that read them: by cp.async or through registers, for each operand by itself, and edited by
hand."""

from __future__ import annotations

import itertools
import re

import pytest

from mlirc import mlir
from mlirc.device import Report
from mlirc.driver.kernel_build import to_async
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.edited import EditedKernels
from support.kernels.payloads import attention, generic, kernel, matmul

TARGET = get_target("sm_90a")
KINDS = ("tma", "cp_async", "registers")
MMA = "matmul:mma=mma,copy=cp_async,block_m=32,block_n=32,block_k=64,warps_m=1,warps_n=2"
KERNELS = {
    "mma": (matmul(20, 40, 200, "bf16", epilogue=False), f"{MMA},stages=3"),
    "depth 1": (matmul(20, 40, 200, "bf16", epilogue=False), f"{MMA},stages=1"),
    "wgmma": (
        matmul(70, 40, 200, "bf16", epilogue=False), "matmul:mma=wgmma,copy=cp_async,block_m=64,block_n=48,stages=4",
    ),
    "causal": (
        attention(lengths=(70, 70), dims=(16, 16), heads=(1, 1), causal=True), "attention:block_q=16,block_kv=32,stages=2",
    ),
}  # fmt: skip


HAND = EditedKernels(KERNELS, TARGET)
level, edited, run = HAND.level, HAND.edited, HAND.run

RELEASE = r' *"mlirc.release"\(%\w+\) {lag = 0 : i64} : \(!mlirc.ring\) -> \(\)\n'
# What the loop puts: its slices, and the numbers for them.
PUTS = r"( *%\d+ = affine.apply #map\d+\(%arg6\)\n.*?tile = 1 : i64} : \(!mlirc.ring, tensor<[^>]*>, i1\) -> \(\)\n)"


def fine(report: Report) -> None:
    assert report.ok, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_printed_runs(name):
    assert 'copy = "cp_async"' in level(name) and "mlirc.stages" not in level(name)
    fine(run(name, level(name)))


@pytest.mark.parametrize("name, depth", [("mma", 4), ("mma", 7), ("depth 1", 3), ("wgmma", 5), ("causal", 3)])
def test_a_deeper_ring(name, depth):
    fine(run(name, edited(name, (r"depth = \d", f"depth = {depth}"))))


def test_a_put_behind_the_product():
    """And in front of the release; or behind it, where all warps have to meet before a slot is written again."""
    text = edited("mma", (PUTS, ""))
    puts = re.search(PUTS, level("mma"), flags=re.DOTALL)
    release = re.search(RELEASE, text)
    assert puts and release
    for place in (puts[1] + release[0], release[0] + puts[1]):
        fine(run("mma", text.replace(release[0], place)))


def test_as_far_ahead_as_a_release_in_front_lets_it():
    """Depth 2 with two slots ahead: the put of an iteration takes the slot that this iteration has released."""
    text = edited("mma", (PUTS, ""), ("depth = 3", "depth = 2"))
    puts, release = re.search(PUTS, level("mma"), flags=re.DOTALL), re.search(RELEASE, text)
    assert puts and release
    fine(run("mma", text.replace(release[0], release[0] + puts[1])))
    with pytest.raises(MlircError, match="mlirc.put in line .*writes a slot that is not released yet"):
        run("mma", edited("mma", ("depth = 3", "depth = 2")))


def test_a_ring_for_each_operand():
    ring = r'(%\d+) = "mlirc.make_ring"\(\) {copy = "cp_async", depth = 3 : i64, slots = \[({[^}]*}), ({[^}]*})\]}([^\n]*)\n'
    found = re.search(ring, level("mma"))
    assert found
    for left, right in ((3, 3), (3, 5), (4, 3)):
        made = "".join(
            f'{n} = "mlirc.make_ring"() {{copy = "cp_async", depth = {d} : i64, slots = [{slot}]}}{found[4]}\n'
            for n, d, slot in ((found[1], left, found[2]), ("%right", right, found[3]))
        )
        text = level("mma").replace(found[0], made)
        text = re.sub(rf'("mlirc.(?:put|get)"\(){found[1]}([^\n]*){{tile = 1 ', r"\1%right\2{tile = 0 ", text)
        text = re.sub(rf'( *"mlirc.release"\(){found[1]}([^\n]*\n)', rf"\1{found[1]}\2\1%right\2", text)
        fine(run("mma", text))


def test_a_loop_of_one_step_that_is_gone():
    text, knobs = matmul(40, 70, 56, "bf16", epilogue=False), f"{MMA},stages=2"
    tiles, _ = Schedules([knobs]).schedule_kernel(mlir.parse(text), TARGET)
    to_async(tiles, "matmul_0", TARGET)
    mlir.run_passes(tiles, "canonicalize,cse")
    assert "scf.for " not in str(tiles) and "mlirc.get" in str(tiles)
    KERNELS["one step"] = text, knobs
    fine(run("one step", str(tiles)))


REFUSED = {
    "no release": ([(RELEASE, "")], "the slot is not released in the loop: nothing may be put there again"),
    "nothing put": ([(r' *"mlirc.put"[^\n]*\n', "")], "mlirc.get in line .*nothing is put into the ring"),
    "put too late": (
        [(r'( *"mlirc.put"\(%\d+, %extracted_slice(?:_[0-3])?\)[^\n]*\n)', "")],
        "gets what is put behind it: put it in front, or some iterations ahead",
    ),
    "half a slot": ([(r' *"mlirc.put"[^\n]*tile = 1[^\n]*\n', "")], "tile 1 of the slot is not put"),
    "too few": ([(PUTS, "")], "gets from a ring in every iteration, which is put 2 times"),
    "another copy": ([('"cp_async"', '"registers"')], "a ring, a slice, and of copy = \"cp_async\" maybe a condition"),
    "wide swizzle": ([("swizzle = 128", "swizzle = 12")], "a slot's swizzle is one of 0, 32, 64, 128 bytes"),
    "a small slot": ([("tensor<32x64xbf16>}, ", "tensor<20x32xbf16>}, ")], "a product reads 32x64 of a slot of tensor<20x32xbf16>"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_a_line(name):
    edits, says = REFUSED[name]
    with pytest.raises(MlircError, match=says):
        run("mma", edited("mma", *edits))


# -- by a script of one's own

SCRIPT = """from mlirc.schedule import register
from mlirc.schedule.verbs import *

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        generalize(function); collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=[64, 32, 0], keep=[0, 1], order=[])
        tiled, loop = tile_reduction(match_contractions(forall), size=64)
        annotate(tiled, mma="MMA", warp_grid=[4, 1])
        LINES
        annotate(function, warps=4)
        tidy(function, forall)
    return module
"""


def scripted(folder, text: str, mma: str, *lines: str) -> str:
    """Checks a kernel by a script of one's own on the host device; returns its `async` level."""
    (folder / "mine.py").write_text(SCRIPT.replace("MMA", mma).replace("LINES", "; ".join(lines)))
    tiles, _ = Schedules([str(folder / "mine.py")]).schedule_kernel(mlir.parse(text), TARGET)
    check_schedule(text, (str(folder / "mine.py"),), 1e-2)
    to_async(tiles, "matmul_0", TARGET)
    return str(tiles)


def copies(left: str, right: str, depth: int) -> list[str]:
    """Lines of a script."""
    found = [f'stage(match_operands(tiled, number={i}), copy="{kind}")' for i, kind in enumerate((left, right))]
    producers = ["specialize(loop, producers=1)"] if "tma" in (left, right) else []
    return [*found, f"pipeline(loop, depth={depth})", *producers]


@pytest.mark.parametrize("mma, depth", [("mma", 2), ("wgmma", 3)])
@pytest.mark.parametrize("left, right", list(itertools.product(KINDS, KINDS)))
def test_each_operand_has_its_own_copies(tmp_path, mma, depth, left, right):
    text = scripted(tmp_path, matmul(67, 40, 200, "bf16", epilogue=False), mma, *copies(left, right, depth))
    assert set(re.findall(r'copy = "(\w+)"', text)) == {left, right}
    assert ("mlirc.roles" in text) == ("tma" in (left, right)) and "mlirc.copy" not in text


@pytest.mark.parametrize("mma", ["mma", "wgmma"])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (67, 33, 71), (64, 32, 131)])
def test_rows_that_nothing_else_can_copy(tmp_path, mma, m, n, k):
    text = scripted(tmp_path, matmul(m, n, k, "bf16", epilogue=False), mma, *copies("registers", "registers", 3))
    assert text.count('copy = "registers"') == 1


def bytes_to_bf16(m: int, n: int, k: int) -> str:
    """x [m,k] of bf16 times w [n,k], bytes that are made bf16 on the way."""
    x, w, v, c = f"tensor<{m}x{k}xbf16>", f"tensor<{n}x{k}xi8>", f"tensor<{n}x{k}xbf16>", f"tensor<{m}x{n}xf32>"
    mac = "%e0 = arith.extf %x0 : bf16 to f32\n    %e1 = arith.extf %x1 : bf16 to f32\n    "
    mac += "%xy = arith.mulf %e0, %e1 : f32\n    %y = arith.addf %o, %xy : f32"
    body = (
        f"  %zero = arith.constant 0.0 : f32\n  %ec = tensor.empty() : {c}\n  %ev = tensor.empty() : {v}\n"
        f"  %f = linalg.fill ins(%zero : f32) outs(%ec : {c}) -> {c}\n"
        + generic("v", "n, k", [("%w", w, "n, k")], ("%ev", v, "n, k"), "%y = arith.sitofp %x0 : i8 to bf16")
        + "\n"
        + generic("r", "m, n, k", [("%x", x, "m, k"), ("%v", v, "n, k")], ("%f", c, "m, n"), mac)
    )
    return kernel("matmul_0", "matmul", {"x": x, "w": w}, c, body)


@pytest.mark.parametrize("mma, asked", [("mma", True), ("mma", False), ("wgmma", True), ("wgmma", False)])
@pytest.mark.parametrize("m, n, k", [(67, 40, 200), (64, 33, 136)])
def test_an_operand_that_is_converted_on_the_way(tmp_path, mma, asked, m, n, k):
    """The other one by a producer's copies; of wgmma, which reads shared memory alone, without being asked for."""
    lines = ['stage(tiled, copy="tma")', "pipeline(loop, depth=3)", "specialize(loop, producers=1)"]
    if asked:
        lines.append('stage(match_operands(tiled, number=1), copy="registers")')
    text = scripted(tmp_path, bytes_to_bf16(m, n, k), mma, *lines)
    assert text.count('copy = "tma"') == 1 and text.count('copy = "registers"') == (asked or mma == "wgmma")


WRONG = {
    "cp.async of odd rows": (71, copies("registers", "cp_async", 2), 'mine.py:11: .*"cp_async": rows of which no four bytes'),
    "tma of odd rows": (71, copies("registers", "tma", 2), "mine.py:11: .*tensor copies take multiples of 16"),
    "tma without producers": (72, copies("cp_async", "tma", 2)[:-1], "mine.py:11: .*takes a producer warp"),
    "producers with nothing to do": (
        72, [*copies("cp_async", "registers", 2), "specialize(loop, producers=1)"], "nothing that its products read is",
    ),
    "no such copy": (72, copies("cp_async", "ldg", 2), 'copy = "ldg": takes "registers", "cp_async" or "tma"'),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused_at_the_scripts_line(tmp_path, name):
    k, lines, says = WRONG[name]
    with pytest.raises(MlircError, match=says) as caught:
        scripted(tmp_path, matmul(67, 40, k, "bf16", epilogue=False), "mma", *lines)
    assert "\n" not in str(caught.value)
