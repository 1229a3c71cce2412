"""The launches of a sort: the host function, its workspaces, and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects.sort import SortInfo
from mlirc.mlir import arith, func, gpu, ir, memref
from mlirc.passes.distribute.emit.blame import check_attributes
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.kernel import memref_of, take_place
from mlirc.passes.sort import radix
from mlirc.passes.sort.keys import Keys
from mlirc.passes.sort.network import sort_rows
from mlirc.passes.sort.radix import Buffers, Pass
from mlirc.passes.sort.select import Select
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target

MOST = 1 << 12  # elements of a network


@dataclass(frozen=True)
class Sort:
    """What is lowered: the op's `info`, and what its kernels are built for and into."""

    name: str
    info: SortInfo
    target: Target
    taken: Taken
    gpu_module: gpu.GPUModuleOp

    def launch(self, suffix: str, blocks: int, warps: int, operands: Sequence[ir.Value], build: Build) -> None:
        """Adds a kernel of so many blocks and its launch, at the insertion point of the host function."""
        symbol, types = f"{self.name}{suffix}", [v.type for v in operands]
        if blocks >= 1 << 31:
            raise Unsupported(f"{blocks} blocks, more than a launch takes: sort fewer rows at once")
        with ir.InsertionPoint(self.gpu_module.regions[0].blocks[0]):
            kernel = gpu.GPUFuncOp(ir.FunctionType.get(types, []), symbol, kernel=True)
            kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([32 * warps, 1, 1])
            own = kernel.regions[0].blocks
            entry = own[0] if own else own.append(*types)
        em = Emitter(entry, warps, self.target, self.taken)
        with ir.InsertionPoint(entry):
            build(em, Keys(em, self.info), list(entry.arguments))
            gpu.ReturnOp([])
        i32, index = ir.IntegerType.get_signless(32), ir.IndexType.get()
        kernel.attributes["mlirc.smem"] = ir.IntegerAttr.get(i32, em.smem_bytes)
        one = arith.ConstantOp(index, 1).result
        gpu.LaunchFuncOp(
            [f"{self.name}_gpu", symbol],
            (arith.ConstantOp(index, blocks).result, one, one),
            (arith.ConstantOp(index, 32 * warps).result, one, one),
            list(operands),
            dynamic_shared_memory_size=arith.ConstantOp(i32, em.smem_bytes).result,
        )


Build = Callable[[Emitter, Keys, list[ir.Value]], None]


def lower(module: ir.Module, function: func.FuncOp, name: str, info: SortInfo, target: Target) -> None:
    """Replaces the function by a gpu.module and a host function of the same name."""
    taken = Taken(schedule_attributes.demands(function))
    check_attributes(function)
    way, warps = taken.take(function, "way", "radix"), taken.take(function, "warps", 8)
    types = [memref_of(t) for t in (*function.type.inputs, *function.type.results)]
    with function.location, ir.InsertionPoint(function):
        gpu_module = gpu.GPUModuleOp(ir.StringAttr.get(f"{name}_gpu"))
        gpu_module.regions[0].blocks.append()
        host = func.FuncOp(f"{name}_host", ir.FunctionType.get(types, []))
        entry = host.add_entry_block()
        sort = Sort(name, info, target, taken, gpu_module)
        with ir.InsertionPoint(entry):
            build = {"network": _network, "select": _select, "radix": _radix}[way]
            build(sort, list(entry.arguments), warps, function)
            func.ReturnOp([])
    take_place(module, function, host, name)


def _network(sort: Sort, arguments: list[ir.Value], warps: int, function: ir.Operation) -> None:
    info = sort.info
    size = max(1 << (info.length - 1).bit_length(), 2)
    if size > MOST:
        raise Unsupported(f"a network sorts rows of up to {MOST} elements", function, "way")
    own = taken_elements(sort, function)
    threads = min(-(-size // own), 32) if size <= 32 * own else size // own
    warps = max(warps if threads <= 32 else 0, threads // 32)
    blocks = -(-info.rows // (32 * warps // threads))

    def build(em: Emitter, keys: Keys, values: list[ir.Value]) -> None:
        sort_rows(em, keys, values[0], values[1:], size, threads)

    sort.launch("", blocks, warps, arguments, build)


def taken_elements(sort: Sort, function: ir.Operation) -> int:
    """How many elements a thread of a network has, a power of two."""
    own = sort.taken.take(function, "elements", 4)
    if own & (own - 1):
        raise Unsupported(f"mlirc.elements = {own}: a power of two", function, "elements")
    return own


def _select(sort: Sort, arguments: list[ir.Value], warps: int, function: ir.Operation) -> None:
    info = sort.info
    if info.count > MOST:
        raise Unsupported(f"a block selects up to {MOST} elements of a row", function, "way")

    def build(em: Emitter, keys: Keys, values: list[ir.Value]) -> None:
        row = gpu.BlockIdOp(gpu.Dimension.x).result if info.rows > 1 else 0
        Select(em, keys, values[0], values[1:], row).build()

    sort.launch("", info.rows, warps, arguments, build)


def _radix(sort: Sort, arguments: list[ir.Value], warps: int, function: ir.Operation) -> None:
    info, i32 = sort.info, ir.IntegerType.get_signless(32)
    x, results = arguments[0], arguments[1:]
    key = ir.IntegerType.get_signless(max(info.element.width, 32))
    tiles, passes = radix.tiles(info.length), info.element.width // radix.DIGIT
    rows = [info.rows, info.length]
    counts = memref.AllocOp(ir.MemRefType.get([info.rows, radix.DIGITS, tiles], i32), [], []).result
    totals = memref.AllocOp(ir.MemRefType.get([info.rows, radix.DIGITS], i32), [], []).result
    spare = [
        [memref.AllocOp(ir.MemRefType.get(rows, t), [], []).result for t in (key, i32)]
        for _ in range(min(passes - 1, 2))
    ]
    source: list[ir.Value] = []
    for number in range(passes):
        target = spare[number % 2] if number < passes - 1 else []
        _pass(sort, number, x, source, target, [counts, totals], results)
        source = target


def _pass(
    sort: Sort, number: int, x: ir.Value, source: list[ir.Value], target: list[ir.Value], sums: list[ir.Value],
    results: list[ir.Value],
) -> None:  # fmt: skip
    """The three launches of one pass."""
    info, last = sort.info, not target
    tiles = radix.tiles(info.length)

    def part(step: str) -> Build:
        def build(em: Emitter, keys: Keys, values: list[ir.Value]) -> None:
            table = dict(zip(used[step], values, strict=True))
            at = [table.get(v, values[0]) for v in (x, *sums)]
            mine = [[table[v] for v in group if v in table] for group in (source, target, results)]
            buffers = Buffers(at[0], mine[0] or None, mine[1] or None, at[1], at[2], mine[2])
            getattr(Pass(em, keys, buffers, number * radix.DIGIT), step)()

        return build

    own = source[:1] or [x]
    used = {
        "count": [*own, sums[0]],
        "add_up": sums,
        "move": [*dict.fromkeys([*(source or [x]), *sums, *([x, *results] if last else target)])],
    }
    sort.launch(f"_{3 * number}", info.rows * tiles, radix.WARPS, used["count"], part("count"))
    sort.launch(f"_{3 * number + 1}", info.rows * radix.DIGITS // radix.ADDING, radix.ADDING, sums, part("add_up"))
    sort.launch(f"_{3 * number + 2}", info.rows * tiles, radix.WARPS, used["move"], part("move"))
