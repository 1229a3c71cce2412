"""`gpu` level to LLVM IR: one kernel's gpu.module through upstream's conversions, with what NVPTX needs added.

What is added to upstream's pipeline: math ops become arithmetic before the conversion (which would call libdevice);
fastmath flags are settled, so that LLVM computes what the text says (plain products and sums become `mul.rn` and
`add.rn`, which nothing behind it contracts); constants in addresses become offsets of loads, stores and copies
(`addresses.py`); pointer parameters are marked noalias and aligned, so that data that
a kernel only reads goes through ld.global.nc.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mlirc.backend.addresses import constants_as_offsets
from mlirc.backend.atomics import carries_data, order_atomics
from mlirc.backend.held_loads import hold_loads
from mlirc.backend.llvm_text import for_older_llvm
from mlirc.backend.narrow import narrow_addresses
from mlirc.dialects.pointer_table import POINTER_TABLE, table_argument
from mlirc.dialects.tensor_map import map_argument
from mlirc.errors import MlircError
from mlirc.ir.accesses import WAIT, is_wait
from mlirc.ir.vectors import flat
from mlirc.mlir import find, ir, llvm, nested, nvvm, pass_manager, vector
from mlirc.runtime.plan import POINTER_ALIGNMENT
from mlirc.runtime.tensor_map import MAP_ALIGNMENT, MAP_BYTES
from mlirc.targets import Target

MAX_REGISTERS = 255  # of a thread; ptxas takes no fewer than 24
SHARED_ALIGN = 1024  # bytes; what a 128-byte swizzle of a tensor copy needs (PTX ISA, swizzling modes)
_INDEX_LIMIT = (1 << 31) - (1 << 24)  # head room for the rounding up of a grid


def gpu_module_of(module: ir.Operation) -> ir.Operation:
    """The one gpu.module of a kernel's `gpu`-level module."""
    found = [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "gpu.module"]
    if len(found) != 1:
        raise MlircError(f"gpu level: expected one gpu.module, found {len(found)}: compile one kernel at a time")
    return found[0]


def _elements(type_: ir.Type) -> int:
    if not isinstance(type_, ir.MemRefType):
        return 0
    count = 1
    for extent in type_.shape:
        if extent >= 0:  # a dynamic extent is dynamic shared memory, always small
            count *= extent
    return count


def index_bits(gpu_module: ir.Operation) -> int:
    """32 when every element number of every memref, and every index constant, fits in 31 bits, and no index is an
    address in global memory; else 64."""
    types = set()
    for op in nested(gpu_module):
        types |= {r.type for r in op.results}
        types |= {a.type for r in op.regions for b in r.blocks for a in b.arguments}
    for t in types:
        if isinstance(t, ir.MemRefType) and (isinstance(t.element_type, ir.IndexType) or _elements(t) >= _INDEX_LIMIT):
            return 64  # an index in memory has 64 bits in every kernel
    for op in find(gpu_module, "arith.constant"):
        is_index = isinstance(op.results[0].type, ir.IndexType)
        if is_index and abs(ir.IntegerAttr(op.attributes["value"]).value) >= _INDEX_LIMIT:
            return 64
    addresses = find(gpu_module, "memref.extract_aligned_pointer_as_index")
    return 64 if any("workgroup" not in str(op.operands[0].type) for op in addresses) else 32  # in global memory


def _root(value: ir.Value) -> ir.Value:
    """The argument or allocation that a host value is a view of."""
    while isinstance(value.owner, ir.Operation | ir.OpView) and len(value.owner.operands):
        value = value.owner.operands[0]
    return value


def _table(value: ir.Value) -> list[ir.Value]:
    """The pointers of a table of them; none of anything else."""
    owner = value.owner
    is_table = isinstance(owner, ir.Operation | ir.OpView) and owner.operation.name == POINTER_TABLE
    return list(owner.operands) if is_table else []


class Pointer(NamedTuple):
    """What holds of a parameter in every launch: no other parameter has its buffer; it is a buffer's start; it is no
    pointer, but a tensor map by value; or it is a table of so many pointers by value."""

    alone: bool
    whole: bool
    map: bool = False
    table: int = 0


