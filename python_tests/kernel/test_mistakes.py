"""What is wrong with a kernel of one's own is said in one line, which begins with the user's file and line."""

from __future__ import annotations

import re

import pytest

from mlirc.errors import MlircError
from mlirc.frontend.python_file import load_name, only_kernel
from mlirc.tools import mlirc, mlirc_bench

KERNEL = """import torch; from mlirc.mlir import arith
from mlirc.kernel import kernel, ops

@kernel(reference=lambda a, b: torch.relu(a @ b), example={"M": 4, "N": 6, "K": 8})
def mine(a: "f32[M,K]", b: "f32[K,N]") -> "f32[M,N]":
    c = ops.matmul(a, b)
    return ops.relu(c)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes `mine.py` in the current folder: the kernel with `old` replaced."""
    monkeypatch.chdir(tmp_path)

    def put(*changes: tuple[str, str]) -> str:
        text = KERNEL
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "mine.py").write_text(text)
        return "mine.py"

    return put


BUILDING = [
    (("ops.matmul(a, b)", "ops.matmul(a, a)"), 6, "matmul: f32[4,8] has 8 columns, and f32[4,8] has 4 rows"),
    (("ops.matmul(a, b)", "a + b"), 6, "shapes do not broadcast: f32[4,8], f32[8,6]"),
    (("ops.matmul(a, b)", "ops.matmul(a, torch.ones(8, 6))"), 6, "matmul takes tensors of the kernel, not Tensor: a tensor of PyTorch"),
    (("ops.relu(c)", "ops.relu(c if a > b else b)"), 7, "shapes do not broadcast"),
    (("ops.relu(c)", "ops.relu(c if c > 0 else -c)"), 7, "a tensor has no value while the kernel is built: choose with ops.where"),
    (("ops.relu(c)", "ops.softmax(c, dim=2)"), 7, "dimension 2 of f32[4,6]: it has 2"),
    (("ops.relu(c)", "ops.reluu(c)"), 7, "mine: AttributeError: module 'mlirc.kernel.ops' has no attribute 'reluu'"),
    (("ops.relu(c)", "c.to('f31')"), 7, "unknown dtype 'f31': use one of"),
    (("ops.relu(c)", "ops.where(c, c, 0)"), 7, "where takes a condition of booleans"),
    (("ops.relu(c)", "ops.map(lambda x: 'no', c)"), 7, "the function of elements returns an element, not str"),
    (("ops.relu(c)", "ops.rows(c, ops.arange(3))"), 7, "rows takes an input of the kernel as its table, which f32[4,6] is not"),
    (("ops.relu(c)", "c % 0"), 7, "// and % divide integers by a positive whole number"),
    (("ops.relu(c)", "c.permute(0, 0)"), 7, "permute(0, 0) of f32[4,6]: name each dimension once"),
    (("ops.relu(c)", "ops.tensor(arith.addf(c.value, a.value))"), 7, "mine: 'arith.addf' op requires the same type for all operands"),
    (("ops.relu(c)", "ops.tensor(arith.negf(c.value, 3))"), 7, "mine: "),
    (("ops.relu(c)", "c.T"), 4, "mine: returns f32[6,4], and its annotation f32[M,N] is [4, 6]"),
    (("return ops.relu(c)", "return c, c"), 4, "mine: returns 2 tensors, and its annotation has 1"),
    (("return ops.relu(c)", "pass"), 4, "mine: a kernel returns a tensor or a tuple of tensors, not NoneType"),
]  # fmt: skip


@pytest.mark.parametrize("change, line, wanted", BUILDING, ids=[b[2][:24] for b in BUILDING])
def test_a_builder_that_is_misused(write, change, line, wanted):
    own = load_name(write(change), "mine")
    with pytest.raises(MlircError, match=rf"^mine\.py:{line}: {re.escape(wanted)}"):
        own.source()


SIGNATURES = [
    (('a: "f32[M,K]"', "a"), 'mine: a: say what it is, as a: "bf16[M,K]"'),
    (('a: "f32[M,K]"', 'a: "f32"'), "mine: a: 'f32': write a tensor as"),
    (('a: "f32[M,K]"', 'a: "f31[M,K]"'), "mine: a: 'f31[M,K]': no dtype 'f31': one of"),
    (('a: "f32[M,K]"', 'a: "f32[M,K*2]"'), "mine: a: 'f32[M,K*2]': 'K*2' is neither an extent nor a symbol"),
    (('-> "f32[M,N]"', '-> "f32[M,Q]"'), "mine: -> f32[M,Q]: no input has Q"),
    (("reference=", "level='gpu', reference="), "mine: level='gpu': a kernel enters at kernels or tiles"),
    (("reference=", "tolerance=2, reference="), "mine: tolerance=2: a relative error between 0 and 1"),
]  # fmt: skip


@pytest.mark.parametrize("change, wanted", SIGNATURES, ids=[s[1][:24] for s in SIGNATURES])
def test_a_signature_that_is_none(write, change, wanted):
    with pytest.raises(MlircError, match=rf"^mine\.py:4: {re.escape(wanted)}"):
        load_name(write(change), "mine")


