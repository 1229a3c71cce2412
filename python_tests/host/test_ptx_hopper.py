"""PTX with Hopper's instructions executed on the CPU: what the host device computes, to the bit, and what is no wait."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device.ptx import run_entry, run_kernel
from mlirc.device.tensor_maps import TensorMap
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.kernels.by_hand import ptx_of
from support.kernels.hopper import HANDS
from support.kernels.mutant_cases import HOPPER, case
from support.kernels.product import BARRIERS, STAGES, K
from support.kernels.tensor_maps import CASES


@functools.cache
def ptx(name: str) -> str:
    return ptx_of(case(name, 1).text)


def execute(name: str, text: str, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the PTX of a kernel by hand computes, and what the kernel does on the host device."""
    kernel = case(name, seed + 1)
    arguments = kernel.arguments[seed]
    assert kernel.run is not None
    right, report = kernel.run(kernel.text, arguments, 0)
    assert report.ok
    found = [np.zeros_like(a) for a in right]
    if name == HOPPER:
        maps = [TensorMap(x, (len(x), K), 128) for x in arguments]
        run_entry(text, "product", [*maps, *found], (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES)
        return found, right
    hand = HANDS[name]
    parameters = [arguments[0].reshape(-1, 16) if 0 in hand.boxes else arguments[0], *found]
    given = [TensorMap(a, (8, 16)) if i in hand.boxes else a for i, a in enumerate(parameters)]
    given.sort(key=lambda a: not isinstance(a, np.ndarray))  # maps come last
    run_entry(text, "k", given, (hand.blocks, 1, 1), (hand.threads, 1, 1), hand.smem)
    return found, right


@pytest.mark.parametrize("name", [HOPPER, *HANDS])
def test_the_ptx_of_a_kernel_by_hand_computes_what_the_host_device_does(name):
    for a, b in zip(*execute(name, ptx(name), seed=1), strict=True):
        assert b.any() and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ["odd rows", "swizzled", "every dimension"])
def test_tensor_maps_of_a_launch(name):
    twice = CASES[name]
    kernel = compile_kernel(mlir.parse(twice.kernel()), get_target("sm_90a"))
    inputs = twice.inputs()
    right = twice.right(*inputs)
    found = [np.zeros_like(a) for a in right]
    run_kernel(kernel, [*inputs, *found])
    for a, b in zip(found, right, strict=True):
        assert a.tobytes() == b.tobytes()


EDITS = [
    (HOPPER, r"\n\tmbarrier.arrive.shared.b64[^\n]*", "", "a deadlock"),  # nobody frees a slot
    (HOPPER, r"(expect_tx.shared.b64 [^\n]*), %r\d+;", r"\1, 128;", "a deadlock"),  # bytes that nobody expects
    (HOPPER, r"mbarrier.init.shared.b64 (\t\[smem\+32768\]), %r\d+", r"mbarrier.init.shared.b64 \1, 2", "a deadlock"),
    (HOPPER, r"\n\tmbarrier.init.shared.b64 \t\[smem\+32768\][^\n]*", "", "there is no mbarrier at byte 32768 of the sh"),
    (HOPPER, r"(\[%rd2, \{%r\d+), %r\d+\}", r"\1}", "1 coordinates in a tensor of 2"),
    (HOPPER, r"m64n64k16", "m64n72k16", r"wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16. is not known here"),
    (HOPPER, r"setp.gt.u32 (\t%p2, %r1), 127", r"setp.gt.u32 \1, 159", "is not executed by a whole warpgroup|a deadlock"),
    ("bulk ring", r"bar.sync (\t1), 128", r"bar.sync \1, 160", "a deadlock"),
    ("bulk ring", r"\[smem\+1024\], %r\d+;", "[smem+1024], 500;", "copies 500 bytes, which is no multiple of 16"),
    ("bulk ring", r"mbarrier.init.shared.b64 (\t\[smem\+2064\]), %r\d+", r"mbarrier.init.shared.b64 \1, 96",
     "32 arrivals more than the 96 that it was initialized for"),
    ("cluster, multicast", r"\n\tbarrier.cluster.arrive.relaxed;", "\n\t@%p1 barrier.cluster.arrive.relaxed;",
     "`barrier.cluster.arrive.relaxed` is not known here"),
    ("cluster, multicast", r", %rs1;", ", 7;", "a mask 0x7 in a cluster of 2 blocks"),
    ("ring of cp.async", r"\n\tcp.async.mbarrier.arrive[^\n]*", "", "a deadlock"),  # asked for again and again
    ("tensor stores", r"\.tile\.", ".im2col.", "is of another mode than its tensor map, which is tile"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "says"), EDITS)
def test_what_never_ends_or_is_not_allowed_is_said(name, old, new, says):
    text, count = re.subn(old, new, ptx(name))
    assert count
    with pytest.raises(MlircError, match=says):
        execute(name, text)


def test_labels_belong_to_their_braces():
    text = ptx(HOPPER)
    assert text.count("LAB_WAIT:") > 1
    with pytest.raises(MlircError, match="there is no label DONE_NOT"):
        execute(HOPPER, text.replace("bra.uni DONE;", "bra.uni DONE_NOT;", 1))
