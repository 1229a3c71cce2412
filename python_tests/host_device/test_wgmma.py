"""wgmma with A in registers, as inline assembly, and products of all types that there are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc.device.tensor_maps import TensorMap
from mlirc.errors import MlircError
from support.kernels.instructions import WAIT, load, places, store
from support.randomness import generator

DTYPES = {
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
N, STEPS = 64, 2
FENCE, COMMIT = "nvvm.wgmma.fence.aligned\n", "nvvm.wgmma.commit.group.sync.aligned\n"
DONE = "nvvm.wgmma.wait.group.sync.aligned 0\n"
ASM = "llvm.inline_asm has_side_effects asm_dialect = att"
PLAIN, WITH_PREDICATE = "{wgmma}1{flags};", "{{ .reg .pred p; setp.ne.b32 p, ${last}, 0; {wgmma}p{flags}; }}"


def copied(nbytes: int) -> str:
    """B, a box of the tensor map 0, in shared memory."""
    copy = """nvvm.barrier
      scf.if %first { %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
      nvvm.cp.async.bulk.tensor.shared.cluster.global %to, %map0, %bar, box[%c0, %c0] : !llvm.ptr<7>, !llvm.ptr }"""
    return WAIT.replace("START", copy).replace("constant 512", f"constant {nbytes}").replace("[1024]", "[16384]")


def wgmma(step: int, types: tuple[str, str, str], flags: str, form: str, acc: str = "", words: int = N // 2) -> str:
    """%acc{step + 1}, from A in %a{step}_0 ... 3 and the descriptor %d{step}."""
    a, b, d = types
    k, field = 32 // np.dtype(DTYPES[a]).itemsize, {"f32": "f32", "f16": "i32", "s32": "i32"}[d]
    letter, struct = ("f" if field == "f32" else "r"), f"!llvm.struct<({', '.join([field] * words)})>"
    acc = acc or f"%acc{step}"
    text = "".join(f"%e{step}_{i} = llvm.extractvalue {acc}[{i}] : {struct}\n" for i in range(words))
    results, rest = range(words), [2 * words + i for i in range(5)]
    wgmma = (
        f"wgmma.mma_async.sync.aligned.m64n{N}k{k}.{d}.{a}.{b} {{{', '.join(f'${i}' for i in results)}}}, "
        f"{{{', '.join(f'${i}' for i in rest[:4])}}}, ${rest[4]}, "
    )
    code = form.format(wgmma=wgmma, flags=flags, last=rest[4] + 1)
    names = [f"%e{step}_{i}" for i in results] + [f"%a{step}_{i}" for i in range(4)] + [f"%d{step}"]
    kinds = [field] * words + ["i32"] * 4 + ["i64"]
    constraints = [f"={letter}"] * words + [str(i) for i in results] + ["r"] * 4 + ["l"]
    if form == WITH_PREDICATE:
        names, kinds, constraints = [*names, "%c1"], [*kinds, "i32"], [*constraints, "r"]
    return text + (
        f'%acc{step + 1} = {ASM} "{code}", "{",".join(constraints)}" {", ".join(names)} : '
        f"({', '.join(kinds)}) -> {struct}\n"
    )


def registers(step: int) -> str:
    """%a{step}_0 ... 3: four words per thread and step."""
    text = f"%s{step} = arith.constant {128 * step} : i32\n%r{step} = arith.addi %t, %s{step} : i32\n"
    for i in range(4):
        text += f"%q{step}_{i} = arith.constant {i} : i32\n%m{step}_{i} = arith.muli %r{step}, %c4 : i32\n"
        text += f"%n{step}_{i} = arith.addi %m{step}_{i}, %q{step}_{i} : i32\n"
        text += load(f"a{step}_{i}", "%p0", f"%n{step}_{i}")
    return text


def product(types: tuple[str, str, str], flags: str, form: str = PLAIN, transposed: bool = False) -> str:
    """D (as it lies in registers) = A B^T over two steps of 32 bytes of k. B [N, k] has the 64-byte swizzle, and
    transposed, as [k, N], the 128-byte one."""
    words = N // 4 if types[2] == "f16" else N // 2
    field = "f32" if types[2] == "f32" else "i32"
    struct = f"!llvm.struct<({', '.join([field] * words)})>"
    layout = (1 << 62) | ((1024 >> 4) << 32) if transposed else ((2 << 62) | ((512 >> 4) << 32) | (1 << 16)) - (1 << 64)
    text = copied(N * 64) + "".join(registers(step) for step in range(STEPS))
    text += "%base = llvm.ptrtoint %smem : !llvm.ptr<3> to i32\n%chunk = arith.shrui %base, %c4 : i32\n"
    text += f"%wide = arith.extui %chunk : i32 to i64\n%layout = arith.constant {layout} : i64\n"
    text += f"%d0 = arith.addi %wide, %layout : i64\n%two = arith.constant {128 if transposed else 2} : i64\n"
    text += "%d1 = arith.addi %d0, %two : i64\n"
    text += f"%acc0 = llvm.mlir.zero : {struct}\n" + FENCE
    text += "".join(wgmma(step, types, flags, form, words=words) for step in range(STEPS)) + COMMIT + DONE
    text += f"%words = arith.constant {words} : i32\n%line = arith.muli %t, %words : i32\n"
    for i in range(words):
        text += f"%o{i} = arith.constant {i} : i32\n%x{i} = arith.addi %line, %o{i} : i32\n"
        text += f"%y{i} = llvm.extractvalue %acc{STEPS}[{i}] : {struct}\n" + store(f"%y{i}", "%p1", f"%x{i}", field)
    return text


def operands(types: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [64, k], B [N, k], and A as it lies in registers [steps, 128, 4]."""
    item = np.dtype(DTYPES[types[0]]).itemsize
    k = 64 // item
    whole, rng = types[2] == "s32", generator()
    a, b = (
        (rng.integers(-50 if t == "s8" else 0, 100, (n, k)) if whole else rng.standard_normal((n, k)))
        .astype(np.float32).astype(DTYPES[t]) for t, n in ((types[0], 64), (types[1], N))
    )  # fmt: skip
    per = 4 // item
    cut = a.reshape(4, 2, 8, STEPS, 2, 4, per).transpose(3, 0, 2, 5, 4, 1, 6)  # step; w, g, q, column half, row half, e
    return a, b, np.ascontiguousarray(cut).reshape(-1).view(np.int32)


