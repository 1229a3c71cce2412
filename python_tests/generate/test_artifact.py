"""A generating model as a folder: written whole, read with nothing taken for granted, run from there."""

from __future__ import annotations

import json

import pytest

from mlirc.errors import MlircError
from mlirc.generate.artifact import check_output, read_about
from mlirc.generate.compilation import compile_generation
from mlirc.generate.loading import load_engine
from mlirc.tools.mlirc_run import main as mlirc_run
from support.generation import assert_greedy, greedy, tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A Hugging Face folder with a tokenizer, and the artifact of it."""
    folder = tmp_path_factory.mktemp("models")
    model = tiny("LlamaForCausalLM", num_hidden_layers=1, eos_token_id=5)
    model.save_pretrained(folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text("{}")
    (folder / "hf" / "tokenizer.py").write_text("raise SystemExit")
    compile_generation(folder / "hf", folder / "gen", slots=2, context=20, page_size=8, chunks=(1,))
    return model, folder / "gen"


def test_what_is_in_the_folder(made):
    _, folder = made
    names = {path.name for path in folder.iterdir()}
    plans = {f"{plan}.{end}" for plan in ("decode", "decode-greedy", "prefill-1") for end in ("ptx", "levels")}
    assert names == {"generation.json", "model.safetensors", "tokenizer.json", *plans}
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".mlirc")]
    about = read_about(folder)
    assert (about.architecture, about.dtype, about.eos, about.notes) == ("LlamaForCausalLM", "f32", (5,), ())
    assert about.plans == ["decode", "decode-greedy", "prefill-1"] and about.sizes.pages == 7


def test_it_runs_on_the_cpu_and_on_the_host_device(made):
    model, folder = made
    model.generation_config.eos_token_id = None
    engine = load_engine(folder, "cpu")
    prompt, other = [3, 14, 15, 92], [65]
    for given, tokens in zip((prompt, other), greedy(engine, (prompt, other), 5), strict=True):
        assert_greedy(model, given, tokens)
    engine.close()
    checked = load_engine(folder, "host")  # races, bounds, and the numbers of every kernel
    assert_greedy(model, other, greedy(checked, (other,), 2)[0])
    checked.close()


def test_mlirc_run_says_what_runs_it_and_describes_it(made, capsys):
    _, folder = made
    for model in (folder, folder / "decode.ptx"):
        assert mlirc_run([str(model), "--prompt-tokens", "1,2"]) == 1
        told = capsys.readouterr().err
        assert f"mlirc-generate {folder} --prompt" in told and told.count("\n") == 1
    assert mlirc_run([str(folder), "--info"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "2 sequences at once, of at most 20 tokens",
        "\ndecode.ptx\n",
        "\nprefill-1.ptx\n",
        "input tokens: i64[1,1]",
    ):
        assert line in shown
    assert mlirc_run([str(folder / "prefill-1.ptx"), "--info", "--no-such"]) == 1
    assert "unrecognized arguments: --no-such" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version 1, but this mlirc reads 2"),
        ({"slots": -1}, "damaged"),
        ({"slots": 3}, "no plan of this generating model"),
        ({"chunks": [1, 1 << 40]}, "damaged"),
        ({"chunks": [2]}, "its chunks"),
        ({"pages": 3}, "its pages"),
        ({"name": "a\nb"}, "damaged"),
        ({"eos": [97]}, "damaged"),
    ],
)
def test_what_was_changed_is_refused(made, tmp_path, change, message):
    _, folder = made
    for path in folder.glob("*.*"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "generation.json").unlink()
    about = json.loads((folder / "generation.json").read_text())
    (tmp_path / "generation.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(MlircError, match=message):
        load_engine(tmp_path, "cpu")


def test_others_files_stay(made, tmp_path):
    _, folder = made
    check_output(folder)  # one of ours may be written again
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(MlircError, match="holds files that mlirc did not write"):
        check_output(tmp_path)
    with pytest.raises(MlircError, match="no folder"):
        check_output(tmp_path / "mine.txt")
    with pytest.raises(MlircError, match="it has no generation.json"):
        read_about(tmp_path)
