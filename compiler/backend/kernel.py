"""What the back end makes of one kernel, and how its launches are read off the host function of its `gpu` level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlirc.backend.host_scalars import OPERATIONS, HostScalars
from mlirc.dialects.pointer_table import POINTER, POINTER_TABLE
from mlirc.dialects.tensor_map import TENSOR_MAP, map_spec
from mlirc.errors import MlircError
from mlirc.ir.accesses import Accesses, is_wait
from mlirc.ir.dependence import COOPERATIVE, DEPENDENT, GIVEN, launches_of
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir, nested
from mlirc.runtime.plan import Extent
from mlirc.runtime.tensor_map import ADDRESS_ALIGNMENT, TensorMapSpec


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `args[i]` is the buffer bound to parameter i: the host function's arguments come first
    (kernel inputs, then results), then the workspaces; `offsets[i]` is added to its address, in bytes. Parameter i is a
    pointer, or, where `maps` has i, a tensor map of what lies there, where `values` has it, the number that lies there,
    and where `tables` has it, an array of pointers, of which that is the first, and the others are to buffers (with
    offsets). `extents` has the dimensions of the grid that scalars decide, which are arguments of the host function;
    `grid` is the most that they may be. `smem` is the dynamic shared memory in bytes.
    `dependent`: it may begin before the launch in front of it has ended, for which it waits itself (griddepcontrol).
    `cooperative`: all of its blocks are resident at once, since they wait for each other.
    `given`: the arguments that must lead to what no launch of a run writes: it may read them without waiting."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem: int
    args: list[int]
    offsets: list[int] = field(default_factory=list)
    cluster: tuple[int, int, int] | None = None
    maps: dict[int, TensorMapSpec] = field(default_factory=dict)
    dependent: bool = False
    values: tuple[int, ...] = ()
    tables: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    extents: dict[int, Extent] = field(default_factory=dict)
    given: tuple[int, ...] = ()
    cooperative: bool = False

    @property
    def places(self) -> list[tuple[int, int]]:
        """The buffers that it uses, with offsets: those of its arguments, those behind the first of each table, and the
        scalars that decide its grid."""
        tables = [place for _, table in sorted(self.tables.items()) for place in table]
        return [*zip(self.args, self.offsets, strict=True), *tables, *self.deciding]

    @property
    def deciding(self) -> list[tuple[int, int]]:
        """The scalars that decide its grid, as buffers with offsets."""
        return [(e.scalar, 0) for _, e in sorted(self.extents.items())]

    def numbers_of(self, parameter: int) -> list[int]:
        """The numbers, among its places, of what a parameter leads to."""
        first = len(self.args) + sum(len(table) for p, table in self.tables.items() if p < parameter)
        return [parameter, *range(first, first + len(self.tables.get(parameter, ())))]

    def written(self, parameter: int) -> list[int]:
        """The buffers that a kernel may write through a parameter."""
        return [self.args[parameter], *(buffer for buffer, _ in self.tables.get(parameter, ()))]

    def __post_init__(self) -> None:
        if not self.offsets:
            object.__setattr__(self, "offsets", [0] * len(self.args))


@dataclass(frozen=True)
class Copy:
    """A device-to-device copy of `size` bytes between two buffers, numbered as in `Launch.args`."""

    source: int
    target: int
    size: int
    source_offset: int = 0
    target_offset: int = 0


@dataclass
class CompiledKernel:
    """One kernel function after the back end: its PTX and LLVM IR as text, its launches in order, and the workspaces
    (bytes each) that they share."""

    name: str
    ptx: str
    llvm: str
    launches: list[Launch | Copy]
    workspaces: list[int]


def memref_bytes(type_: ir.Type, where: str) -> int:
    """The bytes that a static memref type occupies (i1 is one byte per element)."""
    if not isinstance(type_, ir.MemRefType) or not type_.has_static_shape:
        raise MlircError(f"{where}: {type_} is not a memref of static shape: kernels are compiled for fixed shapes")
    count = 1
    for extent in type_.shape:
        count *= extent
    name = str(type_.element_type)
    if name not in ELEMENT_BYTES:
        raise MlircError(f"{where}: element type {name} is not supported: use one of {', '.join(ELEMENT_BYTES)}")
    return count * ELEMENT_BYTES[name]


_VIEWS = {
    "memref.cast",
    "memref.expand_shape",
    "memref.collapse_shape",
    "memref.memory_space_cast",
    "memref.reinterpret_cast",
    "memref.subview",
    "memref.view",
}
_IGNORED = {"arith.constant", "memref.dealloc", "gpu.wait", "memref.assume_alignment"}


class _HostReader:
    """Walks a host function's one block, keeping for each memref value the buffer it lies in and its byte offset."""

    def __init__(self, host: ir.Operation):
        self.name = ir.StringAttr(host.attributes["sym_name"]).value
        self.host = host
        block = host.regions[0].blocks[0]
        self.buffers: dict[ir.Value, tuple[int, int]] = {}
        self.nargs = len(block.arguments)
        self.sizes: list[int] = []
        for i, arg in enumerate(block.arguments):
            self.sizes.append(memref_bytes(arg.type, f"kernel {self.name}, argument {i}"))
            self.buffers[arg] = (i, 0)
        self.maps: dict[ir.Value, TensorMapSpec] = {}
        self.scalars = HostScalars()
        self.pointers: dict[ir.Value, tuple[int, int]] = {}
        self.tables: dict[ir.Value, list[tuple[int, int]]] = {}
        self.constants: dict[ir.Value, int] = {}
        self.workspaces: list[int] = []
        self.launches: list[Launch | Copy] = []
        self.given = {launch.op: launch.given for launch in launches_of(host)}

    def error(self, op: ir.Operation, why: str) -> MlircError:
        return MlircError(f"kernel {self.name}: host operation {op.name} {why}")

    def buffer(self, op: ir.Operation, value: ir.Value) -> tuple[int, int]:
        if value not in self.buffers:
            raise self.error(op, f"takes {value.type}, which is no argument, allocation or view of one")
        return self.buffers[value]

    def constant(self, op: ir.Operation, value: ir.Value) -> int:
        if value not in self.constants:
            raise self.error(op, "needs constant sizes: kernels are compiled for fixed shapes")
        return self.constants[value]

    def read(self) -> tuple[list[Launch | Copy], list[int]]:
        for view in self.host.regions[0].blocks[0].operations:
            op = view.operation
            if op.name == "arith.constant":
                if isinstance(op.attributes["value"], ir.IntegerAttr):
                    self.constants[op.results[0]] = ir.IntegerAttr(op.attributes["value"]).value
            elif op.name in ("memref.alloc", "memref.alloca", "gpu.alloc"):
                self.workspaces.append(memref_bytes(op.results[0].type, f"kernel {self.name}, workspace"))
                self.buffers[op.results[0]] = (self.nargs + len(self.workspaces) - 1, 0)
            elif op.name in _VIEWS:
                self.read_view(op)
            elif op.name == "memref.assume_alignment":
                if len(op.results):
                    self.buffers[op.results[0]] = self.buffer(op, op.operands[0])
            elif op.name in OPERATIONS:
                if problem := self.scalars.read(op, self.constants):
                    raise self.error(op, problem)
            elif op.name == POINTER:
                self.pointers[op.results[0]] = self.buffer(op, op.operands[0])
            elif op.name == POINTER_TABLE:
                self.tables[op.results[0]] = [self.pointers[v] for v in op.operands]
            elif op.name == TENSOR_MAP:
                self.read_map(op)
            elif op.name == "gpu.launch_func":
                self.read_launch(op)
            elif op.name in ("memref.copy", "gpu.memcpy"):
                self.read_copy(op)
            elif op.name not in _IGNORED and op.name != "func.return":
                raise self.error(op, "is not allowed: a host function only allocates workspaces, copies and launches")
        return self.launches, self.workspaces

    def read_view(self, op: ir.Operation) -> None:
        buffer, offset = self.buffer(op, op.operands[0])
        if op.name == "memref.view":
            offset += self.constant(op, op.operands[1])
        else:
            offset = self.buffers[op.operands[0]][1] + self.strided_delta(op)
        self.buffers[op.results[0]] = (buffer, offset)

    def strided_delta(self, op: ir.Operation) -> int:
        """Bytes from the source's first element to the result's; the result has to be contiguous, since a launch binds
        a bare pointer."""
        source, result = op.operands[0].type, op.results[0].type
        strides, offset = result.get_strides_and_offset()
        dense = 1
        for extent, stride in zip(reversed(result.shape), reversed(strides), strict=True):
            if extent != 1 and stride != dense:
                raise self.error(op, f"makes {result}, which is not contiguous")
            dense *= extent
        dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
        base = 0 if op.name == "memref.reinterpret_cast" else source.get_strides_and_offset()[1]
        if dynamic in (offset, base):
            raise self.error(op, "needs a constant offset")
        return (offset - base) * ELEMENT_BYTES[str(result.element_type)]

    def read_launch(self, op: ir.Operation) -> None:
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        starts = [sum(segments[:i]) for i in range(len(segments) + 1)]
        if segments[0]:
            raise self.error(op, "is asynchronous; launches run in program order: drop the async dependencies")

        def dims(first: int) -> tuple[int, int, int]:
            x, y, z = (self.constant(op, op.operands[starts[first + i]]) for i in range(3))
            return x, y, z

        # Segments: async tokens, grid xyz, block xyz, cluster xyz (0 or 1 each), shared memory, operands, async object.
        sizes = [op.operands[starts[1 + i]] for i in range(3)]
        if any(v in self.scalars.extents for v in sizes):
            grid, extents = self.scalars.grid(op, sizes, self.constants)
        else:
            grid, extents = dims(1), {}
        block = dims(4)
        cluster = dims(7) if segments[7] else None
        smem = self.constant(op, op.operands[starts[10]]) if segments[10] else 0
        values = list(op.operands)[starts[11] : starts[12]]
        numbers = tuple(i for i, v in enumerate(values) if v in self.scalars.loaded)
        bound = [self.bound(op, v) for v in values]
        tables = {i: self.tables[v][1:] for i, v in enumerate(values) if v in self.tables}
        maps = {i: self.maps[v] for i, v in enumerate(values) if v in self.maps}
        symbol = ir.SymbolRefAttr(op.attributes["kernel"]).value[-1]
        args, offsets = [b for b, _ in bound], [o for _, o in bound]
        dependent = DEPENDENT in op.attributes
        given = tuple(sorted(self.given[op])) if dependent else ()
        self.launches.append(
            Launch(symbol, grid, block, smem, args, offsets, cluster, maps, dependent, numbers, tables, extents, given,
                   COOPERATIVE in op.attributes)
        )  # fmt: skip

    def bound(self, op: ir.Operation, value: ir.Value) -> tuple[int, int]:
        """The buffer, with an offset, that a launch gives: of a table the first."""
        if value in self.scalars.loaded:
            return self.scalars.loaded[value], 0
        return self.tables[value][0] if value in self.tables else self.buffer(op, value)

    def read_map(self, op: ir.Operation) -> None:
        buffer, offset = self.buffer(op, op.operands[0])
        if offset % ADDRESS_ALIGNMENT:
            raise self.error(op, f"is of memory from byte {offset} on: not a multiple of {ADDRESS_ALIGNMENT}")
        spec = map_spec(op)
        size = [*self.sizes, *self.workspaces][buffer]
        if offset + spec.nbytes > size:
            raise self.error(op, f"is of {spec.nbytes} bytes from byte {offset} on, where there are {size}")
        self.buffers[op.results[0]] = (buffer, offset)
        self.maps[op.results[0]] = spec

    def read_copy(self, op: ir.Operation) -> None:
        first = 1 if op.name == "memref.copy" else 0  # gpu.memcpy names the target first
        (src, src_offset) = self.buffer(op, op.operands[1 - first])
        (dst, dst_offset) = self.buffer(op, op.operands[first])
        size = memref_bytes(op.operands[first].type, f"kernel {self.name}, copy")
        self.launches.append(Copy(src, dst, size, src_offset, dst_offset))


