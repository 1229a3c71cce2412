"""What a `--schedule` file may bring along: transform ops, passes and attributes of its own, for helper processes too;
and printed scripts that were edited by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import KernelJob, lowering_passes
from mlirc.driver.workers import build_kernels
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.own_script import FIRST, HEAD, KERNEL, REDUCE, compile_kernel, error, source
from support.kernels.payloads import matmul, norm

OP = """from mlirc.dialects.schedule import PayloadError, transform_op

@transform_op("{name}", results=("same",), attributes={{"least": int}}, takes="scf.forall")
def {name}(rewriter, foralls, least):
    if len(foralls) < least:
        raise PayloadError(f"{{len(foralls)}} block programs, {{least}} wanted", foralls[0])
    {body}

"""


def with_op(name: str, least: int = 1, body: str = "return [foralls]", call: str = "") -> str:
    line = call or f"same = {name}(forall, least={least}); annotate(same, group_rows=1)"
    return OP.format(name=name, body=body) + source(REDUCE, line)


def test_a_transform_op_of_ones_own_runs(write):
    assert (
        compile_kernel(KERNEL, write(with_op("own_count"))).ptx == compile_kernel(KERNEL, write(source(), "b.py")).ptx
    )
    # the same file, edited and loaded again
    edited = write(with_op("own_count", least=2).replace("block programs", "programs"))
    start = FIRST + REDUCE + OP.count("\n")
    wanted = "schedule.own_count: 1 programs, 2 wanted [payload op: scf.forall"
    assert error(KERNEL, edited).startswith(f"mine.py:{start}: schedule of kernel 'matmul_0' failed: {wanted}")


@pytest.mark.parametrize(
    "name, options, wanted",
    [
        ("own_kind", dict(call="own_kind(root, least=1)"), "died"),
        (
            "own_func",
            dict(call="own_func(function, least=1)"),
            "takes a handle of scf.forall, this one is of func.func",
        ),
        ("own_type", dict(call="own_type(forall, least='1')"), "least takes a whole number of 64 bits, not '1'"),
        ("own_none", dict(body="return None"), "one list of payload ops per result: 1, not 0"),
        ("own_flat", dict(body="return [3]"), "its function returns lists of payload ops, not 3"),
        ("own_many", dict(body="return [foralls, foralls]"), "per result: 1, not 2"),
        ("own_raise", dict(body="1 / 0"), "ZeroDivisionError: division by zero (at mine.py:7)"),
        ("own_exit", dict(body="raise SystemExit(2)"), "it called sys.exit(2)"),
        ("tile_to_blocks", {}, "schedule.tile_to_blocks exists, from"),
    ],
)
def test_a_transform_op_of_ones_own_that_is_wrong(write, name, options, wanted):
    message = error(KERNEL, write(with_op(name, **options)))
    assert message.startswith("mine.py:") and wanted in message


def test_two_files_define_one_op(write):
    compile_kernel(KERNEL, write(with_op("own_twice"), "first.py"))
    assert "schedule.own_twice exists, from first.py: give yours another name" in error(
        KERNEL, write(with_op("own_twice"))
    )


PASS = """from mlirc.mlir import ir
from mlirc.passes import get_pass
from mlirc.passes import register as register_pass
from mlirc.schedule.attributes import declare

declare("unroll", on="the kernel's function", takes="1 to 8", meaning="of own", fits=lambda v: 1 <= v <= 8, read_by="own")

@register_pass("mlirc-own")
def own(module, target):
    print("lowered for", target)
    for function in module.body.operations:
        if int(function.attributes["mlirc.unroll"]) == 8:
            raise ValueError("eight")
        function.attributes["mlirc.lowering"] = ir.StringAttr.get("loops")
    get_pass("mlirc-loops")(module)