def pointer_parameters(module: ir.Operation) -> dict[str, list[Pointer]]:
    """Per gpu.func symbol: what is known of each argument from the launches."""
    result: dict[str, list[Pointer]] = {}
    for op in find(module, "gpu.launch_func"):
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        start = sum(segments[:11])
        bound = list(op.operands)[start : start + segments[11]]
        tables = [_table(v) for v in bound]
        roots = [{_root(p) for p in table or [v]} for v, table in zip(bound, tables, strict=True)]
        here = [
            Pointer(
                sum(bool(r & x) for x in roots) == 1,
                r == {v},
                str(v.type) == "!llvm.ptr" and not table,
                len(table),
            )  # fmt: skip
            for v, r, table in zip(bound, roots, tables, strict=True)
        ]
        symbol = ir.SymbolRefAttr(op.attributes["kernel"]).value[-1]
        known = result.get(symbol, here)
        result[symbol] = [
            Pointer(a.alone and b.alone, a.whole and b.whole, a.map, a.table) for a, b in zip(known, here, strict=True)
        ]
    return result


def _check_maps(gpu_module: ir.Operation, pointers: dict[str, list[Pointer]], where: str) -> None:
    """Raises MlircError for a tensor map that a kernel does not take by value: upstream's conversion forgets whether it
    does, so that the launches are what counts."""
    for op in find(gpu_module, "gpu.func"):
        if "kernel" not in op.attributes:
            continue
        symbol = ir.StringAttr(op.attributes["sym_name"]).value
        listed = ir.ArrayAttr(op.attributes["arg_attrs"]) if "arg_attrs" in op.attributes else []
        for i, pointer in enumerate(pointers.get(symbol, [])):
            if pointer.table and (i >= len(listed) or ir.DictAttr(listed[i]) != table_argument(pointer.table)):
                raise MlircError(
                    f"{where}: argument {i} of {symbol} is a table of {pointer.table} pointers: it needs the "
                    f"attributes {table_argument(pointer.table)}"
                )
            if pointer.map and (i >= len(listed) or "llvm.byval" not in ir.DictAttr(listed[i])):
                raise MlircError(
                    f"{where}: argument {i} of {symbol} is a tensor map: it needs the attributes "
                    f"{{llvm.align = {MAP_ALIGNMENT} : i64, llvm.byval = !llvm.array<{MAP_BYTES} x i8>}}"
                )


def block_sizes(module: ir.Operation) -> dict[str, tuple[int, ...]]:
    """Per gpu.func symbol: the constant block size of its launches."""
    result: dict[str, tuple[int, ...]] = {}
    for op in find(module, "gpu.launch_func"):
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        sizes = []
        for value in list(op.operands)[sum(segments[:4]) : sum(segments[:7])]:
            owner = value.owner
            if not isinstance(owner, ir.Operation | ir.OpView) or owner.operation.name != "arith.constant":
                raise MlircError(
                    "gpu level: a launch's block size is not constant: kernels are compiled for fixed shapes"
                )
            sizes.append(ir.IntegerAttr(owner.operation.attributes["value"]).value)
        symbol = ir.SymbolRefAttr(op.attributes["kernel"]).value[-1]
        if result.setdefault(symbol, tuple(sizes)) != tuple(sizes):
            raise MlircError(f"gpu level: kernel {symbol} is launched with two block sizes: make it two kernels")
    return result