def launches_from_gpu_module(module: ir.Module) -> tuple[list[Launch | Copy], list[int]]:
    """Reads (launches, workspaces in bytes) off the host function of one kernel's `gpu`-level module.

    The host function is the one `func.func` with a body that is not nested in a `gpu.module`. Views with a constant
    offset are seen through; anything that is not known at compile time, or not contiguous, raises MlircError.
    """
    hosts = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    hosts = [op for op in hosts if len(op.regions[0].blocks)]
    if len(hosts) != 1:
        raise MlircError(f"gpu level: expected one host function with a body, found {len(hosts)}")
    if len(hosts[0].regions[0].blocks) != 1:
        raise MlircError("gpu level: the host function has control flow; launches must be straight-line code")
    launches, workspaces = _HostReader(hosts[0]).read()
    _check_dependent(module, [x for x in launches if isinstance(x, Launch) and x.dependent])
    return launches, workspaces


def _check_dependent(module: ir.Module, launches: Sequence[Launch]) -> None:
    """A kernel that may begin early has to wait: nobody who waits for its end would know that those before it have
    ended. Before that it accesses nothing but what is `mlirc.given`, as far as that can be told from its text."""
    given: dict[str, set[int]] = {}
    for launch in launches:
        given[launch.symbol] = given.get(launch.symbol, set(launch.given)) & set(launch.given)
    for func in nested(module.operation) if launches else ():
        if func.name != "gpu.func" or (name := ir.StringAttr(func.attributes["sym_name"]).value) not in given:
            continue
        if not any(map(is_wait, nested(func))):
            raise MlircError(
                f"gpu level: {name} is launched with {DEPENDENT} and has no nvvm.griddepcontrol wait: add one in "
                "front of all accesses to what earlier launches write or read"
            )
        accesses = Accesses(func)
        for op in [o.operation for o in accesses.block.operations]:
            if any(map(is_wait, [op, *nested(op)])):
                break
            if early := accesses.accessed(op) - given[name]:
                raise MlircError(
                    f"gpu level: {name}: {op.name} at {op.location} accesses argument {min(early)} in front of "
                    f"nvvm.griddepcontrol wait, where {DEPENDENT} allows what {GIVEN} lists: move it behind the wait"
                )
