"""The `async` level edited by hand: what is right runs right on the host device, and what is wrong is refused in one line,
or is found there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_async
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from mlirc.tools import mlirc as mlirc_program
from mlirc.tools import mlirc_run
from support.kernels.check import assert_close, run_tiles
from support.kernels.edited import EditedKernels
from support.kernels.payloads import attention, inputs_of, matmul

ROOT = Path(__file__).resolve().parents[2]
TARGET = get_target("sm_90a")
KERNELS = {
    "wgmma": (matmul(70, 40, 200, "bf16", epilogue=False), "matmul:mma=wgmma,block_m=64,block_n=48,stages=3,producers=1"),
    "mma": (
        matmul(20, 40, 200, "bf16", epilogue=False),
        "matmul:mma=mma,copy=tma,block_m=32,block_n=32,block_k=64,warps_m=1,warps_n=2,stages=3,blocks=1",
    ),
    "one step": (matmul(70, 100, 56, "bf16", epilogue=False), "matmul:mma=wgmma,copy=tma,block_m=64,block_n=48,stages=2"),
    "cluster": (
        matmul(512, 64, 136, "bf16", epilogue=False),
        "matmul:mma=wgmma,block_m=128,block_n=64,stages=2,cluster_size=2",
    ),
    "two groups": (matmul(130, 40, 136, "bf16", epilogue=False), "matmul:mma=wgmma,block_m=128,block_n=48,stages=2"),
    "attention": (
        attention(lengths=(65, 130), dims=(64, 64), heads=(1, 1), dtype="bf16"),
        "attention:stages=2,block_kv=64,split=False",
    ),
    "causal": (
        attention(lengths=(70, 70), dims=(64, 64), heads=(1, 1), dtype="bf16", causal=True),
        "attention:stages=2,block_kv=64",
    ),
}  # fmt: skip


HAND = EditedKernels(KERNELS, TARGET)
level, edited, run = HAND.level, HAND.edited, HAND.run

RELEASE = r' *"mlirc.release"\(%\w+\) {lag = [LAG] : i64} : \(!mlirc.ring\) -> \(\)\n'
LATE, LAST = RELEASE.replace("LAG", "1"), RELEASE.replace("LAG", "0")
RING = r'(%\w+) = "mlirc.make_ring"\(\) {copy = "tma", depth = (\d) : i64, slots = \[({[^}]*}), ({[^}]*})\]} : \(\) -> !mlirc.ring\n'


def two_rings(kernel: str, left: int, right: int) -> str:
    """Both operands of a product through rings of their own, of different depths."""
    text = level(kernel)
    found = re.search(RING, text)
    assert found
    ring, _, first, second = found.groups()
    made = [
        f'{name} = "mlirc.make_ring"() {{copy = "tma", depth = {depth} : i64, slots = [{slot}]}} : () -> !mlirc.ring\n'
        for name, depth, slot in ((ring, left, first), ("%right", right, second))
    ]
    text = text.replace(found[0], "".join(made))
    text = re.sub(rf'("mlirc.(?:put|get)"\(){ring}([^\n]*){{tile = 1 ', r"\1%right\2{tile = 0 ", text)
    return re.sub(rf'( *"mlirc.release"\(){ring}([^\n]*\n)', rf"\1{ring}\2\1%right\2", text)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_printed_runs(kernel):
    report = run(kernel, level(kernel))
    assert report.ok, "\n".join(map(str, report.findings))


def test_the_edits_that_follow_find_what_they_look_for():
    assert level("wgmma").count('"mlirc.get"') == 2 and level("attention").count("mlirc.make_ring") == 2


DEPTHS = [("wgmma", 2), ("wgmma", 7), ("mma", 1), ("mma", 5), ("causal", 4), ("cluster", 4)]


@pytest.mark.parametrize("kernel, depth", DEPTHS)
def test_another_depth(kernel, depth):
    report = run(kernel, edited(kernel, (r"depth = \d", f"depth = {depth}")))
    assert report.ok, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("kernel, depths", [("wgmma", (5, 2)), ("mma", (1, 3)), ("cluster", (3, 2))])
def test_two_rings_of_different_depths(kernel, depths):
    report = run(kernel, two_rings(kernel, *depths))
    assert report.ok, "\n".join(map(str, report.findings))


def moved(name: str) -> tuple[str, str]:
    """(kernel, level) with releases at other places."""
    if name == "at once, and so waited for":
        text = re.sub(LAST, "", level("wgmma"))
        return "wgmma", text.replace("lag = 1", "lag = 0")
    if name == "two iterations later":
        text = level("wgmma").replace("lag = 1", "lag = 2")
        return "wgmma", re.sub(LAST, lambda m: m[0].replace("lag = 0", "lag = 1") + m[0], text)
    if name == "one later, where lanes read":
        text = re.sub(LAST, lambda m: m[0].replace("lag = 0", "lag = 1"), level("mma"))
        loop = re.search(r"scf.yield[^\n]*tensor[^\n]*\n *}\n", text)
        assert loop
        last = re.search(LATE, text)
        assert last
        return "mma", text.replace(loop[0], loop[0] + last[0].replace("lag = 1", "lag = 0"))
    text = level("attention")  # keys at the end of the iteration, in front of its yield
    keys = re.search(LAST, text)
    assert keys
    text = text.replace(keys[0], "", 1)
    return "attention", re.sub(r"( *scf.yield %\w+, )", lambda m: keys[0] + m[0], text, count=1)


@pytest.mark.parametrize(
    "name",
    ["at once, and so waited for", "two iterations later", "one later, where lanes read", "keys at the end"],
)
def test_a_release_that_was_moved(name):
    report = run(*moved(name))
    assert report.ok, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("warps", ["2, 4", "4, 4"])
def test_another_split_of_the_warps(warps):
    report = run("wgmma", edited("wgmma", ("i64: 1, 4>", f"i64: {warps}>")))
    assert report.ok, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("registers", ["24, 240", "64, 216"])
def test_other_registers(registers):
    report = run("two groups", edited("two groups", ("i64: 40, 232>", f"i64: {registers}>")))
    assert report.ok, "\n".join(map(str, report.findings))


PUTS = r" *scf.for (%\w+) = %c0 to %c200 step %c64 {\n.*?\n        }\n"  # the producer's loop


def test_loops_may_be_cut_on_one_side():
    text = level("wgmma")
    loop = re.search(PUTS, text, flags=re.DOTALL)
    assert loop
    first = loop[0].replace("to %c200", "to %c128")
    second = loop[0].replace("= %c0 to", "= %c128 to")
    text = text.replace(loop[0], first + second)
    text = text.replace("%c64 = arith", "%c128 = arith.constant 128 : index\n      %c64 = arith")
    report = run("wgmma", text)
    assert report.ok, "\n".join(map(str, report.findings))


def test_a_step_that_stands_in_no_loop():
    module = mlir.parse(level("one step"))
    mlir.run_passes(module, "canonicalize,cse")
    text = str(module)
    assert "scf.for " not in text and "mlirc.get" in text
    report = run("one step", text)
    assert report.ok, "\n".join(map(str, report.findings))


REFUSED = {
    "depth 0": ("wgmma", [("depth = 3", "depth = 0")], "'depth' must be a number from 1 to 64, not 0"),
    "a copy of no kind": ("wgmma", [('"tma"', '"ldg"')], "'copy' must be one of tma"),
    "no depth": ("wgmma", [("depth = 3 : i64, ", "")], "'mlirc.make_ring' op lacks an attribute"),
    "no number of a tile": ("wgmma", [("{tile = 1 : i64}", "")], "op lacks an attribute"),
    "a step of zero": ("wgmma", [("%c64 = arith.constant 64", "%c64 = arith.constant 0")], "a loop with a step of 0"),
    "no release": ("wgmma", [(LATE, "")], r"mlirc.get in line \d+: the slot is not released in the loop"),
    "released twice": ("wgmma", [(LATE, lambda m: 2 * m[0])], r"mlirc.release in line \d+: the slot is released twice"),
    "the last slots stay": ("wgmma", [(LAST, "")], r"release\(lag = 0\) is missing behind the loop"),
    "and twice behind": ("wgmma", [(LAST, lambda m: 2 * m[0])], "released twice"),
    "more than the ring has": ("wgmma", [("depth = 3", "depth = 1")], "keeps 2 slots of a ring of depth 1"),
    "before its reader": (
        "wgmma",
        [(LATE, ""), (LAST, ""), (r'( *%\w+ = linalg.generic [^\n]*"wgmma")', r'        "mlirc.release"(RING) {lag = 0 : i64} : (!mlirc.ring) -> ()\n\1')],
        "a linalg.generic behind it still reads the slot",
    ),
    "nothing is put": ("wgmma", [(r' *"mlirc.put"[^\n]*\n', "")], "mlirc.get in line .*nothing is put into the ring"),
    "half of it is put": ("wgmma", [(r' *"mlirc.put"[^\n]*tile = 1[^\n]*\n', "")], "tile 1 of the slot is not put"),
    "put once more": (
        "wgmma",
        [(PUTS, lambda m: m[0] + m[0].replace("to %c200", "to %c64"))],
        "puts 5 times into the ring, which is got from 4 times",
    ),
    "a put among the consumers": ("wgmma", [(r'( *)("mlirc.release"\((%\w+)\) {lag = 1)', r'\1%s = tensor.extract_slice %arg0[%c0, %c0] [64, 64] [1, 1] : tensor<70x200xbf16> to tensor<64x64xbf16>\n\1"mlirc.put"(\3, %s) {tile = 0 : i64} : (!mlirc.ring, tensor<64x64xbf16>) -> ()\n\1\2')], "stands in the region of the producers"),
    "other warps": ("wgmma", [("array<i64: 1, 4>", "array<i64: 1, 8>")], "8 warps compute, and the kernel has mlirc.warps = 4"),
    "too many registers": ("two groups", [("i64: 40, 232>", "i64: 40, 248>")], "are 68608 of a block's 64512: ask for less"),
    "registers that nobody gives": ("two groups", [("i64: 40, 232>", "i64: 176, 160>")], "give up some of the 168"),
    "registers of half a warpgroup": ("wgmma", [("{warps = array<i64: 1, 4>", "{registers = array<i64: 40, 240>, warps = array<i64: 1, 4>")], "whole warpgroups"),
    "a slot that is too small": ("wgmma", [("tensor<64x64xbf16>}", "tensor<32x64xbf16>}")], "a product reads 64x64 of a slot of tensor<32x64xbf16>"),
    "a slot in another form": ("wgmma", [("{swizzle = 128 : i64, tile = tensor<64x64xbf16>}", "{panels, swizzle = 128 : i64, tile = tensor<64x64xbf16>}")], "reads tile 0 of its slots in whole rows"),
    "no shared slice": ("cluster", [(r"{swizzle = 128 : i64, tile = tensor<128", "{multicast, swizzle = 128 : i64, tile = tensor<128")], "no multicast"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_a_line(name):
    kernel, edits, says = REFUSED[name]
    ring = re.search(r"(%\w+) = \"mlirc.make_ring", level(kernel))
    assert ring
    text = edited(kernel, *edits).replace("RING", ring[1])
    with pytest.raises(MlircError, match=says) as caught:
        run(kernel, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", ["producer", "consumer"])
def test_loops_whose_counts_differ_are_found_on_the_host_device(more):
    text = level("causal")  # loop bounds that depend on the block
    loops = re.findall(r"scf.for %\w+ = %c0 to (%\w+) step %c64", text)
    assert len(loops) >= 2 and loops[0] == loops[1]
    new = f"%more to {loops[0]}"
    text = text.replace("%c64 = arith", "%more = arith.constant -64 : index\n      %c64 = arith")
    head, _, rest = text.partition("}, {")
    old = f"%c0 to {loops[0]}"
    text = (
        head.replace(old, new, 1) + "}, {" + rest if more == "producer" else head + "}, {" + rest.replace(old, new, 1)
    )
    report = run("causal", text)
    assert not report.ok


def test_a_pass_of_ones_own_makes_the_level(ran, tmp_path):
    """The example of docs/schedules.md, from the command line, and through helper processes' way."""
    file, kernel = ROOT / "examples" / "deep_keys.py", tmp_path / "kernel.mlir"
    source = file.read_text()
    block = next(
        b for b in (ROOT / "docs" / "schedules.md").read_text().split("```python\n") if b.startswith("@register_pass")
    )
    assert block.split("```")[0].strip() in source
    kernel.write_text(KERNELS["attention"][0])
    done = ran(mlirc_program.main, kernel, "--emit", "async", "--schedule", file)
    assert re.findall(r"depth = (\d)", done.out) == ["3", "2"] and "to_async" not in done.out.split("mlirc.demands")[0]
    assert ran(mlirc_program.main, kernel, "-o", tmp_path / "k.ptx", "--schedule", file).status == 0


