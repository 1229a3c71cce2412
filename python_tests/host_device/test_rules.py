"""The rules of the host device: how they are found."""

from __future__ import annotations

import pkgutil
import re

import pytest

from mlirc import mlir
from mlirc.device import declare, rules
from mlirc.device.translate import translate
from mlirc.errors import MlircError


def test_every_file_in_rules_declares_an_operation():
    files = {f"{rules.__name__}.{m.name}" for m in pkgutil.iter_modules(rules.__path__)}
    assert files == {f.__module__ for f in declare.all_rules().values()}
    rows = re.findall(r"^\| ([a-z_, ]+) \|", rules.__doc__ or "", flags=re.MULTILINE)
    listed = [f"{rules.__name__}.{name}" for row in rows[1:] for name in row.split(", ")]
    assert sorted(files) == sorted(listed)  # the table of the package


def test_a_new_file_is_enough(tmp_path, monkeypatch):
    line = "from mlirc.device.declare import rule\n\n\n@rule('nvvm.breakpoint')\ndef _stop(tr, op):\n    pass\n"
    (tmp_path / "debugging.py").write_text(line)
    before = set(declare.all_rules())
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setattr(declare, "_rules", dict(declare.all_rules()))
    assert set(declare.all_rules.__wrapped__()) - before == {"nvvm.breakpoint"}


def test_an_operation_has_one_rule():
    declare.all_rules()
    with pytest.raises(ValueError, match="two rules for scf.if"):
        declare.rule("scf.if")(lambda tr, op: None)


@pytest.mark.parametrize(
    "line, why",
    [
        ("nvvm.breakpoint", "there is no rule for it: add one in device/rules"),
        ("%r = nvvm.sqrt %v {rnd = #nvvm.fp_rnd_mode<rz>} : f32", "rounding rz is not supported: rn only"),
        ("%r = arith.extf %v : f32 to f80", "values of type f80 are not supported"),
        ("%r = arith.constant 1.0 : f80", "values of type f80 are not supported"),
        ("%r = llvm.mlir.undef : !llvm.struct<(i32, f32)>", "only structs of equal numbers are supported"),
    ],
)
def test_a_refusal_names_kernel_operation_and_place(line, why):
    module = mlir.parse(f"""
module attributes {{gpu.container_module}} {{
  gpu.module @m {{ gpu.func @k(%v: f32) kernel {{
    {line}
    gpu.return
  }} }}
}}""")
    (kernel,) = (f for m in module.body.operations for f in m.operation.regions[0].blocks[0].operations)
    name = re.search(r"\w+\.[\w.]+", line)[0]
    with pytest.raises(MlircError, match=rf"^host device: kernel k: {name} at .*:4:.*: (.*: )?{re.escape(why)}$"):
        translate(kernel)
