"""The program: what it opens and serves, and the mistakes that a person makes."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from mlirc.tools.mlirc_serve import main
from support.generate.fake_engine import FakeEngine


@pytest.fixture
def opening(monkeypatch):
    """What is opened in the place of a model; `asked` says with which options, `served` what was served."""
    found = SimpleNamespace(asked=None, served=None, closed=False, tokenizer=object())

    def open_generating(model, **options):
        found.asked = model, options
        return SimpleNamespace(
            name="m", engine=FakeEngine(), tokenizer=found.tokenizer, eos=(2,), notes=("attention is not fused",),
            stops=("x",),
            close=lambda: setattr(found, "closed", True),
        )  # fmt: skip

    def serve(engine, words, model, eos, bound, **options):
        found.served = model, eos, bound.getsockname()[0], options

    monkeypatch.setattr("mlirc.generate.opening.open_generating", open_generating)
    monkeypatch.setattr("mlirc.serve.server.serve", serve)
    return found


def test_it_serves_what_it_opens(ran, opening, tmp_path):
    words = "--slots 4 --port 0 --device cpu --largest-body 2 --most-requests 9 --grace 3".split()
    result = ran(main, tmp_path / "llama.gen", *words)
    assert result.status == 0 and result.err == "note: attention is not fused\n"
    folder, options = opening.asked
    assert folder == tmp_path / "llama.gen" and options["slots"] == 4 and options["device"] == "cpu"
    served = {"most": 9, "largest_body": 2 << 20, "grace": 3, "verbose": False, "stops": ("x",)}
    assert opening.served == ("llama.gen", (2,), "127.0.0.1", served)
    assert opening.closed


def test_a_name_of_ones_own(ran, opening, tmp_path):
    assert ran(main, tmp_path, "--port", "0", "--name", "mine").status == 0
    assert opening.served[0] == "mine"


def test_a_model_without_a_tokenizer(ran, opening, tmp_path):
    opening.tokenizer = None
    assert (
        "no tokenizer (tokenizer.json), and calls are texts: give --tokenizer FOLDER"
        in ran(main, tmp_path, "--port", "0").error
    )
    assert opening.closed and opening.served is None


def test_a_port_that_is_taken_is_said_before_anything_is_compiled(ran, opening, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            f"cannot listen at 127.0.0.1 port {port}: Address already in use"
            in ran(main, tmp_path, "--port", port).error
        )
    assert opening.asked is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--port", "70000"], "'70000' is no port"),
        (["--host", "no such host"], "cannot listen at no such host"),
        (["--device", "tpu"], "'tpu' is neither a GPU's number nor cpu or host"),
        (["--slots", "0"], "'0' is no whole number of 1 or more"),
    ],
)
def test_wrong_words(ran, opening, tmp_path, words, why):
    assert why in ran(main, tmp_path, "--port", "0", *words).error


def test_without_the_packages_that_serving_needs(ran, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mlirc.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert ran(main, tmp_path).error == "error: serving needs the package uvicorn: pip install 'mlirc[serve]'"


def test_no_folder(ran, tmp_path):
    assert "no such folder" in ran(main, tmp_path / "none", "--port", "0", "--device", "cpu").error
