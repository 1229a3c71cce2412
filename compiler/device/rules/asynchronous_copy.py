"""Asynchronous copies of threads to shared memory (PTX ISA, "Data Movement and Conversion Instructions": cp.async), by
memrefs (nvgpu) and by pointers (nvvm)."""

from __future__ import annotations

from mlirc.device.addresses import address_of, fetch, indices_of
from mlirc.device.attributes import number, segments_of
from mlirc.device.copies import commit, copy_async, wait_group
from mlirc.device.declare import rule, stateful
from mlirc.device.machine import State
from mlirc.device.numbers import item_size
from mlirc.device.translate import Translator


@rule("nvgpu.device_async_copy", "nvvm.cp.async.shared.global")
def _copy(tr: Translator, op):
    """The last operand, if there is one, tells how many elements (bytes) are read; the others are zeros."""
    if op.name == "nvgpu.device_async_copy":
        (dst,), to_indices, (src,), at_indices, count = segments_of(op)
        width, item = number(op, "dstElements"), item_size(dst.type)
    else:
        dst, src, *count = op.operands
        to_indices, at_indices, width, item = [], [], number(op, "size"), 1
    to, at = address_of(tr, op, dst, to_indices, item), address_of(tr, op, src, at_indices, item)
    given = indices_of(tr, count)
    tr.accesses.append(item * width)
    if item * width not in (4, 8, 16):
        raise tr.refused(op, f"copies of {item * width} bytes are not supported: 4, 8 or 16")

    def step(s: State) -> None:
        n = fetch(s.r, given)
        copy_async(s, to(s), at(s), width, n[0] if n else width, op)

    return step


@stateful("nvgpu.device_async_create_group", "nvvm.cp.async.commit.group")
def _create_group(tr: Translator, op):
    return lambda s, *_: commit(s)


@stateful("nvgpu.device_async_wait", "nvvm.cp.async.wait.group")
def _wait_group(tr: Translator, op):
    pending = number(op, "n" if op.name.startswith("nvvm") else "numGroups")
    return lambda s, *_: wait_group(s, pending)
