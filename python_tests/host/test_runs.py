"""`mlirc-run` on the CPU as somebody uses it who debugs: what it says, and every mistake in one line."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.tools import mlirc_run

LEVELS = ["linalg", "kernels", "tiles", "gpu"]


def scale(shape: str, by: str, element: str = "f32", name: str = "x") -> str:
    """A model at the `linalg` level: x + x * by."""
    tensor = f"tensor<{shape}{element}>"
    return f"""
func.func @main(%x: {tensor} {{mlirc.kind = "input", mlirc.name = "{name}"}}) -> ({tensor} {{mlirc.name = "y"}}) {{
  %c = arith.constant {by} : {element}
  %e = tensor.empty() : {tensor}
  %s = linalg.fill ins(%c : {element}) outs(%e : {tensor}) -> {tensor}
  %m = linalg.mul ins(%x, %s : {tensor}, {tensor}) outs(%e : {tensor}) -> {tensor}
  %r = linalg.add ins(%x, %m : {tensor}, {tensor}) outs(%e : {tensor}) -> {tensor}
  return %r : {tensor}
}}"""


NOT = """
func.func @main(%x: tensor<7xi1> {mlirc.name = "x"}) -> (tensor<7xi1> {mlirc.name = "y"}) {
  %t = arith.constant true
  %e = tensor.empty() : tensor<7xi1>
  %r = linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}
      ins(%x : tensor<7xi1>) outs(%e : tensor<7xi1>) {
  ^bb0(%a: i1, %o: i1):
    %n = arith.xori %a, %t : i1
    linalg.yield %n : i1
  } -> tensor<7xi1>
  return %r : tensor<7xi1>
}"""
VIEW = """
func.func @main(%x: tensor<2x3xf32> {mlirc.name = "x"}) -> (tensor<6xf32> {mlirc.name = "y"},
                                                           tensor<2x3xf32> {mlirc.name = "z"}) {
  %y = tensor.collapse_shape %x [[0, 1]] : tensor<2x3xf32> into tensor<6xf32>
  return %y, %x : tensor<6xf32>, tensor<2x3xf32>
}"""
CONSTANT = """
func.func @main() -> (tensor<3xf32> {mlirc.name = "y"}) {
  %c = arith.constant 2.5 : f32
  %e = tensor.empty() : tensor<3xf32>
  %r = linalg.fill ins(%c : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  return %r : tensor<3xf32>
}"""
MODELS = {
    "twice": scale("5x7x", "1.0"),
    "thrice": scale("5x7x", "2.0"),  # of the same shapes
    "larger": scale("5x11x", "1.0"),
    "other": scale("5x7x", "1.0", name="z"),
    "bf16": scale("37x", "1.0", "bf16"),
    "scalar": scale("", "1.0"),
    "empty": scale("0x7x", "1.0"),
    "not": NOT,
    "view": VIEW,
    "constant": CONSTANT,
}
NAN = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, 1e-40]] * 5, np.float32)
INPUTS = {
    "twice": np.arange(35, dtype=np.float32).reshape(5, 7),
    "bf16": np.linspace(-3, 3, 37).astype(np.float32),
    "scalar": np.array(3.5, np.float32),
    "empty": np.empty((0, 7), np.float32),
    "not": np.array([True, False, True, True, False, False, True]),
    "view": np.arange(6, dtype=np.float32).reshape(2, 3),
    "constant": None,
}


def expected(name: str, x: np.ndarray) -> np.ndarray:
    if name == "bf16":
        return (x.astype(ml_dtypes.bfloat16) * 2).astype(np.float32)
    return {"not": lambda: ~x, "view": lambda: x.reshape(6), "constant": lambda: np.full(3, 2.5, np.float32)}.get(
        name, lambda: 2 * x
    )()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host_runs")
    for name, text in MODELS.items():
        (folder / f"{name}.mlir").write_text(text)
        compile_model(str(folder / f"{name}.mlir"), folder / f"{name}.ptx", cache=False)
    return folder


@pytest.fixture
def models(made, tmp_path, monkeypatch):
    """A folder with copies of the compiled models and inputs; the one to be in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    for name, x in INPUTS.items():
        if x is not None:
            np.save(tmp_path / f"{name}.npy", x)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(name: str) -> list[str]:
    return [f"{name}.ptx"] if INPUTS[name] is None else [f"{name}.ptx", "--input", f"{name}.npy"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_model_runs_at_every_level(models, ran, name, level):
    result = ran(mlirc_run.main, *words(name), "-o", "y=out.npy", "--level", level)
    assert result.status == 0 and result.out == "", result.err
    found = np.load("out.npy")
    np.testing.assert_array_equal(found, expected(name, INPUTS[name]))
    start = "no findings: " if level == "gpu" else f"level {level}: "
    assert result.err.startswith(start) and result.err.count("\n") == 1
    assert f" {int(INPUTS[name] is not None)} input" in result.err


def test_what_was_checked_is_said(models, ran):
    run = ["twice.ptx", "--input", "twice.npy", "--device", "host"]
    says = {
        (): "no findings: 1 kernel, 1 block, 1 input, compared with level kernels, judged 100 % of elements, tried on ",
        ("--seeds", "3"): "tried on 5 sets of made-up inputs, plan and PTX checked, 3 seeds with the same bits",
        ("--input-sets", "none"): "compared with level kernels, judged 100 % of elements, plan and PTX checked",
        ("--input-sets", "all"): "tried on 6 sets of made-up inputs, ",
        ("--no-compare",): "numbers compared with nothing (compare is off)",
        ("--blocks", "0"): "1 block (of every launch those asked for)",
        ("--time",): "no findings: ",
    }
    for more, text in says.items():
        result = ran(mlirc_run.main, *run, *more)
        assert result.status == 0 and text in result.err, result.err
    result = ran(mlirc_run.main, "view.ptx", "--input", "view.npy", "--device", "host")
    assert "0 kernels, 0 blocks, 1 input, which leaves nothing to check" in result.err


def test_runs_leave_nothing_in_the_temporary_folder(models, ran, monkeypatch):
    (models / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(models / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for level in LEVELS:
        assert ran(mlirc_run.main, *words("twice"), "-o", "y.npy", "--level", level).status == 0
    assert ran(mlirc_run.main, "twice.ptx", "--input", "view.npy", "--device", "host").status == 1
    assert list((models / "temporary").iterdir()) == []


def test_not_a_number_is_where_it_should_be(models, ran):
    np.save("nan.npy", NAN)
    for level in LEVELS:
        assert ran(mlirc_run.main, "twice.ptx", "--input", "nan.npy", "-o", "y.npy", "--level", level).status == 0
        np.testing.assert_array_equal(np.load("y.npy"), 2 * NAN)


def test_outputs_are_the_callers_in_python(models):
    with mlirc.load("scalar.ptx", device="host") as model:
        found = model(np.float32(1.5))
        assert found.shape == () and found == 3
    with mlirc.load("view.ptx", device="host") as model:
        x = INPUTS["view"].copy()
        y, z = model(x)
        y[...] = 9
        z[...] = 9
        assert (x == INPUTS["view"]).all(), "an output is memory of its own"


RUN = ["twice.ptx", "--input", "twice.npy"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "spoil, message",
    [
        ("thrice", "belongs to another compiled model"),
        ("larger", "belongs to another compiled model"),
        ("thrice without its mark", None),
        ("larger without its mark", "input 'x' is a tensor<5x11xf32> there, but the model's plan says f32[5,7]"),
        ("other without its mark", "argument 'z' is not in the model's plan: compile the model again"),
        ("missing", "cannot read level"),
        ("no folder", "cannot read level"),
        ("truncated", "not valid MLIR"),
        ("not text", "not a text file"),
        ("empty", ""),
        ("another level", "holds level "),
    ],
)
def test_levels_that_are_not_the_models_are_refused(models, ran, spoil, message, level):
    folder, files = models / "twice.levels", [models / "twice.levels" / f"{name}.mlir" for name in LEVELS]
    what, _, mark = spoil.partition(" without its ")
    for file in files:
        text = file.read_text()
        if what in MODELS and what != "empty":
            text = (models / f"{what}.levels" / file.name).read_text()
            text = text[: text.rindex("// mlirc: ")] if mark else text
        other = files[(files.index(file) + 1) % 4].read_text() if spoil == "another level" else ""
        file.write_text({"truncated": text[: len(text) // 2], "empty": "", "another level": other}.get(spoil, text))
        if spoil == "not text":
            file.write_bytes(b"\xff\xfe\x00")
        if spoil == "missing":
            file.unlink()
        if spoil == "another level":
            break
    if spoil == "no folder":
        shutil.rmtree(folder)
    if message != "belongs to another compiled model" and spoil not in ("missing", "no folder", "not text"):
        if not (spoil == "another level" and level != "linalg"):
            error = ran(mlirc_run.main, *RUN, "--level", level).error
            assert ("holds level" if spoil == "another level" else "is not as mlirc wrote it") in error
    result = ran(mlirc_run.main, *RUN, "--level", level, "--no-verify")
    if message is None or (spoil == "another level" and level != "linalg"):
        assert result.status == 0  # no mark and the same boundary: somebody's own level
    else:
        assert message in result.error


@pytest.mark.parametrize(
    "args, message",
    [
        ([*RUN, "--seed", "-1"], "-1: give 0 or more"),
        ([*RUN, "--seed", "x"], "x: give 0 or more"),
        ([*RUN, "--seed", "1.5"], "1.5: give 0 or more"),
        (["twice.ptx", "--random-inputs", "-1"], "-1: give 0 or more"),
        (["twice.ptx", "--random-inputs", "1e3"], "1e3: give 0 or more"),
        (["view.ptx", "--input", "view.npy", "--blocks", "0"], "no launch has block 0: there are no blocks to run"),
        ([*RUN, "--seeds", "0"], "0: give 1 or more"),
        ([*RUN, "--blocks", ""], "is no number"),
        ([*RUN, "--blocks", "-1"], "is no number"),
        ([*RUN, "--blocks", "1"], "no launch has block 1: the largest has blocks 0 to 0"),
        ([*RUN, "--blocks", "0,9"], "no launch has block 9: the largest has blocks 0 to 0"),
        ([*RUN, "--blocks", "9" * 30], "no launch has block 9"),
        ([*RUN, "--seconds", "nan"], "is no number of seconds"),
        ([*RUN, "--level", "tiles"], "--device host runs level gpu"),
        ([*RUN, "--no-graph"], "--no-graph is for the GPU"),
        ([*RUN, "--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        ([*RUN, "-o", "no/y.npy"], "folder no does not exist"),
        ([*RUN, "-o", "twice.levels"], "must end in .npy"),
        ([*RUN, "-o", "twice.npy"], "twice.npy"),
        ([*RUN, "-o", "z=z.npy"], "no output is called 'z'"),
        (["twice.ptx"], "input 'x' (f32[5,7]) is missing"),
        (["twice.ptx", "--input", "wrong.npz"], "no input is called 'q'"),
        (["twice.ptx", "--input", "f64.npy"], "got f64[5,7], but the model was compiled for f32[5,7]"),
        (["twice.ptx", "--input", "not.npy"], "got i1[7], but the model was compiled for f32[5,7]"),
        (["twice.ptx", "--input", "empty.npy"], "got f32[0,7], but"),
        (["twice.ptx", "--input", "complex.npy"], "complex64 is not supported"),
        (["twice.ptx", "--input", "big.npy"], ">f4 is not supported"),
        (["twice.ptx", "--input", "strings.npy"], "is not supported"),
        (["twice.ptx", "--input", "objects.npy"], "holds Python objects"),
        (["not.ptx", "--input", "bytes.npy"], "input 'x': got "),
        (["bf16.ptx", "--input", "half.npy"], "input 'x': got f16[37], but the model was compiled for bf16[37]"),
        (["scalar.ptx", "--input", "one.npy"], "got f32[1], but the model was compiled for f32[]"),
        (["constant.ptx", "--input", "one.npy"], "1 inputs given, but the model takes 0"),
        (["twice.levels/gpu.mlir"], "carries no launch plan"),
    ],
)
def test_mistakes_take_one_line(models, ran, args, message):
    x = INPUTS["twice"]
    np.savez("wrong.npz", q=x)
    arrays = {"f64": x.astype(np.float64), "complex": x.astype(np.complex64), "big": x.astype(">f4")}
    arrays |= {"strings": np.array(["a"]), "bytes": np.full(7, 2, np.uint8), "one": np.ones(1, np.float32)}
    arrays |= {"half": np.ones(37, np.float16)}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    before = {p: p.stat().st_mtime_ns for p in models.rglob("*")}
    assert message in ran(mlirc_run.main, *args, "--device", "host").error
    assert {p: p.stat().st_mtime_ns for p in models.rglob("*")} == before
