"""Lowers a module of tensors to LLVM's dialect for the CPU.

The aim is an oracle: right for everything that the levels hold, and quick enough for a small model. Loops are scalar;
LLVM vectorizes the innermost one, which `_order_loops` chooses to be contiguous.
"""

from __future__ import annotations

from mlirc.host.bf16_bits import keep_bf16_bits
from mlirc.host.bounds import Strays, guard
from mlirc.host.effort import opt_level
from mlirc.host.integers_of_floats import saturate_conversions
from mlirc.host.narrowing import narrow_doubles
from mlirc.host.outline import outline_linalg
from mlirc.host.rounding import add_bounds
from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.levels import FP32, ROUNDED, ROUNDS
from mlirc.mlir import context, func, ir, nested, run_passes
from mlirc.precision import DEFAULT_FP32

_NORMALIZE = "func.func(linalg-generalize-named-ops,refback-generalize-tensor-concat,tm-tensor-bufferize)"

_BUFFERIZE = (
    "one-shot-bufferize{bufferize-function-boundaries=1 allow-return-allocs-from-loops=1 "
    "function-boundary-type-conversion=identity-layout-map allow-unknown-ops=1},"
    "buffer-results-to-out-params{hoist-static-allocs=1 modify-public-functions=1},"
    "func.func(tm-tensor-to-loops),"
    "buffer-deallocation-pipeline"
)

# 16-bit floats are computed in f32 and rounded after each operation; both the x86 back end and the C library lack them.
_TO_LOOPS = (
    "func.func(refback-munge-memref-copy,convert-linalg-to-loops,scf-forall-to-for,"
    "math-extend-to-supported-types,arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32})"
)

_TO_LLVM = (
    "canonicalize,cse,"
    "convert-vector-to-scf,convert-scf-to-cf,memref-expand,expand-strided-metadata,lower-affine,"
    "arith-expand{include-bf16=1},"
    "convert-math-to-llvm{approximate-log1p=false},convert-math-to-libm,convert-vector-to-llvm,convert-index-to-llvm,"
    "finalize-memref-to-llvm,convert-func-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,convert-ub-to-llvm,"
    "reconcile-unrealized-casts"
)

# What LLVM calls to round to bf16 on x86 processors without an instruction for it, and no C library of ours has: passes
# make such roundings of their own (a minimum of extended numbers becomes one of bf16). To the nearest, ties to even.
_ROUND_TO_BF16 = """
llvm.func @__truncsfbf2(%x: f32) -> bf16 {
  %one = llvm.mlir.constant(1 : i32) : i32
  %sixteen = llvm.mlir.constant(16 : i32) : i32
  %magnitude = llvm.mlir.constant(0x7FFFFFFF : i32) : i32
  %infinity = llvm.mlir.constant(0x7F800000 : i32) : i32
  %half = llvm.mlir.constant(0x7FFF : i32) : i32
  %quiet = llvm.mlir.constant(0x40 : i32) : i32
  %bits = llvm.bitcast %x : f32 to i32
  %upper = llvm.lshr %bits, %sixteen : i32
  %odd = llvm.and %upper, %one : i32
  %more = llvm.add %half, %odd : i32
  %sum = llvm.add %bits, %more : i32
  %nearest = llvm.lshr %sum, %sixteen : i32
  %size = llvm.and %bits, %magnitude : i32
  %is_nan = llvm.icmp "ugt" %size, %infinity : i32
  %nan = llvm.or %upper, %quiet : i32
  %wide = llvm.select %is_nan, %nan, %nearest : i1, i32
  %narrow = llvm.trunc %wide : i32 to i16
  %rounded = llvm.bitcast %narrow : i16 to bf16
  llvm.return %rounded : bf16
}
"""


def lower_to_llvm(module: ir.Module, function: str, source: str = "", bounds: bool = False) -> tuple[Strays, int]:
    """Lowers in place; `function` gets a C interface whose results are trailing memref arguments. Returns what tells of
    indices outside of their tensors, by lines of the text called `source`, and LLVM's level for the code. With `bounds`
    it takes error bounds behind the results (`mlirc.host.rounding`), or raises Unbounded."""
    from mlirc.passes import get_pass
    from mlirc.passes.expand_fp8 import expand_fp8
    from mlirc.passes.loops.buffers import (
        expand_attentions,
        expand_pads,
        expand_row_writes,
        expand_sorts,
        separate_results,
        vouch_for_buffers,
    )
    from mlirc.passes.loops.scans import expand_scans
    from mlirc.passes.loops.windows import expand_im2col

    with context(), ir.Location.unknown():
        expand_attentions(module)
        get_pass("mlirc-decompose-attention")(module)
        expand_sorts(module)
        expand_im2col(module)
        expand_scans(module)
        expand_pads(module)
        separate_results(module)
        entry = find_function(module, function)
        inputs = len(entry.type.inputs)
        _protect_arguments(entry)
        run_passes(module, _NORMALIZE)
        if bounds:
            _note_rounded_factors(find_function(module, function))
        expand_row_writes(module)
        vouch_for_buffers(module)
        _order_loops(module)
        run_passes(module, _BUFFERIZE)
        entry = find_function(module, function)
        entry.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        if not bounds:
            outline_linalg(module, entry)
        run_passes(module, _TO_LOOPS)
        if bounds:
            add_bounds(find_function(module, function), inputs)
        _round_every_time(module)
        expand_fp8(module.operation)
        saturate_conversions(module)
        narrow_doubles(module)
        effort = opt_level(module, function)
        strays = guard(module, source)
        _call_expm1(module)
        run_passes(module, _TO_LLVM)
        keep_bf16_bits(module)
        module.body.append(ir.Operation.parse(_ROUND_TO_BF16))
        return strays, effort


