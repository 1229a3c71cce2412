"""Constants in addresses end as the offsets of PTX's accesses."""

from __future__ import annotations

import re

import pytest

from mlirc import mlir
from mlirc.backend.addresses import constants_as_offsets
from mlirc.driver.compilation import Compilation
from mlirc.mlir import ir
from mlirc.targets import get_target
from support.models.together import randn


def split(body: str, pointer: str = "!llvm.ptr<1>") -> str:
    """A function of %p and the numbers %i, %j, after the change."""
    text = f"llvm.func @f(%p: {pointer}, %i: i32, %j: i32) -> {pointer} {{\n{body}\n}}"
    module = mlir.parse(text)
    with module.context, ir.Location.unknown():
        constants_as_offsets(module.body.operations[0].operation)
    module.operation.verify()
    return str(module)


INDEX = "%q = llvm.getelementptr %p[{}] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32\nllvm.return %q : !llvm.ptr<1>"
NUMBERS = "%c3 = llvm.mlir.constant(3 : i32) : i32\n%c8 = llvm.mlir.constant(8 : i32) : i32\n%m = llvm.mlir.constant(-1 : i32) : i32\n"


@pytest.mark.parametrize(
    ("arithmetic", "offset"),
    [
        ("%a = llvm.add %i, %c3 : i32", 3),
        ("%a = llvm.add %c3, %i : i32", 3),
        ("%b = llvm.add %i, %m : i32\n%a = llvm.mul %b, %c8 : i32", -8),
        ("%b = llvm.add %i, %c3 : i32\n%d = llvm.mul %c8, %b : i32\n%a = llvm.add %d, %j : i32", 24),
        ("%b = llvm.add %i, %c3 : i32\n%d = llvm.add %j, %c8 : i32\n%a = llvm.add %b, %d : i32", 11),
    ],
)
def test_a_constant_has_a_getelementptr_of_its_own(arithmetic, offset):
    text = split(NUMBERS + arithmetic + "\n" + INDEX.format("%a"))
    assert re.search(rf"llvm.getelementptr %\w+\[{offset}\] : \(!llvm.ptr<1>\) -> !llvm.ptr<1>, f32", text), text


@pytest.mark.parametrize(
    "arithmetic",
    [
        "%a = llvm.add %i, %j : i32",
        "%b = llvm.add %i, %c3 : i32\n%a = llvm.mul %b, %j : i32",  # 3 j is no constant
        "%b = llvm.add %i, %m : i32\n%a = llvm.add %b, %c1 : i32",
        "%b = llvm.add %i, %c3 : i32\n%a = llvm.udiv %b, %c8 : i32",
        "%b = llvm.add %i, %c3 : i32\n%a = llvm.xor %b, %c8 : i32",
    ],
)
def test_what_is_no_sum_with_a_constant_stays(arithmetic):
    body = NUMBERS + "%c1 = llvm.mlir.constant(1 : i32) : i32\n" + arithmetic + "\n" + INDEX.format("%a")
    assert split(body).count("llvm.getelementptr") == 1


@pytest.mark.parametrize(("constant", "count"), [(3_000_000_000, 1), (-(1 << 31), 1), (1 << 27, 1), ((1 << 27) - 1, 2)])
def test_a_constant_beyond_the_reach_of_an_offset_stays(constant, count):
    body = f"""%c = llvm.mlir.constant({constant} : i64) : i64
    %w = llvm.sext %i : i32 to i64
    %a = llvm.add %w, %c : i64
    %q = llvm.getelementptr %p[%a] : (!llvm.ptr<1>, i64) -> !llvm.ptr<1>, f32
    llvm.return %q : !llvm.ptr<1>"""
    assert split(body).count("llvm.getelementptr") == count


def test_copies_have_their_constants_in_the_instruction():
    body = """%c = llvm.mlir.constant(64 : i32) : i32
    %a = llvm.add %i, %c : i32
    %from = llvm.getelementptr %p[%a] : (!llvm.ptr, i32) -> !llvm.ptr, bf16
    %g = llvm.addrspacecast %from : !llvm.ptr to !llvm.ptr<1>
    %s = llvm.mlir.zero : !llvm.ptr<3>
    %to = llvm.getelementptr %s[%a] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i8
    nvvm.cp.async.shared.global %to, %g, 16, cache = cg, %j : !llvm.ptr<3>, !llvm.ptr<1>, i32
    nvvm.cp.async.shared.global %to, %g, 8, cache = ca : !llvm.ptr<3>, !llvm.ptr<1>
    llvm.return %p : !llvm.ptr"""
    text = split(body, "!llvm.ptr")
    assert '"cp.async.cg.shared.global [$0+64], [$1+128], 16, $2;", "r,l,rn,~{memory}"' in text
    assert '"cp.async.ca.shared.global [$0+64], [$1+128], 8;", "r,l,~{memory}"' in text


def test_a_threads_copies_share_their_address():
    """64 x 64 FP32 slices by 128 threads: eight copies of 16 bytes each, two rows of a panel apart, or more."""
    import torch

    job = Compilation("mm", get_target("sm_80"))
    job.import_module(torch.nn.Linear(256, 256, bias=False), (randn(512, 256),), {})
    job.lower("ptx")
    copies = re.findall(r"cp\.async\.cg\.shared\.global \[%r\d+[+\d]*\], \[(%rd\d+)[+\d]*\], 16", job.ptx)
    assert len(copies) >= 16
    assert len(set(copies)) <= len(copies) // 3
