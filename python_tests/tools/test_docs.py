"""The commands in docs/schedules.md and docs/host-device.md do what the pages say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mlirc.tools import mlirc, mlirc_opt, mlirc_run

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"mlirc": mlirc.main, "mlirc-opt": mlirc_opt.main, "mlirc-run": mlirc_run.main}


@pytest.fixture
def model(ran, tmp_path):
    """The page's model at the `linalg` level: importing it anew for each command would take a minute."""
    sys.path.insert(0, str(ROOT))
    path = tmp_path / "mlp.mlir"
    path.write_text(ran(mlirc.main, "examples.mlp:make", "--emit", "linalg").out)
    sys.path.remove(str(ROOT))
    return path


def ctrl_c(watch) -> None:
    """In place of the loop of `mlirc --watch`, after its first round."""
    raise KeyboardInterrupt


def test_the_schedules_page(ran, model, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlirc.watch.session.Watch.loop", ctrl_c)
    monkeypatch.setattr("mlirc.passes.distribute.instructions._users", {})
    page = (ROOT / "docs" / "schedules.md").read_text()
    commands = re.findall(r"^    (?:\$ )?((?:mlirc|mlirc-opt|mlirc-run|diff|python) .*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 12
    printed = {}
    for command in commands:
        # -o needs the weights, which only the model itself has
        words = shlex.split(command if " -o " in command else command.replace("examples.mlp:make", str(model)))
        target = words.pop() if ">" in words else ""
        words = [w for w in words if w != ">"]
        if words[0] in PROGRAMS:
            result = ran(PROGRAMS[words[0]], *words[1:])
            assert result.status == 0, f"{command}: {result.err}"
            output = result.out + result.err
        else:
            words[0] = {"python": sys.executable}.get(words[0], words[0])
            output = subprocess.run(words, capture_output=True, text=True).stdout
        if target:
            Path(target).write_text(output)
        printed[command] = output

    forall = "%1 = scf.forall (%arg3, %arg4) in (32, 2) shared_outs(%arg5 = %0) -> (tensor<64x1024xf32>)"
    difference = printed["diff before.mlir after.mlir"]
    assert forall in difference and forall in page
    assert len(re.findall(r"> .* = scf.forall", difference)) == 1
    assert "wide_rows:warps=4" in printed[next(c for c in commands if "wide_rows:warps=4" in c)]
    assert " ok\n" in printed["python dump/kernels/reduction_0/repro.py"]


def test_the_page_shows_the_example_script():
    source = (ROOT / "examples" / "wide_rows.py").read_text()
    shown = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "schedules.md").read_text(), flags=re.DOTALL)[1]
    assert shown in source


def test_every_file_that_the_docs_link_to_is_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def narrowed(folder: Path) -> str:
    """Writes the example with a seventh of its columns and rows; returns what mlirc calls it. Whole launches of it run
    in a moment, and in several blocks."""
    source = (ROOT / "examples" / "mlp.py").read_text()
    for was, now in (("256, 1024", "72, 136"), ("1024, 1000", "136, 301"), ("64, 256", "9, 72")):
        assert was in source
        source = source.replace(was, now)
    (folder / "narrowed_mlp.py").write_text(source)
    return "narrowed_mlp:make"


def test_the_host_device_page(ran, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "host-device.md").read_text()
    parts = [re.findall(r"^    ((?:mlirc|mlirc-run|sed) .*)$", part, re.M) for part in page.split("\n## A bug, found")]
    narrow = narrowed(tmp_path)
    commands = [c.replace("examples.mlp:make", narrow) for c in parts[0]] + parts[1]
    assert len(parts[0]) >= 6 and len(parts[1]) >= 9 and len(parts) == 2
    said: list[str] = []
    for command in commands:
        words = shlex.split(command.split("#")[0].replace("--seeds 4", "--seeds 2"))  # half the time, and the same way
        if said and words[0] == "mlirc-run":
            words += ["--input-sets", "none"]  # the first one tries them
        if words[0] == "sed":
            subprocess.run(words, check=True)
            continue
        result = ran(PROGRAMS[words[0]], *words[1:])
        said += [result.err] if words[0] == "mlirc-run" else []
        assert result.status == (1 if "error" in result.err else 0), f"{command}: {result.err}"
    text, failed = " ".join(page.split()), [s for s in said if "error: " in s]
    assert len(failed) == 3
    for output in failed:  # as on the page, but for the numbers of lines
        error = next(line for line in output.split("\n") if line.startswith("error: "))
        assert re.search(re.sub(r"\\?:\d+", r":\\d+", re.escape(error)), text), error


def test_the_page_lists_every_attribute():
    from mlirc.schedule.attributes import BUILT_IN, table

    page = (ROOT / "docs" / "schedules.md").read_text()
    rows = [f"| `{a.name}` | {a.on} | {a.takes} | {a.meaning} |" for a in map(table().get, BUILT_IN)]
    assert len(rows) >= 9 and [row for row in rows if row not in page] == []
