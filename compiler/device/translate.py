"""Translates a `gpu.func`, once, into lists of Python closures: one per operation, each working on all threads of a
batch. Operations that can wait (barriers, and control flow around them) become generators; all else is called.

What an operation does is declared in rules/ (see declare.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np

from mlirc.backend.lowering import SHARED_ALIGN, index_bits
from mlirc.device.counters import kind_of
from mlirc.device.declare import all_rules, waiting
from mlirc.device.index_range import IndexRanges
from mlirc.device.limits import MAX_NESTING, deep_calls
from mlirc.device.machine import WARP, State
from mlirc.device.numbers import constant_array, dtype_of, natural_alignment, type_bytes
from mlirc.device.shadows.origins import DEFINED, Shadows
from mlirc.device.shadows.rules import shadowed
from mlirc.device.spins import has_spins
from mlirc.errors import MlircError
from mlirc.mlir import ir

MAX_VECTOR = 4096  # elements, far more than a thread has registers
DEADLINE_EVERY = 64  # operations of a block


class Refused(MlircError):
    """What `Translator.refused` makes: it says where."""


class Code:
    """The operations of one block of IR. `waits`: some of them may wait, so that it has to be run as a generator."""

    def __init__(self) -> None:
        self.steps: list[Callable] = []
        self.ops: dict[Callable, ir.Operation] = {}
        self.waits = False

    def add(self, step: Callable, op=None) -> None:
        self.steps.append(step)
        if op is not None:
            self.ops[step] = op
        self.waits = self.waits or hasattr(step, "waits")

    def run(self, s: State) -> None:
        for step in self.steps:
            step(s)

    def start(self, s: State):
        for step in self.steps:
            if hasattr(step, "waits"):
                yield from step(s)
            else:
                step(s)


def operation_of(error: Exception):
    """The operation in whose step an error was raised; None if it was none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_locals
        code, step = names.get("self"), names.get("step")
        if isinstance(code, Code) and step in code.ops:
            found = code.ops[step]
        trace = trace.tb_next
    return found


@dataclass(frozen=True)
class LocalArray:
    """An attribution of a gpu.func: memory of each block (`space` shared) or of each thread (local). `align`: bytes."""

    register: int
    type: ir.MemRefType
    space: str
    align: int

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return dtype_of(self.type).itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.type.shape) * self.item


@dataclass(eq=False)
class Needs:
    """What a kernel needs of the machine that executes it, as its operations tell."""

    accesses: list[int] = field(default_factory=list)  # sizes and alignments, in bytes, of accesses to memory
    unit: int = WARP  # threads that only execute together: of a warp, or of a warpgroup
    waits: bool = False  # whether units wait for each other by more than barriers of the whole block
    proxies: bool = False  # whether instructions read shared memory through the asynchronous proxy
    bulk_sources: bool = False  # whether copies use global memory that threads may have written
    tensor_stores: bool = False  # whether tensor copies write global memory
    clocks: bool = False  # whether warps are ordered by more than barriers of the whole block
    grid_waits: bool = False  # whether it waits for earlier launches
    ordered: bool = False  # whether atomics and fences may order threads, those of other blocks among them
    pointers: bool = False  # whether it loads pointers, which may differ from block to block
    spins: bool = False  # whether loops wait for what other threads write


class Program(Needs):
    """A translated kernel: `initial` registers (constants filled in), the numbers of its parameters, its code."""

    def __init__(self, name: str, code: Code, initial: list, parameters: list, function, needs: Needs):
        super().__init__(**{f.name: getattr(needs, f.name) for f in fields(Needs)})
        self.name, self.code, self.initial, self.parameters, self.function = name, code, initial, parameters, function
        self.shadows: Shadows | None = None  # where it follows undefined values
        self.arrays: list[LocalArray] = []  # the attributions of a gpu.func
        self.module: dict[str, int] = {}  # the module's own global memory, zeros: bytes
        self.static_shared = 0  # bytes of shared memory besides the dynamic one
        self.local = 0  # bytes of a thread's local memory
        self.cluster = (1, 1, 1)  # where the function itself says so
        self.dynamic_align = SHARED_ALIGN  # bytes, of dynamic shared memory


