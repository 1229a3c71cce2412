"""Products computed as their transposes (`schedule.swap_operands`), on the host device: by any instruction, with slices that
run along k or not, K divided, epilogues; and what is refused."""

from __future__ import annotations

import pytest

from mlirc.errors import MlircError
from support.kernels.check import check_schedule
from support.kernels.own_script import REDUCE, error, source
from support.kernels.payloads import matmul

KNOB = "matmul:swap_operands=true"


@pytest.mark.parametrize(
    ("shape", "options", "knobs"),
    [
        ((16, 128, 528), {}, ""),
        ((2, 72, 520), {}, ""),
        ((13, 200, 1032), {}, "stages=16,parts=2"),
        ((5, 200, 520), dict(transposed=False), "parts=4,block_n=128"),
        ((16, 136, 392), dict(transposed=False), ""),
        ((3, 72, 3080), {}, "parts=3,through=memory"),
        ((40, 72, 520), dict(gates=True), ""),
        ((16, 72, 520), dict(batch=2), ""),
        ((16, 1000, 264), dict(epilogue=False), "blocks=3"),
        ((37, 200, 264), dict(epilogue=False), "block_m=16,block_n=128,cluster_size=1"),
        ((64, 136, 264), {}, "block_m=32,cluster_size=2"),
        ((60, 72, 1000), {}, "store=vector"),
    ],
)
def test_weights_are_the_warpgroups_rows(shape, options, knobs):
    text, record = check_schedule(matmul(*shape, "bf16", **options), (f"{KNOB},{knobs}".rstrip(","),), 2e-2)
    assert record.knobs["mma"] == "wgmma" and record.knobs["block_m"] <= 64 and record.knobs["warps_m"] == 1
    rows = "store=vector" in knobs or 'mlirc.store = "rows"' in text
    assert (
        rows and 'mlirc.copy = "tma"' in text and f"mlirc.warp_grid = array<i64: {record.knobs['warps_n']}, 1>" in text
    )


@pytest.mark.parametrize(
    ("columns", "options", "swapped"),
    [(4296, {}, True), (4296, dict(transposed=False), True), (4160, {}, False)],
)
def test_few_rows_of_many_columns_are_the_warpgroups_columns_by_themselves(columns, options, swapped):
    """Tiles of 64 columns that are more than half of the 132 multiprocessors, two blocks on each of which have room."""
    _, record = check_schedule(matmul(7, columns, 264, "bf16", **options), (), 2e-2)
    assert (record.knobs.get("swap_operands"), record.knobs["mma"] == "wgmma") == (swapped or None, swapped)
    assert not swapped or (record.knobs["min_blocks"], record.knobs["block_m"]) == (2, 8)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "knobs"),
    [
        ((7, 136, 520), "bf16", {}, "mma=mma"),  # eight columns
        ((7, 136, 520), "f16", dict(transposed=False), "mma=mma,copy=cp_async"),
        ((16, 72, 200), "bf16", dict(prologue=True), "mma=mma"),
        ((16, 72, 200), "bf16", dict(prologue=True), ""),  # by warpgroups, its results stored in shared memory
        ((7, 72, 136), "f32", {}, ""),
        ((7, 72, 136), "f32", {}, "mma=tf32x3,copy=cp_async"),
        ((2, 3, 5), "f32", {}, "mma=fma"),
        ((17, 19, 23), "f32", dict(left=True), "mma=fma"),
    ],
)
def test_other_instructions(shape, dtype, options, knobs):
    check_schedule(matmul(*shape, dtype, **options), (f"{KNOB},{knobs}".rstrip(","),), 2e-2 if dtype != "f32" else 1e-5)


def test_refusals(write):
    with pytest.raises(MlircError, match="it chooses itself which operand comes first"):
        check_schedule(matmul(7, 72, 136), (f"{KNOB},mma=wgmma_tf32x3",))
    late = "tiled, loop = tile_reduction(match_contractions(forall), size=16); tiled = swap_operands(tiled)"
    head = "from mlirc.schedule.verbs import swap_operands\n"
    message = error(matmul(20, 24, 32), write(head + source(REDUCE, late)))
    assert "swap_operands comes before tile_reduction" in message and message.startswith("mine.py:")
