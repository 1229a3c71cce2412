"""Tensor copies out of shared memory, reductions on the way, and im2col."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.tensor_maps import Im2colMap, TensorMap
from mlirc.errors import MlircError
from support.kernels.copies import BETWEEN, COMMIT, FENCE, READ, REDUCE, STORE, across, out, send, sent
from support.kernels.instructions import WAIT, ints, load, places, store


def test_a_box_is_stored_where_it_lies_inside():
    x, y = ints(8, 16), ints(10, 32)
    want = y.copy()
    want[4:10, :16] = x[:6]
    assert not send(out(), x, y)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    "kind, f", [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("and", np.bitwise_and),
                ("or", np.bitwise_or), ("xor", np.bitwise_xor)],
)  # fmt: skip
def test_reductions(kind, f):
    x, y = ints(8, 16), ints(8, 16)
    want = f(f(y, x), x)
    assert not send(out(kind, "%c0, %c0"), x, y, blocks=2)  # both blocks
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("kind", ["inc", "dec"])
def test_counters(kind):
    x, y = np.full((8, 16), 5, np.uint32), np.arange(128, dtype=np.uint32).reshape(8, 16)
    up = np.where(y >= 5, 0, y + 1)
    want = up if kind == "inc" else np.where((y == 0) | (y > 5), 5, y - 1)
    assert not send(out(kind, "%c0, %c0"), x, y)
    np.testing.assert_array_equal(y, want)


def test_reductions_of_floats():
    x, y = (np.random.default_rng(i).standard_normal((8, 16)).astype(np.float32) for i in range(2))
    want = y + x
    assert not send(out("add", "%c0, %c0", "f32"), x, y)
    np.testing.assert_array_equal(y, want)
    assert send(out("xor", "%c0, %c0", "f32"), x, y) == {("bad tensor map", REDUCE)}


@pytest.mark.parametrize("kind, op", [("", STORE), ("add", REDUCE)])
def test_what_is_copied_out_is_fenced_and_not_overwritten(kind, op):
    x, y = ints(8, 16), ints(8, 16)
    body = out(kind, "%c0, %c0")
    assert send(body.replace(FENCE, ""), x, y) == {("missing proxy fence", op)}
    assert send(body.replace(READ, ""), x, y) == {("race", "llvm.store"), ("unfinished copy", op)}
    assert send(body.replace("{ " + op, "{ nvvm.bar.warp.sync %all : i32\n" + op).replace(COMMIT, ""), x, y)


def test_blocks_write_elements_of_their_own():
    x, y = ints(8, 16), np.zeros((16, 16), np.int32)
    row = "%row = arith.muli %b, %c8 : i32\n"
    assert not send(out(at="%c0, %row", coordinates=row), x, y, blocks=2)
    np.testing.assert_array_equal(y.reshape(2, 8, 16), [x, x])
    near = row.replace("%c8", "%c4")
    assert send(out(at="%c0, %row", coordinates=near), x, y, blocks=2) == {("race between blocks", STORE)}
    assert not send(out("add", "%c0, %row", coordinates=near), x, y, blocks=2)


# -- im2col

IMAGES, HEIGHT, WIDTH, CHANNELS, PIXELS = 2, 5, 6, 8, 24
LOAD = "nvvm.cp.async.bulk.tensor.shared.cluster.global"


def columns(mode: str = "im2col") -> str:
    """Pixels [24, 8] from the position (n 0, h -1 + 1, w -1 + 2) on, moved by the offsets (h 2, w 1)."""
    offsets = " im2col[%w, %h]" if mode == "im2col" else ""
    copy = f"""nvvm.barrier
      %w = arith.constant 1 : i16
      %h = arith.constant 2 : i16
      scf.if %first {{ %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
      {LOAD} %to, %map0, %bar, box[%c0, %c1, %c0, %c0]{offsets} {{mode = #nvvm.tma_load_mode<{mode}>}} :
        !llvm.ptr<7>, !llvm.ptr }}"""
    body = WAIT.replace("START", copy).replace("constant 512", f"constant {PIXELS * CHANNELS * 4}")
    low = "%limit = arith.constant 192 : i32\n%fits = arith.cmpi ult, %t, %limit : i32\nscf.if %fits {"
    return body + low + load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p0", "%t") + "}"


def im2col(body: str, made: Im2colMap | TensorMap) -> tuple[set[tuple[str, str]], np.ndarray]:
    y = np.zeros((PIXELS, CHANNELS), np.int32)
    return places(body, y, made, threads=256, smem=1040), y


def test_im2col_gathers_the_positions_of_a_convolution():
    """A convolution of 3 x 3 with padding 1: corners -1 and -1, and the offsets are those of a filter's element."""
    x = ints(IMAGES, HEIGHT, WIDTH, CHANNELS)
    found, y = im2col(columns(), Im2colMap(x, (-1, -1), (-1, -1), PIXELS, CHANNELS))
    assert not found
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = padded[:, 2 : 2 + HEIGHT, 1 : 1 + WIDTH]  # what the filter's element (2, 1) meets, per position
    want = shifted.reshape(-1, CHANNELS)[WIDTH + 2 :][:PIXELS]  # h 0 and w 1 are one row and two columns behind -1, -1
    np.testing.assert_array_equal(y, want)


def test_maps_are_of_the_mode_of_their_copies():
    x = ints(IMAGES, HEIGHT, WIDTH, CHANNELS)
    found, _ = im2col(columns(), TensorMap(x, (1, 3, 8, 8)))
    assert ("bad tensor map", LOAD) in found
    found, _ = im2col(columns("tile"), Im2colMap(x, (-1, -1), (-1, -1), PIXELS, CHANNELS))
    assert ("bad tensor map", LOAD) in found


@pytest.mark.parametrize(
    "lower, upper, pixels, channels, message",
    [((-1,), (-1,), 24, 8, "as many dimensions"), ((-200, 0), (0, 0), 24, 8, "from -128 to 127"),
     ((0, 0), (0, 0), 2000, 8, "pixels"), ((0, 0), (0, 0), 24, 6, "multiple of 16")],
)  # fmt: skip
def test_im2col_maps_that_the_driver_refuses(lower, upper, pixels, channels, message):
    with pytest.raises(MlircError, match=message):
        Im2colMap(np.zeros((2, 5, 6, 8), np.int32), lower, upper, pixels, channels)


# -- bytes


def test_bytes_go_to_another_block():
    found, x, y = sent(across())
    assert not found
    np.testing.assert_array_equal(y, x[::-1])
    near = across().replace("%far_bar, %n", "%bar, %n")
    assert sent(near)[0] == {("bad mbarrier", BETWEEN)}
    assert sent(across(fence=""))[0] == {("missing proxy fence", BETWEEN)}
    assert {k for k, _ in sent(across(wait="\n"))[0]} & {"race", "unfinished copy", "uninitialized read"}
    assert ("race", "llvm.store") in sent(across(late=store("%c0", "%smem", "%t", "i32", "<3>")))[0]


def test_zeros_are_stored_as_by_a_thread():
    body = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 128 : i64
      scf.if %first {{ nvvm.st.bulk %smem, size = %n : !llvm.ptr<3> }}
      nvvm.barrier
      {load("v", "%smem", "%t", "i32", "<3>")} {store("%v", "%p0", "%t")}"""
    y = np.ones(32, np.int32)
    assert not places(body, y, smem=128)
    assert not y.any()
    assert places(body.replace("nvvm.barrier", ""), y, smem=128) == {("race", "llvm.load")}
    assert places(body, y, smem=64) >= {("out of bounds", "nvvm.st.bulk")}
