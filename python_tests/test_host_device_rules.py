"""The rules of the host device: how they are found."""

from __future__ import annotations

import pkgutil
import re

import pytest

from mlirc.host.device import declare, rules


def test_every_file_in_rules_declares_an_operation():
    files = {f"{rules.__name__}.{m.name}" for m in pkgutil.iter_modules(rules.__path__)}
    assert files == {f.__module__ for f in declare.all_rules().values()}
    rows = re.findall(r"^\| ([a-z_, ]+) \|", rules.__doc__ or "", flags=re.MULTILINE)
    listed = [f"{rules.__name__}.{name}" for row in rows[1:] for name in row.split(", ")]
    assert sorted(files) == sorted(listed)  # the table of the package


def test_a_new_file_is_enough(tmp_path, monkeypatch):
    line = "from mlirc.host.device.declare import rule\n\n\n@rule('nvvm.breakpoint')\ndef _stop(tr, op):\n    pass\n"
    (tmp_path / "debugging.py").write_text(line)
    before = set(declare.all_rules())
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setattr(declare, "_rules", dict(declare.all_rules()))
    assert set(declare.all_rules.__wrapped__()) - before == {"nvvm.breakpoint"}


def test_an_operation_has_one_rule():
    declare.all_rules()
    with pytest.raises(ValueError, match="two rules for scf.if"):
        declare.rule("scf.if")(lambda tr, op: None)