"""
OWN = (
    PASS
    + HEAD
    + "        generalize(function)\n        annotate(function, lowering='own', unroll={})\n    return module\n"
)


def jobs(path: str, count: int) -> list[KernelJob]:
    found = []
    schedules = Schedules([path])
    for i in range(count):
        text = norm(4, 8 + i).replace("reduction_0", f"reduction_{i}")
        tiles, _ = schedules.schedule_kernel(mlir.parse(text), get_target("sm_90a"))
        function = next(iter(tiles.body.operations))
        assert lowering_passes(function) == ("mlirc-async", "mlirc-own")
        located = tiles.operation.get_asm(enable_debug_info=True)
        found.append(KernelJob(f"reduction_{i}", located, "", "tiles", "sm_90a", "gpu", tuple(schedules.files)))
    return found


def test_helper_processes_know_a_pass_of_ones_own(write):
    built = sorted(build_kernels(jobs(write(OWN.format(2)), 4), 2), key=lambda b: b.name)
    assert [b.name for b in built] == [f"reduction_{i}" for i in range(4)]
    assert all("gpu.launch_func" in b.gpu for b in built)


@pytest.mark.parametrize("helpers", [0, 2])
def test_a_pass_of_ones_own_that_fails(write, helpers):
    path = write(OWN.format(8))
    with pytest.raises(MlircError, match=r"^mine.py:13: ValueError: eight$"):
        list(build_kernels(jobs(path, 4), helpers))


@pytest.mark.parametrize(
    "content, wanted",
    [
        (OWN.format(9), "annotate: unroll = 9: takes 1 to 8"),
        (OWN.replace("mlirc-own", "own").format(2), "a pass is named mlirc-something, not 'own'"),
        (OWN.replace("mlirc-own", "mlirc-loops").format(2), "pass mlirc-loops exists, from"),
        (OWN.replace('declare("unroll"', 'declare("warps"').format(2), "the attribute 'warps' exists: warps per block"),
    ],
)
def test_a_pass_of_ones_own_that_is_wrong(write, content, wanted):
    message = error(norm(4, 8), write(content))
    assert message.startswith("mine.py:") and wanted in message


def printed(*knobs: str) -> str:
    schedules = Schedules(list(knobs) or ["matmul:block_m=16,block_n=16,block_k=16,warps_m=1,warps_n=1"])
    schedules.schedule_kernel(mlir.parse(KERNEL), get_target("sm_90a"))
    return schedules.printed()


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("sizes = array<i64: 16, 16>", "sizes = [16, 16]", ":8: schedule of kernel 'matmul_0' failed: schedule.tile_to_"
         "blocks: sizes takes a list of whole numbers, written array<i64: 1, 0>, not [16, 16]"),
        ("i64: 16, 16>", "i64: 99999999999999999999, 16>", ":8: not valid MLIR: integer constant out of range"),
        ("sizes =", "size =", ':8: not valid MLIR: \'schedule.tile_to_blocks\' op attribute "sizes" is expected'),
        ("size = 16 : i64", 'size = "16"', "size takes a whole number of 64 bits, written 3 : i64, not \"16\""),
        ("size = 16 : i64", "size = true", "size takes a whole number of 64 bits, written 3 : i64, not true"),
        ('"mlirc.warps"', '"mlirc.warp"', ":18: schedule of kernel 'matmul_0' failed: transform.annotate: no attribute"),
        ('"mlirc.warps"', '"warps"', ":18: schedule of kernel 'matmul_0' failed: transform.annotate: attribute 'warps'"),
        ('constant "fma"', 'constant "fam"', ':12: schedule of kernel \'matmul_0\' failed: transform.annotate: mma = "fam"'),
        ('%3#1 "mlirc.stages"', '%1 "mlirc.stages"', ":16: schedule of kernel 'matmul_0' failed: transform.annotate: 'st"),
        ("mlirc.kernels = [\"matmul_0\"]", "mlirc.kernels = 3", ":3: mlirc.kernels lists kernels or kinds"),
        ('["matmul_0"]', '["matmul_0", "matmull"]', ":3: no kernel has the name or kind 'matmull'"),
        ('["matmul_0"]', '["reduction"]', ":3: no kernel has the name or kind 'reduction'"),
        ("transform.yield", "transform.yeld", ":21: not valid MLIR: custom op 'transform.yeld' is unknown"),
        ("schedule.tile_reduction", "schedule.tile_loops", ":10: not valid MLIR: expected children ops to implement"),
        ("@__transform_main", "@main", ":3: the script has no transform.named_sequence @__transform_main"),
        ('"schedule.collapse_dims"(%arg0)', '"schedule.collapse_dims"(%0)', ":6: not valid MLIR: operand #0 does not dom"),
    ],
)  # fmt: skip
def test_a_printed_script_that_was_edited_wrongly(write, old, new, wanted):
    text = printed()
    assert old in text
    message = error(KERNEL, write(text.replace(old, new), "edited.mlir"))
    assert "edited.mlir:" in message and wanted in message, message


def test_two_scripts_for_one_kernel(write):
    text = printed()
    double = write(f"{text}\n// -----\n{text}", "double.mlir")
    assert error(KERNEL, double).endswith(": a second script for 'matmul_0': double.mlir:3 has one")
    one, two = write(text, "one.mlir"), write(text, "two.mlir")
    assert "two.mlir:3: a second script for kernel 'matmul_0': one.mlir:3 has one" == error(KERNEL, one, two)
    assert "kernel 'matmul_0' is scheduled by one.mlir:3" in error(KERNEL, one, "matmul:block_m=8")
    assert "one.mlir:3 schedules kernel 'matmul_0' as well" in error(KERNEL, one, "matmul_0=generic")


def test_the_more_specific_script_wins(write):
    kind = write(printed().replace('["matmul_0"]', '["matmul"]'), "kind.mlir")
    assert "mlirc.lowering" in str(Schedules([kind, "matmul_0=generic"]).schedule_kernel(
        mlir.parse(KERNEL), get_target("sm_90a"))[0])  # fmt: skip


def test_two_scripts_of_ones_own_that_match_alike(write):
    both = source() + source()[source().index("@register") :].replace("def mine", "def other")
    assert "scripts 'mine' and 'other' both match it" in error(KERNEL, write(both))
    assert compile_kernel(KERNEL, write(both.replace("True)", "True, priority=1)", 1))).ptx


def test_a_mistake_shows_before_the_model_is_loaded(write):
    """The factory does not exist: the mistake in the script is what is reported."""
    command = [sys.executable, "-P", "-m", "mlirc.tools.mlirc", "no_such_package:make", "-v", "--schedule"]
    for name, content in (("broken.py", "def f(:\n"), ("broken.mlir", "module {\n")):
        done = subprocess.run([*command, write(content, name)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {name}:") and done.stderr.count("\n") == 1


def test_mlirc_opt_says_the_same(ran, write, tmp_path):
    from mlirc.tools import mlirc_opt

    kernel = tmp_path / "kernel.mlir"
    kernel.write_text(matmul(20, 24, 32))
    path = write(source(REDUCE, "generalize(forall)"))
    wanted = (
        f"error: mine.py:{FIRST + REDUCE}: schedule of kernel 'matmul_0' failed: schedule.generalize: takes a handle"
    )
    assert ran(mlirc_opt.main, kernel, "--script", path).error.startswith(wanted)
    unused = write(source().replace("kernel: True", "kernel: False"), "unused.py")
    assert "no kernel got a script of this file" in ran(mlirc_opt.main, kernel, "--script", unused).error


def test_a_file_of_ops_whose_own_script_matches_nothing_is_of_use_to_another(write):
    """A library of transform ops may have a script of its own for other kernels."""
    path = write(with_op("own_library").replace("kernel: True", "kernel: False"), "library.py")
    schedules = Schedules([path, "*=generic"])
    schedules.schedule_kernel(mlir.parse(matmul(4, 4, 4)), get_target("sm_90a"))
    schedules.check_used()
    assert schedules.users_scripts()
