"""What the `async` level says: rings of slots in shared memory as values, and the roles of a block's warps as regions.

    %ring = "mlirc.make_ring"() {copy = "tma", depth = 4 : i64,
        slots = [{swizzle = 128 : i64, tile = tensor<128x64xbf16>}]} : () -> !mlirc.ring
    %c = "mlirc.roles"() ({
      scf.for %k = ... { "mlirc.put"(%ring, %slice) {tile = 0 : i64} ... }  // one lane of the producers' first warp
      "mlirc.yield"() : () -> ()
    }, {
      %sum = scf.for %k = ... {  // the warps that compute
        %tile = "mlirc.get"(%ring) {tile = 0 : i64} : (!mlirc.ring) -> tensor<128x64xbf16>
        ...
        "mlirc.release"(%ring) {lag = 1 : i64} : (!mlirc.ring) -> ()
      }
      "mlirc.release"(%ring) {lag = 0 : i64} : (!mlirc.ring) -> ()
      "mlirc.yield"(%sum) : (tensor<128x64xf32>) -> ()
    }) {warps = array<i64: 1, 8>} : () -> tensor<128x64xf32>

A ring is first in, first out. Each slot holds a few tiles. `put` copies a slice of global memory to one of the tiles
of the next slot; the first one waits until that is free. `get` gives a tile of the next slot (operands: the sizes of
its dynamic dimensions); what reads it first waits for it. `release` gives a slot back: the one of this iteration's
gets, or of those `lag` iterations before (none in the first iterations); behind a loop, those of its last iterations.
It waits for the products that read the slot.

A ring whose `copy` is "tma" goes on through all blocks that a persistent block computes, and stands in roles. One whose
`copy` is "cp_async" or "registers" is put by the warps that compute: some iterations ahead of their gets, by puts in
front of the loop and one in it, all in one role, or in a block program without roles:

    %ring = "mlirc.make_ring"() {copy = "cp_async", depth = 2 : i64, slots = [...]} : () -> !mlirc.ring
    "mlirc.put"(%ring, %first) {tile = 0 : i64} : (!mlirc.ring, tensor<128x64xbf16>) -> ()
    scf.for %k = %c0 to %n step %c64 {
      %tile = "mlirc.get"(%ring) {tile = 0 : i64} : (!mlirc.ring) -> tensor<128x64xbf16>
      %next = affine.apply affine_map<(d0) -> (d0 + 64)>(%k)
      %more = arith.cmpi slt, %next, %n : index
      %slice = tensor.extract_slice ...
      "mlirc.put"(%ring, %slice, %more) {tile = 0 : i64} : (!mlirc.ring, tensor<128x64xbf16>, i1) -> ()
      ...
      "mlirc.release"(%ring) {lag = 0 : i64} : (!mlirc.ring) -> ()
    }

A put by cp.async may have a condition: where it is false the slot is taken as well, and nothing is copied. What
"registers" copies need not be a slice: any tile that the block computed.
`passes/rings/check.py` and `check_multistage.py` have the rules that span several ops.

Variadic operands and results of an op that Python defines have one type all of them: so there is a put and a get for
each tile, and roles whose results differ in type yield one `!mlirc.results`, a cast of them
(`builtin.unrealized_conversion_cast`)."""

# No `from __future__ import annotations` here: the bindings read the op classes' annotations as types.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc, checked
from mlirc.mlir import ext, ir

MAKE_RING, ROLES, PUT, GET, RELEASE, YIELD = (
    f"mlirc.{name}" for name in ("make_ring", "roles", "put", "get", "release", "yield")
)
NAMES = (MAKE_RING, ROLES, PUT, GET, RELEASE, YIELD)
CAST = "builtin.unrealized_conversion_cast"
COPIES = ("tma", "cp_async", "registers")
SWIZZLES = (0, 32, 64, 128)
MOST_SLOTS = 64
_FLAGS = ("panels", "multicast")
REWRITES = ("rests", "rounded", "transposed")
IN_PLACE = ("rounded",)


class RingType(Mlirc.Type, name="ring"):  # type: ignore
    """A ring: what it holds is said by the `mlirc.make_ring` that made it."""


class ResultsType(Mlirc.Type, name="results"):  # type: ignore
    """Several values of different types."""


USES = (PUT, GET, RELEASE)


