"""A generating model as a folder: written whole, read with nothing taken for granted, run from there."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from mlirc.errors import MlircError
from mlirc.files.checksums import checksums
from mlirc.generate.artifact import WEIGHTS, _digest, check_model, check_output, check_tokenizer, read_about
from mlirc.generate.compilation import compile_generation
from mlirc.generate.loading import load_engine
from mlirc.host import jit
from mlirc.tools.mlirc_run import main as mlirc_run
from support.generation import assert_greedy, greedy, tiny
from support.randomness import generator


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
    plans = {f"{plan}.{end}" for plan in ("decode", "sample", "prefill-1") for end in ("ptx", "levels")}
    assert names == {"generation.json", "model.safetensors", "tokenizer.json", *plans}
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".mlirc")]
    about = read_about(folder)
    assert (about.architecture, about.dtype, about.eos, about.notes) == ("LlamaForCausalLM", "f32", (5,), ())
    assert about.plans == ["decode", "sample", "prefill-1"] and about.sizes.pages == 7


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


def test_it_is_lowered_for_this_processor_once(made, tmp_path, monkeypatch):
    """By who compiled it and runs it, or by the first start: the next ones find the code, wherever the folder lies."""
    model, folder = made
    lowered = []
    lower = jit.lower_to_llvm
    monkeypatch.setattr(jit, "lower_to_llvm", lambda *a: lowered.append(a) or lower(*a))
    options = {"slots": 2, "context": 20, "page_size": 8, "chunks": (1,)}
    engines = [compile_generation(folder.parent / "hf", tmp_path / "gen", **options).engine("cpu")]
    assert len(lowered) == 3
    for place in (tmp_path / "gen", folder):
        told = []
        engines.append(load_engine(place, "cpu", progress=told.append))
        assert len(lowered) == 3 and not told
    prompt = [2, 71, 82]
    for engine in engines:
        assert_greedy(model, prompt, greedy(engine, (prompt,), 4)[0])


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


SOURCE = {"kind": "tokens", "lengths": [4], "bins": 0, "start": [1], "languages": {}, "tasks": {}, "plain": None}


def signed(folder, change=()):
    """Makes what the folder says of itself fit its files, with changes: as who wants to deceive would."""
    about = {**json.loads((folder / "generation.json").read_text()), **dict(change)}
    about["files"] = {name: c.as_json() for name, c in checksums(folder, about["files"]).items()}
    (folder / "generation.json").write_text(json.dumps({**about, "sha256": _digest(about)}))


def copied(made, folder):
    """A copy of the artifact, and what it says of itself."""
    shutil.copytree(made[1], folder, dirs_exist_ok=True)
    return json.loads((folder / "generation.json").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "version 1, but this mlirc reads 5"),
        ({"version": "\n\x1b[2J"}, "version .*, but this mlirc reads 5"),
        ({"slots": -1}, "damaged"),
        ({"slots": 3}, "no plan of this generating model"),
        ({"target": "sm_80"}, "no plan of this generating model"),
        ({"chunks": [1, 1 << 40]}, "damaged"),
        ({"chunks": [2]}, "its chunks"),
        ({"chunks": {"1": 1}}, "no JSON array"),
        ({"pages": 3}, "its pages"),
        ({"name": "a\nb"}, "damaged"),
        ({"eos": [97]}, "damaged"),
        ({"eos": ""}, "no JSON array"),
        ({"notes": "a note"}, "no JSON array"),
        ({"source": SOURCE}, "whether all lies in pages"),
        ({"source": [], "paged": False}, "no JSON object"),
        *(({"source": {**SOURCE, name: value}, "paged": False}, "damaged") for name in SOURCE for value in (7, "x", [[]])
          if (name, value) != ("plain", 7)),
    ],
)  # fmt: skip
def test_what_was_changed_is_refused(made, tmp_path, change, message):
    copied(made, tmp_path)
    signed(tmp_path, change)
    with pytest.raises(MlircError, match=message) as e:
        load_engine(tmp_path, "cpu")
    assert str(e.value).isprintable()


def moved(path):
    outside = next(p for p in path.parents if p.name == "gen").parent / "elsewhere"
    path.rename(outside)
    path.symlink_to(outside)


def to_nothing(path):
    path.unlink()
    path.symlink_to("nothing")


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


DAMAGES = [
    ("generation.json", moved, "a link that leads out of the folder"),
    *((name, change, why) for name in ("model.safetensors", "decode.ptx", "decode.levels/tiles.mlir")
      for change, why in ((moved, "a link that leads out of the folder"), (to_nothing, "cannot be read"))),
    ("decode.levels", moved, "a link to a folder"),
    ("generation.json", cut, "damaged"),
    ("model.safetensors", cut, "model.safetensors"),
    ("decode.ptx", cut, "decode.ptx"),
    ("prefill-1.ptx", lambda path: path.unlink(), "prefill-1.ptx: cannot be read"),
    ("decode.ptx", lambda path: path.write_bytes((path.parent / "sample.ptx").read_bytes()), "another model's"),
    ("generation.json", lambda path: path.write_text(path.read_text().replace("  5\n", "  6\n")), "its checksum does not"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "why"), DAMAGES)
def test_a_damaged_folder_is_refused(made, tmp_path, name, damage, why):
    copied(made, tmp_path / "gen")
    damage(tmp_path / "gen" / name)
    with pytest.raises(MlircError, match=why) as e:
        load_engine(tmp_path / "gen", "cpu")
    assert "\n" not in str(e.value)


def test_a_plan_in_anothers_place_is_refused_though_all_checksums_fit(made, tmp_path):
    copied(made, tmp_path)
    (tmp_path / "decode.ptx").write_bytes((tmp_path / "sample.ptx").read_bytes())
    signed(tmp_path)
    with pytest.raises(MlircError, match="decode.ptx: is no plan of this generating model"):
        load_engine(tmp_path, "cpu")


def test_a_bit_of_any_file(made, tmp_path):
    """Weights and levels that differ in a bit, or are those of another model of the same sizes, would run."""
    copied(made, tmp_path)
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert {p.suffix for p in files} == {".json", ".ptx", ".mlir", ".safetensors"}
    for path in files:
        data, g = path.read_bytes(), generator()
        changed = bytearray(data)
        changed[int(g.integers(len(data)))] ^= 1 << int(g.integers(8))
        path.write_bytes(changed)
        with pytest.raises(MlircError, match=path.name) as e:
            check_tokenizer(tmp_path, read_about(tmp_path))
            load_engine(tmp_path, "host")
        assert "\n" not in str(e.value)
        path.write_bytes(data)
    check_model(tmp_path, read_about(tmp_path), levels=True)


def test_what_is_not_verified(made, tmp_path):
    """Files are held against their checksums unless that is left out, and so are weights that mlirc wrote elsewhere."""
    folder = tmp_path / "gen"
    copied(made, folder)
    shutil.copy(folder / "model.safetensors", tmp_path / "w.safetensors")
    load_engine(folder, "cpu", tmp_path / "w.safetensors")
    for file in (tmp_path / "w.safetensors", folder / "model.safetensors"):
        data = bytearray(file.read_bytes())
        data[-int(generator().integers(1, 100))] ^= 1 << int(generator().integers(8))
        file.write_bytes(data)
        weights = tmp_path / "w.safetensors"
        with pytest.raises(MlircError, match=rf"{file.name}: damaged.*checksum does not match"):
            load_engine(folder, "cpu", weights)
        load_engine(folder, "cpu", weights, verify=False)


@pytest.mark.parametrize("given", [False, True])
def test_weights_that_are_written_to_under_a_loaded_model(made, tmp_path, given):
    folder = tmp_path / "gen"
    copied(made, folder)
    file = shutil.copy(folder / "model.safetensors", tmp_path / "w.safetensors") if given else folder / WEIGHTS
    engine = load_engine(folder, "cpu", file if given else None)
    assert len(greedy(engine, ([1, 2],), 3)[0]) == 3
    about = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-4, 2)
        opened.write(bytes(4))
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    with pytest.raises(MlircError, match=rf"{file.name}: was changed while it is loaded: load the model again"):
        greedy(engine, ([1, 2],), 3)


def test_files_that_are_not_the_folders_own(made, tmp_path):
    copied(made, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(MlircError, match="tokenizer_config.json: is no file of this model: .*--tokenizer"):
        check_tokenizer(tmp_path, read_about(tmp_path))
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(MlircError, match="tokenizer.json: cannot be read"):
        check_tokenizer(tmp_path, read_about(tmp_path))


def test_a_folder_of_the_hubs_cache_is_links(made, tmp_path):
    """There every file is a link, those in folders of the repository, too."""
    folder, blobs = tmp_path / "models" / "snapshots" / "1", tmp_path / "models" / "blobs"
    copied(made, folder)
    blobs.mkdir()
    for i, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        path.rename(blobs / str(i))
        path.symlink_to(blobs / str(i))
    assert read_about(folder).plans == ["decode", "sample", "prefill-1"]


def test_weights_of_no_kind(made):
    with pytest.raises(MlircError, match="weights are 3: give a safetensors file, or tensors by name"):
        load_engine(made[1], "cpu", weights=3)


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
