"""Brings the first bytes of what no launch writes into the L2 cache while a kernel waits for those in front of it.

What is brought is what the kernel's own loads and copies will ask for: of each, the numbers that make its address are
computed again in front of the wait, with the first iterations of the innermost loop around it, under the conditions it
stands under. What cannot be computed there, since it is loaded, or handed from iteration to iteration, is left out. A
prefetch changes nothing that a thread can see (PTX ISA, prefetch, cp.async.bulk.prefetch.tensor).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirc.ir.accesses import Accesses, is_pure
from mlirc.ir.dependence import Launched
from mlirc.mlir import arith, ir, memref, nested, nvvm, scf

MOST_BYTES = 64 * 1024  # of a block: what a multiprocessor gets from memory in some 3 us
MOST_INSTRUCTIONS = 16  # of a thread
_TENSOR_COPY = "nvvm.cp.async.bulk.tensor.shared.cluster.global"


class _Unknown(Exception):
    """An address that is not known in front of the wait."""


@dataclass
class _Site:
    """A load or copy that is worth a prefetch: what it reads, by which indices or coordinates, how many bytes of a
    block, and the conditions and loops around it, outermost first."""

    source: ir.Value
    indices: list[ir.Value]
    nbytes: int
    tensor: bool
    plain: bool  # a load into registers
    around: list[tuple[ir.Operation, bool]] = field(default_factory=list)  # and whether in the first region

    @property
    def loop(self) -> ir.Operation | None:
        """The innermost loop around it."""
        return next((op for op, _ in reversed(self.around) if op.name == "scf.for"), None)


class _Spot:
    """A place in front of the wait, with what was computed again there. `conditions`: places under conditions."""

    def __init__(self, before: ir.Operation):
        self.before = before
        self.known: dict[tuple[ir.Value, int], ir.Value] = {}
        self.conditions: dict[tuple, _Spot] = {}


def prefetch(
    func: ir.Operation, wait: ir.Operation, accesses: Accesses, given: frozenset[int], loaded: set[ir.Operation],
    launch: Launched, plain: bool = True,
) -> None:  # fmt: skip
    """Adds the prefetches of a kernel in front of its wait. `given`: the parameters of what no launch writes; `loaded`
    is already. `plain`: also of what a thread loads into registers; where that is the words of packed weights, it cost
    a step of Qwen2.5-7B 45 us in int4, 75 in int8 (H200, dependent-launch-h200.md)."""
    ops = [o.operation for o in accesses.block.operations]
    early = set(ops[: ops.index(wait)])
    late = [op for top in ops[ops.index(wait) + 1 :] for op in (top, *nested(top))]
    sites = (s for op in late if op not in loaded for s in _site(op, accesses, given, launch))
    found = [s for s in sites if plain or not s.plain]
    room, count = MOST_BYTES, MOST_INSTRUCTIONS
    writer = _Writer(_Spot(wait), early)
    for site, iteration in _in_turn(found):
        if site.nbytes > room or not count:
            continue
        with wait.location:
            if writer.write(site, iteration):
                room, count = room - site.nbytes, count - 1


def _site(op: ir.Operation, accesses: Accesses, given: frozenset[int], launch: Launched) -> Iterator[_Site]:
    """What an operation reads of what no launch writes; nothing for one that is no plain load or copy."""
    operands, tensor, plain = list(op.operands), False, accesses.reads(op) is not None
    if plain:
        source, indices, nbytes = operands[0], operands[1:], _bytes(op.results[0].type) * launch.threads
    elif op.name == "nvgpu.device_async_copy":
        sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        source, indices = operands[sum(sizes[:2])], operands[sum(sizes[:3]) : sum(sizes[:4])]
        elements = ir.IntegerAttr(op.attributes["dstElements"]).value
        nbytes = elements * _bytes(ir.MemRefType(source.type).element_type) * launch.threads
    elif op.name == _TENSOR_COPY:
        sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        source, indices, tensor = operands[1], operands[2 : 2 + sizes[2]], True
        numbers = accesses.of(source)
        nbytes = max([launch.boxes.get(n, MOST_BYTES + 1) for n in numbers], default=0)
        if sum(sizes[4:]):  # offsets within windows, parts of a cluster's copies, conditions
            return
    else:
        return
    if accesses.of(source) and accesses.of(source) <= given:
        site = _Site(source, indices, nbytes, tensor, plain)
        inner = op
        while (parent := inner.parent.operation).name != "gpu.func":
            site.around.insert(0, (parent, inner.block.region == parent.regions[0]))
            inner = parent
        if all(around.name in ("scf.for", "scf.if") for around, _ in site.around):
            yield site


def _bytes(type_: ir.Type) -> int:
    count, element = 1, type_
    if isinstance(type_, ir.VectorType):
        element = ir.VectorType(type_).element_type
        for extent in ir.VectorType(type_).shape:
            count *= extent
    return max(1, count * (64 if isinstance(element, ir.IndexType) else element.width) // 8)


def _in_turn(sites: list[_Site]) -> Iterator[tuple[_Site, int]]:
    """The sites with numbers of iterations, in the order of the program: those of a loop take turns. What
    a thread loads behind the wait and outside of loops is all on its way at once anyway: prefetches of it cost a step
    of TinyLlama-1.1B 89 us in f32, 34 in bf16 (H200, dependent-launch-h200.md)."""
    done: set[ir.Operation] = set()
    for site in sites:
        if site.loop is None:
            if not site.plain:
                yield site, 0
        elif site.loop not in done:
            done.add(site.loop)
            together = [s for s in sites if s.loop is not None and s.loop == site.loop]
            count = trips(site.loop)
            for iteration in range(MOST_INSTRUCTIONS if count is None else min(count, MOST_INSTRUCTIONS)):
                for one in together:
                    yield one, iteration


def _constant(value: ir.Value) -> int | None:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return None
    return ir.IntegerAttr(value.owner.operation.attributes["value"]).value


def trips(loop: ir.Operation) -> int | None:
    """How many iterations a loop has, where that is known."""
    first, end, step = (_constant(v) for v in list(loop.operands)[:3])
    if first is None or end is None or step is None:
        return None
    return max(0, -(-(end - first) // step))


class _Writer:
    """Writes prefetches. `early` are the operations of the outermost block in front of the wait."""

    def __init__(self, spot: _Spot, early: set[ir.Operation]):
        self.spot, self.early = spot, early

    def write(self, site: _Site, iteration: int) -> bool:
        """Writes one; False where its address, or a condition that it is under, is not known."""
        self.loop, self.iteration = site.loop, iteration
        self.inner = {op for op in nested(site.loop)} if site.loop is not None else set()
        spot = self.spot
        try:
            for op, first in site.around:
                spot = self._under(spot, op, first)
            source = self.again(site.source, spot)
            indices = [self.again(v, spot) for v in site.indices]
        except _Unknown:
            return False
        with ir.InsertionPoint(spot.before):
            if site.tensor:
                nvvm.CpAsyncBulkTensorPrefetchOp(source, indices, [])
            else:
                memref.PrefetchOp(source, indices, False, 2, True)
        return True

    def _under(self, spot: _Spot, op: ir.Operation, first: bool) -> _Spot:
        """The place under the condition that an iteration of a loop is there, or that of an `scf.if`."""
        if op.name == "scf.for":
            if trips(op):
                return spot
            end = self.again(op.operands[1], spot)
            number = self.again(op.regions[0].blocks[0].arguments[0], spot)
            condition: tuple = (number, "<", end)
            with ir.InsertionPoint(spot.before):
                holds = arith.cmpi(arith.CmpIPredicate.slt, number, end) if condition not in spot.conditions else None
        else:
            holds = self.again(op.operands[0], spot)
            condition = (holds, first)
            if not first and condition not in spot.conditions:
                with ir.InsertionPoint(spot.before):
                    holds = arith.xori(holds, arith.constant(ir.IntegerType.get_signless(1), 1))
        if condition not in spot.conditions:
            with ir.InsertionPoint(spot.before):
                block = scf.IfOp(holds).then_block
            with ir.InsertionPoint(block):
                spot.conditions[condition] = _Spot(scf.YieldOp([]).operation)
        return spot.conditions[condition]

    def again(self, value: ir.Value, spot: _Spot) -> ir.Value:
        """A value, computed again at a place in front of the wait. Raises _Unknown where that cannot be done."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self._argument(ir.BlockArgument(value), spot)
        op = owner.operation
        if op in self.early:
            return value
        key = (value, self.iteration if op in self.inner else 0)
        if key not in spot.known:
            if not is_pure(op) or len(op.regions):
                raise _Unknown
            operands = [self.again(v, spot) for v in op.operands]
            copy = op.clone(ip=ir.InsertionPoint(spot.before)).operation
            for i, operand in enumerate(operands):
                copy.operands[i] = operand
            for old, new in zip(op.results, copy.results, strict=True):
                spot.known[old, key[1]] = new
        return spot.known[key]

    def _argument(self, argument: ir.BlockArgument, spot: _Spot) -> ir.Value:
        """An argument of a block: the kernel's, the number of a loop's iteration, or what a loop starts with."""
        loop = argument.owner.owner.operation
        if loop.name == "gpu.func":
            return argument
        if loop.name != "scf.for":
            raise _Unknown
        iteration = self.iteration if loop == self.loop else 0
        if argument.arg_number:
            if iteration:
                raise _Unknown
            return self.again(loop.operands[2 + argument.arg_number], spot)
        key = (argument, iteration)
        if key not in spot.known:
            first, step = self.again(loop.operands[0], spot), self.again(loop.operands[2], spot)
            start, by = _constant(first), _constant(step)
            with ir.InsertionPoint(spot.before):
                if iteration and start is not None and by is not None:
                    first = arith.constant(argument.type, start + iteration * by)
                elif iteration:
                    ahead = arith.muli(step, arith.constant(argument.type, iteration))
                    first = arith.addi(first, ahead)
            spot.known[key] = first
        return spot.known[key]