@dataclass(frozen=True)
class Slot:
    """One tile of a ring's slots. `tile`: the extents and type that its memory covers; `swizzle`: bytes of a row over
    which chunks of 16 are permuted, 0 for none; `panels`: whether a row's columns lie in one panel after the other,
    each as wide as the swizzle; `multicast`: each block of the cluster copies a part of it, to all of them; `rewrite`:
    how the warps beside the producer's write it anew (`passes/distribute/products/rewriting.py`), "" for not at all."""

    tile: ir.RankedTensorType
    swizzle: int = 128
    panels: bool = False
    multicast: bool = False
    rewrite: str = ""

    def attribute(self) -> ir.DictAttr:
        found = {"tile": ir.TypeAttr.get(self.tile), "swizzle": _i64(self.swizzle)}
        found |= {name: ir.UnitAttr.get() for name in _FLAGS if getattr(self, name)}
        if self.rewrite:
            found["rewrite"] = ir.StringAttr.get(self.rewrite)
        return ir.DictAttr.get(found)


@dataclass(frozen=True)
class RingSpec:
    """What a `mlirc.make_ring` says."""

    depth: int
    copy: str
    slots: tuple[Slot, ...]

    @property
    def multistage(self) -> bool:
        """Whether those who compute put what they get, and not a producer."""
        return self.copy != "tma"

    @classmethod
    def of(cls, op: Any) -> "RingSpec":
        """Reads and checks the op; raises ValueError naming the broken rule."""
        attributes = op.operation.attributes
        for name in attributes:
            if name not in ("depth", "copy", "slots"):
                raise ValueError(f"no attribute '{name}': it has depth, copy and slots")
        depth, copy = _whole(attributes, "depth", 1, MOST_SLOTS), _word(attributes, "copy", COPIES)
        slots = attributes["slots"]
        if not isinstance(slots, ir.ArrayAttr) or not len(slots):
            raise ValueError(f"'slots' must be an array of a dictionary for each tile, not {slots}")
        found = cls(depth, copy, tuple(map(_slot, slots)))
        if found.multistage and any(slot.multicast or slot.rewrite for slot in found.slots):
            raise ValueError(f'slots of copy = "{copy}" have no multicast and no rewrite: those are of producers')
        return found


