"""Asynchronous copies to shared memory: cp.async, by memrefs (nvgpu) and by pointers (nvvm)."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import number, segments_of
from mlirc.host.device.copies import commit, copy_async, wait_group
from mlirc.host.device.declare import rule, stateful
from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.rules.memref import fetch, indices_of, item_size
from mlirc.host.device.rules.pointer import element_of
from mlirc.host.device.sync import warp_barrier
from mlirc.host.device.translate import Translator


@rule("nvgpu.device_async_copy")
def _async_copy(tr: Translator, op):
    (dst,), dst_indices, (src,), src_indices, count = segments_of(op)
    width = number(op, "dstElements")
    item = item_size(dst.type)
    to, at = (tr.reg(dst), indices_of(tr, dst_indices)), (tr.reg(src), indices_of(tr, src_indices))
    given = indices_of(tr, count)
    tr.accesses += [item * width]
    if item * width not in (4, 8, 16):
        raise tr.refused(op, f"copies of {item * width} bytes are not supported: 4, 8 or 16")

    def step(s: State) -> None:
        r = s.r
        n = fetch(r, given)
        copy_async(s, (r[to[0]], fetch(r, to[1])), (r[at[0]], fetch(r, at[1])), width, n[0] if n else width, op)

    return step


@stateful("nvvm.cp.async.shared.global")
def _pointer_copy(tr: Translator, op):
    """By pointers: so many bytes, of which the last operand tells how many are read."""
    size = number(op, "size")
    tr.accesses.append(size)

    def copy(s: State, to: MemRef, at: MemRef, count: np.ndarray | int = size) -> None:
        copy_async(s, element_of(s, to, 1, op), element_of(s, at, 1, op), size, count, op)

    return copy


@stateful("nvgpu.device_async_create_group", "nvvm.cp.async.commit.group")
def _create_group(tr: Translator, op):
    return lambda s, *_: commit(s)


@stateful("nvgpu.device_async_wait", "nvvm.cp.async.wait.group")
def _wait_group(tr: Translator, op):
    pending = number(op, "n" if op.name.startswith("nvvm") else "numGroups")
    return lambda s, *_: wait_group(s, pending)


@stateful("nvvm.bar.warp.sync")
def _warp_sync(tr: Translator, op):
    return lambda s, mask: warp_barrier(s, mask, op)
