"""Everything that a kernel goes through has a FileCheck test."""

from pathlib import Path

from mlirc.passes import all_passes
from mlirc.schedule.registry import script_registry

ROOT = Path(__file__).resolve().parents[2]
TESTS = {path: path.read_text() for path in (ROOT / "lit_tests").rglob("*.mlir")}


def test_every_pass_is_run():
    text = "\n".join(TESTS.values())
    names = list(all_passes())
    assert len(names) >= 7
    assert [n for n in names if f"--pass {n}" not in text and f"--pass '{n}" not in text] == []


def test_every_transform_op_is_used():
    text = "\n".join(TESTS.values())
    ops = sorted(p.stem for p in (ROOT / "dialects" / "schedule").glob("[!_]*.py"))
    assert len(ops) >= 10
    assert [op for op in ops if f"schedule.{op}" not in text] == []


def test_every_script_has_its_file():
    files = {path.stem for path in TESTS if path.parent.name == "scripts"}
    assert sorted(set(script_registry()) - files) == []