def test_an_edited_level_is_a_model_for_the_compiler(ran, tmp_path):
    source, edit = tmp_path / "kernel.mlir", tmp_path / "edited.mlir"
    source.write_text(KERNELS["mma"][0])
    knobs = ("--schedule", KERNELS["mma"][1])
    emitted = ran(mlirc_program.main, source, "--emit", "async", *knobs).out
    assert (
        "mlirc.make_ring" in emitted and ran(mlirc_program.main, source, "-o", tmp_path / "a.ptx", *knobs).status == 0
    )
    edit.write_text(emitted)
    assert ran(mlirc_program.main, edit, "-o", tmp_path / "b.ptx").status == 0
    kernels = [re.sub(r"//mlirc.*\n", "", (tmp_path / f"{n}.ptx").read_text()) for n in "ab"]
    assert kernels[0] == kernels[1]
    edit.write_text(emitted.replace("depth = 3", "depth = 4"))
    assert ran(mlirc_program.main, edit, "-o", tmp_path / "b.ptx", "--no-cache").status == 0
    refused = ran(mlirc_program.main, edit, "--check")
    assert refused.status and "the file is at level async" in refused.error
    done = ran(mlirc_run.main, tmp_path / "b.ptx", "--random-inputs", 0, "--device", "host")
    assert done.status == 0 and "no findings" in done.err


