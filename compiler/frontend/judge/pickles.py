"""What a pickle would import and which tensors it would make, found without running it.

Only the opcodes that PyTorch writes for tensors and plain containers are known: anything else is refused.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

from mlirc.frontend.judge.archive import Archive, damaged

_ITEMSIZE = {
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2,
    "IntStorage": 4, "FloatStorage": 4, "LongStorage": 8, "DoubleStorage": 8, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16, "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4, "UntypedStorage": 1,
}  # fmt: skip
_REBUILD = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_MARK = object()
_OPERATIONS = 5_000_000


@dataclass(frozen=True)
class Global:
    """A class or function that the pickle names."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A tensor's data: the archive's member, the class that says its type, the number of elements."""

    kind: str
    key: str
    count: int


@dataclass
class Contents:
    """What a pickle holds: the names that it imports, storages, and (storage, offset, sizes, strides) of tensors."""

    globals: set[str] = field(default_factory=set)
    storages: list[Storage] = field(default_factory=list)
    tensors: list[tuple[Storage, int, tuple, tuple]] = field(default_factory=list)


def scan_pickle(data: bytes | bytearray, what: str) -> Contents:
    """Reads a pickle as data; raises MlircError for a damaged one, and for opcodes that models do not have."""
    try:
        return _Scanner(what).run(bytes(data))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as e:
        raise damaged(what, f"a pickle in it is damaged ({type(e).__name__}: {e})") from e


def check_tensors(archive: Archive, contents: Contents, folder: str) -> None:
    """Every tensor lies inside its storage, and every storage is a member of `folder` of just its size.

    Neither is checked by PyTorch, which would read memory behind the data. Raises MlircError.
    """
    names = set(archive.names)
    for storage in contents.storages:
        wanted = storage.count * _ITEMSIZE.get(storage.kind.rpartition(".")[2], 0)
        name = folder + storage.key
        found = archive.size(name) if name in names else 0
        if storage.kind.rpartition(".")[2] not in _ITEMSIZE or found != wanted:
            raise damaged(archive.what, f"tensor data {name}: {found:,} bytes in place of {wanted:,}")
    for storage, offset, sizes, strides in contents.tensors:
        check_extent(archive.what, storage.count, offset, sizes, strides)


def check_extent(what: str, count: int, offset: Any, sizes: Any, strides: Any) -> None:
    """Raises MlircError unless a tensor of these sizes and strides lies inside a storage of `count` elements."""
    numbers = (offset, *sizes, *strides)
    if len(sizes) != len(strides) or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
        raise damaged(what, "a tensor has impossible sizes")
    last = 0 if 0 in sizes else offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    if last > count:
        raise damaged(what, f"a tensor of sizes {list(sizes)} is larger than its data, {count:,} elements")


class _Scanner:
    def __init__(self, what: str):
        self.what = what
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.found = Contents()

    def run(self, data: bytes) -> Contents:
        for count, (op, argument, _at) in enumerate(pickletools.genops(data)):
            if op.name == "STOP":
                return self.found
            if count > _OPERATIONS:
                raise damaged(self.what, "a pickle in it is longer than a model's")
            self._step(op.name, argument)
        raise damaged(self.what, "a pickle in it has no end")

    def _step(self, op: str, argument: Any) -> None:
        stack = self.stack
        match op:
            case "PROTO" | "FRAME":
                pass
            case "GLOBAL":
                self._global(argument.replace(" ", ".", 1))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                self._global(f"{module}.{name}")
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[op])
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_SET":
                stack.append(op)
            case "TUPLE":
                stack.append(tuple(self._to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(op[-1])
                parts = tuple(stack[-count:])
                del stack[-count:]
                stack.append(parts)
            case "APPENDS" | "SETITEMS" | "ADDITEMS":
                self._to_mark()
            case "APPEND" | "BUILD":
                stack.pop()
            case "SETITEM":
                del stack[-2:]
            case "POP":
                stack.pop()
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(self.memo[argument])
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(function, arguments))
            case _ if op.startswith(("BININT", "LONG", "BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT", "INT")):
                stack.append(argument)
            case _ if op in ("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "UNICODE"):
                stack.append(argument)
            case _:
                raise damaged(self.what, f"a pickle in it has the opcode {op}, which models do not have")

    def _global(self, name: str) -> None:
        self.found.globals.add(name)
        self.stack.append(Global(name))

    def _to_mark(self) -> list[Any]:
        parts = []
        while (part := self.stack.pop()) is not _MARK:
            parts.append(part)
        return parts[::-1]

    def _storage(self, key: Any) -> Any:
        match key:
            case ("storage", Global(name=kind), str(name), _, int(count), *_) if count >= 0:
                storage = Storage(kind, name, count)
                self.found.storages.append(storage)
                return storage
        raise damaged(self.what, "a pickle in it names data in an unknown way")

    def _call(self, function: Any, arguments: Any) -> Any:
        if isinstance(function, Global) and function.name in _REBUILD:
            storage, offset, sizes, strides, *_ = arguments
            if not isinstance(storage, Storage):
                raise damaged(self.what, "a tensor without data")
            self.found.tensors.append((storage, offset, sizes, strides))
            return "tensor"
        return "object"