def run(
    body: str, types: tuple[str, str, str] = ("bf16", "bf16", "f32"), transposed: bool = False, ptx: bool = False
) -> tuple[set[tuple[str, str]], float]:
    """What was found, and the largest error relative to the largest result."""
    a, b, words = operands(types)
    d = np.zeros(128 * N // 2, {"f32": np.float32, "f16": np.float16, "s32": np.int32}[types[2]])
    out = d if d.itemsize == 4 else d.view(np.int32)
    there = TensorMap(np.ascontiguousarray(b.T), b.T.shape, 128) if transposed else TensorMap(b, b.shape, 64)
    found = places(body, words, out, there, threads=128, smem=16384 + 16, ptx=ptx)
    got = d.reshape(4, 8, 4, N // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, N)  # w, g, q, j, h, i
    if types[0] == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    return found, np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("form", [PLAIN, WITH_PREDICATE])
@pytest.mark.parametrize(
    "a, b, d, flags, tolerance",
    [("bf16", "bf16", "f32", ", 1, 1, 0", 1e-5), ("f16", "f16", "f32", ", 1, 1, 0", 1e-5),
     ("f16", "f16", "f16", ", 1, 1, 0", 2e-3), ("tf32", "tf32", "f32", ", 1, 1", 1e-5),
     ("e4m3", "e5m2", "f32", ", 1, 1", 1e-3), ("e5m2", "e5m2", "f16", ", 1, 1", 2e-3), ("s8", "s8", "s32", "", 0),
     ("u8", "s8", "s32", "", 0)],
)  # fmt: skip
def test_a_in_registers(form, a, b, d, flags, tolerance):
    found, error = run(product((a, b, d), flags, form), (a, b, d), ptx=form == WITH_PREDICATE)
    assert not found and error <= tolerance


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_b_with_its_columns_along_k(name):
    types = (name, name, "f32")
    found, error = run(product(types, ", 1, 1, 1", transposed=True), types, True, ptx=True)
    assert not found and error <= 1e-5


def test_signs():
    found, error = run(product(("bf16", "bf16", "f32"), ", -1, 1, 0"))
    assert not found and error > 1
    found, error = run(product(("bf16", "bf16", "f32"), ", -1, -1, 0"))
    assert not found and error < 1e-5


BF16 = product(("bf16", "bf16", "f32"), ", 1, 1, 0")
MISSING, ASM_OP = "missing wgmma fence", "llvm.inline_asm"


def test_registers_of_a_are_written_in_front_of_a_fence():
    assert run(BF16.replace(FENCE, ""))[0] == {(MISSING, ASM_OP)}
    late = BF16.replace(FENCE, "").replace("%s1 =", FENCE + "%s1 =")  # the second step's are loaded behind it
    assert (MISSING, ASM_OP) in run(late)[0]
    assert not run(BF16.replace("%e1_0 =", FENCE + "%e1_0 ="))[0]


def test_accumulators_are_read_behind_the_wait():
    found = run(BF16.replace(DONE, ""))[0]
    assert ("unfinished wgmma", "llvm.extractvalue") in found
    between = BF16.replace(COMMIT, "%early = llvm.extractvalue %acc1[0] : !llvm.struct<("
                           + ", ".join(["f32"] * (N // 2)) + ")>\n" + COMMIT)  # fmt: skip
    assert run(between)[0] == {("unfinished wgmma", "llvm.extractvalue")}


def test_accumulators_are_made_and_read_in_front_of_a_fence():
    zero = BF16[BF16.index("%acc0 =") :].split("\n")[0] + "\n"
    assert zero + FENCE in BF16
    behind = BF16.replace(zero + FENCE, FENCE + zero)
    assert (MISSING, ASM_OP) in run(behind)[0]
    assert not run(behind.replace("%e1_0 =", FENCE + "%e1_0 =").replace("%e0_0 =", FENCE + "%e0_0 ="))[0]
    look = "%early = llvm.extractvalue %acc1[0] : !llvm.struct<(" + ", ".join(["f32"] * (N // 2)) + ")>\n"
    between = BF16.replace("%e1_0 =", f"{COMMIT}{DONE}{look}%e1_0 =")
    assert run(between)[0] == {(MISSING, ASM_OP)}
    assert not run(between.replace(look, look + FENCE))[0]
    assert run(between.replace(look, FENCE + look))[0] == {(MISSING, ASM_OP)}
    assert not run(between.replace(look, ""))[0]


def test_registers_of_a_are_not_written_before_the_wait():
    """A loop loads A anew each turn, into the registers that the wgmma of the turn before reads until it is waited
    for."""
    start, end = BF16.index("%s0 ="), BF16.index("%words =")
    struct = f"!llvm.struct<({', '.join(['f32'] * (N // 2))})>"
    head, body = BF16[start:end].split("%acc0 = ")
    loads, rest = head.split("%s1 =")
    constants = rest[rest.index("%base") :]
    once = body.split("\n", 1)[1].split("%e1_0 =")[0]
    loop = (
        f"{constants}%zero = llvm.mlir.zero : {struct}\n"
        f"%acc2 = scf.for %i = %c0 to %c2 step %c1 iter_args(%acc0 = %zero) -> ({struct}) : i32 {{\n{loads}{once}"
        f"{COMMIT}WAIT\nscf.yield %acc1 : {struct} }}\n{DONE}"
    )
    text = BF16[:start] + loop + BF16[end:]
    assert not run(text.replace("WAIT", DONE))[0]
    assert run(text.replace("WAIT", "nvvm.wgmma.wait.group.sync.aligned 1\n"))[0] == {("unfinished wgmma", ASM_OP)}


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("m64n64k16", "m64n60k16", "shape m64n60k16"),
        ("f32.bf16.bf16", "f32.bf16.f16", "bf16 x f16"),
        (", 1, 1, 1, 0;", ", 1, 1, 1;", "flags"),
        ("wgmma.mma_async.sync", "mov.b32 $0, $1; wgmma.mma_async.sync", "no single wgmma"),
        (f"m64n{N}k16", "m64n32k16", "registers"),
    ],
)
def test_inline_assembly_that_is_no_wgmma(old, new, message):
    assert old in BF16
    with pytest.raises(MlircError, match=message):
        run(BF16.replace(old, new))
