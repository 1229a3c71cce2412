"""Communication between threads through global memory, as LLVM's NVPTX backend needs it spelled.

It drops the memory order of `llvm.atomicrmw`: whatever it is given becomes a relaxed `atom` of the scope gpu (loads,
stores and `llvm.cmpxchg` keep their order and scope). A fence in front makes it a release and one behind it an acquire
(PTX ISA, "Memory Consistency Model: Release and Acquire Patterns"). And it takes the intrinsics of barriers and fences
for calls, which cannot touch a buffer that is `noalias`: loads would pass them."""

from __future__ import annotations

from mlirc.mlir import find, ir, nested

# LLVM's AtomicOrdering.
MONOTONIC, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = 2, 4, 5, 6, 7
_SCOPES = {"cta": "block", "cluster": "cluster", "gpu": "device", "sys": ""}
_MEETS = ("nvvm.barrier", "nvvm.bar.", "nvvm.cluster.", "nvvm.mbarrier.", "nvvm.fence", "llvm.fence", "llvm.atomicrmw",
          "llvm.cmpxchg")  # fmt: skip
_SAME_BUFFER = ("llvm.getelementptr", "llvm.addrspacecast", "llvm.bitcast", "llvm.ptrtoint", "llvm.inttoptr")


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def order_atomics(gpu_module: ir.Operation) -> None:
    """Splits every ordered `llvm.atomicrmw` into a relaxed one and fences of its scope, and makes an `llvm.fence` of
    every `nvvm.memory.barrier`. To be called before `memref.atomic_rmw`, which promises no order, becomes an
    `llvm.atomicrmw`."""
    for op in find(gpu_module, "llvm.atomicrmw"):
        order = ir.IntegerAttr(op.attributes["ordering"]).value
        scope = ir.StringAttr(op.attributes["syncscope"]).value if "syncscope" in op.attributes else ""
        if order >= RELEASE:
            _fence(ir.InsertionPoint(op), SEQ_CST if order == SEQ_CST else RELEASE, scope, op)
        if order in (ACQUIRE, ACQ_REL, SEQ_CST):
            _fence(ir.InsertionPoint.after(op), SEQ_CST if order == SEQ_CST else ACQUIRE, scope, op)
        op.attributes["ordering"] = _i64(MONOTONIC)
    for op in find(gpu_module, "nvvm.memory.barrier"):
        scope = str(op.attributes["scope"]).split("<")[-1].rstrip(">")
        _fence(ir.InsertionPoint(op), SEQ_CST, _SCOPES[scope], op)  # membar is fence.sc (PTX ISA, "membar / fence")
        op.erase()


def _fence(where: ir.InsertionPoint, order: int, scope: str, op: ir.Operation) -> None:
    attributes = {"ordering": _i64(order)} | ({"syncscope": ir.StringAttr.get(scope)} if scope else {})
    with where, op.location:
        ir.Operation.create("llvm.fence", attributes=attributes)


def carries_data(func: ir.Operation, argument: ir.Value) -> bool:
    """Whether threads of a kernel (an llvm.func) may hand data to each other through a pointer parameter: the kernel
    reads and writes what it points to, and synchronizes."""
    return {"read", "write"} <= _uses(argument) and any(op.name.startswith(_MEETS) for op in nested(func))


def _uses(argument: ir.Value) -> set[str]:
    """What is done to the buffer behind a pointer; both, where it is not known."""
    found: set[str] = set()
    work, seen = [argument], set()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            op = use.owner.operation
            if op.name in _SAME_BUFFER or op.name in ("llvm.add", "llvm.sext", "llvm.zext", "llvm.trunc"):
                work += list(op.results)
            elif op.name == "llvm.load":
                found.add("read")
            elif op.name == "llvm.store" and use.operand_number == 1:
                found.add("write")
            else:
                found |= {"read", "write"}
    return found
