"""What `-vv` prints of a kernel's knobs can be given back, and `mlirc-opt --knobs` explains every knob."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.schedule.knob_help import knob_meanings, knobs_of
from mlirc.schedule.registry import ScheduleRecord, Schedules, script_registry
from mlirc.targets import get_target
from mlirc.tools import mlirc as mlirc_tool
from mlirc.tools import mlirc_opt
from mlirc.tools.kernel_table import shown_script
from support.kernels import payloads

KERNELS = {
    "f32": payloads.matmul(96, 80, 64),
    "f32 large": payloads.matmul(512, 1024, 512),
    "bf16 large": payloads.matmul(1024, 1024, 512, "bf16"),
    "bf16 long k": payloads.matmul(64, 128, 16384, "bf16"),
    "bf16 few rows": payloads.matmul(4, 512, 512, "bf16"),
    "bf16 odd": payloads.matmul(100, 60, 72, "bf16"),
    "batched": payloads.matmul(64, 64, 64, "bf16", batch=3),
    "gates": payloads.matmul(128, 256, 128, "bf16", gates=True),
    "row": payloads.matmul(1, 4096, 2048, "bf16"),
    "norm": payloads.norm(33, 257),
    "long norm": payloads.norm(2, 100000),
    "attention": payloads.attention(heads=(4, 2), lengths=(128, 128), dims=(64, 64), dtype="bf16", causal=True),
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_printed_knobs_can_be_given_back(name, target):
    module = mlir.parse(KERNELS[name])
    _, record = Schedules().schedule_kernel(module, get_target(target))
    printed = shown_script(record, full=True)
    script, _, knobs = printed.partition(":")
    given = Schedules([f"*={script}:{knobs}" if knobs else f"*={script}"])
    _, again = given.schedule_kernel(module, get_target(target))
    assert steps(again) == steps(record), printed
    assert again.knobs == record.knobs


def steps(record: ScheduleRecord) -> str:
    """The script without what it says of who chose its values."""
    module = mlir.parse(record.text)
    for name in ("mlirc.chosen", "mlirc.script", "mlirc.reason"):
        if name in module.operation.attributes:
            del module.operation.attributes[name]
    return str(module)


@pytest.mark.parametrize("name", ["f32", "bf16 large", "bf16 long k", "norm", "attention"])
def test_kernels_of_printed_knobs_lower_to_the_same_code(name):
    job = Compilation("kernel", get_target("sm_90a"), helpers=0)
    job.modules["kernels"] = mlir.parse(KERNELS[name])
    job.lower("gpu")
    printed = {kernel: shown_script(record, full=True) for kernel, record in job.records.items()}
    given = [f"{kernel}={text}" for kernel, text in printed.items()]
    again = Compilation("kernel", get_target("sm_90a"), given, helpers=0)
    again.modules["kernels"] = mlir.parse(KERNELS[name])
    again.lower("gpu")
    assert job.builds
    assert {k: str(b.gpu) for k, b in again.builds.items()} == {k: str(b.gpu) for k, b in job.builds.items()}


def test_every_knob_of_every_script_has_a_meaning():
    for name, script in script_registry().items():
        missing = [k.name for k in knobs_of(script) if not k.meaning]
        assert not missing, (name, missing)
        assert set(knob_meanings(script.build)) <= set(script.knobs), name


def test_knobs_are_listed_with_type_values_default_and_meaning(capsys):
    assert mlirc_opt.main(["--knobs", "matmul"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (copy,) = [line for line in lines if line.startswith("copy ")]
    assert copy.split()[1:6] == ["str", "cp_async", "or", "tma", "chosen"] and "shared memory" in copy
    assert mlirc_opt.main(["--knobs", "generic"]) == 0
    assert "256" in capsys.readouterr().out


def test_a_file_of_ones_own_is_listed_too_and_what_there_is_not_is_refused(tmp_path, capsys):
    file = tmp_path / "own.py"
    file.write_text('''
from mlirc.schedule import register
from mlirc.schedule.verbs import annotate, script


@register(matches=lambda kernel: False)
def mine(kernel, target, *, depth: int = 0, fast: bool = True):
    """A script.

    Knobs:
      depth: how deep it goes,
        and further.
    """
    with script(depth=depth) as (module, function):
        annotate(function, threads=32)
    return module
''')
    assert mlirc_opt.main(["--knobs", str(file)]) == 0
    out = capsys.readouterr().out
    assert "how deep it goes, and further" in out and "0 or more" in out and "true or false" in out
    assert mlirc_opt.main(["--knobs", "no_such"]) == 1
    assert "no script 'no_such': choose one of" in capsys.readouterr().err


def test_a_generic_kernel_says_why(tmp_path, capsys):
    text = """
func.func @main(%x: tensor<5x7xf32>) -> tensor<5x7xf32> {
  %e = tensor.empty() : tensor<5x7xf32>
  %c = arith.constant 1.0 : f32
  %f = linalg.fill ins(%c : f32) outs(%e : tensor<5x7xf32>) -> tensor<5x7xf32>
  return %f : tensor<5x7xf32>
}
"""
    file = tmp_path / "fill.mlir"
    file.write_text(text)
    assert mlirc_tool.main([str(file), "-o", str(tmp_path / "fill.ptx"), "-v"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any("generic, a thread an element: " in line and line.endswith("fills") for line in lines), lines
    module = mlir.parse(KERNELS["long norm"])
    _, record = Schedules().schedule_kernel(module, get_target("sm_80"))
    assert record.script == "generic" and "rows of 100000 are longer than a block holds" in record.reason
