"""Kernels of the `models` suite that ptxas spilled registers of, before their schedules said how many blocks there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import support
from mlirc.backend.ptx import check_ptxas
from mlirc.bench.ptxas import entries
from mlirc.driver.compilation import Compilation
from mlirc.scripts._registers import REGISTERS, ROOM, roomy_blocks
from mlirc.targets import get_target

KERNELS = Path(support.__file__).parent / "kernels" / "spilling"
SPILLED = [
    ("few_rows", "sm_90a"), ("few_rows", "sm_120"), ("fma", "sm_80"), ("tf32x3", "sm_100a"), ("gated_small", "sm_100a"),
    ("gated_large", "sm_100a"), ("layer_norm", "sm_86"), ("attention_long", "sm_80"), ("attention_biased", "sm_80"),
    ("attention_causal", "sm_100a"), ("split_rows", "sm_90a"),
]  # fmt: skip


def compiled(name: str, target: str, *schedules: str) -> Compilation:
    job = Compilation(name, get_target(target), schedules, helpers=0)
    job.read_levels(KERNELS / f"{name}.mlir")
    job.lower("ptx")
    return job


@pytest.mark.parametrize(("name", "target"), SPILLED)
def test_nothing_spills(name, target):
    job = compiled(name, target)
    found = entries(check_ptxas(job.ptx, job.target))
    assert found and all(numbers["registers"] and not numbers["spill_bytes"] for numbers in found.values()), found


def test_ptxas_spills_what_a_schedule_leaves_to_it():
    """The numbers that the tests above read are there: with sixteen blocks asked for, this kernel cannot but spill."""
    job = compiled("layer_norm", "sm_86", "reduction:min_blocks=12")
    assert sum(numbers["spill_bytes"] for numbers in entries(check_ptxas(job.ptx, job.target)).values())


@pytest.mark.parametrize(("name", "target", "knob", "blocks"), [
    ("few_rows", "sm_90a", "", 6), ("few_rows", "sm_80", "", None), ("tf32x3", "sm_100a", "", 1),
    ("tf32x3", "sm_100a", "matmul:min_blocks=2", 2), ("few_rows", "sm_120", "", 3), ("few_rows", "sm_90a", "matmul:min_blocks=2", 2),
])  # fmt: skip
def test_blocks_are_said_where_ptxas_spills_and_as_many_as_fit(name, target, knob, blocks):
    """Of 30 KiB six blocks that leave a thread its registers, on sm_120 the three that fit; a knob has the last word."""
    said = re.search(r"\.minnctapersm (\d+)", compiled(name, target, *[knob] * bool(knob)).ptx)
    assert (int(said[1]) if said else None) == blocks


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256, 512, 1024])
def test_roomy_blocks_leave_a_thread_its_room(threads):
    blocks = roomy_blocks(threads)
    assert blocks >= 1 and (blocks == 1 or REGISTERS // (blocks * threads) >= ROOM)
    assert REGISTERS // ((blocks + 1) * threads) < ROOM
