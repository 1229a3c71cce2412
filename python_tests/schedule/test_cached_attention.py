"""Attention over a paged cache as block programs: `tiles` on the CPU and the kernel on the host device, beside FP64, with
pages in any order and NaN in all that no sequence has."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import check_ptxas, compile_kernel, find_ptxas
from mlirc.dialects.mlirc_dialect import Pages
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.mlir import ir
from mlirc.schedule.kernel_info import AttentionShape
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, run_tiles
from support.kernels.paged import Case, expected, inputs, payload
from support.kernels.payloads import attention
from support.kernels.payloads import inputs_of as payload_inputs

DTYPES = {"f32": (np.float32, 3e-6), "f16": (np.float16, 2e-3), "bf16": (ml_dtypes.bfloat16, 1.5e-2)}


def scheduled(case: Case, knobs: str, target: str = "sm_90a") -> ir.Module:
    override = [f"cached_attention:{knobs}"] if knobs else []
    tiles, record = Schedules(override).schedule_kernel(mlir.parse(payload(case)), get_target(target))
    assert record.script == "cached_attention"
    return tiles


def arguments_of(case: Case) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Arguments in the case's layouts, the result that is expected, and its tolerance."""
    dtype, tolerance = DTYPES[case.dtype]
    whole = inputs(case)
    stored = ml_dtypes.float8_e4m3fn if case.stored else dtype
    made = [whole[0].astype(dtype), *(x.astype(stored) for x in whole[1:3]), *whole[3:]]
    whole = expected(case, made)

    def laid(x: np.ndarray, layout: str) -> np.ndarray:
        return np.ascontiguousarray(x.transpose(["bhsd".index(c) for c in layout]))

    given = [laid(x, layout) for x, layout in zip(made[:3], case.layouts, strict=False)]
    return [*given, *made[3:]], [laid(whole, case.layouts[3]).astype(dtype)], tolerance


def check(case: Case, knobs: str = "", host_device: bool = True) -> str:
    tiles = scheduled(case, knobs)
    given, wanted, tolerance = arguments_of(case)
    assert_close(run_module(tiles, given, "attention_0"), wanted, tolerance)
    if host_device:
        found, report = run_tiles(tiles, given)
        assert report.ok, "\n".join(map(str, report.findings))
        assert_close(found, wanted, tolerance)
    return str(tiles)


