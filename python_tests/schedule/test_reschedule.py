"""`Compilation.reschedule`: other schedules for a model that is in memory, equal to what a fresh compilation makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.errors import MlircError
from support.models.two_kernels import MODEL, SCRIPT, compiled, script


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    return path


def same(job: Compilation, model: Path) -> Compilation:
    """The job, after a look whether a fresh compilation with its schedules makes the same texts, byte for byte."""
    fresh = compiled(model, *job.schedules)
    for level in ("kernels", "schedule", "tiles", "gpu", "llvm", "ptx"):
        assert job.text(level) == fresh.text(level), level
    assert {name: r.knobs for name, r in job.records.items()} == {n: r.knobs for n, r in fresh.records.items()}
    return job


def test_only_what_the_schedules_change_is_built(model, tmp_path):
    job = compiled(model)
    assert job.rebuilt == ["matmul_0", "reduction_0"]
    assert same(job.reschedule([]), model).rebuilt == []
    mine = script(tmp_path / "mine.py")
    first = same(job.reschedule([mine]), model)
    assert first.rebuilt == ["reduction_0"] and first.records["reduction_0"].script == "wide_rows"
    second = same(first.reschedule([mine, "matmul_0:block_k=16", "wide_rows:warps=4"]), model)
    assert second.rebuilt == ["matmul_0", "reduction_0"]
    back = same(second.reschedule([]), model)
    assert back.rebuilt == ["matmul_0", "reduction_0"] and back.ptx == job.ptx


def test_the_file_is_read_anew_and_a_line_more_shows_in_the_gpu_level(model, tmp_path):
    mine = script(tmp_path / "mine.py", warps=2)
    job = compiled(model, mine)
    script(tmp_path / "mine.py", warps=4)  # of the same size, within the same second
    job = same(job.reschedule([mine]), model)
    assert job.rebuilt == ["reduction_0"] and job.records["reduction_0"].knobs == {"warps": 4}
    Path(mine).write_text("# a line more\n" + Path(mine).read_text())
    assert same(job.reschedule([mine]), model).rebuilt == ["reduction_0"]


def test_another_graph_script_makes_other_kernels(model, tmp_path):
    job = compiled(model)
    fewer = same(job.reschedule(["graph:fuse_maps=false"]), model)
    assert fewer.modules["kernels"] is not job.modules["kernels"]
    assert fewer.reschedule(["graph:fuse_maps=false"]).modules["kernels"] is fewer.modules["kernels"]
    edited = tmp_path / "edited.mlir"
    edited.write_text(job.text("schedule"))
    assert same(fewer.reschedule([str(edited)]), model).modules["kernels"] is not fewer.modules["kernels"]


@pytest.mark.parametrize(
    "used, wanted",
    [("1 // 0", "ZeroDivisionError"), ("nothing", "NameError"), ("0", "warps"), ("(", "SyntaxError")],
)
def test_a_failure_leaves_everything_as_it_was(model, tmp_path, used, wanted):
    mine = script(tmp_path / "mine.py")
    job = compiled(model, mine)
    before = {level: job.text(level) for level in (*HOST_LEVELS, "schedule", "ptx")}
    script(tmp_path / "mine.py", used=used)
    with pytest.raises(MlircError, match=wanted):
        job.reschedule([mine, "matmul_0:block_k=16"])
    assert before == {level: job.text(level) for level in before}
    script(tmp_path / "mine.py", warps=1)
    assert same(job.reschedule([mine, "matmul_0:block_k=16"]), model).rebuilt == ["matmul_0", "reduction_0"]
    Path(mine).unlink()
    with pytest.raises(MlircError, match="no such file"):
        job.reschedule([mine])


def test_a_level_on_the_way_is_enough(model, tmp_path):
    job = compiled(model)
    tiles = job.reschedule([script(tmp_path / "mine.py")], "tiles")
    assert tiles.records["reduction_0"].script == "wide_rows" and not tiles.builds
    assert tiles.reschedule([]).rebuilt == []  # what the first one built came along


def test_a_model_below_the_schedules_is_refused(model, tmp_path):
    given = tmp_path / "tiles.mlir"
    given.write_text(compiled(model).text("tiles"))
    with pytest.raises(MlircError, match="given at level tiles"):
        compiled(given).reschedule([])
    given.write_text(compiled(model).text("kernels"))
    job = compiled(given)
    assert same(job.reschedule(["matmul_0:block_k=16"]), given).rebuilt == ["matmul_0"]


def test_modules_beside_a_script_are_its_own(model, tmp_path, monkeypatch):
    """Whatever way they are imported, at once or late, they are read anew, and no two scripts share them."""
    (tmp_path / "tuned").mkdir()
    helper, late = tmp_path / "helper.py", tmp_path / "tuned" / "late.py"
    helper.write_text("WARPS = 2\n")
    late.write_text(
        "from helper import WARPS\n\n\ndef choose():\n    from tuned import words\n    return words.WARPS\n"
    )
    (tmp_path / "tuned" / "words.py").write_text("WARPS = 2\n")
    imports = (
        "import helper\n\n\ndef used():\n    from tuned.late import choose\n    return max(choose(), helper.WARPS)\n"
    )
    mine = script(tmp_path / "mine.py", imports=imports, used="used()")
    job = compiled(model, mine)
    helper.write_text("WARPS = 4\n")
    job = same(job.reschedule([mine]), model)
    assert job.rebuilt == ["reduction_0"] and "mlirc.warps = 4" in job.text("tiles")
    (tmp_path / "tuned" / "words.py").write_text("WARPS = 8\n")
    job = same(job.reschedule([mine]), model)
    assert job.rebuilt == ["reduction_0"] and "mlirc.warps = 8" in job.text("tiles")
    other = tmp_path / "other"
    other.mkdir()
    (other / "helper.py").write_text("WARPS = 1\n")
    theirs = script(other / "mine.py", imports="import helper", used="helper.WARPS")
    assert "mlirc.warps = 1" in same(job.reschedule([theirs]), model).text("tiles")
    assert not {"helper", "tuned", "tuned.late", "mlirc_user_0"} & set(sys.modules)


def test_a_module_that_the_program_has_is_used_as_it_is(model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "settings_of_mine.py").write_text("WARPS = 2\n")
    import settings_of_mine  # type: ignore[import-not-found]

    settings_of_mine.WARPS = 4
    mine = script(tmp_path / "mine.py", imports="import settings_of_mine as s", used="s.WARPS")
    assert "mlirc.warps = 4" in compiled(model, mine).text("tiles")
    assert sys.modules.pop("settings_of_mine") is settings_of_mine


def test_scripts_may_define_dataclasses(model, tmp_path):
    text = "from __future__ import annotations\nimport dataclasses\nimport statistics\n"
    text += script_text("@dataclasses.dataclass\nclass Choice:\n    warps: int = 2\n", "Choice().warps")
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "statistics.py").write_text("raise AssertionError('not the one that everybody else means')\n")
    assert "mlirc.warps = 2" in compiled(model, str(tmp_path / "mine.py")).text("tiles")


def script_text(imports: str, used: str) -> str:
    return SCRIPT.format(warps=2, imports=imports, used=used)


GRAPH = """
from mlirc.dialects.schedule.apply_pass import apply_pass
from mlirc.mlir import ir
from mlirc.passes import register as register_pass
from mlirc.schedule import register
from mlirc.schedule.verbs import script

@register_pass("mlirc-sign")
def sign(module):
    module.operation.attributes["mlirc.model"] = ir.StringAttr.get("{name}")

@register(matches=lambda kernel: False, name="graph")
def graph(kernel, target):
    with script() as (schedule, module):
        apply_pass(module, pass_name="mlirc-sign", options="")
        apply_pass(module, pass_name="mlirc-group-kernels", options="")
        apply_pass(module, pass_name="mlirc-outline-kernels", options="")
    return schedule
"""


def test_a_pass_of_the_users_in_the_graph_script_is_run_anew(model, tmp_path):
    """The graph script is the same, and its text does not tell what the pass does."""
    path = tmp_path / "mine.py"
    path.write_text(GRAPH.format(name="first"))
    job = compiled(model, str(path))
    assert 'mlirc.model = "first"' in job.text("kernels")
    path.write_text(GRAPH.format(name="other"))
    assert 'mlirc.model = "other"' in job.reschedule([str(path)]).text("kernels")
