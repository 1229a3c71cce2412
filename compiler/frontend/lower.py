"""From the `torch` level to the `linalg` level."""

from __future__ import annotations

import re

from mlirc.dialects.mlirc_dialect import attention, cached_attention
from mlirc.errors import MlircError
from mlirc.frontend import elementwise, integer_division
from mlirc.frontend.amax import lower_amax
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.fp8 import lower_from_fp8, lower_to_fp8
from mlirc.frontend.fx_import import ATTENTION_CALL, CACHED, SCAN_CALL, VECTORS
from mlirc.frontend.importer import ImportedModel
from mlirc.frontend.integer_products import PRODUCTS, narrow_sums
from mlirc.frontend.nan_order import order_nans
from mlirc.frontend.pair_reductions import split_pairs
from mlirc.frontend.prefix_scan_lowering import (
    EXTREMUM,
    LINEAR,
    SCANNED,
    lower_linear_scan,
    lower_prefix_extremum,
    lower_prefix_scan,
)
from mlirc.frontend.quantize.lowering import OPERATOR as DEQUANTIZE
from mlirc.frontend.quantize.lowering import lower_dequantize
from mlirc.frontend.random.lowering import OPERATOR as DRAW
from mlirc.frontend.random.lowering import lower_draw
from mlirc.frontend.row_ops_lowering import GATHERED, PUT, lower_gather_matrices, lower_put_rows
from mlirc.frontend.scatter_lowering import (
    ELEMENTS,
    REFUSED,
    SLICES,
    lower_scatter,
    lower_scatter_elements,
    refuse_scatter,
)
from mlirc.frontend.sorting import SORTED, lower_sort
from mlirc.ir.loops import STEP, write_loop
from mlirc.mlir import arith, context, find, ir, nested, run_passes

_SIMPLIFY = (
    "func.func(torch-reduce-op-variants,canonicalize,torch-decompose-complex-ops{legal-ops=aten.amax},"
    "torch-recompose-complex-ops,canonicalize)"
)

# torch-mlir's own pipeline without its verifier at the end, which knows nothing of calls.
_TO_LINALG = (
    "func.func(torch-restructure-non-constant-axes,torch-fuse-quantized-ops,"
    "convert-torch-to-tmtensor{allow-non-finites=true},canonicalize,convert-torch-to-linalg{allow-non-finites=true},"
    "canonicalize,convert-torch-to-scf,convert-torch-to-arith,convert-torch-to-tensor),"
    "convert-torch-conversion-to-mlprogram,"
    "func.func(memref-expand,canonicalize,resolve-shaped-type-result-dims,cse),"
    "torch-func-backend-type-conversion,func.func(canonicalize,torch-finalizing-backend-type-conversion)"
)

# Our own ops of PyTorch, which the importer takes for unknown ones.
_OPERATORS = {
    elementwise.BITCAST: elementwise.lower_bitcast,
    elementwise.ERFC: elementwise.lower_erfc,
    "torch.mlirc.to_fp8": lower_to_fp8,
    "torch.mlirc.from_fp8": lower_from_fp8,
    integer_division.OPERATOR: integer_division.lower_integer_division,
    DRAW: lower_draw,
    DEQUANTIZE: lower_dequantize,
    PUT: lower_put_rows,
    GATHERED: lower_gather_matrices,
    SLICES: lower_scatter,
    ELEMENTS: lower_scatter_elements,
    SCANNED: lower_prefix_scan,
    EXTREMUM: lower_prefix_extremum,
    LINEAR: lower_linear_scan,
    SORTED: lower_sort,
}


def lower_to_linalg(imported: ImportedModel | ir.Module | str) -> ir.Module:
    """A new module of the `linalg` level from the `torch` level, which stays as it is; text has its locations.

    Raises MlircError naming the op and the model's module for an op that torch-mlir cannot lower.
    """
    given = imported.module if isinstance(imported, ImportedModel) else imported
    with context(), ir.Location.unknown():
        module = _parsed(given if isinstance(given, str) else given.operation.get_asm(enable_debug_info=True))
        kept = _interface(module)
        for op in find(module.operation, "torch.operator"):
            name = ir.StringAttr(op.attributes["name"]).value
            if name in _OPERATORS:
                _OPERATORS[name](op)
        _require_known_ops(module)
        for op in find(module.operation, "torch.aten.amax"):
            lower_amax(op)
        for op in find(module.operation, *REFUSED):
            refuse_scatter(op, _place(op.location, module))
        for op in find(module.operation, *elementwise.OF_FLOATS):
            elementwise.lower_floats(op)
        _run(module, _SIMPLIFY)
        for op in find(module.operation, *elementwise.COMPARISONS):  # of what torch-mlir took apart
            elementwise.lower_floats(op)
        _run(module, _TO_LINALG)
        _restore_interface(module, kept)
        _replace_attention_calls(module)
        _write_loops(module)
        _drop_asserts(module)
        _narrow_constants(module)
        _round_by_way_of_f32(module)
        narrow_sums(find(module.operation, *PRODUCTS))
        split_pairs(find(module.operation, "linalg.generic"))
        order_nans(find(module.operation, "linalg.generic"))
        run_passes(module, "canonicalize,cse,symbol-dce")
        _require_linalg(module)
    return module


