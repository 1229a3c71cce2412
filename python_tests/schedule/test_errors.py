"""The researcher's loop: knobs, script files, printed scripts given back; and one-line errors that say where."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.payloads import assert_same, matmul, norm

KERNEL = matmul(20, 24, 32)
HEAD = """
from mlirc.schedule import register
from mlirc.schedule.verbs import annotate, match, match_root, script, tile_to_blocks, tidy
from mlirc.mlir import transform

@register(matches=lambda kernel: kernel.kind == "matmul")
def mine(kernel, target, *, block=8):
    with script(block=block) as (module, function):
"""


def schedule(text: str, *overrides: str):
    return Schedules(list(overrides)).schedule_kernel(mlir.parse(text, "kernel.mlir"), get_target("sm_90a"))


def error(text: str, *overrides: str) -> str:
    with pytest.raises(MlircError) as caught:
        schedule(text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(tmp_path, body: str, name: str = "mine.py") -> str:
    path = tmp_path / name
    path.write_text(HEAD + "".join(f"        {line}\n" for line in body.split("\n")) + "    return module\n")
    return str(path)


def test_knobs_reach_the_script_by_kind_and_by_name():
    _, record = schedule(KERNEL, "matmul:block_m=16,stages=2", "matmul_0:stages=5")
    assert record.knobs["block_m"] == 16 and record.knobs["stages"] == 5 and record.script == "matmul"


@pytest.mark.parametrize(
    "override, wanted",
    [
        ("matmul:block_x=3", "script 'matmul' has no knob 'block_x': it has block_m"),
        ("matmul=nothing", "no script 'nothing': choose one of"),
        ("matmul:block_m", "'block_m' is not of the form knob=value"),
        ("matmul:", "expected FILE.py, FILE.mlir, or"),
        ("missing.py", "missing.py: no such file"),
        ("missing.mlir", "missing.mlir: no such file"),
    ],
)
def test_malformed_overrides(override, wanted):
    assert wanted in error(KERNEL, override)


def test_knobs_of_a_script_pass_by_a_kernel_of_that_kind_that_another_script_got():
    _, record = schedule(norm(4, 1), "reduction:rows=2")
    assert record.script == "elementwise"
    assert "script 'elementwise' has no knob 'rows'" in error(norm(4, 1), "reduction_0:rows=2")


def test_an_override_that_meets_no_kernel_is_an_error():
    schedules = Schedules(["reduction:rows=2"])
    schedules.schedule_kernel(mlir.parse(KERNEL), get_target("sm_90a"))
    with pytest.raises(MlircError, match="no kernel has the name or kind 'reduction'"):
        schedules.check_used()


def test_a_users_script_comes_first_and_keeps_the_meaning(tmp_path):
    body = "root = match_root(function)\nforall = tile_to_blocks(root, sizes=[block, 0], keep=[0, 1], order=[])\n"
    path = write(tmp_path, body + "annotate(function, warps=1)\ntidy(function, forall)")
    text, record = assert_same(KERNEL, (path, "mine:block=7"))
    assert record.script == "mine" and record.knobs == {"block": 7} and "in (3)" in text
    assert "mine" not in Schedules().select.__self__._scripts


def test_a_python_error_in_a_script_names_file_and_line(tmp_path):
    path = write(tmp_path, "first = 1\nundefined_name(first)")
    assert error(KERNEL, path) == f"{path}:10: NameError: name 'undefined_name' is not defined"


def test_a_syntax_error_names_file_and_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    assert error(KERNEL, str(path)).startswith(f"{path}:2: SyntaxError: ")


def test_a_file_without_a_script_is_an_error(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("x = 1\n")
    assert "registers no script" in error(KERNEL, str(path))


def test_a_match_that_finds_nothing_names_the_line(tmp_path):
    path = write(tmp_path, 'found = match(function, "linalg.conv_2d")')
    assert error(KERNEL, path) == (
        f"{path}:9: schedule of kernel 'matmul_0' failed: schedule.require: the match found no linalg.conv_2d"
    )


def test_a_failing_transform_op_names_the_line_and_the_payload_op(tmp_path):
    path = write(tmp_path, "root = match_root(function)\n\ntile_to_blocks(root, sizes=[4], keep=[], order=[])")
    message = error(KERNEL, path)
    assert message.startswith(f"{path}:11: schedule of kernel 'matmul_0' failed: schedule.tile_to_blocks: 1 tile sizes")
    assert "payload op: linalg.generic at" in message


def test_a_failing_upstream_op_names_the_line(tmp_path):
    body = "from mlirc.mlir import transform_structured\nops = match(function, 'linalg.fill')\n"
    path = write(tmp_path, body + "transform_structured.VectorizeOp(ops, vector_sizes=[1, 2, 3])")
    assert error(KERNEL, path).startswith(f"{path}:11: schedule of kernel 'matmul_0' failed: ")


def test_a_printed_script_can_be_edited_and_given_back(tmp_path):
    schedules = Schedules(["matmul:block_m=16,block_k=16"])
    tiles, _ = schedules.schedule_kernel(mlir.parse(KERNEL), get_target("sm_90a"))
    path = tmp_path / "edited.mlir"
    path.write_text(schedules.printed())
    again, record = schedule(KERNEL, str(path))
    assert str(again) == str(tiles) and record.script == str(path)
    path.write_text(schedules.printed().replace("size = 16 : i64", "size = 8 : i64"))
    edited, _ = assert_same(KERNEL, (str(path),))
    assert "step %c8" in edited


def test_a_script_in_mlir_fails_at_its_own_line(tmp_path):
    schedules = Schedules()
    schedules.schedule_kernel(mlir.parse(KERNEL), get_target("sm_90a"))
    lines = schedules.printed().split("\n")
    line = next(i for i, text in enumerate(lines) if "schedule.tile_to_blocks" in text)
    lines[line] = lines[line].replace("sizes = array<i64: ", "sizes = array<i64: 1, ")
    path = tmp_path / "edited.mlir"
    path.write_text("\n".join(lines))
    assert error(KERNEL, str(path)).startswith(f"{path}:{line + 1}: schedule of kernel 'matmul_0' failed")


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("module {", "not valid MLIR"),
        ("module attributes {transform.with_named_sequence} {}", "name the kernels or kinds"),
    ],
)
def test_a_bad_mlir_file(tmp_path, text, wanted):
    path = tmp_path / "bad.mlir"
    path.write_text(text)
    message = error(KERNEL, str(path))
    assert wanted in message and str(path) in message


def test_scripts_that_were_used_are_printed_once_with_their_kernels():
    schedules = Schedules()
    for name in ("reduction_0", "reduction_1"):
        text = norm(4, 64).replace("reduction_0", name)
        schedules.schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    printed = schedules.printed()
    assert printed.count("named_sequence") == 2  # the attribute and the op
    assert "// kernels: reduction_0, reduction_1" in printed


def test_the_schedule_leaves_the_kernel_as_it_was():
    module = mlir.parse(KERNEL)
    before = str(module)
    Schedules().schedule_kernel(module, get_target("sm_90a"))
    assert str(module) == before


@pytest.mark.parametrize(
    "override, wanted",
    [
        ("matmul:block_m=0", "knob 'block_m' of script 'matmul' takes an integer of at least 1, not 0"),
        ("matmul_0:warps_m=-2", "knob 'warps_m' of script 'matmul' takes an integer of at least 1, not -2"),
        ("matmul:block_k=many", "knob 'block_k' of script 'matmul' takes an integer of at least 1, not many"),
        ("matmul:stages=true", "knob 'stages' of script 'matmul' takes an integer of at least 1, not True"),
        ("matmul:mma=3", "knob 'mma' of script 'matmul' takes a word, not 3"),
        (
            "matmul:mma=mma",
            "kernel 'matmul_0': mma=mma: it takes two 16-bit floats of one type and f32 sums, not operands of f32 with sums of f32: use fma, ",
        ),
        ("matmul:copy=tmaa", "knob 'copy' of script 'matmul' takes cp_async or tma, not tmaa"),
        ("matmul:through=disk", "knob 'through' of script 'matmul' takes cluster or memory, not disk"),
        ("attention:store=3", "knob 'store' of script 'attention' takes vector or tma, not 3"),
        ("matmul:copy=cp_async,store=tma", "store=tma: results leave by tensor copies where copy=tma: add that"),
        ("matmul:producers=1", "producers=1: none copy without copy=tma: add that"),
        ("matmul:through=memory", "through=memory: K has one part: give parts=2 or more"),
        ("matmul:warps_k=2", "warps_k=2: warps of mma=fma do not share out k: leave it out"),
        ("matmul_0=reduction", "script 'reduction' cannot schedule kernel 'matmul_0' of kind 'matmul': choose"),
    ],
)
def test_values_that_a_script_cannot_use(override, wanted):
    assert wanted in error(KERNEL, override)


@pytest.mark.parametrize("annotation", ['Literal["fast", "safe"]', "typing.Literal['fast', 'safe'] | None"])
def test_a_script_may_list_the_words_of_a_knob(tmp_path, annotation):
    path = tmp_path / "mine.py"
    head = HEAD.replace("block=8", f'way: {annotation} = "safe"').replace("block=block", "way=way")
    path.write_text(f"import typing\nfrom typing import Literal\n{head}        pass\n    return module\n")
    assert schedule(KERNEL, str(path), "mine:way=fast")[1].knobs == {"way": "fast"}
    for wrong in ("quick", "3"):
        assert f"takes fast or safe, not {wrong}" in error(KERNEL, str(path), f"mine:way={wrong}")


def test_a_misspelt_knob_is_found_before_there_is_a_kernel():
    with pytest.raises(MlircError, match="script 'attention' has no knob 'block': it has block_q"):
        Schedules(["attention:block=3"])


def test_a_knob_whose_default_is_zero_takes_zero(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD.replace("block=8", "block: int = 0") + "        pass\n    return module\n")
    assert schedule(KERNEL, str(path), "mine:block=0")[1].knobs == {"block": 0}
    assert "takes an integer of at least 0, not -1" in error(KERNEL, str(path), "mine:block=-1")