def _finish_kernel(func: ir.Operation, pointers: list[Pointer], block: tuple[int, ...]) -> None:
    """Sets the attributes of one llvm.func that is a kernel: launch bounds, and what is known of its parameters."""
    attrs = func.attributes
    attrs["nvvm.reqntid"] = ir.DenseI32ArrayAttr.get(list(block))
    for name in ("nvvm.maxntid", "gpu.known_block_size", "known_block_size", "gpu.known_grid_size"):
        if name in attrs:
            del attrs[name]
    for ours, theirs in (("mlirc.min_blocks", "nvvm.minctasm"), ("mlirc.max_registers", "nvvm.maxnreg")):
        if ours in attrs:  # MLIR has theirs on an llvm.func only
            attrs[theirs] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), ir.IntegerAttr(attrs[ours]).value)
    if "nvvm.maxnreg" in attrs and not 24 <= (limit := ir.IntegerAttr(attrs["nvvm.maxnreg"]).value) <= MAX_REGISTERS:
        name = ir.StringAttr(attrs["sym_name"]).value
        raise MlircError(f"{name}: mlirc.max_registers = {limit}: a thread has 24 to {MAX_REGISTERS} registers")
    arguments = func.regions[0].blocks[0].arguments
    old = ir.ArrayAttr(attrs["arg_attrs"]) if "arg_attrs" in attrs else [ir.DictAttr.get({})] * len(arguments)
    merged = []
    for arg, pointer, known in zip(arguments, pointers, old, strict=True):
        extra = {n.name: n.attr for n in ir.DictAttr(known)}
        if pointer.map:
            extra |= {n.name: n.attr for n in map_argument()}
            extra["nvvm.grid_constant"] = ir.UnitAttr.get()  # which MLIR refuses on a gpu.func
        elif pointer.table:
            extra |= {n.name: n.attr for n in table_argument(pointer.table)}
            extra["nvvm.grid_constant"] = ir.UnitAttr.get()
        elif str(arg.type).startswith("!llvm.ptr"):
            if pointer.whole:
                align = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), POINTER_ALIGNMENT)
                extra.setdefault("llvm.align", align)
            if pointer.alone and not carries_data(func, arg):
                extra["llvm.noalias"] = ir.UnitAttr.get()
        merged.append(ir.DictAttr.get(extra))
    attrs["arg_attrs"] = ir.ArrayAttr.get(merged)


def _finish_globals(gpu_module: ir.Operation, prefix: str) -> None:
    """Aligns the dynamic shared array, and makes every other global's name unique to this kernel."""
    for view in gpu_module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "llvm.mlir.global":
            continue
        name = ir.StringAttr(op.attributes["sym_name"]).value
        if name.startswith("__dynamic_shmem__"):
            # Internal linkage would let LLVM turn it into a static variable of no size.
            op.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<external>")
            op.attributes["alignment"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), SHARED_ALIGN)
        elif not name.startswith(prefix):
            fresh = f"{prefix}_{name}"
            ir.SymbolTable.replace_all_symbol_uses(name, fresh, gpu_module)
            op.attributes["sym_name"] = ir.StringAttr.get(fresh)


_PREPARE = (
    "builtin.module(gpu.module(convert-nvgpu-to-nvvm),canonicalize,"
    "gpu.module(expand-strided-metadata,lower-affine,convert-vector-to-scf,convert-math-to-llvm))"
)


def _convert(bits: int) -> str:
    # convert-cf-to-llvm has to run on the builtin.module.
    return (
        "builtin.module("
        f"gpu.module(convert-gpu-to-nvvm{{use-bare-ptr-memref-call-conv=1 has-redux=1 index-bitwidth={bits}}},"
        f"convert-vector-to-llvm,convert-scf-to-cf),convert-cf-to-llvm{{index-bitwidth={bits}}},"
        f"gpu.module(convert-arith-to-llvm{{index-bitwidth={bits}}},convert-ub-to-llvm{{index-bitwidth={bits}}},"
        f"convert-index-to-llvm{{index-bitwidth={bits}}},convert-nvvm-to-llvm))"
    )


_SHIELDED = {
    f"llvm.intr.{name}": f"llvm.{name}"
    for name in ("ceil", "copysign", "exp2", "fabs", "floor", "rint", "round", "roundeven", "sqrt", "trunc")
} | {"arith.minnumf": "llvm.minnum", "arith.maxnumf": "llvm.maxnum"}


def _shield_intrinsics(gpu_module: ir.Operation) -> None:
    """Spells intrinsics as llvm.call_intrinsic: convert-gpu-to-nvvm forbids the ops that libdevice has functions for,
    although NVPTX selects these itself."""
    for op in find(gpu_module, *_SHIELDED):
        flags = op.attributes["fastmathFlags"] if "fastmathFlags" in op.attributes else None
        name = ir.StringAttr.get(_SHIELDED[op.name])
        bundles = ir.DenseI32ArrayAttr.get([])
        with op.location, ir.InsertionPoint(op):
            operands = [flat(v) for v in op.operands]
            call = llvm.CallIntrinsicOp(operands[0].type, name, operands, [], bundles, fastmathFlags=flags)
            fresh = call.results[0]
            if fresh.type != op.results[0].type:
                fresh = vector.ShapeCastOp(op.results[0].type, fresh).result
        op.results[0].replace_all_uses_with(fresh)
        op.erase()


