"""Bytes and operations of a program, counted in its IR: what the speed-of-light bound is made of."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mlirc.dialects.mlirc_dialect import ATTENTIONS, AttentionInfo
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import context, ir, run_passes

_SCATTER = "tm_tensor.scatter"
_VIEWS = ("tensor.collapse_shape", "tensor.expand_shape", "tensor.cast")


@dataclass
class Work:
    """What a program cannot avoid: bytes read and written once each, contraction operations by the inputs' dtype (a
    multiply-add counts as two), and other floating-point operations."""

    read: int = 0
    written: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    vector: int = 0

    def add(self, other: Work, times: int = 1) -> None:
        """Adds another program's operations (not its bytes)."""
        self.vector += other.vector * times
        for dtype, n in other.flops.items():
            self.flops[dtype] += n * times

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"read": self.read, "written": self.written, "flops": dict(self.flops), "vector": self.vector}


def count_program(module: ir.Module, cached: bool = True) -> Work:
    """The work of a `linalg`- or `kernels`-level module: every argument of `@main` read once, every result written
    once, and the operations of `@main` or of the kernels that it calls. Without `cached`, attention over a cache in
    pages counts no operations: how many they are depends on the sequences' lengths."""
    from mlirc.ir import levels

    if levels.kernels(module):
        work = count_function(levels.functions(module)["main"])
        for one, calls in count_kernels(module, cached).values():
            work.add(one, calls)
        return work
    plain = _generalized(levels.copy(module))
    found = levels.functions(plain)
    work = count_function(found["main"], cached)
    for step, times in levels.steps(plain).items():
        work.add(count_function(found[step], cached), times)
    return work


def count_kernels(module: ir.Module, cached: bool = True) -> dict[str, tuple[Work, int]]:
    """The work of one call of each kernel of a `kernels`-level module, and how often a run calls it."""
    from mlirc.ir import levels

    calls = levels.calls(module)
    plain = _generalized(levels.copy(module))
    return {name: (count_function(f, cached), calls[name]) for name, f in levels.kernels(plain).items()}


def _generalized(module: ir.Module) -> ir.Module:
    with context():
        run_passes(module, "func.func(linalg-generalize-named-ops)")
    return module


def count_function(function: ir.OpView, cached: bool = True) -> Work:
    """The work of one function whose linalg ops are all generic; `cached` as of `count_program`."""
    work = Work()
    for argument in function.body.blocks[0].arguments:
        if isinstance(argument.type, ir.RankedTensorType):
            work.read += _bytes_read(argument)
    work.written = sum(map(_bytes_written, function.body.blocks[0].operations[-1].operands))

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "linalg.generic":
            _count_generic(op, work)
            return ir.WalkResult.SKIP
        if op.name in ATTENTIONS:
            _count_attention(op, work, cached)
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return work


def nbytes(type_: ir.Type) -> int:
    """The size of a tensor in bytes; i1 takes a byte per element."""
    return math.prod(type_.shape) * element_bytes(type_.element_type)


def _bytes_read(value: ir.Value) -> int:
    """The bytes of a tensor that its users read: those of its slices where only they are read, one element per
    iteration where it is only gathered from, else all of it."""
    whole = nbytes(value.type)
    total = 0
    for use in value.uses:
        user = use.owner.operation
        if user.name == "tensor.extract":
            total += _gathered(user) * element_bytes(value.type.element_type)
        elif user.name == "tensor.extract_slice" and use.operand_number == 0:
            total += nbytes(user.results[0].type)
        elif user.name in _VIEWS:
            total += _bytes_read(user.results[0])
        elif user.name == _SCATTER and use.operand_number == 2:
            continue  # the rows that are put into it are written in place
        else:
            return whole
    return min(whole, total)


