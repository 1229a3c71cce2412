"""`schedule.roll`: rounds of a block program that differ in powers of two alone, as of a search bit by bit, as a loop.

Instructions that run once have to be fetched first, and a long program of them waits for little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlirc.dialects.schedule._base import transform_op
from mlirc.mlir import arith, ir, nested, scf

LONGEST, FEWEST = 32, 4  # operations of a round; rounds


@dataclass(frozen=True)
class Shifted:
    """A constant that is shifted to the right by `by` more bits in each round."""

    start: ir.Value
    by: int


@dataclass
class Rounds:
    """`count` rounds of `length` operations. `operands` per operation of a round and value that it reads: a value from
    outside, a `Shifted`, (operation, result) of the same round, or the number of what is `carried`, each of which is
    an (operation, result) of the round before and what the first round has in its place."""

    ops: list[ir.Operation]
    length: int
    count: int
    operands: list[list[ir.Value | Shifted | tuple[int, int] | int]] = field(default_factory=list)
    carried: list[tuple[tuple[int, int], ir.Value]] = field(default_factory=list)

    @property
    def worth(self) -> int:
        """The operations that a loop saves, where a carried value costs as much as a round."""
        return self.length * (self.count - len(self.carried))


def captured(op: ir.Operation) -> list[ir.Value]:
    """What an operation's regions read from outside of it, each once."""
    own = {v for inner in nested(op) for v in inner.results}
    own |= {a for region in op.regions for block in region.blocks for a in block.arguments}
    return list(dict.fromkeys(v for inner in nested(op) for v in inner.operands if v not in own))


def form(op: ir.Operation) -> tuple:
    """What two operations have in common that differ in the values they read alone."""
    numbers: dict[ir.Value, tuple] = {v: ("read", i) for i, v in enumerate(captured(op))}
    for region in op.regions:
        for block in region.blocks:
            numbers |= {a: ("argument", i) for i, a in enumerate(block.arguments)}
    inside = []
    for i, inner in enumerate(nested(op)):
        read = tuple(numbers[v] for v in inner.operands)
        inside.append((inner.name, _attributes(inner), read, tuple(str(r.type) for r in inner.results)))
        numbers |= {r: ("result", i, k) for k, r in enumerate(inner.results)}
    types = tuple(str(v.type) for v in (*op.operands, *captured(op), *op.results))
    same = tuple(list(op.operands).index(v) for v in op.operands)
    return op.name, _attributes(op), types, same, tuple(inside)


def _attributes(op: ir.Operation) -> tuple:
    return tuple((name, str(op.attributes[name])) for name in op.attributes)


def find(ops: Sequence[ir.Operation]) -> Rounds | None:
    """The longest chain of rounds, with the fewest carried values; None where there is none."""
    forms: dict[tuple, int] = {}
    numbers = [forms.setdefault(form(op), len(forms)) for op in ops]
    best: Rounds | None = None
    for length in range(2, LONGEST + 1):
        start = 0
        while start + length < len(ops):
            end = start
            while end + length < len(ops) and numbers[end] == numbers[end + length]:
                end += 1
            for first in range(start, min(start + length, end)):
                count = (end - first) // length + 1
                if count >= FEWEST and (best is None or count * length >= best.worth):
                    found = Rounds(list(ops[first : first + count * length]), length, count)
                    if _connect(found) and (best is None or found.worth > best.worth):
                        best = found
            start = max(end, start + 1)
    return best


def _connect(rounds: Rounds) -> bool:
    """Finds what each operation of a round reads; False where rounds are not alike in that, or somebody else reads
    what a loop would not give."""
    place = {r: (i, k) for i, op in enumerate(rounds.ops) for k, r in enumerate(op.results)}
    for number in range(rounds.length):
        reads = [[*op.operands, *captured(op)] for op in rounds.ops[number :: rounds.length]]
        found = [_source(rounds, place, list(values)) for values in zip(*reads, strict=True)]
        if any(f is None for f in found):
            return False
        rounds.operands.append(found)  # type: ignore[arg-type]
    inside = {inner for op in rounds.ops for inner in (op, *nested(op))}
    last = rounds.length * (rounds.count - 1)
    given = {source for source, _ in rounds.carried}
    for value, (i, k) in place.items():
        if any(use.owner.operation not in inside for use in value.uses):
            if i < last or (i - last, k) not in given:
                return False
    return True


def _source(rounds: Rounds, place: dict, values: list[ir.Value]) -> ir.Value | Shifted | tuple[int, int] | int | None:
    """Where a round has what an operation of it reads, from the values of all rounds."""
    length = rounds.length
    if values[0] not in place:
        if all(v == values[0] for v in values):
            return values[0]
        if values[1] not in place:
            return _shifted(values)
        sources = [place.get(v, (-1, 0)) for v in values[1:]]
        (i, k) = sources[0]
        if i >= length or sources != [(i + r * length, k) for r in range(rounds.count - 1)]:
            return None
        carried = ((i, k), values[0])
        if carried not in rounds.carried:
            rounds.carried.append(carried)
        return rounds.carried.index(carried)
    (i, k) = place[values[0]]
    same = [place.get(v) for v in values] == [(i + r * length, k) for r in range(rounds.count)]
    return (i, k) if same else None


def _shifted(values: list[ir.Value]) -> Shifted | None:
    owners = [v.owner for v in values]
    if any(isinstance(o, ir.Block) or o.operation.name != "arith.constant" for o in owners):
        return None
    attributes = [o.operation.attributes["value"] for o in owners]
    if not all(isinstance(a, ir.IntegerAttr) and not isinstance(a.type, ir.IndexType) for a in attributes):
        return None
    numbers = [a.value % (1 << a.type.width) for a in attributes]
    for by in range(1, 9):
        if numbers[0] > 0 and numbers == [numbers[0] >> by * r for r in range(len(numbers))]:
            return Shifted(values[0], by)
    return None