def _i64(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _whole(attributes: Any, name: str, least: int, most: int) -> int:
    value = attributes[name]
    if not isinstance(value, ir.IntegerAttr) or not least <= value.value <= most:
        raise ValueError(f"'{name}' must be a number from {least} to {most}, not {value}")
    return value.value


def _word(attributes: Any, name: str, words: Sequence[str]) -> str:
    value = attributes[name]
    if not isinstance(value, ir.StringAttr) or value.value not in words:
        raise ValueError(f"'{name}' must be one of {', '.join(words)}, not {value}")
    return value.value


def _slot(attribute: ir.Attribute) -> Slot:
    if not isinstance(attribute, ir.DictAttr):
        raise ValueError(f"a slot is a dictionary with tile and swizzle, not {attribute}")
    known = {"tile", "swizzle", "rewrite", *_FLAGS}
    names = {a.name for a in attribute}
    if not {"tile", "swizzle"} <= names <= known:
        raise ValueError(
            f"a slot has tile, swizzle, and maybe {', '.join((*_FLAGS, 'rewrite'))}, not {', '.join(sorted(names))}"
        )
    tile, swizzle = attribute["tile"], attribute["swizzle"]
    held = ir.TypeAttr(tile).value if isinstance(tile, ir.TypeAttr) else None
    if not isinstance(held, ir.RankedTensorType) or not held.has_static_shape or held.rank < 2:
        raise ValueError(f"a slot's tile is a tensor of static shape with two dimensions or more, not {tile}")
    if not isinstance(swizzle, ir.IntegerAttr) or swizzle.value not in SWIZZLES:
        raise ValueError(f"a slot's swizzle is one of {', '.join(map(str, SWIZZLES))} bytes, not {swizzle}")
    rewrite = attribute["rewrite"] if "rewrite" in names else None
    if rewrite is not None and (not isinstance(rewrite, ir.StringAttr) or rewrite.value not in REWRITES):
        raise ValueError(f"a slot's rewrite is one of {', '.join(REWRITES)}, not {rewrite}")
    flags = {name: name in names for name in _FLAGS}
    return Slot(held, swizzle.value, **flags, rewrite=rewrite.value if rewrite else "")


class MakeRingOp(Mlirc.Operation, name="make_ring"):  # type: ignore
    """A ring of `depth` slots, each with the tiles of `slots`."""

    depth: Any
    copy: Any
    slots: Any
    result: ext.Result[RingType]
    verify_invariants = checked(RingSpec.of)


def spec_of(ring: ir.Value) -> RingSpec:
    """What a ring holds; raises ValueError for one that no `mlirc.make_ring` made."""
    if isinstance(ring.owner, ir.Block) or ring.owner.name != MAKE_RING:
        raise ValueError("takes a ring of mlirc.make_ring")
    return RingSpec.of(ring.owner)


def _slot_of(op: ir.Operation, t: ir.Type) -> None:
    """Checks a tile that is put into a ring or got from it."""
    slots = spec_of(op.operands[0]).slots
    number = _whole(op.attributes, "tile", 0, len(slots) - 1)
    held, dynamic = slots[number].tile, ir.ShapedType.get_dynamic_size()
    if not isinstance(t, ir.RankedTensorType) or t.element_type != held.element_type or t.rank != held.rank or any(
        n != dynamic and n > m for n, m in zip(t.shape, held.shape, strict=True)
    ):  # fmt: skip
        raise ValueError(f"has a tile {t}, and tile {number} of the ring's slots is {held}")


def _check_put(op: ir.Operation) -> None:
    _slot_of(op, op.operands[1].type)
    copy = spec_of(op.operands[0]).copy
    if copy != "registers" and slice_of(op) is None:
        raise ValueError("takes a slice: the result of a tensor.extract_slice")
    conditions = [str(v.type) for v in list(op.operands)[2:]]  # there may be no context to make types in
    if conditions and (copy != "cp_async" or conditions != ["i1"]):
        raise ValueError('takes a ring, a slice, and of copy = "cp_async" maybe a condition (i1)')


def slice_of(put: ir.Operation) -> Any:
    """The tensor.extract_slice that a put copies, maybe cast; None for anything else."""
    value = put.operands[1]
    while not isinstance(value.owner, ir.Block) and value.owner.name == "tensor.cast":
        value = value.owner.operands[0]
    sliced = not isinstance(value.owner, ir.Block) and value.owner.name == "tensor.extract_slice"
    return value.owner.operation if sliced else None


def _check_get(op: ir.Operation) -> None:
    t = op.results[0].type
    _slot_of(op, t)
    dynamic = list(ir.RankedTensorType(t).shape).count(ir.ShapedType.get_dynamic_size())
    if len(op.operands) - 1 != dynamic:
        raise ValueError(f"takes the sizes of {dynamic} dynamic dimensions, not {len(op.operands) - 1}")


def _check_release(op: ir.Operation) -> None:
    spec_of(op.operands[0])
    _whole(op.attributes, "lag", 0, MOST_SLOTS)


class PutOp(Mlirc.Operation, name="put"):  # type: ignore
    """Copies a slice to a tile of the ring's next slot, once that is free; where a condition is false, nothing."""

    ring: ext.Operand[RingType]
    slice: ext.Operand[Any]
    when: Sequence[ext.Operand[Any]]
    tile: Any
    verify_invariants = checked(_check_put)


class GetOp(Mlirc.Operation, name="get"):  # type: ignore
    """A tile of the ring's next slot, with the sizes of its dynamic dimensions."""

    ring: ext.Operand[RingType]
    sizes: Sequence[ext.Operand[ir.IndexType]]
    tile: Any
    result: ext.Result[Any]
    verify_invariants = checked(_check_get)


class ReleaseOp(Mlirc.Operation, name="release"):  # type: ignore
    """Gives a slot back: the latest, or the one that was got `lag` iterations before it."""

    ring: ext.Operand[RingType]
    lag: Any
    verify_invariants = checked(_check_release)


@dataclass(frozen=True)
class RolesSpec:
    """What a `mlirc.roles` says: how many warps copy and how many compute, and the registers of a thread of each where
    they are moved (PTX ISA, "setmaxnreg")."""

    producers: int
    consumers: int
    registers: tuple[int, int] | None

    @classmethod
    def of(cls, op: Any) -> "RolesSpec":
        """Reads and checks the op; raises ValueError naming the broken rule."""
        attributes = op.operation.attributes
        names = set(attributes)
        if not {"warps"} <= names <= {"warps", "registers"}:
            raise ValueError(f"has warps, and maybe registers, not {', '.join(sorted(names)) or 'nothing'}")
        producers, consumers = _pair(attributes, "warps")
        if producers < 1 or consumers < 1 or producers + consumers > 32:
            raise ValueError(f"{producers} and {consumers} warps: a block has at most 32, and each role one at least")
        registers = _pair(attributes, "registers") if "registers" in names else None
        if registers and (producers % 4 or consumers % 4):
            raise ValueError("registers are given away by whole warpgroups: four warps each")
        if registers and any(n % 8 or not 24 <= n <= 256 for n in registers):
            raise ValueError(f"registers are multiples of 8 from 24 to 256, not {list(registers)}")
        return cls(producers, consumers, registers)


def _pair(attributes: Any, name: str) -> tuple[int, int]:
    value = attributes[name]
    if not isinstance(value, ir.DenseI64ArrayAttr) or len(value) != 2:
        raise ValueError(f"'{name}' must be two numbers, of producers and consumers, not {value}")
    return value[0], value[1]


def _check_roles(op: ir.Operation) -> None:
    RolesSpec.of(op)
    for region in op.regions:
        if len(region.blocks) != 1 or len(region.blocks[0].arguments):
            raise ValueError("has regions of one block without arguments")
        for inner in list(region.blocks[0].operations)[-1:]:
            if inner.operation.name != YIELD:
                raise ValueError(f"has regions that end in {YIELD}, not in {inner.operation.name}")
    produced, consumed = (list(list(r.blocks[0].operations)[-1].operation.operands) for r in op.regions)
    if produced:
        raise ValueError("has producers that yield a value: only those who compute do")
    if [v.type for v in consumed] != [r.type for r in op.results]:
        raise ValueError("has results of other types than its consumers yield")


class RolesOp(Mlirc.Operation, name="roles"):  # type: ignore
    """What the warps of a block do: the first region copies, the second one computes; its results are the second's."""

    warps: Any
    outs: Sequence[ext.Result[Any]]
    produce: ext.Region
    consume: ext.Region

    verify_region_invariants = checked(lambda op: _check_roles(op.operation))


class YieldOp(Mlirc.Operation, name="yield", traits=[ir.IsTerminatorTrait]):  # type: ignore
    """Ends a region of `mlirc.roles`."""

    values: Sequence[ext.Operand[Any]]


# -- builders, at the current insertion point


def make_ring(depth: int, copy: str, slots: Sequence[Slot], loc: ir.Location | None = None) -> ir.Value:
    """A new ring."""
    attributes = {
        "depth": _i64(depth),
        "copy": ir.StringAttr.get(copy),
        "slots": ir.ArrayAttr.get([s.attribute() for s in slots]),
    }
    return ir.Operation.create(MAKE_RING, [ir.Type.parse("!mlirc.ring")], [], attributes, loc=loc).results[0]


def put(
    ring: ir.Value, slice_: ir.Value, tile: int, when: ir.Value | None = None, loc: ir.Location | None = None
) -> ir.Operation:
    """Copies a slice to a tile of the ring's next slot, where a condition (i1) holds, if one is given."""
    operands = [ring, slice_] if when is None else [ring, slice_, when]
    return ir.Operation.create(PUT, [], operands, {"tile": _i64(tile)}, loc=loc)


def get(ring: ir.Value, t: ir.Type, sizes: Sequence[ir.Value], tile: int, loc: ir.Location | None = None) -> ir.Value:
    """A tile of the ring's next slot, of the given type and dynamic sizes."""
    return ir.Operation.create(GET, [t], [ring, *sizes], {"tile": _i64(tile)}, loc=loc).results[0]


def release(ring: ir.Value, lag: int = 0, loc: ir.Location | None = None) -> None:
    """Gives a slot back."""
    ir.Operation.create(RELEASE, [], [ring], {"lag": _i64(lag)}, loc=loc)


def roles(
    results: Sequence[ir.Type],
    warps: tuple[int, int],
    registers: tuple[int, int] | None,
    loc: ir.Location | None = None,
) -> tuple[ir.Operation, list[ir.Value]]:
    """A `mlirc.roles` whose regions have one empty block each, and its results."""
    attributes = {"warps": ir.DenseI64ArrayAttr.get(list(warps))}
    if registers:
        attributes["registers"] = ir.DenseI64ArrayAttr.get(list(registers))
    packed = [results_type()] if len(set(results)) > 1 else list(results)
    op = ir.Operation.create(ROLES, packed, [], attributes, regions=2, loc=loc)
    for region in op.regions:
        region.blocks.append()
    if len(set(results)) <= 1:
        return op, list(op.results)
    return op, list(ir.Operation.create(CAST, list(results), [op.results[0]], loc=loc).results)


def results_type() -> ir.Type:
    """What several values of different types are yielded as."""
    return ir.Type.parse("!mlirc.results")


def outside(value: ir.Value) -> ir.Value:
    """What a value of a role is outside of it: the result of the roles that it is yielded as; any other is itself."""
    for use in value.uses:
        op = use.owner.operation
        if op.name == YIELD:
            return op.parent.results[use.operand_number]
        if op.name == CAST and op.results[0].type == results_type():
            packed = next(iter(outside(op.results[0]).uses)).owner
            return packed.results[use.operand_number]
    return value


def yielded(role: ir.Block) -> list[ir.Value]:
    """What a role yields, maybe as one value."""
    values = list(role.operations[len(role.operations) - 1].operation.operands)
    return list(values[0].owner.operands) if values and values[0].type == results_type() else values


def end_role(values: Sequence[ir.Value] = (), loc: ir.Location | None = None) -> None:
    """Ends a region of `mlirc.roles`."""
    if len({v.type for v in values}) > 1:
        values = ir.Operation.create(CAST, [results_type()], list(values), loc=loc).results
    ir.Operation.create(YIELD, [], list(values), loc=loc)
