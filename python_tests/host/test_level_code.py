"""Levels compiled for this processor: kept code does what compiled code does, and damaged code is never run."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.files import kept
from mlirc.files.kept import CODE, KeptFolder, cache_folder
from mlirc.host import level_code as level_codes
from mlirc.host.jit import HostFunction
from mlirc.host.level_code import LevelCode, level_code
from mlirc.host.level_model import LevelModel
from mlirc.runtime.arrays import NUMPY_DTYPES
from support.randomness import generator

TEXT = """
func.func @main(
    %x: tensor<7x5xbf16> {mlirc.name = "x", mlirc.kind = "input"},
    %i: tensor<3xi64> {mlirc.name = "i", mlirc.kind = "input"},
    %s: tensor<3x5xf32> {mlirc.name = "s", mlirc.kind = "state"},
    %b: tensor<3xi8> {mlirc.name = "b", mlirc.kind = "weight", mlirc.dtype = "u8"})
    -> (tensor<3x5xf32> {mlirc.name = "y"}, tensor<3x5xf32> {mlirc.writes = 2 : i64}) {
  %empty = tensor.empty() : tensor<3x5xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(r, c) -> (r)>, affine_map<(r, c) -> (r)>, affine_map<(r, c) -> (r, c)>],
                       iterator_types = ["parallel", "parallel"]}
      ins(%i, %b : tensor<3xi64>, tensor<3xi8>) outs(%empty : tensor<3x5xf32>) {
  ^bb0(%at: i64, %byte: i8, %o: f32):
    %row = arith.index_cast %at : i64 to index
    %column = linalg.index 1 : index
    %n = tensor.extract %x[%row, %column] : tensor<7x5xbf16>
    %w = arith.extf %n : bf16 to f32
    %e = math.exp %w : f32
    %k = arith.uitofp %byte : i8 to f32
    %v = arith.addf %e, %k : f32
    linalg.yield %v : f32
  } -> tensor<3x5xf32>
  %t = linalg.add ins(%s, %y : tensor<3x5xf32>, tensor<3x5xf32>) outs(%empty : tensor<3x5xf32>) -> tensor<3x5xf32>
  return %y, %t : tensor<3x5xf32>, tensor<3x5xf32>
}
"""


class Compiler:
    """Parses TEXT, and counts how often."""

    def __init__(self) -> None:
        self.calls = self.starts = 0

    def __call__(self):
        self.calls += 1
        return mlir.parse(TEXT)

    def start(self) -> None:
        self.starts += 1

    def code(self, text: str = TEXT, source: str = "a", owner: str = "") -> LevelCode:
        return level_code(text, self, source, owner, self.start)


@pytest.fixture
def arrays():
    g = generator()
    x = g.standard_normal((7, 5)).astype(NUMPY_DTYPES["bf16"])
    return {"x": x, "s": g.standard_normal((3, 5)).astype(np.float32), "b": g.integers(0, 256, 3).astype(np.uint8)}


def check(code: LevelCode, arrays: dict[str, np.ndarray]) -> None:
    """Two calls beside NumPy, and an index outside of its tensor."""
    model = LevelModel(code, {name: arrays[name].copy() for name in ("s", "b")})
    state = arrays["s"]
    for index in ([6, 0, 6], [2, 5, 1]):
        y = model(x=arrays["x"], i=np.array(index))
        wanted = np.exp(arrays["x"][index].astype(np.float32)) + arrays["b"][:, None]
        np.testing.assert_allclose(y, wanted, rtol=1e-6)
        state = state + y
        np.testing.assert_array_equal(model.state["s"], state)
    with pytest.raises(MlircError, match=r"^main: index 7 is .* dimension of 7 \(and 4 more\) at a:15:"):
        model(x=arrays["x"], i=np.array([7, 1, 1]))


def test_kept_code_does_what_compiled_code_does(arrays):
    compiler = Compiler()
    check(compiler.code(), arrays)
    for _ in range(2):
        check(compiler.code(), arrays)
    assert (compiler.calls, compiler.starts) == (1, 1)


def test_kept_codes_tell_their_own_strays(arrays):
    """Several are loaded at once, and each calls back what is its own."""
    compiler = Compiler()
    codes = [compiler.code(source=source) for source in "abab"]
    assert compiler.calls == 2
    models = [LevelModel(code, {name: arrays[name].copy() for name in ("s", "b")}) for code in codes]
    for model, source in zip(models, "abab", strict=True):
        with pytest.raises(MlircError, match=rf"index -1 is .* \(and 4 more\) at {source}:15:"):
            model(x=arrays["x"], i=np.array([0, -1, 3]))


def _file():
    [path] = cache_folder().glob(f"*.{CODE}")
    return path


def _flip(data: bytes) -> bytes:
    at = int(generator().integers(len(data)))
    return data[:at] + bytes([data[at] ^ 1 << int(generator().integers(8))]) + data[at + 1 :]


DAMAGES = {
    "cut": lambda data: data[: int(generator().integers(len(data)))],
    "nothing": lambda data: b"",
    "head alone": lambda data: data.partition(b"\n")[0] + b"\n",
    "a byte more": lambda data: data + b"\0",
    "no code": lambda data: data[: data.index(b"\x7fELF")],
    "zeros": lambda data: data[: data.index(b"\x7fELF")] + bytes(len(data) - data.index(b"\x7fELF")),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *[f"flip {i}" for i in range(12)]])
def test_damaged_code_is_never_run(arrays, monkeypatch, damage):
    compiler = Compiler()
    compiler.code()
    path = _file()
    whole = path.read_bytes()
    path.write_bytes(DAMAGES.get(damage, _flip)(whole))
    with monkeypatch.context() as patch:
        patch.setattr(HostFunction, "loaded", lambda *_: pytest.fail("damaged code was loaded"))
        check(compiler.code(), arrays)
    assert compiler.calls == 2
    check(compiler.code(), arrays)  # it was made anew
    assert compiler.calls == 2 and path.read_bytes()[:200] == whole[:200]


def test_anothers_code_is_not_taken(arrays):
    compiler = Compiler()
    compiler.code()
    mine = _file()
    compiler.code(source="b")
    [other] = set(cache_folder().glob(f"*.{CODE}")) - {mine}
    mine.write_bytes(other.read_bytes())
    check(compiler.code(), arrays)
    assert compiler.calls == 3


CHANGES = {
    "versions": lambda patch: patch.setattr(kept, "_versions_digest", lambda: "other"),
    "processor": lambda patch: patch.setattr(level_codes, "_processor", lambda: ("other",)),
}


@pytest.mark.parametrize("change", [*CHANGES, "text", "source", "owner"])
def test_what_decides_the_code_decides_its_name(monkeypatch, change):
    compiler = Compiler()
    compiler.code()
    CHANGES.get(change, lambda _: None)(monkeypatch)
    given = {"text": TEXT + "\n// other"} if change == "text" else {change: "other"} if change not in CHANGES else {}
    compiler.code(**given)
    compiler.code(**given)
    assert compiler.calls == 2


def test_a_folder_that_cannot_be_written_only_costs_time(arrays, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLIRC_CACHE_DIR", str(tmp_path / "file"))
    compiler = Compiler()
    for _ in range(2):
        check(compiler.code(), arrays)
    assert compiler.calls == 2


def test_what_is_kept_keeps_to_its_size(monkeypatch):
    monkeypatch.setenv("MLIRC_CACHE_SIZE", "100K")
    compiler = Compiler()
    for i in range(30):
        compiler.code(source=f"source {i}")
    folder = KeptFolder(cache_folder())
    assert 0 < sum(k.size for k in folder.kept()) <= 100 << 10
    assert 1 < len(list(folder.kept())) < 30
