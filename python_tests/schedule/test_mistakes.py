"""Mistakes of a researcher in a script of their own: each ends in one line that names the script's file and line."""

from __future__ import annotations

import time

import pytest

from mlirc import mlir
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.own_script import (
    BLOCKS,
    FIRST,
    HEAD,
    INSTRUCTION,
    KERNEL,
    LAST,
    REDUCE,
    STAGES,
    WARPS,
    compile_kernel,
    error,
    source,
)
from support.kernels.payloads import matmul, norm

TILE = "forall = tile_to_blocks(root, sizes={}, keep=[0, 1], order=[])"
LOOP = "tiled, loop = tile_reduction(match_contractions(forall), size={})"
MISTAKES = [
    # tile sizes
    (BLOCKS, TILE.format("[16]"), "1 tile sizes for 2 dimensions"),
    (BLOCKS, TILE.format("[16, 16, 16, 1]"), "4 tile sizes for 2 dimensions"),
    (BLOCKS, TILE.format("[-1, 16]"), "tile sizes [-1, 16]: a size is 0 (the whole dimension) or more"),
    (BLOCKS, TILE.format("[0, 0]"), "tile sizes [0, 0]: tile one dimension at least"),
    (BLOCKS, TILE.format("[1.5, 0]"), "sizes takes a list of whole numbers, not [1.5, 0]"),
    (BLOCKS, TILE.format("16"), "sizes takes a list of whole numbers, not 16"),
    (BLOCKS, TILE.format("[2**70, 0]"), "sizes takes a list of whole numbers, not [11805916"),
    (BLOCKS, TILE.format("[True, 0]"), "sizes takes a list of whole numbers, not [True, 0]"),
    (BLOCKS, "forall = tile_to_blocks(root, sizes=[16, 16], keep=[7], order=[])", "keep [7]: 7 is no dimension of 0 to 1"),
    (BLOCKS, "forall = tile_to_blocks(root, sizes=[16, 16], keep=[], order=[0])", "order [0]: it must list every tiled"),
    (BLOCKS, "forall = tile_to_blocks(root, sizes=[16, 16], keep=[], order=[0, 0])", "it lists a dimension twice"),
    (BLOCKS, "tile_to_blocks(root, sizes=[16, 16])", "keep is missing"),
    (BLOCKS, "tile_to_blocks(root, root, sizes=[16, 16], keep=[], order=[])", "not 2 handles"),
    (BLOCKS, "tile_to_blocks(root, sizes=[1, 1], keep=[], order=[], warps=2)", "not warps"),
    (REDUCE, LOOP.format("0"), "size 0: a step of the loop takes 1 or more"),
    (REDUCE, LOOP.format("-4"), "size -4: a step of the loop takes 1 or more"),
    (REDUCE, LOOP.format("16.0"), "size takes a whole number of 64 bits, not 16.0"),
    (REDUCE, LOOP.format("True"), "size takes a whole number of 64 bits, not True"),
    (REDUCE, LOOP.format("'16'"), "size takes a whole number of 64 bits, not '16'"),
    (REDUCE, LOOP.format("16") + "; tile_reduction(match_contractions(forall), size=8)", "is already cut"),
    # handles
    (BLOCKS, TILE.format("[16, 16]").replace("root", "function"), "takes a handle of a linalg op, this one is of func"),
    (BLOCKS, "match_root(root); " + TILE.format("[16, 16]"), "takes a handle of func.func, this one is of linalg.generic"),
    (REDUCE, "tiled, loop = tile_reduction(forall, size=16)", "this one is of scf.forall"),
    (REDUCE, "tile_reduction(match(forall, 'linalg.generic'), size=16)", "it is no contraction"),
    (REDUCE, "generalize(forall)", "takes a handle of func.func, this one is of scf.forall"),
    (REDUCE, "tile_to_blocks(match(forall, 'linalg.fill'), sizes=[1, 1], keep=[], order=[])", "it is tiled already"),
    (REDUCE, "annotate(root, vector=4)", f"its handle died at line {FIRST + BLOCKS}"),
    (LAST, "tidy(root)", f"its handle died at line {FIRST + BLOCKS}"),
    (LAST, "tidy(None)", "tidy takes a handle, not None"),
    (STAGES, "annotate((tiled, loop), stages=2)", "takes a handle, not a tuple: it is 2 handles"),
    (STAGES, "annotate(module, stages=2)", "annotate takes a handle, not <"),
    (STAGES, "annotate(kernel, stages=2)", "annotate takes a handle, not KernelInfo("),
    (STAGES, "[x for x in loop]", "TypeError: 'OpResult' object is not iterable"),
    (REDUCE, "match(forall, 'linalg.conv_2d')", "the match found no linalg.conv_2d"),
    (REDUCE, "match(forall)", "match takes a handle and names of ops"),
    (REDUCE, "match(forall, root)", "match takes a handle and names of ops"),
    # attributes
    (WARPS, "annotate(function, warp=8)", "annotate: no attribute 'warp': did you mean warps?"),
    (STAGES, "annotate(loop, stagse=4, producer_warps=4)", "no attribute 'stagse': did you mean stages?"),
    (STAGES, "annotate(loop, producer=1)", "no attribute 'producer': did you mean producers?"),
    (STAGES, "annotate(loop, overlap=4)", "no attribute 'overlap': choose one of warps, "),
    (STAGES, "annotate(loop, producers=3)", "producers = 3: takes 1 or 4"),
    (WARPS, "annotate(function, warps=0)", "warps = 0: takes 1 to 32"),
    (WARPS, "annotate(function, warps=64)", "warps = 64: takes 1 to 32"),
    (WARPS, "annotate(function, warps='2')", 'warps = "2": takes 1 to 32'),
    (WARPS, "annotate(function, warps=2.0)", "warps = 2.0: takes 1 to 32"),
    (WARPS, "annotate(function, warps=2**80)", "takes 1 to 32"),
    (WARPS, "annotate(loop, warps=2)", "'warps' belongs on the kernel's function, not here [payload op: scf.for]"),
    (STAGES, "annotate(function, stages=2)", "'stages' belongs on an scf.for, not here [payload op: func.func]"),
    (STAGES, "annotate(forall, stages=2)", "'stages' belongs on an scf.for, not here [payload op: scf.forall]"),
    (STAGES, "annotate(loop, stages=True)", "stages = True: takes 1 to 16"),
    (STAGES, "annotate(loop, stages=0)", "stages = 0: takes 1 to 16"),
    (INSTRUCTION, "annotate(tiled, mma='tensor')", 'mma = "tensor": takes "fma", "mma", "'),
    (INSTRUCTION, "annotate(tiled, mma='mma', warp_grid=[2, 1])", "it takes two 16-bit floats of one type and f32 sums, not operands of f32"),
    (INSTRUCTION, "annotate(match(forall, 'linalg.generic'), mma='fma')", "'mma' belongs on a contraction, not here"),
    (INSTRUCTION, "annotate(tiled, warp_grid=[2])", "warp_grid = [2]: takes a list of two numbers"),
    (INSTRUCTION, "annotate(tiled, warp_grid=[1, 1])", "warp_grid 1x1 does not have the block's 2 warps"),
    (INSTRUCTION, "annotate(match(forall, 'linalg.generic'), vector=3)", "vector = 3: takes 1, 2, 4, 8 or 16"),
    (INSTRUCTION, "annotate(tiled, vector=4)", "mlirc.vector = 4: nothing in this kernel takes it"),
    (INSTRUCTION, "annotate(forall, group_rows=5)", "group_rows = 5: the second-last loop has 2 steps"),
    (INSTRUCTION, "annotate(function, threads=64)", "mlirc-distribute, which takes this kernel down, does not read"),
    (INSTRUCTION, "annotate(function, lowering='loop')", "unknown pass 'mlirc-loop': choose one of"),
    (INSTRUCTION, "annotate(function, lowering='no pass')", 'lowering = "no pass": takes "loops"'),
    (INSTRUCTION, "annotate(function, min_blocks=33)", "min_blocks = 33: takes 1 to 32"),
    # Python
    (BLOCKS, "raise NotImplementedError", "NotImplementedError"),
    (BLOCKS, "import sys; sys.exit(0)", "it called sys.exit(0)"),
    (BLOCKS, "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    (BLOCKS, "kernel.shapes", "AttributeError: 'KernelInfo' object has no attribute 'shapes'"),
    (BLOCKS, "f = lambda: f(); f()", "RecursionError"),
    (BLOCKS, " indented()", "IndentationError: unexpected indent"),
    (BLOCKS, "tile_to_blocks(root, sizes=[1, 1]", "SyntaxError: '(' was never closed"),
]  # fmt: skip


@pytest.mark.parametrize("step, line, wanted", MISTAKES, ids=[f"{i}-{m[1][:40]}" for i, m in enumerate(MISTAKES)])
def test_a_wrong_line_is_named(write, step, line, wanted):
    path = write(source(step, line))
    message = error(KERNEL, path)
    # the line itself, or for two annotations that contradict each other, the other one
    assert message.startswith(f"{path}:{FIRST + step}: "), message
    assert wanted in message


MORE = [
    (source().replace("warps=2)", "warps=3)"), FIRST + INSTRUCTION, "warp_grid 2x1 does not have the block's 3 warps"),
    (
        source(INSTRUCTION, "annotate(function, lowering='loops')"),
        FIRST + WARPS,
        "mlirc-loops, which takes this kernel",
    ),
    (HEAD + "        pass\n    return module\n", FIRST - 1, "leaves a linalg.fill outside of every scf.forall"),
    (source(tail=""), 5, "script 'mine' returned NoneType, not a transform module"),
    (source(tail="    return module, function\n"), 5, "script 'mine' returned tuple"),
    (source() + source()[HEAD.index("@register") :], FIRST + 9, "'mine' is registered twice, first at mine.py:5"),
    (source().replace("def mine", "def matmul"), 5, "'matmul' is the name of a built-in script"),
    (source().replace("matches=lambda kernel: True", ""), 5, "missing 1 required keyword-only argument: 'matches'"),
    (source().replace("(matches=lambda kernel: True)", ""), 5, "register() takes 0 positional arguments"),
    (source().replace("kernel: True", "kernel: 1 / 0"), 5, "ZeroDivisionError"),
    (source().replace("lambda kernel: True", "True"), 5, "matches is a function from a KernelInfo"),
    (source().replace("lambda kernel: True", "lambda: True"), 5, "takes 0 positional arguments but 1 was given"),
    (source().replace("kernel: True", "kernel: False"), 5, "no kernel got a script of this file (mine): matmul_0"),
    (source().replace("*, block: int = 16", "block=16"), 5, "'mine' takes (kernel, target, *, knob=default, ...)"),
    (source().replace("block: int = 16", "block"), 5, "knob 'block' of 'mine' needs a default"),
    (source().replace("block: int = 16", "block: float = 0.5"), 5, "is an int, bool or str"),
    (source().replace("script(block=block)", "script(block=1.5)"), 7, "script: block = 1.5: give a whole number"),
    ("import sys\nsys.exit()\n", 2, "it called sys.exit()"),
    ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
    (b"x = 1\n\0\n", 2, "it holds a zero byte"),
    ("x = 1\n# Gr\u00fc\u00dfe\n".encode("latin1"), 2, "byte 0xfc is no UTF-8"),
    (source().encode("utf-16"), 1, "byte 0xff is no UTF-8"),
]


@pytest.mark.parametrize("content, line, wanted", MORE, ids=[m[2][:40] for m in MORE])
def test_a_wrong_file_is_named_with_its_line(write, content, line, wanted):
    message = error(KERNEL, write(content))
    assert message.startswith(f"mine.py:{line}: ") and wanted in message, message


SWALLOWS = """import time
def forever():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            pass
"""
NEVER = [
    (SWALLOWS + "forever()\n", 5),
    (SWALLOWS + source(BLOCKS, "forever()"), 5),
    (source().replace("kernel: True", "kernel: any(False for _ in iter(int, 1))"), 5),
]


@pytest.mark.parametrize("content, line", NEVER, ids=["file", "script", "matches"])
def test_a_loop_without_an_end_is_named(write, monkeypatch, content, line):
    monkeypatch.setenv("MLIRC_SCRIPT_SECONDS", "0.2")
    message = error(KERNEL, write(content))
    assert message.startswith(f"mine.py:{line}: still at work after 0.2 s: does it end?"), message


def test_the_limit_of_time_is_gone_with_the_code(write, monkeypatch):
    monkeypatch.setenv("MLIRC_SCRIPT_SECONDS", "1")
    path = write("import time\ntime.sleep(0.9)\n" + source())
    assert compile_kernel(KERNEL, path).ptx
    time.sleep(0.3)  # when it would come
    for wrong in ("0", "-1", "soon", "nan", "inf"):
        monkeypatch.setenv("MLIRC_SCRIPT_SECONDS", wrong)
        assert f"MLIRC_SCRIPT_SECONDS='{wrong}': give a number of seconds above 0" in error(KERNEL, path)


@pytest.mark.parametrize(
    "knobs, wanted",
    [
        ("blok=3", "script 'mine' has no knob 'blok'"), ("block=abc", "takes an integer of at least 1, not abc"),
        ("block=1.5", "takes an integer"), ("block=true", "takes an integer"), ("block=-1", "takes an integer"),
        ("block=99999999999999999999", "at most 2147483647"), ("block=1,block=2", "knob 'block' is given twice"),
    ],
)  # fmt: skip
def test_a_wrong_knob_of_a_script_of_ones_own(write, knobs, wanted):
    assert wanted in error(KERNEL, write(source()), f"mine:{knobs}")


def test_what_is_right_stays_right(write, capsys):
    plain = compile_kernel(KERNEL, write(source())).ptx
    assert ".minnctapersm" not in plain
    windows = write(("print('hello')\n" + source()).replace("\n", "\r\n"), "windows.py")
    assert compile_kernel(KERNEL, windows).ptx == plain
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "hello\n"


def test_tiles_too_large_for_the_machine(write):
    large = write(source(BLOCKS, TILE.format("[1024, 512]")).replace("stages=2", "stages=1"))
    assert "takes 8192 registers of each of 64 threads" in error(matmul(1024, 512, 64), large)
    deep = write(source(BLOCKS, TILE.format("[256, 256]")).replace("size=16", "size=128"), "deep.py")
    message = error(matmul(256, 256, 256), deep)
    assert (
        message.startswith(f"deep.py:{FIRST + REDUCE}: kernel matmul_0: a block asks for ") and "sm_90a has" in message
    )


def test_every_instruction_asks_the_target(write):
    path = write(source(INSTRUCTION, "annotate(tiled, mma='wgmma', warp_grid=[2, 1])"))
    kernel = matmul(128, 128, 192, "bf16")
    wanted = f"mine.py:{FIRST + INSTRUCTION}: kernel matmul_0: mlirc.mma = wgmma: sm_80 has no wgmma: use "
    wanted += "mma, fma or mma_direct"
    assert error(kernel, path, target="sm_80") == wanted
    assert "sm_120 has no wgmma" in error(kernel, "matmul:mma=wgmma", target="sm_120")


@pytest.mark.parametrize(
    "text, knob, wanted",
    [
        (KERNEL, "matmul:group=5,block_m=16,block_n=16", "mlirc.group_rows = 5: the second-last loop has 2 steps"),
        (matmul(32, 32, 33, "bf16"), "matmul:stages=4", "no product in this loop reads a slice that can be copied"),
        (norm(4, 33), "reduction:vector=4", "mlirc.vector = 4: rows of 33 elements take at most 1"),
        (norm(4, 64), "reduction:vector=3", "vector = 3: takes 1, 2, 4, 8 or 16"),
        (norm(4, 64), "reduction:warps=33", "warps = 33: takes 1 to 32"),
        (KERNEL, "matmul:min_blocks=32,warps_m=2,warps_n=2", "32 blocks of 128 threads, a multiprocessor of sm_90a"),
        (KERNEL, "matmul_0=generic:min_blocks=9", "9 blocks of 256 threads, a multiprocessor of sm_90a holds 2048"),
        (KERNEL, "matmul:mma=no", "mma=no: choose fma, mma, "),
    ],
)
def test_a_knob_that_cannot_be_honoured_is_an_error(text, knob, wanted):
    assert wanted in error(text, knob)


def test_what_a_built_in_script_chooses_by_itself_is_no_demand(tmp_path):
    odd = matmul(32, 32, 131, "bf16")  # two steps: too few to read ahead
    schedules = Schedules()
    tiles, record = schedules.schedule_kernel(mlir.parse(odd), get_target("sm_90a"))
    assert record.knobs["stages"] > 1 and "mlirc.demands" not in str(tiles)
    assert compile_kernel(odd).ptx
    path = tmp_path / "printed.mlir"
    path.write_text(schedules.printed())
    assert compile_kernel(odd, str(path)).ptx == compile_kernel(odd).ptx
    stages = f"constant {record.knobs['stages']} : i32"
    path.write_text(schedules.printed().replace(stages, "constant 7 : i32"))
    assert "mlirc.stages = 7: no product in this loop" in error(odd, str(path))


@pytest.mark.parametrize("override", ["matmul:min_blocks=3", "matmul_0=generic:min_blocks=3"])
def test_min_blocks_reaches_the_ptx(override):
    assert ".minnctapersm 3" in compile_kernel(KERNEL, override).ptx


def test_a_tile_keeps_the_warps_that_fit_it():
    def warps(*overrides: str) -> int:
        _, record = Schedules(list(overrides)).schedule_kernel(mlir.parse(KERNEL), get_target("sm_90a"))
        return record.knobs["warps_m"] * record.knobs["warps_n"]

    assert warps("matmul:block_m=32") == warps() == 4
    assert warps("matmul:block_m=8,block_n=8") < 4  # no sum for every lane of four warps


def test_the_compilers_own_notes_are_not_the_schedules():
    noted = KERNEL.replace("arith.mulf %x0, %x1 : f32", "arith.mulf %x0, %x1 {mlirc.index_below = 9 : i64} : f32")
    assert noted != KERNEL
    compile_kernel(noted)
    compile_kernel(noted, "matmul_0=generic")
    assert "no attribute 'stage': did you mean stages?" in error(noted.replace("mlirc.index_below", "mlirc.stage"))
