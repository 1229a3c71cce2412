"""An error is one line that is safe to print, whatever it quotes."""

from __future__ import annotations

import copy
import pickle

import pytest

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.generate.refusals import RequestError
from mlirc.internal import InternalError
from mlirc.kernel.places import KernelError

QUOTED = ["a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\u202eb", "a\x00b", "a\x85b", "a\ud800b"]


def check(error: MlircError) -> None:
    text = str(error)
    assert text == text.strip() and len(text.splitlines()) == 1 and text.isprintable()
    text.encode()


@pytest.mark.parametrize("quoted", QUOTED)
@pytest.mark.parametrize(
    "kind", [MlircError, InternalError, KernelError, lambda text: RequestError(text, "prompt", "code")]
)
def test_whatever_is_quoted(kind, quoted):
    error = kind(f"no {quoted}: give another")
    check(error)
    assert str(error).startswith("no a") and str(error).endswith("b: give another")
    if type(error) is MlircError:
        assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == str(error)


CALLS = {
    "load": lambda text: mlirc.load(f"{text}.ptx"),
    "weights": lambda text: mlirc.LLM("/", weights=text),
    "LLM": lambda text: mlirc.LLM(text),
    "LLM on a device": lambda text: mlirc.LLM("x", device=text),
    "compile": lambda text: compile_model(f"{text}.pt2", "out.ptx"),
    "a factory": lambda text: compile_model(f"json:{text}", "out.ptx"),
    "a target": lambda text: compile_model("json:dumps", "out.ptx", target=text),
    "a schedule": lambda text: compile_model("json:dumps", "out.ptx", schedule=[text]),
    "a folder": lambda text: compile_model("m.mlir", f"{text}/out.ptx"),
}


@pytest.mark.parametrize("quoted", QUOTED)
@pytest.mark.parametrize("call", CALLS)
def test_calls_from_python(tmp_path, monkeypatch, call, quoted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text("func.func @main() { return }")
    with pytest.raises(MlircError) as raised:
        CALLS[call](quoted)
    check(raised.value)