class Translator(Needs):
    """State of translating one function."""

    def __init__(self, where: str, count: bool = False, shadows: Shadows | None = None):
        super().__init__()
        self.where, self.count, self.shadows = where, count, shadows
        self.numbers: dict[ir.Value, int] = {}
        self.initial: list = []
        self.owned = {"shared": 0, "local": 0}  # bytes of a block, of a thread
        self.constants: dict[ir.Value, int | float] = {}
        self.depth = 0
        self.signals: list = []  # operations that write atomically
        self.function: ir.Operation | None = None
        self.index_bits, self.ranges = 64, IndexRanges(None)  # bits of an index, as the back end chooses them
        self.globals: dict[str, tuple[int, int]] = {}  # shared globals: bytes (0: the dynamic one), alignment
        self.module: dict[str, int] = {}  # globals of zeros in global memory: bytes

    def reg(self, value: ir.Value) -> int:
        """The register of a value."""
        n = self.numbers.get(value)
        if n is None:
            n = self.numbers[value] = len(self.initial)
            self.initial.append(None)
            if self.shadows is not None:
                self.initial.append(DEFINED)  # its shadow: every value has two registers then
        return n

    def moved(self, registers: list[int]) -> list[int]:
        """The registers of values that control flow hands on, and of their shadows."""
        return registers if self.shadows is None else [*registers, *(x + 1 for x in registers)]

    def handed(self, values) -> list[int]:
        """Likewise, from the values."""
        return self.moved([self.reg(v) for v in values])

    def constant(self, op) -> None:
        value, attr = op.results[0], op.attributes["value"]
        self.check_size(op)
        self.initial[self.reg(value)] = constant_array(attr, value.type)
        if isinstance(attr, ir.IntegerAttr) and not isinstance(value.type, ir.VectorType):
            self.constants[value] = ir.IntegerAttr(attr).value

    def known(self, value: ir.Value) -> int | None:
        """The number that an integer constant is."""
        found = self.constants.get(value)
        return None if found is None else int(found)

    def block(self, block: ir.Block) -> tuple[Code, list[int]]:
        """The code of a block, and the registers of its terminator's operands."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.refused(block.owner, f"nests more than {MAX_NESTING} regions")
        code = Code()
        ops = [o.operation for o in block.operations]
        here = {a for a in block.arguments}
        for op in ops:
            here.update(op.results)
        steps: list = []
        for op in ops[:-1]:
            if op.name == "arith.constant":
                with self.naming(op):
                    self.constant(op)
                here.discard(op.results[0])
                steps.append(None)
                continue
            steps.append(self.step(op))
        dead = self._last_uses(ops, here)
        for i, step in enumerate(steps):
            if step is not None:
                code.add(step, ops[i])
            if dead[i]:
                code.add(_free(dead[i]))
            if i % DEADLINE_EVERY == DEADLINE_EVERY - 1:
                code.add(_check_deadline(ops[i]))
        self.depth -= 1
        return code, [self.reg(v) for v in ops[-1].operands]

    def refused(self, op, why: str) -> MlircError:
        """The error to raise for an operation that cannot be executed: kernel, operation, place, and `why`."""
        return Refused(f"host device: {self.where}: {op.operation.name} at {op.location}: {why}")

    @contextmanager
    def naming(self, op) -> Iterator[None]:
        """Errors raised within tell the operation that they are about."""
        try:
            yield
        except (Refused, RecursionError):
            raise
        except MlircError as e:
            raise self.refused(op, str(e).removeprefix("host device: ")) from e
        except Exception as e:
            raise self.refused(op, f"cannot be executed: {type(e).__name__}: {e}") from e

    def check_size(self, op) -> None:
        """Raises MlircError for vectors that no thread has registers for."""
        for t in [v.type for v in op.results if isinstance(v.type, ir.VectorType)]:
            if math.prod(t.shape) > MAX_VECTOR:
                raise self.refused(op, f"{t} is no value of a thread: it has {MAX_VECTOR} elements at the most")

    def step(self, op) -> Callable:
        self.check_size(op)
        found = all_rules().get(op.name)
        if found is None:
            raise self.refused(op, "there is no rule for it: add one in device/rules")
        with self.naming(op):
            step = found(self, op)
        if self.shadows is not None:
            step = shadowed(self, op, step)
        kind = kind_of(op) if self.count else None
        return _counted(step, *kind) if kind else step

    def _last_uses(self, ops: list, here: set) -> list[list[int]]:
        """For each operation the registers that nothing after it reads."""
        seen = set(ops[-1].operands) if ops else set()
        dead: list[list[int]] = [[] for _ in ops]
        for i in range(len(ops) - 2, -1, -1):
            for v in _values_in(ops[i]):
                if v in here and v not in seen:
                    seen.add(v)
                    dead[i].append(self.reg(v))
        return dead


def _values_in(op):
    """The results and operands of an operation and of all that is nested in it."""
    yield from op.results
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _values_in(inner.operation)


def _counted(step: Callable, kind: str, each: int) -> Callable:
    """The step with its warp instructions counted."""
    if hasattr(step, "waits"):

        def waits(s: State):
            s.m.count_instructions(kind, each, s.mask)
            yield from step(s)

        return waiting(waits)

    def counted(s: State) -> None:
        s.m.count_instructions(kind, each, s.mask)
        step(s)

    return counted


def _free(registers: list[int]) -> Callable:
    def step(s: State) -> None:
        r = s.r
        for i in registers:
            r[i] = None

    return step


def _check_deadline(op) -> Callable:
    return lambda s: s.m.deadline.check(s.m, s.mask, op)


@deep_calls()
def translate(function, count: bool = False, shadows: Shadows | None = None) -> Program:
    """Translates a gpu.func, with code that counts its instructions, or follows undefined values, if asked for; raises
    MlircError for an operation without a rule."""
    function = function.operation
    name = ir.StringAttr(function.attributes["sym_name"]).value
    tr = Translator(f"kernel {name}", count, shadows)
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise MlircError(f"host device: kernel {name} has unstructured control flow: give it at the gpu level with scf")
    tr.index_bits, tr.ranges = index_bits(function.parent), IndexRanges(function)
    tr.function, tr.globals, tr.spins = function, _shared_globals(function), has_spins(function)
    tr.module = _module_memory(function)
    arguments = [tr.reg(a) for a in blocks[0].arguments]
    code, _ = tr.block(blocks[0])
    inputs = len(arguments)
    if function.name == "gpu.func":  # what follows are its attributions
        inputs = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
    tr.waits, tr.ordered = tr.waits or tr.spins, tr.ordered or tr.spins
    tr.clocks = tr.clocks or tr.proxies or tr.ordered
    program = Program(name, code, tr.initial, arguments[:inputs], function, tr)
    program.arrays = _attributions(tr, function, list(blocks[0].arguments)[inputs:])
    program.shadows, program.cluster, program.module = shadows, _cluster(function), tr.module
    arrays = {space: sum(a.nbytes for a in program.arrays if a.space == space) for space in tr.owned}
    named = sum(size for size, _ in tr.globals.values())
    program.static_shared = named + arrays["shared"] + tr.owned["shared"]
    program.local = arrays["local"] + tr.owned["local"]
    program.dynamic_align = max([align for size, align in tr.globals.values() if not size], default=SHARED_ALIGN)
    return program


def _attributions(tr: Translator, function, arguments: list) -> list[LocalArray]:
    """The buffers of a gpu.func's own: those of the workgroup first, then private ones."""
    attributes, found = function.attributes, []
    many = ir.IntegerAttr(attributes["workgroup_attributions"]).value if "workgroup_attributions" in attributes else 0
    for i, a in enumerate(arguments):
        name, k = ("workgroup", i) if i < many else ("private", i - many)
        listed = attributes[f"{name}_attrib_attrs"] if f"{name}_attrib_attrs" in attributes else None
        known = ir.DictAttr(ir.ArrayAttr(listed)[k]) if listed is not None else {}
        t = ir.MemRefType(a.type)
        align = ir.IntegerAttr(known["llvm.align"]).value if "llvm.align" in known else dtype_of(t).itemsize
        found.append(LocalArray(tr.reg(a), t, "shared" if name == "workgroup" else "local", align))
    return found


