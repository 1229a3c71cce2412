"""`mlirc-distribute`: what a schedule makes at the `gpu` level gives the right numbers on the host device, without
races, accesses out of bounds or reads of memory that nobody wrote."""

from __future__ import annotations

import pytest

from support.kernels.check import check_schedule, check_tiles
from support.kernels.payloads import attention, generic, kernel, matmul, norm, row_reduction

# -- elementwise


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i1"])
@pytest.mark.parametrize("shape", [(5, 33), (3, 64)], ids=str)
def test_elementwise_types(dtype, shape):
    a, b = shape
    x = f"tensor<{a}x{b}x{dtype}>"
    add = (
        "%y = arith.xori %x0, %x1 : i1"
        if dtype == "i1"
        else f"%y = arith.add{'i' if dtype[0] == 'i' else 'f'} %x0, %x1 : {dtype}"
    )
    body = f"  %e = tensor.empty() : {x}\n" + generic(
        "r", "a, b", [("%x", x, "a, b"), ("%z", x, "a, b")], ("%e", x, "a, b"), add
    )
    check_schedule(kernel("elementwise_0", "elementwise", {"x": x, "z": x}, x, body), (), 0)


@pytest.mark.parametrize("warps, vector", [(1, 1), (2, 4), (8, 8)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 130), (2, 31, 32)], ids=str)
def test_transposed_and_broadcast_operands(shape, warps, vector):
    a, b, c = shape
    x, z, w, y = f"tensor<{a}x{c}x{b}xbf16>", f"tensor<{b}x1xf32>", f"tensor<{a}xi1>", f"tensor<{a}x{b}x{c}xf32>"
    yields = (
        "%f = arith.extf %x0 : bf16 to f32\n    %s = arith.addf %f, %x1 : f32\n    %y = arith.select %x2, %s, %f : f32"
    )
    ins = [("%x", x, "a, c, b"), ("%z", z, "b, 0"), ("%w", w, "a")]
    body = f"  %e = tensor.empty() : {y}\n" + generic("r", "a, b, c", ins, ("%e", y, "a, b, c"), yields)
    text = kernel("elementwise_0", "elementwise", {"x": x, "z": z, "w": w}, y, body)
    check_schedule(text, (f"elementwise:warps={warps},vector={min(vector, c & -c)}",), 0)


def test_two_results_of_different_types():
    x, y, z = "tensor<9x70xf32>", "tensor<9x70xi1>", "tensor<9x70xf16>"
    body = (
        "  %zero = arith.constant 0.0 : f32\n"
        f"  %ey = tensor.empty() : {y}\n  %ez = tensor.empty() : {z}\n"
        + generic("r", "a, b", [("%x", x, "a, b")], ("%ey", y, "a, b"), "%y = arith.cmpf ogt, %x0, %zero : f32")
        + "\n"
        + generic("r1", "a, b", [("%x", x, "a, b")], ("%ez", z, "a, b"), "%y = arith.truncf %x0 : f32 to f16")
    )
    check_schedule(kernel("elementwise_0", "elementwise", {"x": x}, f"{y}, {z}", body), (), 0)


# -- reductions


@pytest.mark.parametrize("columns", [1, 7, 33, 1000])
@pytest.mark.parametrize("warps", [1, 2, 8, 32])
def test_row_sums(columns, warps):
    check_schedule(row_reduction(5, columns, "f32", "0.0", "addf"), (f"reduction:warps={warps}",))


@pytest.mark.parametrize("warps, rows", [(3, 1), (5, 2), (7, 2), (31, 4)])
def test_warps_that_are_left_over_write_nothing(warps, rows):
    check_schedule(row_reduction(5, 101, "f32", "0.0", "addf"), (f"reduction:warps={warps},rows={rows}",))


@pytest.mark.parametrize(
    "dtype, start, combine",
    [
        ("f64", "1.0", "mulf"), ("f32", "0xFF800000", "maximumf"), ("bf16", "0x7F80", "minnumf"),
        ("f16", "0xFC00", "maxnumf"), ("i64", "7", "addi"), ("i32", "-1", "andi"), ("i32", "100", "minsi"),
        ("i64", "0", "maxui"), ("i1", "false", "ori"), ("i1", "true", "andi"),
    ],
)  # fmt: skip
def test_reductions_of_every_kind(dtype, start, combine):
    check_schedule(row_reduction(6, 77, dtype, start, combine), ("reduction:warps=4",))