def _hold_waits(gpu_module: ir.Operation) -> set[str]:
    """Makes waits for earlier launches something that LLVM moves no access to memory across, which their intrinsic,
    said to touch none, is not. Returns the kernels that have one: none of their pointers may be noalias. What other
    launches write changes while they run; and of what none writes, loads would be through the read-only cache
    (ld.global.nc), which ptxas moves behind the wait, wherever they stand."""
    found = set()
    for func in find(gpu_module, "gpu.func"):
        for op in [op for op in find(func, WAIT) if is_wait(op)]:
            found.add(ir.StringAttr(func.attributes["sym_name"]).value)
            with op.location, ir.InsertionPoint(op):
                llvm.InlineAsmOp(None, [], "griddepcontrol.wait;", "~{memory}", has_side_effects=True)
            op.erase()
    return found


def _prefetch_to_l2(gpu_module: ir.Operation) -> None:
    """Makes prefetches, which are of global memory, those that NVPTX has."""
    for op in find(gpu_module, "llvm.intr.prefetch"):
        with op.location, ir.InsertionPoint(op):
            there = llvm.AddrSpaceCastOp(ir.Type.parse("!llvm.ptr<1>"), op.operands[0]).result
            nvvm.PrefetchOp(there, cacheLevel=nvvm.PrefetchCacheLevel.L2)
        op.erase()


_ONCE = "ld.global{0}.L1::no_allocate.v4.b32 {{$0, $1, $2, $3}}, [$4];"


def _read_once(gpu_module: ir.Operation, early: set[str]) -> None:
    """Loads of four words that nobody reads again leave the L1 cache to others; LLVM drops what says so. Those of
    kernels that begin `early` are not through the read-only cache, as in `_hold_waits`."""
    i32 = ir.IntegerType.get_signless(32)
    four, struct = ir.VectorType.get([4], i32), ir.Type.parse("!llvm.struct<(i32, i32, i32, i32)>")
    loads = [
        (op, _ONCE.format("" if ir.StringAttr(func.attributes["sym_name"]).value in early else ".nc"))
        for func in find(gpu_module, "llvm.func")
        for op in find(func, "llvm.load")
        if "nontemporal" in op.attributes and op.results[0].type == four
    ]
    for op, text in loads:
        with op.location, ir.InsertionPoint(op):
            there = llvm.AddrSpaceCastOp(ir.Type.parse("!llvm.ptr<1>"), op.operands[0]).result
            words = llvm.InlineAsmOp(struct, [there], text, "=r,=r,=r,=r,l").result
            found = llvm.UndefOp(four).result
            for i in range(4):
                word = llvm.ExtractValueOp(i32, words, ir.DenseI64ArrayAttr.get([i])).result
                found = llvm.InsertElementOp(found, word, llvm.ConstantOp(i32, ir.IntegerAttr.get(i32, i))).result
        op.results[0].replace_all_uses_with(found)
        op.erase()


_HEAD = re.compile(r"^(; ModuleID = .*|source_filename = .*)\n", re.MULTILINE)  # the text's first two lines
_CLEANUP = "builtin.module(gpu.module(reconcile-unrealized-casts,canonicalize,cse))"


def _check_lowered(gpu_module: ir.Operation, where: str) -> None:
    for op in nested(gpu_module):
        dialect = op.name.split(".")[0]
        if dialect not in ("llvm", "nvvm"):
            raise MlircError(f"{where}: {op.name} at {op.location} has no lowering to LLVM: expand it at the gpu level")
        if op.name == "llvm.func" and not len(op.regions[0].blocks):
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if name.startswith("__nv_"):
                raise MlircError(f"{where}: a math op became a call of {name}: give mlirc-expand-math a case for it")


def _convert_by_words(gpu_module: ir.Operation) -> None:
    """Floats become integers of fewer than 32 bits by way of 32, as in PyTorch: 300.0 is 44 in 8 bits."""
    i32 = ir.IntegerType.get_signless(32)
    for op in find(gpu_module, *_TO_INTEGERS):
        type_ = op.results[0].type
        vector_type = ir.VectorType(type_) if isinstance(type_, ir.VectorType) else None
        element = vector_type.element_type if vector_type else type_
        if not isinstance(element, ir.IntegerType) or element.width >= 32:
            continue
        wide = ir.VectorType.get(vector_type.shape, i32) if vector_type else i32
        with op.location, ir.InsertionPoint(op):
            word = ir.Operation.create(op.name, [wide], [op.operands[0]]).results[0]
            cut = ir.Operation.create("arith.trunci", [type_], [word]).results[0]
        op.results[0].replace_all_uses_with(cut)
        op.erase()