def _parsed(text: str) -> ir.Module:
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as e:  # the importer builds ops without verifying them
        raise _failure(e) from e


def _main(module: ir.Module) -> ir.Operation:
    for op in module.body.operations:
        if "sym_name" in op.attributes and ir.StringAttr(op.attributes["sym_name"]).value == "main":
            return op
    raise MlircError("the module has no function 'main'")


def _interface(module: ir.Module) -> dict[str, ir.Attribute]:
    main = _main(module)
    return {name: main.attributes[name] for name in ("arg_attrs", "res_attrs") if name in main.attributes}


def _restore_interface(module: ir.Module, kept: dict[str, ir.Attribute]) -> None:
    main = _main(module)
    for op in module.body.operations:
        if "torch.assume_strict_symbolic_shapes" in op.attributes:
            del op.attributes["torch.assume_strict_symbolic_shapes"]
    for name, value in kept.items():
        main.attributes[name] = value


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        run_passes(module, pipeline)
    except MlircError as e:
        raise (_failure(e.__cause__, module) if isinstance(e.__cause__, ir.MLIRError) else e) from e


def _failure(error: ir.MLIRError, module: ir.Module | None = None) -> MlircError:
    diagnostics = getattr(error, "error_diagnostics", None) or []
    for diagnostic in diagnostics:
        op = re.search(r"failed to legalize operation '([^']+)'", diagnostic.message)
        if op:
            return _not_lowered(op[1], diagnostic.location, module)
    text = "; ".join(first_line(d.message) for d in diagnostics) or first_line(str(error))
    where = f" in {_place(diagnostics[0].location, module)}" if diagnostics else ""
    return MlircError(f"lowering to linalg failed{where}: {text}: write that part of the model with other ops")


def _not_lowered(name: str, location: ir.Location, module: ir.Module | None) -> MlircError:
    """The refusal of an op; for a constant or a list, of the op of tensors that keeps it from being converted."""
    if module is not None and not name.startswith(_OF_TENSORS):
        ops = [op for op in nested(module.operation) if op.name.startswith(_OF_TENSORS)]
        typed = [op for op in ops if any("vtensor" in str(v.type) for v in (*op.operands, *op.results))]
        for op in [*typed, *ops][:1]:
            name, location = op.name, op.location
    where = _place(location, module)
    return MlircError(f"op {_op_name(name)} in {where} cannot be lowered to linalg: write it with other ops of PyTorch")


_OF_TENSORS = ("torch.aten.", "torch.prims.", "torch.torchvision.", "torch.quantized_decomposed.", "torch.operator")


def _op_name(name: str) -> str:
    """PyTorch's name of an op of the torch dialect: `aten::add.Tensor`."""
    return re.sub(r"^(\w+)\.", r"\1::", name.removeprefix("torch."), count=1)


def _place(location: ir.Location, module: ir.Module | None) -> str:
    """Where in the model an op is, in words."""
    name = _name(location)
    if name is None and module is not None and "mlirc.model" in module.operation.attributes:
        name = ir.StringAttr(module.operation.attributes["mlirc.model"]).value
    return f"module '{name}'" if name else "the model"


def _name(location: ir.Location) -> str | None:
    match = re.search(r'loc\((?:fused\[|callsite\()?"([^"]*)"', str(location))
    return match[1] if match else None


def _require_known_ops(module: ir.Module) -> None:
    for op in find(module.operation, "torch.operator"):
        name = ir.StringAttr(op.attributes["name"]).value.removeprefix("torch.").replace(".", "::", 1)
        where = _place(op.location, module)
        raise MlircError(
            f"op {name} in {where} cannot be imported: torch-mlir does not know it: write it with other ops of PyTorch"
        )