@pytest.mark.parametrize("rows, length, warps", [(1, 33, 1), (7, 384, 4), (3, 4096, 16), (131, 8, 2)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_norms(rows, length, warps, dtype):
    check_schedule(norm(rows, length, dtype), (f"reduction:warps={warps}",), 1e-5 if dtype == "f32" else 1e-2)


# -- products

SMALL = "matmul:block_m=32,block_n=32,block_k=16"


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 65, 33), (31, 33, 16), (33, 47, 70), (32, 64, 48)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_matmul_shapes(m, n, k, dtype):
    check_schedule(matmul(m, n, k, dtype), (SMALL,), 1e-5 if dtype == "f32" else 1e-2)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype, k", [("bf16", 72), ("f32", 36)])
def test_matmul_stages(stages, dtype, k):
    check_schedule(matmul(33, 40, k, dtype), (f"{SMALL},stages={stages}",), 1e-5 if dtype == "f32" else 1e-2)


def test_matmul_of_rows_that_no_copy_is_aligned_to():
    check_schedule(matmul(33, 40, 71, "f16"), (SMALL,), 1e-2)


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (4, 1), (2, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_matmul_warp_grids(grid, dtype):
    knobs = f"matmul:block_m=64,block_n=64,block_k=32,warps_m={grid[0]},warps_n={grid[1]}"
    check_schedule(matmul(65, 72, 64, dtype), (knobs,), 1e-5 if dtype == "f32" else 1e-2)


@pytest.mark.parametrize(
    "options",
    [
        dict(batch=3), dict(transposed=False), dict(batch=2, transposed=False, dtype="bf16"), dict(prologue=True),
        dict(prologue=True, dtype="bf16"), dict(gates=True, dtype="bf16"), dict(gates=True, prologue=True),
        dict(epilogue=False, dtype="f16"), dict(dtype="f64"), dict(dtype="i64", epilogue=False), dict(dtype="i32"),
        dict(transposed=False, dtype="bf16", n=64, k=64),
    ],
    ids=str,
)  # fmt: skip
def test_matmul_variants(options):
    options = {"m": 17, "n": 33, "k": 35} | options
    check_schedule(matmul(**options), (SMALL,), 1e-2 if options.get("dtype") in ("f16", "bf16") else 1e-5)


@pytest.mark.parametrize("n, k", [(1, 1), (3, 5), (16, 16), (33, 20)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_product_of_a_matrix_with_itself(n, k, dtype):
    x, y = f"tensor<{n}x{k}x{dtype}>", f"tensor<{n}x{n}xf32>"
    widen = "" if dtype == "f32" else "".join(f"%e{i} = arith.extf %x{i} : {dtype} to f32\n    " for i in (0, 1))
    a, b = ("%x0", "%x1") if dtype == "f32" else ("%e0", "%e1")
    mac = f"{widen}%p = arith.mulf {a}, {b} : f32\n    %y = arith.addf %o, %p : f32"
    body = (
        f"  %zero = arith.constant 0.0 : f32\n  %e = tensor.empty() : {y}\n"
        f"  %f = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}\n"
        + generic("r", "m, n, k", [("%x", x, "m, k"), ("%x", x, "n, k")], ("%f", y, "m, n"), mac)
    )
    check_schedule(kernel("matmul_0", "matmul", {"x": x}, y, body), (), 1e-5 if dtype == "f32" else 1e-2)


# -- attention


@pytest.mark.parametrize("lengths", [(1, 1), (1, 19), (16, 8), (33, 33), (5, 37), (37, 5)], ids=str)
@pytest.mark.parametrize("dtype, causal", [("f32", True), ("bf16", True), ("bf16", False)])
def test_attention_lengths(lengths, dtype, causal):
    text = attention(lengths=lengths, dims=(16, 16), dtype=dtype, causal=causal)
    check_schedule(text, ("attention:block_q=16,block_kv=16",), 1e-5 if dtype == "f32" else 2e-2)


@pytest.mark.parametrize(
    "options",
    [
        dict(batch=2, heads=(4, 2), dims=(16, 5), layouts=("bshd", "bhds", "bhsd", "bshd"), causal=True),
        dict(causal=True, window=9, dtype="bf16"), dict(window=9), dict(softcap=2.0, dims=(64, 64), dtype="bf16"),
        dict(mask="tensor<1x1x1x35xi1>"), dict(mask="tensor<2x2x40x35xi1>", batch=2, dtype="f16"),
        dict(mask="tensor<2x1x40x1xf32>", batch=2), dict(mask="tensor<1x1x40x35xf32>", causal=True, softcap=3.0),
    ],
    ids=str,
)  # fmt: skip
def test_attention_variants(options):
    check_schedule(
        attention(lengths=(40, 35), **options),
        ("attention:block_q=16,block_kv=8" if "dtype" not in options else "attention:block_q=32,block_kv=16",),
        2e-2 if "dtype" in options else 1e-5,
    )


@pytest.mark.parametrize("warps", [1, 2, 4])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_attention_knobs(warps, stages):
    knobs = f"attention:block_q=64,block_kv=32,warps={warps},stages={stages}"
    check_schedule(attention(lengths=(70, 100), dims=(32, 32), dtype="bf16", causal=True), (knobs,), 2e-2)


def test_attention_with_the_schedules_own_knobs():
    check_schedule(attention(lengths=(130, 130), dims=(64, 64), dtype="bf16", causal=True), (), 2e-2)


@pytest.mark.parametrize("keys", [16, 48])
@pytest.mark.parametrize("lengths, window", [((33, 33), 9), ((40, 23), 0)])
def test_attention_whose_first_rows_see_keys_before_the_first(lengths, window, keys):
    """A window that begins before the first key, and more queries than keys: steps are not counted from below 0."""
    text = attention(lengths=lengths, dims=(16, 16), window=window, causal=True)
    check_schedule(text, (f"attention:block_q=16,block_kv={keys}",), 1e-5)


# -- tile programs as a script may make them


def test_a_second_launch_reads_the_first_ones_result():
    check_tiles("""
func.func @k(%x: tensor<64x40xf32>) -> tensor<40x64xf32> attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %e = tensor.empty() : tensor<64x40xf32>
  %a = scf.forall (%i) in (4) shared_outs(%o = %e) -> (tensor<64x40xf32>) {
    %r = affine.apply affine_map<(d0) -> (d0 * 16)>(%i)
    %t = tensor.extract_slice %x[%r, 0] [16, 40] [1, 1] : tensor<64x40xf32> to tensor<16x40xf32>
    %n = tensor.empty() : tensor<16x40xf32>
    %d = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a, b)>],
        iterator_types = ["parallel", "parallel"]} ins(%t : tensor<16x40xf32>) outs(%n : tensor<16x40xf32>) {
    ^bb0(%u: f32, %v: f32):
      %s = arith.mulf %u, %u : f32
      linalg.yield %s : f32
    } -> tensor<16x40xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%r, 0] [16, 40] [1, 1] : tensor<16x40xf32> into tensor<64x40xf32>
    }
  } {mapping = [#gpu.block<x>]}
  %e2 = tensor.empty() : tensor<40x64xf32>
  %b = scf.forall (%i) in (5) shared_outs(%o = %e2) -> (tensor<40x64xf32>) {
    %r = affine.apply affine_map<(d0) -> (d0 * 8)>(%i)
    %t = tensor.extract_slice %a[0, %r] [64, 8] [1, 1] : tensor<64x40xf32> to tensor<64x8xf32>
    %n = tensor.empty() : tensor<8x64xf32>
    %d = linalg.generic {indexing_maps = [affine_map<(a, b) -> (b, a)>, affine_map<(a, b) -> (a, b)>],
        iterator_types = ["parallel", "parallel"]} ins(%t : tensor<64x8xf32>) outs(%n : tensor<8x64xf32>) {
    ^bb0(%u: f32, %v: f32):
      %s = arith.negf %u : f32
      linalg.yield %s : f32
    } -> tensor<8x64xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%r, 0] [8, 64] [1, 1] : tensor<8x64xf32> into tensor<40x64xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %b : tensor<40x64xf32>
}""", 0)  # fmt: skip