def test_results_of_different_types_leave_the_roles():
    """Sums as they are, and rounded: two results of a block program, of two types."""
    lines = (ROOT / "lit_tests" / "passes" / "async.mlir").read_text().split("\n")
    text = "\n".join(line for line in lines if not line.startswith("//"))
    for old, new in {
        "-> tensor<256x256xbf16>\n": "-> (tensor<256x256xbf16>, tensor<256x256xf32>)\n",
        "%e = tensor.empty()": "%e2 = tensor.empty() : tensor<256x256xf32>\n  %e = tensor.empty()",
        "%r = scf.forall": "%r:2 = scf.forall",
        "(%o = %e) -> (tensor<256x256xbf16>)": "(%o = %e, %o2 = %e2) -> (tensor<256x256xbf16>, tensor<256x256xf32>)",
        "scf.forall.in_parallel {": "scf.forall.in_parallel {\n tensor.parallel_insert_slice %c into %o2[%m, %n] "
        "[128, 64] [1, 1] : tensor<128x64xf32> into tensor<256x256xf32>",
        "return %r : tensor<256x256xbf16>": "return %r#0, %r#1 : tensor<256x256xbf16>, tensor<256x256xf32>",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    tiles = mlir.parse(text)
    found, report = run_tiles(tiles, inputs_of(tiles, 0))
    assert report.ok, "\n".join(map(str, report.findings))
    expected = run_module(tiles, inputs_of(tiles, 0), "product")
    assert_close(found, list(expected), 1e-2)
    to_async(tiles, "product", TARGET)
    assert "!mlirc.results" in str(mlir.parse(str(tiles)))


SCRIPT = """from mlirc.schedule import register
from mlirc.schedule.verbs import *

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        generalize(function); collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=[64, 32, 0], keep=[0, 1], order=[])
        tiled, loop = tile_reduction(match_contractions(forall), size=64)
        annotate(tiled, mma="MMA", warp_grid=[4, 1])
        stage(tiled, copy="tma")
        LINE
        pipeline(loop, depth=2)
        specialize(loop, producers=4REGISTERS)
        annotate(function, warps=4MIN_BLOCKS)
        tidy(function, forall)
    return module
"""


def scripted(folder, mma="mma", line="", registers="", min_blocks=""):
    """A kernel by a script of one's own: its `async` level, and what the host device says of it."""
    text = SCRIPT.replace("MMA", mma).replace("LINE", line or "pass")
    (folder / "mine.py").write_text(text.replace("REGISTERS", registers).replace("MIN_BLOCKS", min_blocks))
    kernel = matmul(70, 40, 200, "bf16", epilogue=False)
    tiles, _ = Schedules([str(folder / "mine.py")]).schedule_kernel(mlir.parse(kernel), TARGET)
    to_async(tiles, "matmul_0", TARGET)
    return str(tiles), run("wgmma", str(tiles))


def test_how_one_operand_lies_in_its_slots(tmp_path):
    text, report = scripted(tmp_path, line="stage(match_operands(tiled, number=1), swizzle=0)")
    assert report.ok and re.findall(r"swizzle = (\d+)", text) == ["128", "0"]
    for line, says in {
        "stage(match_operands(tiled, number=0), swizzle=64)": "mine.py:12: .*a slot's rows have 128 bytes: as many, or 0",
        "stage(match_operands(tiled, number=2), swizzle=0)": "mine.py:12: .*reads operands 0 and 1, not 2",
        "stage(match_operands(forall, number=0), swizzle=0)": "mine.py:12: .*takes products",
        "stage(tiled)": "mine.py:12: .*give copy",
    }.items():
        with pytest.raises(MlircError, match=says):
            scripted(tmp_path, line=line)
    with pytest.raises(MlircError, match="wgmma reads rows that are swizzled over 128 bytes, not 0"):
        scripted(tmp_path, mma="wgmma", line="stage(match_operands(tiled, number=1), swizzle=0)")


def test_how_many_registers_a_role_has(tmp_path):
    asked = dict(mma="wgmma", registers=", registers=(64, 184)", min_blocks=", min_blocks=2")
    text, report = scripted(tmp_path, **asked)
    assert report.ok and "registers = array<i64: 64, 184>" in text
    with pytest.raises(MlircError, match=r"registers \[64, 248\] are .* ask for less"):
        scripted(tmp_path, **asked | {"registers": ", registers=(64, 248)"})
    with pytest.raises(MlircError, match="registers = .*takes a list of two numbers, each a multiple of 8"):
        scripted(tmp_path, **asked | {"registers": ", registers=(64, 100)"})