def test_shapes_that_are_missing_or_unknown(write):
    own = load_name(write((', example={"M": 4, "N": 6, "K": 8}', "")), "mine")
    with pytest.raises(
        MlircError, match=r"^mine\.py:4: mine: what is M, K, N\? give --shapes 'M=\.\.\.,K=\.\.\.,N=\.\.\.'"
    ):
        own.source()
    with pytest.raises(MlircError, match="mine: has no 'Q': it has M, K, N"):
        own.source({"Q": 1})
    with pytest.raises(MlircError, match="mine: M = bf16: an extent is wanted"):
        own.source({"M": "bf16", "K": 1, "N": 1})


def test_calls_that_do_not_fit(write):
    import torch

    own = load_name(write(), "mine")
    a, b = torch.ones(4, 8), torch.ones(8, 6)
    for given, wanted in [
        ((a, b.T), "b is f32[6,8], but takes f32[K,N], with K = 8 of a"),
        ((a, b.half()), "b is f16[8,6], but takes f32[K,N]"),
        ((a, b[0]), "b is f32[6], but takes f32[K,N]"),
        ((a,), "takes 2 tensors (a, b), not 1"),
        ((a, 1), "takes tensors of PyTorch, not int"),
    ]:
        with pytest.raises(MlircError, match=rf"^mine\.py:4: mine: {re.escape(wanted)}"):
            own(*given)
    with pytest.raises(MlircError, match="has no constant 'scale'"):
        own(a, b, scale=1)
    with pytest.raises(MlircError, match="options: no option 'knob'"):
        own.options(knob=1)


def test_a_kernel_that_never_ends_is_named(write, ran, monkeypatch):
    monkeypatch.setenv("MLIRC_SCRIPT_SECONDS", "0.2")
    write(("    c = ", "    while True: pass\n    c = "))
    error = ran(mlirc.main, "mine.py:mine", "--emit", "tiles").error
    assert "mine: NeverEnds: still at work after 0.2 s: does it end?" in error and error.startswith(
        "error: mine.py:6: "
    )


def test_a_kernel_that_is_wrong_is_told_from_a_schedule_that_is(write, ran):
    write(("ops.relu(c)", "ops.relu(c) * 1.5"))
    error = ran(mlirc.main, "mine.py:mine", "--check", "kernels").err
    assert (
        "error: level kernels is wrong on inputs 'plain'" in error and "(the kernel as it is written gives it)" in error
    )


def test_the_commands_say_what_is_wrong(write, ran):
    write()
    assert "mine.py: has no 'other': its kernels are mine" in ran(mlirc.main, "mine.py:other", "--emit", "tiles").error
    assert "--dtype is for models" in ran(mlirc.main, "mine.py", "--dtype", "bf16", "--emit", "tiles").error
    assert "'M:4' is not of the form M=128" in ran(mlirc.main, "mine.py", "--shapes", "M:4", "--emit", "tiles").error
    assert "no such file or directory" in ran(mlirc.main, "other.py:mine", "--emit", "tiles").error
    assert (
        "--schedule 'mine=no': no script 'no'"
        in ran(mlirc.main, "mine.py", "--emit", "tiles", "--schedule", "mine=no").error
    )
    assert ran(mlirc_bench.main, "mine.py", "--list").out.split()[0] == "mine"
    write(("return ops.relu(c)", "return ops.relu(c"))
    assert re.search(
        r"^error: mine\.py:\d+: '\(' was never closed", ran(mlirc.main, "mine.py:mine", "--emit", "tiles").error
    )
    write(("import torch;", "import torch; raise RuntimeError('no');"))
    assert "mine.py:1: running it failed: RuntimeError: no" in ran(mlirc.main, "mine.py:mine", "--emit", "tiles").error


def test_a_file_of_several_kernels_wants_a_name(write):
    text = KERNEL + KERNEL[KERNEL.index("@kernel") :].replace("mine", "other")
    open(write(), "w").write(text)
    with pytest.raises(MlircError, match="mine.py: has 2 kernels: name one, as mine.py:mine"):
        only_kernel("mine.py")


def test_a_kernel_that_approximates_states_how_far(write, ran):
    """Within its tolerance it is right, and the check says so; beyond, it is wrong."""
    write(("ops.relu(c)", "ops.relu(c) * 1.01"), ("reference=", "tolerance=2e-2, reference="))
    made = ran(mlirc.main, "mine.py:mine", "--check", "kernels", "-v")
    said = "relative errors of up to 0.02 are right, as mine.py:4 states"
    assert made.status == 0 and f"\n{said}\n" in made.out and f"; {said}" in made.err
    write(("ops.relu(c)", "ops.relu(c) * 1.03"), ("reference=", "tolerance=2e-2, reference="))
    assert "relative error 3.0e-02, allowed is 2.0e-02" in ran(mlirc.main, "mine.py:mine", "--check", "kernels").err