def _note_rounded_factors(entry: ir.Operation) -> None:
    """Notes on the FP32 products of a kernel that their factors may be rounded to TF32, or divided into two TF32
    numbers, as its `FP32` says, or to the type that an instruction states."""
    way = ir.StringAttr(entry.attributes[FP32]).value if FP32 in entry.attributes else DEFAULT_FP32
    way = ir.StringAttr(entry.attributes[ROUNDS]).value if ROUNDS in entry.attributes else way
    if way == "ieee":
        return
    for op in nested(entry.operation):
        if op.name == "linalg.generic" and multiply_accumulate(op) is not None:
            for inner in op.regions[0].blocks[0].operations:
                if inner.operation.name == "arith.mulf" and isinstance(inner.operation.results[0].type, ir.F32Type):
                    inner.operation.attributes[ROUNDED] = ir.StringAttr.get(way)


def find_function(module: ir.Module, name: str) -> ir.Operation:
    """The function of that name; raises MlircError when there is none."""
    from mlirc.errors import MlircError

    names = []
    for op in module.body.operations:
        if op.operation.name in ("func.func", "llvm.func"):
            names.append(ir.StringAttr(op.attributes["sym_name"]).value)
            if names[-1] == name:
                return op
    raise MlircError(f"no function '{name}' in the module: it has {', '.join(names) or 'none'}")


def _protect_arguments(entry: ir.Operation) -> None:
    """Tells bufferization not to write into the caller's arrays."""
    count = len(entry.type.inputs)
    old = ir.ArrayAttr(entry.attributes["arg_attrs"]) if "arg_attrs" in entry.attributes else [{}] * count
    attrs = []
    for i in range(count):
        kept = {name.name: name.attr for name in ir.DictAttr(old[i])} if old[i] else {}
        kept = {k: v for k, v in kept.items() if not k.startswith("mlirc.")}
        kept["bufferization.writable"] = ir.BoolAttr.get(False)
        attrs.append(ir.DictAttr.get(kept))
    entry.attributes["arg_attrs"] = ir.ArrayAttr.get(attrs)


def _round_every_time(module: ir.Module) -> None:
    """Emulated arithmetic may skip the rounding between two operations; PyTorch and the IR's meaning do not."""
    exact = ir.Attribute.parse("#arith.fastmath<none>")

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("arith.extf", "arith.truncf") and "fastmath" in op.attributes:
            op.attributes["fastmath"] = exact
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _call_expm1(module: ir.Module) -> None:
    """Calls the C library's: `convert-math-to-llvm` subtracts 1 from the exponential, which near 0 leaves nothing."""
    found: dict[str, list[ir.Operation]] = {"f32": [], "f64": []}

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "math.expm1" and str(op.results[0].type) in found:
            found[str(op.results[0].type)].append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for word, name in (("f32", "expm1f"), ("f64", "expm1")):
        ops, type_ = found[word], ir.Type.parse(word)
        if ops:
            with ir.InsertionPoint(module.body):
                func.FuncOp(name, ir.FunctionType.get([type_], [type_]), visibility="private")
        for op in ops:
            with op.location, ir.InsertionPoint(op):
                call = func.CallOp([type_], name, list(op.operands))
            op.results[0].replace_all_uses_with(call.results[0])
            op.erase()


def _order_loops(module: ir.Module) -> None:
    """Makes the contiguous dimension of every contraction its innermost loop, and lets LLVM reorder its sum."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "linalg.generic" and "reduction" in str(op.attributes["iterator_types"]):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    fast = ir.Attribute.parse("#arith.fastmath<reassoc,contract,nsz>")
    for op in found:
        body = op.regions[0].blocks[0].operations
        if any(o.operation.name == "linalg.index" for o in body):
            continue
        for o in body:
            if o.operation.name == "arith.addf":
                o.attributes["fastmath"] = fast
        _move_innermost(op)


def _move_innermost(op: ir.Operation) -> None:
    """Permutes the loops of a generic so that the one with the fewest strided accesses is last."""
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    rank = maps[0].n_dims
    results = [[r.position for r in m.results if isinstance(r, ir.AffineDimExpr)] for m in maps]
    if any(len(r) != len(m.results) for r, m in zip(results, maps, strict=True)) or rank < 2:
        return

    def cost(dim: int) -> tuple[int, int]:
        strided = sum(dim in r[:-1] for r in results)
        return strided, rank - dim

    last = min(range(rank), key=cost)
    order = [d for d in range(rank) if d != last] + [last]
    if order == list(range(rank)):
        return
    place = {d: i for i, d in enumerate(order)}
    new_maps = [ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(place[d]) for d in r]) for r in results]
    iterators = list(ir.ArrayAttr(op.attributes["iterator_types"]))
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in new_maps])
    op.attributes["iterator_types"] = ir.ArrayAttr.get([iterators[d] for d in order])
