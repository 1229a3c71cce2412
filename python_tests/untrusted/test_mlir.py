"""MLIR text that its parser does not survive, and files that are none: one line, from every way in."""

from __future__ import annotations

import os
import random
import socket

import numpy as np
import pytest

from mlirc.apart import fails_apart
from mlirc.errors import MlircError
from mlirc.ir.text import judge_text
from mlirc.tools.input_arrays import read_arrays
from mlirc.tools.mlirc import main as mlirc
from mlirc.tools.mlirc_opt import main as mlirc_opt
from mlirc.tools.mlirc_run import main as mlirc_run

DEEP = {
    "regions": "module {" * 20000 + "}" * 20000,
    "regions left open": "module {" * 20000,
    "attributes": "module attributes {a.x = " + "[" * 20000 + "]" * 20000 + "} {}",
    "types": "func.func private @f(" + "tuple<" * 20000 + "i32" + ">" * 20000 + ")",
    "locations": "module {} loc(" + 'callsite("a" at ' * 20000 + '"b"' + ")" * 20000 + ")",
    "parentheses": "#m = affine_map<(d0) -> (" + "(" * 20000 + "d0" + ")" * 20000 + ")>",
    "a model's function": "func.func @main() { " + "scf.execute_region { " * 3000 + "}" * 3001,
}


def doubled(first: str, each: str, last: str) -> str:
    return first + "".join(each.replace("N", str(i)).replace("P", str(i - 1)) for i in range(1, 60)) + last


GREEDY = {
    "signs": "#m = affine_map<(d0) -> (" + "-" * 60000 + "d0)>\nmodule attributes {a.x = #m} {}",
    "aliases of attributes": doubled("#a0 = [1, 2]\n", "#aN = [#aP, #aP]\n", "module attributes {a.x = #a59} {}"),
    "aliases of types": doubled("!a0 = tuple<i32>\n", "!aN = tuple<!aP, !aP>\n", "func.func private @f(!a59)"),
    "digits": "module attributes {a.x = " + "9" * 200_000 + " : i64} {}",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_text(name, tmp_path, ran):
    (tmp_path / "x.mlir").write_text(DEEP[name])
    assert "nested more than 256 deep" in ran(mlirc_opt, tmp_path / "x.mlir").error


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_text(name):
    with pytest.raises(MlircError, match="does not survive it|stands for more than|digits"):
        judge_text(GREEDY[name], "x.mlir")


def test_every_way_in(tmp_path, ran):
    path = tmp_path / "x.mlir"
    path.write_text(DEEP["types"])
    assert "nested" in ran(mlirc, path, "--emit", "ptx").error
    good = tmp_path / "good.mlir"
    good.write_text("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    assert "nested" in ran(mlirc, good, "--schedule", path, "--emit", "tiles").error


def test_sound_text_is_left_alone():
    brackets = 'module { func.func private @f() loc("((((") } // ' + "(" * 1000 + "\n"
    judge_text(brackets + "// -----\n" + "module {" * 100 + "}" * 100, "x.mlir")
    judge_text("not mlir at all", "x.mlir")  # the parser says so
    judge_text("#s = affine_set<(d0) : (d0 >= 0)>\n" * 300, "x.mlir")


def test_what_ends_badly_is_told():
    assert fails_apart(lambda: os.abort(), seconds=5, memory=1 << 30) == "it ends in SIGABRT"
    assert "too long" in fails_apart(lambda: any(iter(int, 1)), seconds=0, memory=1 << 30)
    assert "memory" in fails_apart(lambda: bytearray(1 << 40), seconds=5, memory=1 << 30)
    assert fails_apart(lambda: 1 / 0, seconds=5, memory=1 << 30) == ""


def test_mutated_text():
    """Four hundred mutations of a kernel's text: whatever MLIR makes of each, the process is there to tell."""
    text = """
    #map = affine_map<(d0, d1) -> (d0, d1)>
    module attributes {mlirc.note = dense<[1, 2, 3]> : tensor<3xi64>} {
      func.func @main(%a: tensor<8x7xf32> {mlirc.name = "a"}) -> tensor<8x7xf32> {
        %c = arith.constant dense<1.5> : tensor<8x7xf32>
        %e = tensor.empty() : tensor<8x7xf32>
        %r = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]}
            ins(%a, %c : tensor<8x7xf32>, tensor<8x7xf32>) outs(%e : tensor<8x7xf32>) {
        ^bb0(%x: f32, %y: f32, %z: f32):
          %s = arith.addf %x, %y : f32
          linalg.yield %s : f32
        } -> tensor<8x7xf32>
        return %r : tensor<8x7xf32>
      }
    }
    """
    rng = random.Random(7)
    words = ["<", ">", "[", "]", "{", "}", "(", ")", "9223372036854775807", "-1", "?", "*", "x", "f32", "i0", "dense<", '"', "#map", "%r", "\0", "\xff", "0x"]  # fmt: skip
    made = []
    for _ in range(400):
        at, length = rng.randrange(len(text)), rng.choice([0, 0, 1, 3, 20])
        made.append(text[:at] + rng.choice([*words, text[at : at + 9] * 3]) + text[at + length :])
    bad = []
    joined = "\n// -----\n".join(made)
    try:
        judge_text(joined, "x.mlir")
    except MlircError:  # one of them: each by itself
        for one in made:
            try:
                judge_text(one, "x.mlir")
            except MlircError as e:
                bad.append(str(e))
    assert all("\n" not in line for line in bad)


def special_files(folder):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "zeros").write_bytes(bytes(5000))
    (folder / "utf16").write_bytes("module {}".encode("utf-16"))
    (folder / "binary").write_bytes(random.Random(1).randbytes(5000))
    (folder / "nul").write_bytes(b"module {}\0")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("not-there")
    (folder / "terminal").symlink_to("/dev/zero")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(folder / "socket"))
    bound.close()
    names = sorted(p.name for p in folder.iterdir())
    return [*(folder / n for n in names), folder / "missing", "x" * 5000, folder / ("y" * 5000), "a\0b", "/dev/zero"]