def _cluster(function) -> tuple[int, int, int]:
    """The cluster that a function declares (`nvvm.cluster_dim`, or gpu's `known_cluster_size`)."""
    for name in ("nvvm.cluster_dim", "known_cluster_size"):
        if name in function.attributes:
            x, y, z = list(ir.DenseI32ArrayAttr(function.attributes[name]))
            return x, y, z
    return 1, 1, 1


def _globals(function, space: int) -> Iterator[tuple[str, ir.Type, ir.Operation]]:
    """The arrays beside a kernel in an address space: their names and types."""
    for op in function.parent.regions[0].blocks[0].operations:
        attributes = op.operation.attributes
        if op.operation.name == "llvm.mlir.global" and "addr_space" in attributes:
            if ir.IntegerAttr(attributes["addr_space"]).value == space:
                name, t = ir.StringAttr(attributes["sym_name"]).value, ir.TypeAttr(attributes["global_type"]).value
                yield name, t, op.operation


def _shared_globals(function) -> dict[str, tuple[int, int]]:
    """The arrays in shared memory beside a kernel: their bytes (0: the dynamic one), and their alignment."""
    found = {}
    for name, t, op in _globals(function, 3):
        align = ir.IntegerAttr(op.attributes["alignment"]).value if "alignment" in op.attributes else None
        found[name] = type_bytes(t), natural_alignment(t) if align is None else align
    return found


def _module_memory(function) -> dict[str, int]:
    """The arrays of zeros in global memory beside a kernel: their bytes."""
    found = {}
    for name, t, op in _globals(function, 1):
        value = op.attributes["value"] if "value" in op.attributes else None
        if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
            continue
        if not constant_array(value.get_splat_value(), value.type.element_type).any():
            found[name] = type_bytes(t)
    return found


def granule(program: Program) -> int:
    """The largest power of two of bytes that divides every access of the kernel."""
    return int(np.gcd.reduce([16, *program.accesses])) if program.accesses else 1