def roll_one(rounds: Rounds, erase: Callable[[ir.Operation], None]) -> None:
    """Makes the loop, in place of the rounds."""
    first = rounds.ops[0]
    with ir.InsertionPoint(first), first.location:
        bounds = [arith.ConstantOp(ir.IndexType.get(), n).result for n in (0, rounds.count, 1)]
        loop = scf.ForOp(*bounds, [start for _, start in rounds.carried])
    made: list[ir.Operation] = []
    shifted: dict[Shifted, ir.Value] = {}
    with ir.InsertionPoint(loop.body), first.location:
        for op, sources in zip(rounds.ops, rounds.operands, strict=False):
            new = [_value(source, loop, made, shifted) for source in sources]
            old = [*op.operands, *captured(op)]
            clone = op.clone()
            for i in range(len(op.operands)):
                clone.operands[i] = new[i]
            behind = dict(zip(old[len(op.operands) :], new[len(op.operands) :], strict=True))
            for inner in nested(clone):
                for i, value in enumerate(inner.operands):
                    if value in behind:
                        inner.operands[i] = behind[value]
            made.append(clone)
        scf.YieldOp([made[i].results[k] for (i, k), _ in rounds.carried])
    flag = _flag(rounds, made)
    if flag is not None:
        loop.operation.attributes["mlirc.until"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), flag)
    last = rounds.length * (rounds.count - 1)
    for ((i, k), _), result in zip(rounds.carried, loop.results, strict=True):
        rounds.ops[last + i].results[k].replace_all_uses_with(result)
    for op in reversed(rounds.ops):
        erase(op)


def _flag(rounds: Rounds, made: list[ir.Operation]) -> int | None:
    """The number of a carried value that, once it is true, leaves all carried ones as they are."""
    for flag, ((i, k), start) in enumerate(rounds.carried):
        if str(start.type) != "tensor<1xi1>":
            continue
        read = _argument(rounds, made, i, flag)
        yielded = _yielded(made[i], k)
        if read is None or yielded is None or not _is_one_of(read, yielded):
            continue
        if all(n == flag or _stays(rounds, made, n, flag) for n in range(len(rounds.carried))):
            return flag
    return None


def _is_one_of(flag: ir.Value, op: ir.Operation) -> bool:
    """Whether an operation's result is true where a flag is."""
    if op.name != "arith.ori":
        return False
    made = [v.owner.operation for v in op.operands if not isinstance(v.owner, ir.Block)]
    return flag in op.operands or any(_is_one_of(flag, inner) for inner in made)


def _stays(rounds: Rounds, made: list[ir.Operation], number: int, flag: int) -> bool:
    (i, k), _ = rounds.carried[number]
    condition, own = (_argument(rounds, made, i, n) for n in (flag, number))
    yielded = _yielded(made[i], k)
    if yielded is None or yielded.name != "arith.select" or condition is None or own is None:
        return False
    return yielded.operands[0] == condition and yielded.operands[1] == own


def _argument(rounds: Rounds, made: list[ir.Operation], op: int, carried: int) -> ir.Value | None:
    """The argument of an operation's body that is a carried value."""
    sources = rounds.operands[op][: len(made[op].operands)]
    known = [n for n, s in enumerate(sources) if isinstance(s, int) and s == carried]
    return made[op].regions[0].blocks[0].arguments[known[0]] if known and made[op].regions else None


def _yielded(op: ir.Operation, number: int) -> ir.Operation | None:
    """What makes a result of a map of one element."""
    types = [str(t) for t in op.attributes["iterator_types"]] if op.name == "linalg.generic" else ["reduction"]
    if any("reduction" in t for t in types) or list(op.results[number].type.shape) != [1]:
        return None
    operations = list(op.regions[0].blocks[0].operations)
    owner = operations[-1].operation.operands[number].owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _value(source, loop: scf.ForOp, made: list[ir.Operation], shifted: dict[Shifted, ir.Value]) -> ir.Value:
    if isinstance(source, tuple):
        return made[source[0]].results[source[1]]
    if isinstance(source, int):
        return loop.inner_iter_args[source]
    if not isinstance(source, Shifted):
        return source
    if source not in shifted:
        type_ = source.start.type
        bits = arith.MulIOp(loop.induction_variable, arith.ConstantOp(ir.IndexType.get(), source.by).result).result
        shifted[source] = arith.ShRUIOp(source.start, arith.IndexCastOp(type_, bits).result).result
    return shifted[source]


def _fills_first(body: ir.Block) -> None:
    """Moves what only makes a tile, which all rounds may read, out of the first one that does."""
    ops = [op.operation for op in body.operations]
    own = {r for op in ops for r in op.results}
    quiet: list[ir.Operation] = []
    for op in ops:
        if op.name in ("tensor.empty", "linalg.fill") and all(v not in own or v.owner in quiet for v in op.operands):
            quiet.append(op)
    behind = next(op for op in ops if op not in quiet)
    for op in quiet:
        if not op.is_before_in_block(behind):
            op.move_before(behind)


@transform_op("roll", operands=("forall",), takes="scf.forall")
def roll(rewriter, foralls):
    """Makes loops of chains of equal rounds in each block program: operations that differ in what they read alone, each
    round from the one before it; integer constants may be shifted by some bits from round to round. A loop whose values
    all stay as they are once one of them is true ends there (`mlirc.until`). Programs without such chains stay as they
    are."""
    for forall in foralls:
        body = forall.operation.regions[0].blocks[0]
        _fills_first(body)
        while rounds := find([op.operation for op in body.operations][:-1]):
            roll_one(rounds, rewriter.erase_op)
