"""Products of groups with matrices that numbers choose (`schedule.read_matrices`), on the host device: by any instruction,
rows along k or not, groups without a matrix; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, function_name, run_tiles
from support.kernels.payloads import generic, inputs_of, kernel

EXPERTS = 4


def payload(groups: int, m: int, n: int, k: int, dtype: str, *, along_k: bool = True, gates: bool = False) -> str:
    """x [groups,m,k] times matrix `table`[g] of w [4,n,k] (or [4,k,n]); `gates`: times two parts of one of twice as many
    rows, multiplied."""
    inner = ("n", "k") if along_k else ("k", "n")
    sizes = {"g": groups, "m": m, "n": n, "k": k}
    rows = {"n": n * (2 if gates else 1), "k": k}
    w = f"tensor<{EXPERTS}x{'x'.join(str(rows[d]) for d in inner)}x{dtype}>"
    chosen = f"tensor<{groups}x{'x'.join(str(sizes[d]) for d in inner)}x{dtype}>"
    x, c, table = f"tensor<{groups}x{m}x{k}x{dtype}>", f"tensor<{groups}x{m}x{n}xf32>", f"tensor<{groups}xi64>"
    lines = [
        "  %zero = arith.constant 0.0 : f32", f"  %none = arith.constant 0.0 : {dtype}",
        "  %c0 = arith.constant 0 : i64", f"  %n0 = arith.constant {n} : index", f"  %ec = tensor.empty() : {c}",
        f"  %f = linalg.fill ins(%zero : f32) outs(%ec : {c}) -> {c}", f"  %ew = tensor.empty() : {chosen}",
    ]  # fmt: skip
    widen = "" if dtype == "f32" else "".join(f"%e{i} = arith.extf %x{i} : {dtype} to f32\n    " for i in (0, 1))
    a = ("%x0", "%x1") if dtype == "f32" else ("%e0", "%e1")
    multiply = f"{widen}%xy = arith.mulf {a[0]}, {a[1]} : f32\n    %y = arith.addf %o, %xy : f32"
    for i in range(2 if gates else 1):
        index = {d: f"%i{d}" for d in inner} | ({"n": "%in"} if i == 0 else {"n": "%inn"})
        body = (
            "%misses = arith.cmpi slt, %x0, %c0 : i64\n    %some = arith.maxsi %x0, %c0 : i64\n"
            f"    %e = arith.index_cast %some : i64 to index\n    %i{inner[0]} = linalg.index 1 : index\n"
            f"    %i{inner[1]} = linalg.index 2 : index\n    %inn = arith.addi %in, %n0 : index\n"
            f"    %v = tensor.extract %w[%e, {index[inner[0]]}, {index[inner[1]]}] : {w}\n"
            f"    %y = arith.select %misses, %none, %v : {dtype}"
        )
        dims = f"g, {', '.join(inner)}"
        made = generic(f"w{i}", dims, [("%table", table, "g")], ("%ew", chosen, dims), body)
        lines.append(made.replace(") {\n", ") attrs = {mlirc.gather_matrices} {\n", 1))
        operands = [("%x", x, "g, m, k"), (f"%w{i}", chosen, dims)]
        lines.append(generic(f"c{i}" if gates else "r", "g, m, n, k", operands, ("%f", c, "g, m, n"), multiply))
    if gates:
        both = [("%c0", c, "g, m, n"), ("%c1", c, "g, m, n")]
        both = [(name.replace("%c", "%p"), *rest) for name, *rest in both]
        lines = [line.replace("%c0 = linalg", "%p0 = linalg").replace("%c1 = linalg", "%p1 = linalg") for line in lines]
        lines.append(generic("r", "g, m, n", both, ("%ec", c, "g, m, n"), "%y = arith.mulf %x0, %x1 : f32"))
    return kernel("matmul_0", "matmul", {"x": x, "table": table, "w": w}, c, "\n".join(lines))


def check(text: str, knobs: str, tolerance: float):
    """Scheduled, on the host device, as through the JIT; the tiles and what made them."""
    module = mlir.parse(text)
    tiles, record = Schedules([knobs] if knobs else []).schedule_kernel(module, get_target("sm_90a"))
    with mlir.context():
        x, table, w = inputs_of(module)
    table = np.arange(len(table)) % (EXPERTS + 1) - 1  # every one, and none
    expected = run_module(module, [x, table, w], function_name(module))
    found, report = run_tiles(tiles, [x, table, w])
    assert_close(found, expected, tolerance)
    assert report.ok, "\n".join(map(str, report.findings))
    assert_close(run_module(tiles, [x, table, w], function_name(module)), expected, tolerance)
    assert not found[0][table < 0].any() and found[0][table >= 0].any(axis=(1, 2)).all()
    return str(tiles), record


@pytest.mark.parametrize(
    ("sizes", "dtype", "options", "knobs", "mma", "copy"),
    [
        ((6, 64, 72, 264), "bf16", {}, "", "wgmma", "tma"),
        ((6, 64, 72, 264), "bf16", dict(along_k=False, gates=True), "", "wgmma", "tma"),
        ((7, 16, 136, 264), "bf16", {}, "", "mma", "tma"),
        ((6, 16, 40, 72), "f16", dict(gates=True), "matmul:block_k=16,stages=3", "mma", "cp_async"),
        ((6, 8, 37, 41), "bf16", dict(along_k=False), "", "mma", "cp_async"),  # rows that no copy of 16 bytes reads
        ((6, 16, 72, 264), "bf16", dict(gates=True), "matmul:swap_operands=true", "wgmma", "tma"),
        ((6, 32, 40, 264), "f32", {}, "", None, None),
        ((6, 7, 13, 33), "f32", dict(gates=True), "", "fma", "cp_async"),
        ((5, 64, 3, 40), "f32", {}, "matmul:mma=fma", "fma", "cp_async"),  # more groups than columns
    ],
)
def test_groups_with_chosen_matrices(sizes, dtype, options, knobs, mma, copy):
    text, record = check(payload(*sizes, dtype, **options), knobs, 1e-5 if dtype == "f32" else 2e-2)
    assert "gather_matrices" not in text and "tensor.extract %arg1" in text
    assert mma is None or (record.knobs["mma"], record.knobs["copy"]) == (mma, copy)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [("parts=2", "chosen matrices are not divided"), ("stream=1", "chosen matrices are not divided")],
)
def test_refusals(knobs, message):
    with pytest.raises(MlircError, match=message):
        check(payload(6, 64, 72, 264, "bf16"), f"matmul:{knobs}", 2e-2)


def test_blocks_go_on_with_the_next_group():
    """Rings run on over blocks of which some have nothing to copy."""
    check(payload(6, 64, 72, 264, "bf16"), "matmul:blocks=3,copy=tma", 2e-2)


@pytest.mark.parametrize(("groups", "m", "n", "k"), [(8, 8, 1024, 1792), (8, 8, 40, 4096), (3, 33, 24, 1024)])
def test_no_tile_of_its_own_divides_k(groups, m, n, k):
    """Of Mixtral's experts in f32: tiles that divide K where matrices are not chosen."""
    _, record = Schedules([]).schedule_kernel(mlir.parse(payload(groups, m, n, k, "f32")), get_target("sm_90a"))
    assert record.knobs["parts"] == 1 and (record.knobs["copy"] != "tma" or record.knobs["stages"] > 1)