LENGTHS = (1, 7, 16, 33)
ON_THE_HOST_DEVICE = [
    (Case(LENGTHS, dtype="bf16"), ""),
    (Case((3, 33), queries=3, dims=(16, 16), dtype="f16", window=6, softcap=2.0), "stages=3"),  # rows of two heads
    (Case((1, 16, 9), dims=(16, 8), heads=(3, 1)), ""),
    (Case((20, 37), queries=18, dims=(16, 16), page=8, pages=5, dtype="bf16"), "block_q=16"),  # blocks of one head
    (Case((100,), queries=70, heads=(1, 1), page=32, pages=4, dtype="bf16"), ""),  # warpgroups
    (Case((0, 1, 48), heads=(1, 1), dims=(32, 32)), "parts=3"),  # parts without steps
    (Case((3, 33), queries=3, dims=(16, 16), dtype="f16", window=6, softcap=2.0), "parts=5,stages=3"),
    (Case((20, 37), queries=5, heads=(6, 2), dims=(96, 80), pages=5, dtype="bf16"), "parts=2,pack=true"),
    (Case((0, 1, 48), queries=3, heads=(6, 2), dims=(16, 16), vectors=("sinks",)), "parts=3"),
    (Case((1, 33), dims=(16, 16), dtype="f16", window=6, vectors=("slopes", "sinks")), "stages=3"),
]
LONGER = dict(page=64, pages=2, dtype="bf16")
IN_BLOCKS_AND_CLUSTERS = [  # parts are combined
    (Case((1, 63, 65), heads=(8, 1), dims=(64, 64), **LONGER), "combine=cluster,parts=4,teams=2,block_kv=16"),
    (Case((1, 127), heads=(7, 1), dims=(128, 128), **LONGER), "combine=cluster,parts=8,teams=4,block_kv=4"),
    (Case((65, 100), heads=(17, 1), dims=(16, 80), **LONGER), "combine=cluster,parts=2,teams=3,block_kv=8"),  # 2 warps
    (Case((0, 63), queries=5, heads=(3, 1), dims=(96, 80), **LONGER), "combine=cluster,parts=2,teams=2,block_kv=8"),
    (Case((3, 33), queries=3, dims=(16, 16), dtype="f16", window=6, softcap=2.0), "combine=cluster,parts=2,teams=2"),
    (Case((0, 1, 48), heads=(1, 1), dims=(32, 32)), "combine=cluster,parts=2"),
    (Case((0, 1, 48), queries=3, heads=(6, 2), dims=(16, 16), vectors=("sinks",)), "combine=cluster,parts=2,teams=3"),
    (
        Case((1, 33), dims=(16, 16), dtype="f16", window=6, vectors=("slopes", "sinks")),
        "combine=cluster,parts=2,teams=2",
    ),
    (Case((1, 63, 65), heads=(8, 1), dims=(64, 64), **LONGER), "combine=last,parts=2,teams=2,block_kv=16"),
    (Case((1, 63, 65), heads=(3, 1), dims=(16, 64), **LONGER), "combine=launch,parts=2,teams=3,block_kv=8"),
    (Case((65, 128), heads=(6, 2), dims=(16, 16), **LONGER), "parts=1,teams=3,block_kv=8"),
]
F8 = dict(stored="f8E4M3FN")
OF_8_BITS = [  # whose cache is
    (Case(LENGTHS, dtype="bf16", **F8), ""),
    (Case((3, 33), queries=3, dims=(16, 48), dtype="f16", window=6, softcap=2.0, **F8), ""),
    (Case((1, 16, 9), dims=(16, 8), heads=(3, 1), **F8), ""),
    (Case((20, 37), queries=18, dims=(16, 16), page=8, pages=5, dtype="bf16", **F8), "block_q=16"),
    (Case((100,), queries=70, heads=(2, 1), page=32, pages=4, dtype="bf16", **F8), ""),  # warpgroups
    (Case((20, 37), queries=5, heads=(6, 2), dims=(96, 80), pages=5, dtype="bf16", **F8), "parts=2,pack=true"),
    (Case((0, 1, 48), queries=3, heads=(6, 2), dims=(16, 16), vectors=("sinks",), **F8), "parts=3"),
    (
        Case((1, 63), heads=(3, 1), dims=(16, 16), page=64, pages=1, dtype="f16", **F8),
        "combine=cluster,parts=2,teams=2",
    ),
]
ON_THE_CPU = [
    (Case(LENGTHS, page=1, pages=33), ""),
    (Case(LENGTHS, page=17, pages=2, dtype="f16", dims=(80, 96)), ""),
    (Case((0, 64, 65, 128), page=64, pages=2, dims=(256, 32), dtype="bf16", window=10), ""),
    (Case((70, 128), queries=70, page=64, pages=2, layouts=("bshd", "bshd", "bhsd", "bshd")), ""),
    (Case((70, 128), queries=70, page=64, pages=2, window=65), "block_kv=32,block_q=32"),
    (Case((8, 31), queries=5, layouts=("bshd", "bhsd", "bhsd", "bhsd")), "split=false"),
    (Case(LENGTHS, layouts=("bshd", "bhsd", "bhsd", "bhsd")), "block_kv=4"),
    (Case(LENGTHS, dims=(64, 64)), "parts=7,block_kv=4"),
    (Case((20, 37), queries=18, page=8, pages=5), "block_q=16,parts=3"),  # edges of blocks and of sequences
    (Case((70, 128), queries=70, page=64, pages=2, dtype="bf16", vectors=("sinks",)), ""),
    (Case((20, 37), queries=5, page=5, pages=8, heads=(5, 5), softcap=3.0, vectors=("slopes",)), ""),
]


@pytest.mark.parametrize(("case", "knobs"), ON_THE_HOST_DEVICE, ids=lambda x: str(x))
def test_kernels_are_right_and_clean(case: Case, knobs: str) -> None:
    tiles = check(case, knobs)
    assert "mlirc.gather_pages" not in tiles and "tensor.extract %arg3" in tiles


@pytest.mark.parametrize(("case", "knobs"), IN_BLOCKS_AND_CLUSTERS, ids=lambda x: str(x))
def test_teams_of_warps_and_blocks_of_a_cluster_combine_their_parts(case: Case, knobs: str) -> None:
    tiles = check(case, knobs)
    assert ("mlirc.teams" in tiles) == ("teams" in knobs)