_TO_INTEGERS = ("arith.fptosi", "arith.fptoui")


def _freeze_conversions(gpu_module: ir.Operation) -> None:
    """Makes what an integer cannot hold some number, and not poison from which LLVM draws conclusions: PTX's `cvt`
    saturates it."""
    for op in find(gpu_module, "llvm.fptosi", "llvm.fptoui"):
        users = list(op.results[0].uses)
        with op.location, ir.InsertionPoint.after(op):
            frozen = llvm.FreezeOp(op.results[0]).result
        for use in users:
            use.owner.operands[use.operand_number] = frozen


_VECTOR_ACCESSES = ("vector.load", "vector.store", "vector.maskedload", "vector.maskedstore")


def _check_accesses(gpu_module: ir.Operation, where: str) -> None:
    """LLVM packs vectors of i1 into bits, while a buffer of i1 has a byte per element."""
    for op in find(gpu_module, *_VECTOR_ACCESSES):
        buffer = next(v.type for v in op.operands if isinstance(v.type, ir.MemRefType))
        if isinstance(buffer.element_type, ir.IntegerType) and buffer.element_type.width == 1:
            raise MlircError(f"{where}: {op.name} at {op.location} on {buffer}: a vector of i1 goes through i8")


def lower_to_llvm_ir(module: ir.Module, target: Target, name: str) -> str:
    """LLVM IR text of the gpu.module in a kernel's `gpu`-level module, which is left as it was.

    Raises MlircError with MLIR's diagnostics when an op has no lowering.
    """
    from mlirc.passes.contract import settle_floats
    from mlirc.passes.expand_divisions import expand_divisions
    from mlirc.passes.expand_fp8 import expand_fp8
    from mlirc.passes.expand_math import expand_math

    where = f"kernel {name}"
    with module.context, ir.Location.unknown():
        copy = module.operation.clone()
        copy = getattr(copy, "operation", copy)
        bits = index_bits(gpu_module_of(copy))
        pointers, blocks = pointer_parameters(copy), block_sizes(copy)
        _check_accesses(gpu_module_of(copy), where)
        _check_maps(gpu_module_of(copy), pointers, where)
        early = _hold_waits(gpu_module_of(copy))
        expand_math(gpu_module_of(copy))
        expand_fp8(gpu_module_of(copy))
        settle_floats(gpu_module_of(copy))
        expand_divisions(gpu_module_of(copy))
        _convert_by_words(gpu_module_of(copy))
        try:
            copy.verify()  # here and at the end: after each of a dozen passes it takes longer than the passes do
            pass_manager(_PREPARE, verify=False).run(copy)
            order_atomics(gpu_module_of(copy))
            _shield_intrinsics(gpu_module_of(copy))
            pass_manager(_convert(bits), verify=False).run(copy)
            if bits == 32:
                narrow_addresses(gpu_module_of(copy))
            _prefetch_to_l2(gpu_module_of(copy))
            _read_once(gpu_module_of(copy), early)
            _freeze_conversions(gpu_module_of(copy))
            pass_manager(_CLEANUP, verify=False).run(copy)
            copy.verify()
        except ir.MLIRError as e:
            raise MlircError(f"{where}: gpu to llvm: {' '.join(str(e).split())[:600]}") from e
        gpu_module = gpu_module_of(copy)
        _check_lowered(gpu_module, where)
        for view in gpu_module.regions[0].blocks[0].operations:
            op = view.operation
            if op.name == "llvm.func" and "nvvm.kernel" in op.attributes:
                symbol = ir.StringAttr(op.attributes["sym_name"]).value
                if symbol not in blocks:
                    raise MlircError(f"{where}: nothing launches {symbol}: remove it or launch it")
                constants_as_offsets(op)
                hold_loads(op)
                known = [p._replace(alone=p.alone and symbol not in early) for p in pointers[symbol]]
                _finish_kernel(op, known, blocks[symbol])
        _finish_globals(gpu_module, name)
        text = llvm.translate_module_to_llvmir(gpu_module)
        if not text:
            raise MlircError(f"{where}: MLIR could not translate the llvm dialect to LLVM IR")
    return for_older_llvm(_HEAD.sub("", text, count=2))
