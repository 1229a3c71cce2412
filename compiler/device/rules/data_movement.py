"""Loads, stores and addresses (PTX ISA, "Data Movement and Conversion Instructions": ld, st, cvta, mapa, mov)."""

from __future__ import annotations

import math
import re

import numpy as np

from mlirc.device.addresses import address_of, fetch, indices_of, shift
from mlirc.device.atomic_access import between, ordered_load, ordered_store, strength_of
from mlirc.device.attributes import integers, number
from mlirc.device.declare import pure, rule, stateful
from mlirc.device.machine import State
from mlirc.device.memory import MemRef, buffer_at
from mlirc.device.numbers import dtype_of, type_bytes, vector_shape
from mlirc.device.order.clocks import is_atomic
from mlirc.device.translate import Translator
from mlirc.mlir import ir


def _alignment(op, item: int, width: int) -> int:
    """The bytes that an address must be a multiple of: as stated, else those of an element of a memref, or of all that
    a pointer leads to."""
    return max(number(op, "alignment"), 0) or (item * width if op.name.startswith("llvm.") else item)


@rule("memref.load", "vector.load", "llvm.load")
def _load(tr: Translator, op):
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)
    pointer, *indices = op.operands
    at, out = address_of(tr, op, pointer, indices, dtype.itemsize), tr.reg(op.results[0])
    width, align = math.prod(shape), _alignment(op, dtype.itemsize, math.prod(shape))
    tr.accesses += [dtype.itemsize, align]
    if len(shape) > 1:
        raise tr.refused(op, f"vectors of rank {len(shape)} are not supported")
    strength = strength_of(tr, op) if is_atomic(op) else None
    is_pointer = str(op.results[0].type).startswith("!llvm.ptr")
    tr.pointers = tr.pointers or is_pointer

    def step(s: State) -> None:
        ref, where = at(s)
        if is_pointer:
            s.r[out] = _pointer_at(s, s.m.load(ref, where, width, align, s.mask, op).view(dtype)[:, :, 0])
            return
        if strength is None:
            words = s.m.load(ref, where, width, align, s.mask, op)
        else:
            words = ordered_load(s, ref, where, width, strength, op)
        value = words != 0 if dtype == np.bool_ else words.view(dtype)
        s.r[out] = value if shape else value[:, :, 0]

    return step if strength is None else between(tr, op, step)


def _pointer_at(s: State, addresses: np.ndarray) -> MemRef:
    """The pointer that an address in memory is: one buffer's for all threads that are active."""
    if s.mask is None:
        buffer, byte = buffer_at(addresses)
        return MemRef(buffer, byte, (), (), 1)
    shape = np.broadcast_shapes(addresses.shape, s.mask.shape)
    mask, addresses = np.broadcast_to(s.mask, shape), np.broadcast_to(addresses, shape)
    buffer, _ = buffer_at(addresses[mask])
    return MemRef(buffer, np.where(mask, addresses - buffer.address, 0), (), (), 1)


@rule("memref.store", "vector.store", "llvm.store")
def _store(tr: Translator, op):
    stored, pointer, *indices = op.operands
    shape, item = vector_shape(stored.type), dtype_of(stored.type).itemsize
    at, register = address_of(tr, op, pointer, indices, item), tr.reg(stored)
    if is_atomic(op):
        strength = strength_of(tr, op)
        tr.accesses.append(item)
        tr.signals.append(op)

        def ordered(s: State) -> None:
            value = s.r[register]
            ordered_store(s, *at(s), value if shape else value[..., None], strength, op)

        return between(tr, op, ordered)
    align = _alignment(op, item, math.prod(shape))
    tr.accesses += [item, align]

    def step(s: State) -> None:
        value = s.r[register]
        s.m.store(*at(s), value if shape else value[..., None], align, s.mask, op)

    return step


@rule("memref.prefetch")
def _prefetch(tr: Translator, op):
    pointer, *indices = op.operands
    at = address_of(tr, op, pointer, indices, dtype_of(pointer.type).itemsize)

    def step(s: State) -> None:  # which nobody sees anything of; but kernels here prefetch what they will read
        if s.m.check:
            s.m.in_bounds(*at(s), 1, s.mask, op)

    return step


@stateful("llvm.mlir.addressof")
def _address_of(tr: Translator, op):
    name = ir.FlatSymbolRefAttr(op.attributes["global_name"]).value
    if name in tr.module:
        return lambda s: MemRef(s.m.module[name], 0, (), (), 1)
    if name not in tr.globals:
        raise tr.refused(op, f"there is no global @{name} in shared memory, nor one of zeros in global memory")
    size, align = tr.globals[name]

    def address(s: State) -> MemRef:
        own = s.m.own_array(name, f"shared memory @{name}", "shared", size, align) if size else s.m.dynamic_shared
        return MemRef(own, 0, (), (), 1)

    return address


_DYNAMIC_INDEX = -(1 << 31)


@rule("llvm.getelementptr")
def _gep(tr: Translator, op):
    base, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    static, dynamic = integers(op, "rawConstantIndices"), list(op.operands)[1:]
    indices = [indices_of(tr, [dynamic.pop(0)])[0] if i == _DYNAMIC_INDEX else i for i in static]
    t = ir.TypeAttr(op.attributes["elem_type"]).value
    sizes = [type_bytes(t)]
    for _ in indices[1:]:
        array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", str(t))
        if not array:
            raise tr.refused(op, f"into {t} is not supported: arrays only")
        t = ir.Type.parse(array[2], t.context)
        sizes.append(type_bytes(t))

    def step(s: State) -> None:
        offset = 0
        for i, size in zip(fetch(s.r, indices), sizes, strict=True):
            offset = offset + (i if isinstance(i, int) else i.astype(np.int64)) * size
        s.r[out] = shift(s.r[base], offset)

    return step


@pure("llvm.addrspacecast", "memref.cast", "memref.memory_space_cast", "memref.assume_alignment")
def _same(tr: Translator, op):
    return lambda pointer, *_: pointer


@pure("llvm.ptrtoint", "memref.extract_aligned_pointer_as_index")
def _to_integer(tr: Translator, op):
    dtype, whole = dtype_of(op.results[0].type), op.name.startswith("memref.")

    def address(source: MemRef) -> np.ndarray:
        buffer = source.buffer
        byte = (source.start if whole else source.base) * source.item
        byte = byte + (buffer.address if buffer.space == "global" else buffer.place)
        return byte.astype(dtype) if isinstance(byte, np.ndarray) else np.full((1, 1), byte, dtype=dtype)

    return address


@stateful("llvm.inttoptr")
def _to_pointer(tr: Translator, op):
    shared = "<3>" in str(op.results[0].type)

    def pointer(s: State, number: np.ndarray) -> MemRef:
        address = number.astype(np.int64)
        buffer, byte = s.m.shared_at(address, s.mask) if shared else buffer_at(address)
        return MemRef(buffer, byte, (), (), 1)

    return pointer


@stateful("nvvm.mapa")
def _mapa(tr: Translator, op):
    tr.clocks = True

    def mapped(s: State, pointer: MemRef, rank: np.ndarray) -> MemRef:
        m, to = s.m, rank.astype(np.int64)
        bad = m.active(s.mask, (to < 0) | (to >= m.cluster_size))
        if bad is not None:
            m.complain("out of bounds", bad, f"names a block that a cluster of {m.cluster_size} does not have", op)
            to = np.clip(to, 0, m.cluster_size - 1)
        return MemRef(pointer.buffer, pointer.base, (), (), 1, to)

    return mapped