@pytest.mark.parametrize(("case", "knobs"), OF_8_BITS, ids=lambda x: str(x))
def test_caches_of_8_bits_are_widened_in_the_kernel(case: Case, knobs: str) -> None:
    tiles = check(case, knobs)
    assert "arith.extf" in tiles and "mlirc.gather_pages" not in tiles


def test_caches_of_8_bits_are_not_copied_ahead() -> None:
    tiles = scheduled(Case((3, 33), queries=3, dims=(16, 16), dtype="f16", **F8), "parts=1,stages=2")
    with pytest.raises(MlircError, match="no product in this loop reads a slice that can be copied asynchronously"):
        to_gpu(tiles, "attention_0", get_target("sm_90a"))


@pytest.mark.parametrize(("case", "knobs"), ON_THE_CPU, ids=lambda x: str(x))
def test_tiles_are_right(case: Case, knobs: str) -> None:
    check(case, knobs, host_device=False)


def test_many_queries_are_multiplied_by_warpgroups() -> None:
    case = Case((100,), queries=70, heads=(2, 1), page=32, pages=4, dtype="f16")
    assert 'mlirc.mma = "wgmma"' in str(scheduled(case, "")) and 'mlirc.mma = "mma"' in str(
        scheduled(case, "", "sm_80")
    )


def test_heads_that_share_keys_are_rows_of_one_tile() -> None:
    grids = [(Case(LENGTHS), "(4, 2, 1)"), (Case((40,), queries=33, heads=(4, 2), page=64, pages=1), "(1, 4, 1)")]
    for case, grid in grids:
        assert f"in {grid} shared_outs" in str(scheduled(case, ""))


