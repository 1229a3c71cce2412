"""Which parameters of a `gpu.func` its operations access memory through.

A parameter is a memref, or a pointer (a tensor map, a table of pointers). Addresses made of one, as views, pointers or
numbers, lead to it, also through loops and conditions. What is not known to be without access is taken for one.
"""

from __future__ import annotations

from mlirc.mlir import ir, nested

_PURE_DIALECTS = ("arith.", "math.", "index.", "complex.", "affine.", "ub.")
_PURE = {
    "builtin.unrealized_conversion_cast", "gpu.block_dim", "gpu.block_id", "gpu.cluster_block_id", "gpu.cluster_dim",
    "gpu.cluster_id", "gpu.dynamic_shared_memory", "gpu.grid_dim", "gpu.lane_id", "gpu.subgroup_id", "gpu.thread_id",
    "llvm.add", "llvm.addrspacecast", "llvm.and", "llvm.bitcast", "llvm.extractvalue", "llvm.getelementptr",
    "llvm.insertvalue", "llvm.inttoptr", "llvm.lshr", "llvm.mlir.addressof", "llvm.mlir.constant", "llvm.mlir.poison",
    "llvm.mlir.undef", "llvm.mlir.zero", "llvm.mul", "llvm.or", "llvm.ptrtoint", "llvm.sext", "llvm.shl", "llvm.sub",
    "llvm.trunc", "llvm.xor", "llvm.zext", "memref.cast", "memref.collapse_shape", "memref.dim", "memref.expand_shape",
    "memref.extract_aligned_pointer_as_index", "memref.extract_strided_metadata", "memref.get_global",
    "memref.memory_space_cast", "memref.reinterpret_cast", "memref.subview", "memref.view", "vector.bitcast",
    "vector.broadcast", "vector.extract", "vector.extract_strided_slice", "vector.fma", "vector.from_elements",
    "vector.insert", "vector.insert_strided_slice", "vector.interleave", "vector.reduction", "vector.shape_cast",
    "vector.shuffle", "vector.splat", "vector.to_elements", "vector.transpose",
}  # fmt: skip
WAIT = "nvvm.griddepcontrol"  # of the launches before this one, or that the next one may begin
_HINTS = {"memref.prefetch", "nvvm.prefetch", "nvvm.cp.async.bulk.prefetch", "nvvm.cp.async.bulk.tensor.prefetch"}
_READS = {"memref.load", "vector.load"}
_NONE: frozenset[int] = frozenset()


def is_pure(op: ir.Operation) -> bool:
    """Whether an operation does nothing but make results, of its operands and of who computes it alone."""
    return op.name.startswith(_PURE_DIALECTS) or op.name in _PURE


def is_wait(op: ir.Operation) -> bool:
    """Whether an operation is the wait for the launches before this one."""
    return op.name == WAIT and "wait" in str(op.attributes["kind"])


class Accesses:
    """Of a `gpu.func`: for every value the numbers of the parameters that it is an address of."""

    def __init__(self, func: ir.Operation):
        self.block = func.regions[0].blocks[0]
        self.origins: dict[ir.Value, frozenset[int]] = {a: frozenset([i]) for i, a in enumerate(self.block.arguments)}
        self._ops = nested(func)
        while self._spread():  # loops hand addresses on to their next turn
            pass

    def of(self, value: ir.Value) -> frozenset[int]:
        """The parameters that a value is an address of."""
        return self.origins.get(value, _NONE)

    def accessed(self, op: ir.Operation) -> frozenset[int]:
        """The parameters through which an operation, or one in its regions, may access memory."""
        found = _NONE
        for inner in [op, *nested(op)] if len(op.regions) else [op]:
            if not is_pure(inner) and inner.name not in _HINTS and not inner.name.startswith("scf."):
                found = found.union(*[self.of(v) for v in inner.operands])
        return found

    def reads(self, op: ir.Operation) -> frozenset[int] | None:
        """The parameters that a plain load reads; None of anything else."""
        return self.of(op.operands[0]) if op.name in _READS else None

    def once(self, op: ir.Operation) -> bool:
        """Whether it is a plain load of what nobody reads again, as the words of packed weights."""
        return op.name in _READS and "nontemporal" in op.attributes and bool(ir.BoolAttr(op.attributes["nontemporal"]))

    def _spread(self) -> bool:
        """Goes over all operations once; whether something new was found."""
        changed = False
        for op in self._ops:
            for value, sources in _flows(op):
                new = frozenset().union(*[self.of(s) for s in sources])
                if not new <= self.of(value) and _may_be_address(value.type):
                    self.origins[value] = self.of(value) | new
                    changed = True
        return changed


def _may_be_address(type_: ir.Type) -> bool:
    type_ = ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(type_, ir.MemRefType | ir.IndexType | ir.IntegerType) or str(type_).startswith("!llvm.")


def _flows(op: ir.Operation) -> list[tuple[ir.Value, list[ir.Value]]]:
    """The values that an operation makes or hands on to its regions, each with what it may be made of."""
    operands, results = list(op.operands), list(op.results)
    ends = [list(b.operations)[-1].operation for r in op.regions for b in r.blocks if len(b.operations)]
    if op.name == "scf.for":
        carried, (end,) = operands[3:], ends
        inner = list(op.regions[0].blocks[0].arguments)[1:]
        pairs = zip(carried, end.operands, inner, results, strict=True)
        return [(v, [c, y]) for c, y, i, r in pairs for v in (i, r)]
    if op.name == "scf.if":
        return [(r, [e.operands[k] for e in ends]) for k, r in enumerate(results)]
    if len(op.regions):  # of any other kind: each may be made of all that goes in or comes out
        sources = operands + [v for e in ends for v in e.operands]
        inner = [a for r in op.regions for b in r.blocks for a in b.arguments]
        return [(v, sources) for v in (*inner, *results)]
    if is_pure(op) or any(str(r.type).startswith("!llvm.ptr") for r in results):  # a pointer that is loaded, too
        return [(r, operands) for r in results]
    return []