def _replace_attention_calls(module: ir.Module) -> None:
    declared = {}
    for op in module.body.operations:
        if ATTENTION_CALL in op.attributes:
            declared[ir.StringAttr(op.attributes["sym_name"]).value] = ir.DictAttr(op.attributes[ATTENTION_CALL])
    for call in find(module.operation, "func.call"):
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name not in declared:
            continue
        attributes = declared[name]
        limits = dict(
            scale=ir.FloatAttr(attributes["scale"]).value,
            window=ir.IntegerAttr(attributes["window"]).value,
            softcap=ir.FloatAttr(attributes["softcap"]).value,
        )
        score = [ir.StringAttr(a).value for a in attributes["score"]] if "score" in attributes else []
        names = [ir.StringAttr(a).value for a in attributes[VECTORS]] if VECTORS in attributes else []
        split = len(call.operands) - len(names)
        operands = list(call.operands)[:split]
        vectors = dict(zip(names, list(call.operands)[split:], strict=True))
        with call.location, ir.InsertionPoint(call):
            if CACHED in attributes:
                new = cached_attention(operands, **limits, slopes=vectors.get("slopes"), sinks=vectors.get("sinks"))
            else:
                new = attention(
                    *operands[: 3 if score else 4],
                    inputs=operands[3:] if score else [],
                    sinks=vectors.get("sinks"),
                    **limits,
                    causal=ir.BoolAttr(attributes["causal"]).value,
                    nan_rows="nan_rows" in attributes and ir.BoolAttr(attributes["nan_rows"]).value,
                    score=score,
                    softmax="softmax" not in attributes or ir.BoolAttr(attributes["softmax"]).value,
                    lse=len(call.results) > 1,
                )
        for old, result in zip(call.results, new.owner.results, strict=True):
            old.replace_all_uses_with(result)
        call.erase()


def _write_loops(module: ir.Module) -> None:
    """Gives the declared functions of loops their bodies; see `mlirc.ir.loops`."""
    functions = {op.name.value: op for op in module.body.operations if op.operation.name == "func.func"}
    for name, declared in functions.items():
        if SCAN_CALL not in declared.attributes:
            continue
        about = ir.DictAttr(declared.attributes[SCAN_CALL])
        count, carries, slices = (ir.IntegerAttr(about[key]).value for key in ("count", "carries", "slices"))
        step = ir.FlatSymbolRefAttr(about["step"]).value
        reverse = ir.BoolAttr(about["reverse"]).value
        types, results = declared.type.inputs, declared.type.results
        written = write_loop(name, step, count, carries, slices, reverse, types, results)
        functions[step].attributes[STEP] = ir.UnitAttr.get()
        with ir.InsertionPoint(declared):
            list(written.body.operations)[1].operation.clone()
        declared.operation.erase()


def _drop_asserts(module: ir.Module) -> None:
    """Bounds checks of gathers: a kernel cannot report them, and they keep ops from fusing."""
    for op in find(module.operation, "cf.assert"):
        op.erase()


def _narrow_constants(module: ir.Module) -> None:
    """Scalars come as f64 constants that bodies truncate: makes them constants of the narrow type."""
    for op in find(module.operation, "arith.truncf"):
        source = op.operands[0].owner
        if isinstance(source, ir.Block) or source.name != "arith.constant" or op.parent is None:
            continue
        value = source.attributes["value"]
        if isinstance(value, ir.FloatAttr):
            with op.location, ir.InsertionPoint(op):
                new = arith.constant(op.results[0].type, ir.FloatAttr(value).value)
            op.results[0].replace_all_uses_with(new)
            op.erase()


def _round_by_way_of_f32(module: ir.Module) -> None:
    """PyTorch rounds FP64 numbers to f32, and these to 16 bits: so do the numbers of no dimension that torch-mlir
    converts beside a tensor of 16-bit floats."""
    for op in find(module.operation, "arith.truncf"):
        value = op.operands[0]
        if isinstance(value.type, ir.F64Type) and isinstance(op.results[0].type, ir.BF16Type | ir.F16Type):
            with op.location, ir.InsertionPoint(op):
                op.operands[0] = arith.TruncFOp(ir.F32Type.get(), value).result


_ALLOWED = (
    "linalg",
    "tensor",
    "arith",
    "math",
    "func",
    "builtin",
    "scf",
    "tm_tensor",
    "mlirc",
    "cf",
    "complex",
    "affine",
    "ml_program",
)


def _require_linalg(module: ir.Module) -> None:
    """Raises MlircError for an op of another level, or a tensor whose shape is not static."""
    for op in nested(module.operation):
        if op.name == "ml_program.global_load":  # the state of torch-mlir's generator of random numbers
            where = _place(op.location, module)
            raise MlircError(f"random numbers in {where}: this way to draw them is not supported; make them an input")
        if op.name.split(".")[0] not in _ALLOWED:
            raise _not_lowered(op.name, op.location, module)
        for result in op.results:
            if isinstance(result.type, ir.RankedTensorType) and not ir.RankedTensorType(result.type).has_static_shape:
                where = _place(op.location, module)
                raise MlircError(
                    f"{op.name} in {where} has the shape {result.type}: the size '?' is not known before the model "
                    "runs: a compiled model has fixed shapes"
                )
