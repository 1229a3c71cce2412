"""The parts of the llvm dialect that kernels with Hopper's instructions need at the `gpu` level: pointers, structs of
registers, and special registers. A pointer is a `MemRef` of rank 0 whose base counts bytes; a struct of equal floats
(an accumulator) is an array with one more dimension."""

from __future__ import annotations

import re

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.attributes import number
from mlirc.host.device.declare import pure, rule, stateful
from mlirc.host.device.inline_asm import in_place
from mlirc.host.device.machine import State
from mlirc.host.device.memory import POISON, MemRef, buffer_at
from mlirc.host.device.numbers import constant_array, dtype_of, vector_shape
from mlirc.host.device.rules.memref import fetch, indices_of
from mlirc.host.device.rules.vector import inserted
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

_DYNAMIC_INDEX = -(1 << 31)


def type_bytes(t: ir.Type) -> int:
    """The size of an llvm type in memory."""
    array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", str(t))
    if array:
        return int(array[1]) * type_bytes(ir.Type.parse(array[2], t.context))
    return dtype_of(t).itemsize * int(np.prod(vector_shape(t)))


def natural_alignment(t: ir.Type) -> int:
    """The alignment, in bytes, of a global of a type that says nothing of it: its elements'."""
    array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", str(t))
    return natural_alignment(ir.Type.parse(array[2], t.context)) if array else type_bytes(t)


def shift(pointer: MemRef, byte) -> MemRef:
    """A pointer moved by a number (or an array) of bytes."""
    return MemRef(pointer.buffer, pointer.base + byte, (), (), 1, pointer.rank)


def element_of(s: State, pointer: MemRef, item: int, op) -> tuple[MemRef, list]:
    """A pointer as a one-dimensional memref of elements of `item` bytes, and the index it points to."""
    base = pointer.base if isinstance(pointer.base, np.ndarray) else np.full((1, 1), pointer.base, dtype=np.int64)
    off = s.m.active(s.mask, base % item != 0)
    if off is not None:
        s.m.complain(
            "misaligned",
            off,
            f"has an address in {pointer.buffer.name} that is no multiple of the {item} bytes of an element",
            op,
        )
    buffer = pointer.buffer
    if item > buffer.align:
        s.m.placed(buffer, item, s.mask, op)
    return MemRef(buffer, 0, (buffer.nbytes // item,), (1,), item, pointer.rank), [base // item]


@stateful("llvm.mlir.addressof")
def _address_of(tr: Translator, op):
    name = ir.FlatSymbolRefAttr(op.attributes["global_name"]).value
    if name not in tr.globals:
        raise tr.refused(op, f"there is no shared global @{name}")
    size, align = tr.globals[name]

    def address(s: State) -> MemRef:
        m = s.m
        if size and name not in m.named:
            m.named[name] = m.allocate(f"shared memory @{name}", "shared", size, align)
        return MemRef(m.named[name] if size else m.dynamic_shared, 0, (), (), 1)

    return address


@rule("llvm.getelementptr")
def _gep(tr: Translator, op):
    base, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    static, dynamic = list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"])), list(op.operands)[1:]
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


def load(tr: Translator, op):
    """An llvm.load without a memory order."""
    ref, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)
    width, item = int(np.prod(shape)), dtype.itemsize
    align = number(op, "alignment", item * width)
    tr.accesses += [item, align]

    def step(s: State) -> None:
        target, index = element_of(s, s.r[ref], item, op)
        words = s.m.load(target, index, width, align, s.mask, op)
        value = words != 0 if dtype == np.bool_ else words.view(dtype)
        s.r[out] = value if shape else value[:, :, 0]

    return step


def store(tr: Translator, op):
    """An llvm.store without a memory order."""
    value, ref = tr.reg(op.operands[0]), tr.reg(op.operands[1])
    shape, item = vector_shape(op.operands[0].type), dtype_of(op.operands[0].type).itemsize
    natural = item * int(np.prod(shape))
    align = number(op, "alignment", natural)
    tr.accesses += [item, align]

    def step(s: State) -> None:
        target, index = element_of(s, s.r[ref], item, op)
        v = s.r[value]
        s.m.store(target, index, v if shape else v[..., None], align, s.mask, op)

    return step


# -- structs of registers


def struct_fields(t: ir.Type) -> tuple[int, np.dtype]:
    """The number and dtype of a struct's fields, which are all of one type."""
    inner = re.fullmatch(r"!llvm\.struct<\((.*)\)>", str(t))
    names = [n.strip() for n in inner[1].split(",")] if inner else []
    if not names or len(set(names)) != 1:
        raise MlircError(f"host device: a value of type {t}: only structs of equal numbers are supported")
    return len(names), dtype_of(ir.Type.parse(names[0], t.context))


@pure("ub.poison", "llvm.mlir.undef", "llvm.mlir.poison", "llvm.mlir.zero")
def _undefined(tr: Translator, op):
    t = op.results[0].type
    if str(t).startswith("!llvm.struct"):
        count, dtype = struct_fields(t)
        shape: tuple[int, ...] = (count,)
    else:
        shape, dtype = vector_shape(t), dtype_of(t)
    byte = 0 if op.name == "llvm.mlir.zero" else POISON
    raw = np.full((1, 1, *shape, dtype.itemsize), byte, np.uint8)
    fill = raw[..., 0] != 0 if dtype == np.bool_ else raw.view(dtype)[..., 0]
    return lambda: fill


@pure("llvm.mlir.constant")
def _constant(tr: Translator, op):
    attr = op.attributes["value"]
    value = constant_array(attr, op.results[0].type)
    if isinstance(attr, ir.IntegerAttr):
        tr.constants[op.results[0]] = attr.value
    return lambda: value


@pure("llvm.insertvalue")
def _insert(tr: Translator, op):
    (at,) = list(ir.DenseI64ArrayAttr(op.attributes["position"]))
    put = inserted((slice(None), slice(None), at))
    return lambda struct, value: put(value, struct)


@stateful("llvm.extractvalue")
def _extract(tr: Translator, op):
    (at,) = list(ir.DenseI64ArrayAttr(op.attributes["position"]))
    uses = list(op.results[0].uses)
    stays = bool(uses) and all(in_place(use) for use in uses)

    def extract(s: State, value):
        if isinstance(value, tuple):
            return value[at]
        if stays:  # all of it, see inline.py
            return value
        if s.m.engine is not None:
            s.m.engine.check_accumulator(s, value, op)
        return value[:, :, at]

    return extract


@pure("llvm.bitcast")
def _bitcast(tr: Translator, op):
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)

    def convert(a: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(a)
        return raw.reshape(*raw.shape[:2], -1).view(dtype).reshape(*raw.shape[:2], *shape)

    return convert