def test_special_files(tmp_path, ran, monkeypatch):
    """Each of them as each kind of file: opening none of them waits, and none is read without end."""
    files = special_files(tmp_path)
    good = tmp_path / "good.mlir"
    good.write_text("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    for file in files:
        for program, words in (
            (mlirc, [file, "--emit", "torch"]),
            (mlirc_opt, [file, "--pipeline", "cse"]),
            (mlirc_run, [file, "--info"]),
        ):
            done = ran(program, *words)
            if program is mlirc_opt and "empty" in str(file):
                assert done.status == 0
            else:
                assert len(done.error) < 1500, words
        for ending in (".mlir", ".py"):
            link = tmp_path / f"link{ending}"
            link.unlink(missing_ok=True)
            if "\0" in str(file) or len(str(file)) > 300:
                continue
            link.symlink_to(file)
            for program, words in ((mlirc, [good, "--schedule", link, "--emit", "tiles"]), (mlirc_opt, [link])):
                if not (program is mlirc_opt and "empty" in str(file)):
                    assert ran(program, *words).error


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': SHAPE, }"


def npy(header: str, data: bytes = bytes(24), version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version == b"\1\0" else 4, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        npy(HEADER.replace("SHAPE", "(200000000000,)")), npy(HEADER.replace("SHAPE", "(7,)")),
        npy(HEADER.replace("SHAPE", "(3, -2)")), npy(HEADER.replace("SHAPE", "(2.0, 3)")),
        npy(HEADER.replace("SHAPE", "(1 << 60,)")), npy(HEADER.replace("SHAPE", "__import__('os').getcwd()")),
        npy(HEADER.replace("SHAPE", "(" * 5000)), npy(HEADER.replace("<f4", "|O").replace("SHAPE", "(3,)")),
        npy(HEADER.replace("<f4", "nonsense").replace("SHAPE", "(6,)")), npy("{}"), npy("[1]"), npy(""),
        npy(HEADER.replace("SHAPE", "(6,)"), version=b"\7\0"), npy(HEADER.replace("SHAPE", "(6,)"))[:60],
        b"\x93NUMPY", b"", b"PK\3\4", b"\x80\x02.", b"\x93NUMPY\2\0\xff\xff\xff\xff",
        npy(HEADER.replace("<f4", "|V4000000000").replace("SHAPE", "(6,)")),
    ],
)  # fmt: skip
def test_arrays(tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(MlircError) as caught:
        read_arrays(tmp_path / "x.npy")
    assert "\n" not in str(caught.value)
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(MlircError):
        read_arrays(tmp_path / "x.npz")


def test_sound_arrays(tmp_path):
    for array in (
        np.float32(3),
        np.zeros((0, 5), "f2"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.ones(7, "?"),
    ):
        np.save(tmp_path / "x.npy", array)
        assert np.array_equal(read_arrays(tmp_path / "x.npy"), array)
        np.savez_compressed(tmp_path / "x.npz", a=array, b=np.arange(3))
        assert np.array_equal(read_arrays(tmp_path / "x.npz")["a"], array)
