"""Every script keeps a kernel's meaning: `tiles` equals `kernels` on the CPU, at odd shapes."""

from __future__ import annotations

import pytest

from support.kernels.payloads import assert_same, attention, generic, kernel, matmul, norm

SMALL = ("matmul:block_m=16,block_n=32,block_k=16",)


ONE_ROW = ("matmul_0=matmul", "matmul_0:block_m=16,block_n=32,block_k=16")


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 65, 33), (7, 31, 16), (16, 32, 48), (17, 33, 15), (33, 47, 70)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_matmul_with_bias_and_residual(m, n, k, dtype):
    text, record = assert_same(matmul(m, n, k, dtype), ONE_ROW if m == 1 else SMALL, 1e-5 if dtype == "f32" else 1e-2)
    assert record.script == "matmul" and text.count("scf.for ") == 1
    assert f'mlirc.mma = "{"mma" if dtype == "bf16" else "fma"}"' in text


@pytest.mark.parametrize(
    "options",
    [
        dict(batch=3), dict(transposed=False), dict(batch=2, transposed=False), dict(prologue=True), dict(gates=True),
        dict(epilogue=False), dict(gates=True, prologue=True), dict(dtype="f16"), dict(dtype="f64"),
        dict(dtype="i64", epilogue=False), dict(dtype="i32"),
    ],
    ids=str,
)  # fmt: skip
def test_matmul_variants(options):
    options = {"m": 17, "n": 33, "k": 35} | options
    _, record = assert_same(matmul(**options), SMALL, 1e-2 if options.get("dtype") == "f16" else 1e-5)
    assert record.script == "matmul"


def test_matmul_without_knobs():
    assert_same(matmul(33, 65, 130, "bf16"), (), 1e-2)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 65, 33), (1, 7, 2056), (37, 1, 72), (1, 300, 8)])
@pytest.mark.parametrize("options", [{}, dict(gates=True), dict(prologue=True), dict(batch=3, dtype="bf16")], ids=str)
def test_a_product_with_one_row_or_column_is_a_reduction_of_the_matrix(m, n, k, options):
    text, record = assert_same(matmul(m=m, n=n, k=k, **options), (), 1e-2 if "dtype" in options else 1e-5)
    assert record.script == "matvec" and "scf.for " not in text


def test_one_row_times_a_matrix_whose_rows_are_not_summed_is_a_matmul():
    _, record = assert_same(matmul(1, 65, 33, transposed=False), ())
    assert record.script == "matmul"


def test_a_matrix_vector_product_is_a_row_reduction():
    x, w, y = "tensor<33xf32>", "tensor<65x33xf32>", "tensor<65xf32>"
    mac = "%p = arith.mulf %x0, %x1 : f32\n    %y = arith.addf %o, %p : f32"
    body = (
        f"  %zero = arith.constant 0.0 : f32\n  %e = tensor.empty() : {y}\n"
        f"  %f = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}\n"
        + generic("r", "n, k", [("%w", w, "n, k"), ("%x", x, "k")], ("%f", y, "n"), mac)
    )
    _, record = assert_same(kernel("matmul_0", "matmul", {"x": x, "w": w}, y, body))
    assert record.script == "matvec"


@pytest.mark.parametrize("rows, length", [(1, 33), (7, 384), (5, 1), (2, 1025), (4, 4096), (131, 8)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_norm_with_two_results(rows, length, dtype):
    assert_same(norm(rows, length, dtype), (), 1e-5 if dtype == "f32" else 1e-2)


def test_norm_with_several_rows_per_block():
    text, _ = assert_same(norm(131, 8, lead=3), ("reduction:rows=8",))
    assert "affine.min" in text


def test_reductions_of_rows_that_are_gathered_and_tied_by_nothing():
    table, x, r, y = "tensor<9x40xf32>", "tensor<1x40xf32>", "tensor<1xf32>", "tensor<1x40xf32>"
    read = (
        "%i = arith.constant 3 : index\n    %j = linalg.index 1 : index\n"
        f"    %t = tensor.extract %table[%i, %j] : {table}\n    "
    )
    lines = [
        f"  %zero = arith.constant 0.0 : f32\n  %ex = tensor.empty() : {x}\n  %er = tensor.empty() : {r}",
        f"  %f = linalg.fill ins(%zero : f32) outs(%er : {r}) -> {r}",
        generic("a", "m, k", [], ("%ex", x, "m, k"), f"{read}%y = math.exp %t : f32"),
        generic("s", "m, k", [("%a", x, "m, k")], ("%f", r, "m"), "%y = arith.addf %x0, %o : f32"),
        generic("r", "m, k", [("%s", r, "m")], ("%ex", x, "m, k"), f"{read}%y = arith.divf %t, %x0 : f32"),
    ]
    text, record = assert_same(kernel("reduction_0", "reduction", {"table": table}, y, "\n".join(lines)))
    assert record.script == "reduction" and "in (1)" in text


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 4097), (3, 1, 5), (2, 128, 64), (7, 129, 3), (2, 0, 4), (1, 1, 513)], ids=str
)
def test_elementwise_with_broadcasts_and_indices(shape):
    a, b, c = shape
    x, bias, column = f"tensor<{a}x{b}x{c}xf32>", f"tensor<{c}xf32>", f"tensor<{a}x{b}x1xf32>"
    yields = (
        "%i = linalg.index 1 : index\n    %j = arith.index_cast %i : index to i32\n"
        "    %f = arith.sitofp %j : i32 to f32\n"
        "    %s = arith.addf %x0, %x1 : f32\n    %t = arith.mulf %s, %x2 : f32\n    %y = arith.addf %t, %f : f32"
    )
    ins = [("%x", x, "a, b, c"), ("%bias", bias, "c"), ("%column", column, "a, b, 0")]
    body = f"  %e = tensor.empty() : {x}\n" + generic("r", "a, b, c", ins, ("%e", x, "a, b, c"), yields)
    text, record = assert_same(
        kernel("elementwise_0", "elementwise", {"x": x, "bias": bias, "column": column}, x, body)
    )
    assert record.script == ("elementwise" if a * b * c else "empty")
    assert text.count("scf.forall (") == (1 if a * b * c else 0)