@pytest.mark.parametrize(
    ("heads", "dims", "keys", "batch", "dtype", "division"),
    [
        ((9, 3), 64, 1024, 1, "bf16", "cluster of 8, 4 teams, 32 keys, once"),
        ((9, 3), 64, 1536, 1, "bf16", "cluster of 8, 6 teams, 32 keys, once"),
        ((28, 4), 128, 1024, 1, "bf16", "cluster of 8, 4 teams, 32 keys, once"),
        ((32, 4), 64, 1024, 1, "f32", "cluster of 8, 8 teams, 16 keys, once"),
        ((32, 8), 128, 4096, 1, "bf16", "last of 16, 8 teams, 32 keys, once"),
        ((28, 4), 128, 32768, 1, "bf16", "launch of 32, 8 teams, 16 keys, loop"),
        ((28, 4), 128, 8192, 4, "bf16", "last of 8, 8 teams, 16 keys, loop"),
        ((28, 4), 128, 1024, 16, "bf16", "cluster of 2, 8 teams, 16 keys, loop"),
        ((32, 4), 64, 1024, 16, "bf16", "cluster of 2, 8 teams, 64 keys, once"),
        ((28, 4), 128, 1024, 32, "bf16", "None of 1, 8 teams, 16 keys, loop"),
        ((32, 8), 128, 4096, 64, "bf16", ""),  # each multiprocessor has tiles of its own
        ((9, 3), 64, 30, 1, "bf16", ""),  # one step
    ],
)
def test_defaults_are_those_that_were_measured_to_be_fastest(heads, dims, keys, batch, dtype, division) -> None:
    from mlirc.scripts._divided_keys import default_division

    a = AttentionShape(1, 1, 1, 1, keys, dims, dims, dtype, causal=True, pages=Pages(99, 64, 9))
    found = default_division(a, get_target("sm_90a"), batch * heads[1], heads[0] // heads[1], 1, None)
    said = found and f"{found.combine} of {found.parts}, {found.teams} teams, {found.block_kv} keys"
    assert (said or "") + (f", {'once' if found.once else 'loop'}" if found else "") == division


def test_keys_are_divided_where_blocks_are_few() -> None:
    """A long cache of one sequence is divided among all multiprocessors, one of many sequences is not."""
    long = dict(page=64, pages=64, heads=(8, 2), dims=(16, 16), dtype="bf16")
    found = str(scheduled(Case((9,), **long), ""))
    assert "in (1, 2, 1) shared_outs" in found and "in (8) shared_outs" in found and "mlirc.teams = 8" in found
    assert "in (160, 2, 1) shared_outs" in str(scheduled(Case((9,) * 160, **long), ""))


PARTS = """from mlirc.schedule import register
from mlirc.schedule.verbs import *

@register(matches=lambda kernel: True)
def mine(kernel, target):
    with script() as (module, function):
        result, products = decompose_attention(match(function, "mlirc.attention"), base2=False)
        forall = tile_to_blocks(result, sizes=[1, 1, 4, 0], keep=[2], order=[])
        loop, inside = online_softmax(match_contractions(forall), size=4)
        skip_hidden_steps(loop)
        partial, finish = split_softmax(loop, parts=3)
        tidy(function, partial, finish)
    return module
"""


@pytest.mark.parametrize("options", [dict(causal=True), dict(window=3, causal=True, softcap=2.0)], ids=str)
def test_any_attention_is_divided(tmp_path, options: dict) -> None:
    """The verb knows nothing of caches."""
    (tmp_path / "mine.py").write_text(PARTS)
    text = attention(batch=2, heads=(4, 2), lengths=(13, 22), dims=(8, 4), **options)
    tiles, _ = Schedules([str(tmp_path / "mine.py")]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    with mlir.context():
        given = payload_inputs(mlir.parse(text), 0)
    wanted = run_module(mlir.parse(text), given, "attention_0")
    assert_close(run_module(tiles, given, "attention_0"), wanted, 3e-6)


@pytest.mark.parametrize(
    ("verbs", "says"),
    [
        ('split_softmax(loop, parts=2, through="warp")', 'through "warp": choose "memory", "cluster" or "block"'),
        ('split_softmax(loop, parts=3, through="cluster")', "parts 3: a cluster has 2, 4 or 8 blocks"),
        ('split_softmax(loop, parts=1, through="block")', "parts 1: divide a loop into 2 or more"),
        ('split_softmax(loop, parts=2, through="block"); split_softmax(loop, parts=2)', "or is split already"),
        (
            'split_softmax(loop, parts=2, through="block"); split_softmax(loop, parts=2, through="block")',
            "split already",
        ),
    ],
)
def test_divisions_that_there_are_not_are_refused(tmp_path, verbs: str, says: str) -> None:
    script = PARTS.replace("partial, finish = split_softmax(loop, parts=3)", verbs)
    (tmp_path / "mine.py").write_text(script.replace("tidy(function, partial, finish)", "tidy(function)"))
    text = attention(lengths=(13, 22), dims=(8, 4), causal=True)
    with pytest.raises(MlircError) as error:
        Schedules([str(tmp_path / "mine.py")]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("knobs", "case", "says"),
    [
        ("block_kv=12", Case(), "block_kv=12: a step takes a part of a page: give a divisor of 16"),
        ("mma=mma", Case(), "mma=mma: "),
        ("mma=wgmma", Case(dims=(20, 20), dtype="bf16"), "heads of 20 and 20 elements: it takes multiples of 8"),
        ("pack=true", Case((9,), queries=3, layouts=("bshd",) * 4), "do not lie next to each other"),
        ("parts=3,combine=cluster", Case(), "combine=cluster: a cluster has 2, 4 or 8 blocks"),
        ("parts=2,combine=cluster,combine_warps=4", Case(), "all warps of its blocks combine: leave combine_warps out"),
        ("parts=1,combine=cluster", Case(), "combine: the keys have one part: give parts=2 or more"),
        ("teams=16", Case(), "teams=16: 1 to 15 of 1 warps fit a block"),
    ],
)
def test_what_does_not_fit_is_refused(knobs: str, case: Case, says: str) -> None:
    with pytest.raises(MlircError) as error:
        scheduled(case, knobs)
    assert says in str(error.value)


def test_a_page_that_the_pool_lacks_is_reported_on_the_cpu() -> None:
    case = Case((5,), pages=1, dims=(8, 8))
    given, _, _ = arguments_of(case)
    given[3][0, 0] = case.pool
    with pytest.raises(MlircError, match=f"index {case.pool} "):
        run_module(mlir.parse(payload(case)), given, "attention_0")


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_ptxas_takes_it_without_spills(target: str) -> None:
    case = Case((1000,), heads=(16, 4), page=32, pages=64, dtype="bf16")
    tiles = scheduled(case, "", target)
    with mlir.context(), ir.Location.unknown():
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, "attention_0", get_target(target))
    kernel = compile_kernel(mlir.parse(str(tiles)), get_target(target))
    report = check_ptxas(kernel.ptx, get_target(target))
    assert report.count(" 0 bytes spill stores") == 1  # one launch