def _bytes_written(value: ir.Value) -> int:
    """The bytes of a result that are written: those of the rows where it is a tensor that rows are put into."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in (*_VIEWS, _SCATTER):
        value = value.owner.operands[0]
    return nbytes(value.type)


def _gathered(extract: ir.Operation) -> int:
    parent = extract.parent.operation
    return math.prod(extents(parent)) if parent.name == "linalg.generic" else 1


def extents(generic: ir.Operation) -> list[int]:
    """The iteration space of a linalg.generic with static shapes."""
    maps = [ir.AffineMapAttr(a).value for a in generic.attributes["indexing_maps"]]
    found = [1] * maps[0].n_dims
    for value, map_ in zip(generic.operands, maps, strict=True):
        for axis, expr in enumerate(map_.results):
            if isinstance(expr, ir.AffineDimExpr):
                found[expr.position] = max(found[expr.position], value.type.shape[axis])
    return found


def _count_generic(op: ir.Operation, work: Work) -> None:
    space = math.prod(extents(op))
    dtype = _contracted(op)
    if dtype:
        work.flops[dtype] += 2 * space
        return
    body = [o.operation for o in op.regions[0].blocks[0].operations]
    work.vector += space * sum(_is_arithmetic(o) for o in body)


def _is_arithmetic(op: ir.Operation) -> bool:
    if not op.name.startswith(("arith.", "math.")) or not op.results:
        return False
    if op.name in ("arith.extf", "arith.truncf", "arith.constant", "arith.select", "arith.bitcast"):
        return False
    return not str(op.results[0].type).startswith("i") or op.name == "arith.cmpf"


def _contracted(op: ir.Operation) -> str:
    """The inputs' dtype where the body is a sum of products of two different inputs, else ""."""
    if "reduction" not in str(op.attributes["iterator_types"]):
        return ""
    block = op.regions[0].blocks[0]
    ops = [o.operation for o in block.operations]
    adds = [o for o in ops if o.name in ("arith.addf", "arith.addi")]
    products = [o for o in ops if o.name in ("arith.mulf", "arith.muli")]
    if len(adds) != 1 or len(products) != 1 or any(o.name.startswith("math.") for o in ops):
        return ""
    factors = [_source(v) for v in products[0].operands]
    arguments = list(block.arguments)
    if not all(f in arguments for f in factors) or factors[0] == factors[1]:
        return ""
    return str(factors[0].type)


def _source(value: ir.Value) -> ir.Value:
    """The value before conversions."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in (
        "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.sitofp",
    ):  # fmt: skip
        value = value.owner.operands[0]
    return value


def _count_attention(op: ir.Operation, work: Work, cached: bool) -> None:
    """Two products over the visible pairs, and about five operations per score for the softmax. Of a
    cache in pages: those of sequences as long as they can be."""
    a = AttentionInfo.of(op)
    if a.pages is not None and not cached:
        return
    pairs = a.batch * a.q_heads * visible_pairs(a.q_len, a.kv_len, a.causal, a.window)
    work.flops[str(a.element_type)] += 2 * pairs * (a.head_dim + a.value_dim)
    work.vector += 5 * pairs


def visible_pairs(sq: int, sk: int, causal: bool, window: int) -> int:
    """How many (query, key) pairs attention computes."""
    total = 0
    for i in range(sq):
        last = min(sk - 1, i + sk - sq) if causal else sk - 1
        first = max(0, i + sk - sq - window + 1) if window else 0
        total += max(0, last - first + 1)
    return total


def kernels_of(job: Any) -> dict[str, dict[str, Any]]:
    """The work of each kernel of a compiled model, how often it is called, and, once it is scheduled, its script."""
    found = count_kernels(job.modules["kernels"])
    return {name: {**one.to_json(), "calls": n, **_script(job, name)} for name, (one, n) in found.items()}


def _script(job: Any, name: str) -> dict[str, Any]:
    from mlirc.ir import levels

    record = job.records.get(name)
    function = levels.kernels(job.modules["kernels"])[name]
    return {"script": record.script if record else "given", "origin": levels.strings(function, "mlirc.origin")[:3]}