@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (1, 12, 33, 64), (2, 12, 33, 1), (1, 1, 1, 1), (40, 3, 70, 2)], ids=str
)
def test_transposes(shape):
    a, b, c, d = shape
    x, y = f"tensor<{a}x{c}x{b}x{d}xbf16>", f"tensor<{a}x{b}x{c}x{d}xbf16>"
    yields = "%y = arith.negf %x0 : bf16"
    body = f"  %e = tensor.empty() : {y}\n"
    body += generic("r", "a, b, c, d", [("%x", x, "a, c, b, d")], ("%e", y, "a, b, c, d"), yields)
    assert_same(kernel("elementwise_0", "elementwise", {"x": x}, y, body))


@pytest.mark.parametrize("rows, width", [(7, 2048), (1, 33), (513, 5)])
def test_gather(rows, width):
    table, ids, y = f"tensor<4x{width}xbf16>", f"tensor<1x{rows}xi64>", f"tensor<1x{rows}x{width}xbf16>"
    yields = (
        "%i = arith.index_cast %x0 : i64 to index\n    %j = linalg.index 2 : index\n"
        f"    %y = tensor.extract %table[%i, %j] : {table}"
    )
    body = f"  %e = tensor.empty() : {y}\n" + generic(
        "r", "a, b, c", [("%ids", ids, "a, b")], ("%e", y, "a, b, c"), yields
    )
    assert_same(kernel("gather_0", "gather", {"table": table, "ids": ids}, y, body), (), 0)


TILES = ("attention:block_q=16,block_kv=8",)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 19), (7, 7), (16, 8), (33, 33), (5, 37), (37, 5)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_lengths(lengths, causal):
    assert_same(attention(lengths=lengths, causal=causal), TILES)


@pytest.mark.parametrize(
    "options",
    [
        dict(batch=2, heads=(4, 2), dims=(16, 5), layouts=("bshd", "bhds", "bhsd", "bshd"), causal=True),
        dict(causal=True, window=9), dict(window=9), dict(window=1, causal=True), dict(softcap=2.0), dict(scale=-0.5),
        dict(mask="tensor<1x1x1x35xi1>"), dict(mask="tensor<2x2x40x35xi1>", batch=2),
        dict(mask="tensor<2x1x40x1xf32>", batch=2), dict(mask="tensor<1x2x1x1xbf16>"),
        dict(mask="tensor<1x1x40x35xf32>", causal=True, softcap=3.0),
    ],
    ids=str,
)  # fmt: skip
def test_attention_variants(options):
    assert_same(attention(lengths=(40, 35), **options), TILES)


def test_attention_in_one_loop_equals_the_split_one():
    text, _ = assert_same(attention(lengths=(33, 33), causal=True), ("attention:block_q=16,block_kv=8,split=false",))
    assert text.count("scf.for ") == 1


def test_attention_bf16():
    text, _ = assert_same(attention(lengths=(40, 70), dtype="bf16", causal=True), TILES, 2e-2)
    assert 'mlirc.mma = "mma"' in text and text.count("scf.for ") == 2


def test_a_kernel_that_only_fills_its_result():
    y = "tensor<2x3xf32>"
    text = (
        f'func.func private @elementwise_0() -> {y} attributes {{mlirc.kernel, mlirc.kind = "elementwise"}} {{\n'
        f"  %one = arith.constant 1.0 : f32\n  %e = tensor.empty() : {y}\n"
        f"  %f = linalg.fill ins(%one : f32) outs(%e : {y}) -> {y}\n  return %f : {y}\n}}\n"
    )
    _, record = assert_same(text)
    assert record.script == "generic"
