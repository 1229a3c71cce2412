"""A good plan, values that are bad in its place, and how a changed plan is signed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlirc.runtime.plan import VERSION, CopyStep, KernelLaunch, Plan, Ref, TensorSpec
from mlirc.runtime.plan_file import PREFIX, _digest
from mlirc.runtime.tensor_map import TensorMapSpec
from support.plans.tiny import N, ptx_for

TEXT = ptx_for("sm_90a").replace("twice(.param .u64 a,", "twice(.param .align 64 .b8 a[128],")


def good_plan() -> Plan:
    """Launches at load and later, a cluster, a tensor map, copies, every space: y = (x + c + c) * 2, z = x."""

    def ref(space: str, offset: int = 0, index: int = 0) -> Ref:
        return Ref(space, index, offset, 4 * N)

    specs = [TensorSpec(n, "f32", s, k) for n, s, k in (
        ("x", (N,), "input"), ("m.w", (1, N), "weight"), ("c", (N,), "constant"),
        ("y", (N, 1), "output"), ("z", (N,), "output"),
    )]  # fmt: skip
    one, two = (1, 1, 1), (2, 1, 1)
    steps = [
        KernelLaunch("add", one, (64, 1, 1), 0, (ref("weight", index=1), ref("weight"), ref("arena")), "k", ("a", "b")),
        KernelLaunch("add", two, (64, 1, 1), 512, (ref("input"), ref("arena"), ref("arena", 256)), "k", ("a",), two),
        KernelLaunch(
            "twice",
            one,
            (64, 1, 1),
            64 * 1024,
            (ref("arena", 256), ref("output")),
            maps={0: TensorMapSpec("f32", (N,), (4,))},
        ),
        CopyStep(ref("input"), ref("output", index=1)),
    ]
    return Plan("tiny", "sm_90a", specs[:1], specs[3:], specs[1:3], 512, steps, 512, 1, {"mlirc": "0.1.0"})


def signed(plan_text: str, ptx: str = TEXT) -> str:
    """A file whose checksum is right."""
    lines = plan_text.split("\n")
    header = f"plan {VERSION} {len(lines)} {len(ptx.encode())} {_digest(lines, ptx.encode())}"
    return "".join(f"{PREFIX}{line}\n" for line in (header, *lines)) + ptx


BAD: dict[type, list[Any]] = {
    int: [-1, 2**31, 2**63, -(2**63), 10**30, 1.0, float("nan"), float("inf"), "1", None, True, [], {}, [1]],
    str: ["", "\x1b[2J\x1b]0;title\x07", "a\nb", "a\rb", "a\0b", "a\u202eb", "a\u2028b", "\x9b31m", "\ud800", "x" * 5000,
          "no_such", 1, None, False, [], {}],
    list: [None, {}, "text", 0, [None], [[]], [{}]],
    dict: [None, [], "text", 0, {}, {"launch": "add"}, {"a": {}}],
}  # fmt: skip


# What is for people only, and what a run does not need: (where, value) that may be accepted.
FOR_PEOPLE = ("model", "versions", "unpacked_size", "kernel", "origin")


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """Every place in a JSON value."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def get(value: Any, at: tuple) -> Any:
    for key in at:
        value = value[key]
    return value
