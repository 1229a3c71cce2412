"""Products whose blocks share the steps of K evenly, across tiles: on the CPU at the `tiles` level, on the host device in
several orders of blocks, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device import DeviceKernel
from mlirc.device.ptx.run import run_kernel
from mlirc.dialects.schedule._stream import Stream
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule
from support.kernels.launched import launches
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import assert_same, matmul
from support.models.together import Calls
from support.randomness import generator

WGMMA = "mma=wgmma,copy=tma,block_m=64,stages=2"
SMALL = (21, 36, 133, "f32")  # 3 x 3 tiles with edges, of 9 steps
KNOBS = "stream=1,block_m=8,block_n=16,block_k=16,blocks=5,combine=last"  # a wave of tiles, and four in parts


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout"),
    [
        (66, 40, 264, "bf16", f"stream=1,blocks=4,block_n=16,{WGMMA}", {}),  # two tiles left over; rings across tiles
        (67, 24, 328, "f16", f"stream=2,blocks=4,block_n=8,{WGMMA}", {"gates": True}),  # two sums
        (128, 40, 200, "bf16", f"stream=1,blocks=4,block_n=16,cluster_size=2,{WGMMA}", {}),  # side by side
        (40, 72, 160, "bf16", "stream=1,blocks=4,swap_operands=true,mma=wgmma,copy=tma", {"transposed": False}),
        (37, 40, 200, "bf16", "stream=9,blocks=7,mma=mma,block_m=16,block_n=16,block_k=32,group=2", {}),  # no whole tile
        (33, 40, 256, "f32", "stream=1,blocks=3,mma=tf32x3,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=1,warps_k=2",
         {}),
        (96, 48, 300, "f32", "stream=1,blocks=5,mma=wgmma_tf32x3,copy=tma", {}),
        (33, 35, 137, "f32", "stream=1,blocks=4,mma=fma,block_m=16,block_n=16,block_k=16", {"left": True}),
        (2, 5, 64, "f32", "stream=1,blocks=9,block_k=16", {"prologue": True}),  # one tile; more blocks than steps
        (5, 17, 133, "f32", "stream=1,blocks=3,block_m=4,block_n=16,block_k=16", {"batch": 2}),
        (1, 1, 257, "f32", "stream=1,blocks=7,block_k=16", {"epilogue": False}),
        (70, 40, 264, "bf16", f"stream=1,blocks=4,block_n=16,combine=launch,{WGMMA}", {}),
        (13, 9, 70, "i32", "stream=3,blocks=5,block_m=4,block_n=4,block_k=16", {}),
    ],
)  # fmt: skip
def test_products(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict) -> None:
    one = "" if "combine" in knobs else ",combine=last"
    text, schedule = matmul(m, n, k, dtype, **layout), (f"matmul_0=matmul:{knobs}{one}",)
    tolerance = {"f32": 1e-5, "i32": 0}.get(dtype, 1e-2)
    assert_same(text, schedule, tolerance)
    tiles, _ = check_schedule(text, schedule, tolerance)
    assert tiles.count("scf.forall (") == 2 and ("mlirc.last_block" in tiles) == ("combine=launch" not in knobs)


E4 = torch.float8_e4m3fn


@pytest.mark.parametrize("bytes_", [True, False])
def test_products_of_8_bits(bytes_: bool) -> None:
    draw = generator()
    if bytes_:
        x, w = (torch.from_numpy(draw.integers(-128, 128, (n, 304), np.int8)) for n in (67, 24))
        module, args = Calls(lambda a, b: torch._int_mm(a, b.t())), (x, w)
    else:
        x, w = (torch.from_numpy(draw.standard_normal((n, 400), np.float32)).to(E4) for n in (67, 24))
        scales = torch.tensor(0.5), torch.tensor(0.25)
        module = Calls(lambda a, b, x, y: torch._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16))
        args = (x, w, *scales)
    knobs = "matmul:stream=1,blocks=3,mma=wgmma8,copy=tma,block_m=64,block_n=24"
    found = mlirc.compile(module, args, target="sm_90a", schedule=[knobs], device="host")(*args)
    assert_close([found.float().numpy()], [module(*args).float().numpy()], 0 if bytes_ else 1e-2)


def test_every_step_belongs_to_one_block() -> None:
    draw = generator()
    for _ in range(300):
        tiles, steps, blocks, waves = (int(draw.integers(1, most)) for most in (90, 40, 24, 4))
        stream = Stream(tiles, steps, blocks, waves)
        parts: dict[int, list[int]] = {t: [] for t in range(stream.divided)}
        shares = []
        for block in range(stream.sharing):
            mine = range(stream.cut(block), stream.cut(block + 1))
            shares.append(len(mine))
            assert all(stream.owner(step) == block for step in mine)
            touched = dict.fromkeys(step // steps for step in mine)
            assert 1 <= len(touched) <= stream.segments
            for tile in touched:
                parts[tile].append(block)
        assert sum(shares) == stream.total and max(shares) - min(shares) <= 1
        assert all(len(found) == stream.parts(tile) for tile, found in parts.items())
        assert stream.first + stream.divided == tiles and stream.divided <= waves * blocks


def kernel_of(knobs: str = KNOBS) -> tuple[str, list, list]:
    """A product at the `gpu` level: text, arguments, room for results."""
    text, arguments, specs = lowered(matmul(*SMALL), f"matmul:{knobs}")
    return text, arguments, [np.zeros(s.shape, s.dtype) for s in specs]


def test_the_ptx() -> None:
    """One launch gives what a product whose tiles are computed whole gives."""
    assert kernel_of()[0].count("gpu.launch_func") == 1
    made = []
    for knobs in (KNOBS, KNOBS.replace("stream=1,", "").replace(",blocks=5,combine=last", "")):
        text, arguments, results = kernel_of(knobs)
        run_kernel(compile_kernel(mlir.parse(text), get_target("sm_90a")), [*arguments, *results])
        made.append(results)
    assert_close(*made, 1e-6)


METS = re.compile(r"\n *gpu\.barrier(?=\n(?:(?!gpu\.barrier).|\n)*?atomicrmw)")  # in front of the counter
MUTANTS = {
    "no release": (lambda t: t.replace("acq_rel :", "acquire :"), "race between blocks"),
    "no acquire": (lambda t: t.replace("acq_rel :", "release :"), "race between blocks"),
    "a scope too narrow": (lambda t: t.replace('syncscope("device") acq_rel', 'syncscope("block") acq_rel'), "race"),
    "no barrier in front": (lambda t: METS.sub("", t, count=1), "race between blocks"),
    "a counter that is not reset": (lambda t: t.replace("uinc_wrap", "add"), "changed memory"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_reported(name: str) -> None:
    spoil, kind = MUTANTS[name]
    text, arguments, results = kernel_of()
    spoiled = spoil(text)
    assert spoiled != text
    report = DeviceKernel(mlir.parse(spoiled)).run([*arguments, *results])
    assert not report.ok and any(kind in f.kind for f in report.findings), report.findings


@pytest.mark.parametrize(
    ("m", "n", "k", "knobs", "stream"),
    [
        (2304, 2304, 16384, "", 1), (1280, 3584, 16384, "", 1), (2304, 2304, 8192, "", 1), (2304, 2304, 4096, "", 0),
        (2048, 2304, 8192, "", 0), (2560, 2560, 10240, "", 0), (4096, 4608, 4096, "", 0), (4096, 4096, 4096, "", 0),
        (2304, 2304, 16384, "parts=1", 0), (512, 3584, 18944, "", 0), (128, 37888, 3584, "", 0),
    ],
)  # fmt: skip
def test_what_was_measured(m: int, n: int, k: int, knobs: str, stream: int) -> None:
    kernel = mlir.parse(matmul(m, n, k, "bf16", epilogue=False))
    _, record = Schedules([f"matmul:{knobs}"] if knobs else []).schedule_kernel(kernel, get_target("sm_90a"))
    assert record.knobs.get("stream", 0) == stream
    assert not stream or (record.knobs["block_m"], record.knobs["block_n"]) == (128, 256)


def tiles_of(knobs: str) -> str:
    return str(Schedules([f"matmul:{knobs}"]).schedule_kernel(mlir.parse(matmul(*SMALL)), get_target("sm_90a"))[0])


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"arith\.cmpi slt, (%\d+), (%\d+) : index", r"arith.cmpi sle, \1, \2 : index"),  # segments of no steps count
        (r"(affine_map<\(d0\) -> \(\(\(d0 \+ 1\).*?) \+ 1\)>", r"\1 + 2)>"),  # a part more than there are
        (r"(affine_map<\(d0\) -> \(\(\(d0 \+ 1\).*?) \+ 1\)>", r"\1)>"),  # one fewer
    ],
)
def test_wrong_numbers_of_parts_are_noticed(pattern: str, into: str) -> None:
    """Nobody knows then who comes last: the second launch waits for all blocks, where nothing demands one launch."""
    tiles = tiles_of(KNOBS)
    assert launches(tiles) == 1
    other = re.sub(pattern, into, tiles, count=1)
    assert other != tiles
    offered = re.sub(r"mlirc\.demands = \[[^]]*\], ", "", other)
    assert offered != other and launches(offered) == 2
    with pytest.raises(MlircError, match="not those that the blocks in front of it have"):
        launches(other)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ("stream=1,block_m=8,block_n=16,blocks=3", "are whole ones for each block: leave stream_k out"),
        ("stream=1,block_k=256,blocks=4", "leave stream_k out"),  # one step
        ("stream=1,blocks=1", "nobody to share the steps of K with"),
        ("stream=1,parts=2", "stream=1: divides K itself: leave parts out"),
        ("stream=1,copy=tma,block_m=8,block_n=16,block_k=32,mma=tf32x3,warps_m=1,cluster_size=4,blocks=8",
         "no whole number of them"),
        ("stream=0", "an integer of at least 1, not 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(knobs: str, says: str) -> None:
    with pytest.raises(MlircError) as error:
        tiles_of(knobs)
    assert says in str(error.value)
