"""The attributes by which a schedule speaks to the lowering: one table that `annotate`, the check of a scheduled
kernel, the passes that read them and the list in docs/schedules.md share.

An attribute that the table does not know, that stands on the wrong op, that has a value out of range, or that the
chosen lowering does not read is an error. One that the script *demands* (what it writes itself, or a knob that the user
gave; not what a built-in script chose by default) must be honoured as well: the lowering notes what it took with
`Taken`, and refuses what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirc.ir.levels import FP32, INDEX_BELOW, REFERENCE, ROUNDS, STATED_BY, TOLERANCE
from mlirc.ir.scans import SCAN
from mlirc.mlir import ir, nested

PREFIX = "mlirc."
# What the compiler itself writes: not for schedules to set.
OWN = {"mlirc.kernel", "mlirc.kind", "mlirc.origin", "mlirc.name", "mlirc.demands", "mlirc.smem", "mlirc.values",
       SCAN, INDEX_BELOW, FP32, REFERENCE, ROUNDS, STATED_BY, TOLERANCE}  # fmt: skip
DEMANDS = "mlirc.demands"
LOWERINGS = ("distribute", "loops", "recurrence", "sort")


_offered: dict[str, Callable[[], list[str]]] = {}


def offer(name: str, words: Callable[[], list[str]]) -> None:
    """Says which words an attribute takes, where there may come more: whoever has them offers them."""
    _offered[name] = words


def listed(names: Sequence[str], quote: str = "") -> str:
    """Names as a sentence lists them: a, b or c."""
    quoted = [f"{quote}{n}{quote}" for n in names]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


@dataclass(frozen=True)
class ScheduleAttribute:
    """One attribute `mlirc.<name>`: `on` is the op it belongs on, `takes` says which values, `meaning` what it does,
    `read_by` which lowerings read it. `each`: every op that has it must take it; otherwise one of them is enough."""

    name: str
    on: str
    takes: str
    meaning: str
    fits: Callable[[Any], bool]
    read_by: tuple[str, ...] = ("distribute",)
    each: bool = True

    @property
    def values(self) -> str:
        """Which values it takes, one by one where there are choices."""
        return listed(_offered[self.name](), '"') if self.name in _offered else self.takes


def _between(least: int, most: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most


def _words(*words: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and v in words


def _grid(v: Any) -> bool:
    return isinstance(v, list) and len(v) == 2 and all(_between(1, 32)(n) for n in v)


def _is_offered(name: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and v in _offered[name]()


def _registers(v: Any) -> bool:
    return isinstance(v, list) and len(v) == 2 and all(_between(24, 256)(n) and n % 8 == 0 for n in v)


FUNCTION, LOOP, BLOCKS, CONTRACTION, TILE_OP, SLICE, OPERANDS = (
    "the kernel's function", "an scf.for", "an scf.forall", "a contraction", "a linalg op", "a tensor.extract_slice",
    "a contraction, or what makes one of its operands",
)  # fmt: skip

_TABLE: dict[str, ScheduleAttribute] = {
    a.name: a
    for a in (
        ScheduleAttribute(
            "warps", FUNCTION, "1 to 32", "warps per block", _between(1, 32),
            ("distribute", "recurrence", "sort"),
        ),
        ScheduleAttribute(
            "units", FUNCTION, "1 to 65535", "hidden units of a recurrence of which a block has all gates",
            _between(1, 65535), ("recurrence",),
        ),
        ScheduleAttribute(
            "way", FUNCTION, '"network", "select" or "radix"', "how a kernel sorts rows (`mlirc-sort`)",
            _words("network", "select", "radix"), ("sort",),
        ),
        ScheduleAttribute(
            "elements", FUNCTION, "1 to 32", "elements of a thread in a sorting network, a power of two",
            _between(1, 32), ("sort",),
        ),
        ScheduleAttribute(
            "min_blocks", FUNCTION, "1 to 32", "blocks that a multiprocessor should hold at once (`.minnctapersm`): "
            "bounds the registers of a thread", _between(1, 32), ("distribute", "loops"),
        ),
        ScheduleAttribute(
            "lowering", FUNCTION, '"loops", "recurrence", "sort", or `x` for a pass `mlirc-x` of your own',
            "which pass takes the kernel to the `gpu` level; without it `mlirc-distribute`",
            lambda v: isinstance(v, str) and re.fullmatch(r"[a-z][\w-]*", v) is not None, (),
        ),
        ScheduleAttribute(
            "to_async", FUNCTION, "`x` for a pass `mlirc-x` of your own",
            "which pass takes the kernel to the `async` level; without it `mlirc-async`",
            lambda v: isinstance(v, str) and re.fullmatch(r"[a-z][\w-]*", v) is not None, (),
        ),
        ScheduleAttribute(
            "threads", FUNCTION, "1 to 1024", "threads per block of `mlirc-loops`", _between(1, 1024), ("loops",)
        ),
        ScheduleAttribute(
            "stages", LOOP, "1 to 16", "depth of the asynchronous copy pipeline; 1: each step waits for its copies",
            _between(1, 16),
        ),
        ScheduleAttribute(
            "producers", LOOP, "1 or 4", "so many more warps, of which one copies what the products of this loop read, "
            "by tensor copies; the others compute. Four are a warpgroup, which gives its registers to the others",
            lambda v: v in (1, 4) and not isinstance(v, bool),
        ),
        ScheduleAttribute(
            "registers", LOOP, "a list of two numbers, each a multiple of 8 from 24 to 256", "registers of a "
            "producer's thread and of a computing one, where four producers give some of theirs away; without it what "
            "a producer needs, and the rest", _registers,
        ),
        ScheduleAttribute(
            "turns", LOOP, "1 to 8", "the warps that compute are so many groups of whole warpgroups, which issue the "
            "loop's products by wgmma in turns: one computes while the tensor cores have another one's products",
            _between(1, 8),
        ),
        ScheduleAttribute(
            "until", LOOP, "0 to 63", "the loop ends where the carried value of this number, of one element, is true: "
            "later iterations would change nothing", _between(0, 63),
        ),
        ScheduleAttribute(
            "swizzle", SLICE, "0, 32, 64 or 128", "over how many bytes of a row chunks of 16 are permuted in the "
            "slots of a ring: as long as the row, or 0 for none",
            lambda v: v in (0, 32, 64, 128) and not isinstance(v, bool),
        ),
        ScheduleAttribute(
            "copy", OPERANDS, '"registers", "cp_async" or "tma"', "how operands come to shared memory, all or this "
            "one: through each thread's registers, by its asynchronous copies of 16 bytes, or by copies of whole "
            "tiles (Hopper's tensor copies), of a producer", _words("registers", "cp_async", "tma"),
        ),
        ScheduleAttribute(
            "persist", BLOCKS, "1 to 65535", "so many blocks are launched, and compute one block of the loop after the "
            "other", _between(1, 65535),
        ),
        ScheduleAttribute(
            "teams", BLOCKS, "1 to 15", "so many teams of the kernel's warps in a block of the launch, each with a "
            "barrier of its own; each computes a block of the loop of its own, or, of a loop inside of a block "
            "program, a part of its own", _between(1, 15),
        ),
        ScheduleAttribute(
            "cluster", BLOCKS, "1, 2, 4 or 8",
            "so many blocks that follow each other form a cluster, and copy what they all read once, to all of them",
            lambda v: v in (1, 2, 4, 8) and not isinstance(v, bool),
        ),
        ScheduleAttribute(
            "spread", BLOCKS, "1, 2, 4, 8 or 16",
            "so many blocks of a cluster compute one block of the loop together: each has a part of every row, and "
            "what is reduced of a row they read from each other's shared memory",
            lambda v: v in (1, 2, 4, 8, 16) and not isinstance(v, bool),
        ),
        ScheduleAttribute(
            "chain", BLOCKS, "1 to 1048576", "so many blocks take a step each of the loop along a scan, and hand on "
            "what is before the next step through memory", _between(1, 1 << 20),
        ),
        ScheduleAttribute(
            "store", BLOCKS, '"vector", "rows" or "tma"', "how results leave: by each thread's own stores of what it "
            "has, or of up to 16 bytes of a row, for which results change threads, or through shared memory by tensor "
            "copies", _words("vector", "rows", "tma"),
        ),
        ScheduleAttribute(
            "last_block", BLOCKS, "1 to 32", "no launch of its own: of the launch in front of it, the last block of "
            "those whose parts a block of this one reads computes that, by so many warps", _between(1, 32),
        ),
        ScheduleAttribute(
            "mma", CONTRACTION, "an instruction's name", "what makes its products: one of mlirc's, or of your own",
            _is_offered("mma"), ("distribute", "recurrence"),
        ),
        ScheduleAttribute(
            "warp_grid", CONTRACTION, "a list of two numbers, each 1 to 32", "warps along m and n; their product "
            "is the block's warps (of tf32, tf32x3 and wgmma_tf32x3, divides them: the others share out k)", _grid,
        ),
        ScheduleAttribute(
            "vector", TILE_OP, "1, 2, 4, 8 or 16", "elements per thread and access along the last dimension, where "
            "the op decides its own layout (elementwise ops and row reductions)",
            lambda v: v in (1, 2, 4, 8, 16) and not isinstance(v, bool), each=False,
        ),
        ScheduleAttribute(
            "strip", TILE_OP, "1 to 16", "of a map's result, a thread has so many neighbours along the last dimension "
            "but one, and computes them together: what several of them read is read once", _between(1, 16),
        ),
        ScheduleAttribute(
            "band", TILE_OP, "1 to 16", "a map's sum over windows of an image, of each channel by itself, is made by "
            "`mma.sync`, of so many rows in a lane's registers", _between(1, 16),
        ),
        ScheduleAttribute(
            "group_rows", BLOCKS, "1 to 65535", "block ids visit that many steps of the second-last loop together, for "
            "reuse in L2; what is left over is visited together, too", _between(1, 65535),
        ),
    )
}  # fmt: skip


BUILT_IN = tuple(_TABLE)  # without those that a user's file declares


def table() -> dict[str, ScheduleAttribute]:
    """All attributes by name (without `mlirc.`)."""
    return dict(_TABLE)


def declare(name: str, *, on: str, takes: str, meaning: str, fits: Callable[[Any], bool], read_by: str) -> None:
    """Adds an attribute that a pass of one's own reads: `annotate(op, name=value)` then takes it.

    `on` is the name of an op (`scf.for`) or one of this module's kinds; `read_by` is the lowering, `x` for the pass
    `mlirc-x`. Raises ValueError for a name that is taken by another meaning.
    """
    known = _TABLE.get(name)
    if known is not None and (known.on, known.takes, known.meaning) != (on, takes, meaning):
        raise ValueError(f"the attribute '{name}' exists: {known.meaning}")
    _TABLE[name] = ScheduleAttribute(name, on, takes, meaning, fits, (read_by,), each=False)


def wrong(name: str, value: Any) -> str:
    """What is wrong with an attribute of this name (without `mlirc.`) and value; "" when nothing is."""
    known = _TABLE.get(name)
    if known is None:
        return unknown(name)
    if not known.fits(value):
        shown = f'"{value}"' if isinstance(value, str) else value
        return f"{name} = {shown}: takes {known.values}"
    return ""


def unknown(name: str) -> str:
    """What to say of a name that no attribute has; "" of one that is known."""
    if name in _TABLE:
        return ""
    close = [n for n in _TABLE if _near(n, name)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(_TABLE)}"
    return f"no attribute '{name}': {hint}"


def _near(known: str, name: str) -> bool:
    import difflib

    return difflib.SequenceMatcher(None, known, name).ratio() > 0.7


def plain(attribute: ir.Attribute) -> Any:
    """The value of an attribute as a schedule writes it: int, bool, str or list of int; else the attribute's text."""
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.BoolAttr):
        return attribute.value
    if isinstance(attribute, ir.IntegerAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.UnitAttr):
        return True
    return str(attribute)


def stands_on(op: ir.Operation, known: ScheduleAttribute) -> bool:
    """Whether the op is of the kind that the attribute belongs on."""
    from mlirc.dialects.schedule._dims import contraction, is_structured

    name = op.operation.name
    if known.on == CONTRACTION:
        return is_structured(op) and contraction(op) is not None
    if known.on == OPERANDS:
        readers = [use.owner for result in op.operation.results for use in result.uses]
        return any(is_structured(o) and contraction(o) is not None for o in (op, *readers))
    kinds = {FUNCTION: "func.func", LOOP: "scf.for", BLOCKS: "scf.forall", SLICE: "tensor.extract_slice"}
    if known.on == TILE_OP:
        return name.startswith("linalg.")
    return name == kinds.get(known.on, known.on)


def of(op: ir.Operation) -> dict[str, Any]:
    """The schedule's attributes of an op, by name without the prefix: those of the table, and misspelt ones. Others
    under our prefix are the compiler's own notes."""
    found = {}
    for key in op.attributes:
        name = key.removeprefix(PREFIX)
        if key.startswith(PREFIX) and key not in OWN and (name in _TABLE or any(_near(n, name) for n in _TABLE)):
            found[name] = plain(op.attributes[key])
    return found


def demands(function: ir.Operation) -> set[str]:
    """Names of the attributes that the kernel's schedule insists on."""
    if DEMANDS not in function.attributes:
        return set()
    return {ir.StringAttr(a).value for a in ir.ArrayAttr(function.attributes[DEMANDS])}


def _one_element(op: ir.Operation) -> bool:
    """Whether every result of an op has one element: there is nothing to divide."""
    types = [r.type for r in op.results]
    return all(isinstance(t, ir.RankedTensorType) and all(n == 1 for n in ir.RankedTensorType(t).shape) for t in types)


@dataclass
class Taken:
    """What a lowering took of the attributes of a kernel: `take` reads one and notes it, `refused` notes why one was
    not honoured."""

    wanted: set[str] = field(default_factory=set)  # names that the schedule demands
    _taken: set[tuple[ir.Operation, str]] = field(default_factory=set)
    _reasons: dict[tuple[ir.Operation, str], str] = field(default_factory=dict)

    def take(self, op: ir.Operation, name: str, default: Any = None) -> Any:
        """The attribute's value, or the default; it counts as honoured unless `refuse` follows."""
        if PREFIX + name not in op.attributes:
            return default
        self._taken.add((op.operation, name))
        return plain(op.attributes[PREFIX + name])

    def refuse(self, op: ir.Operation, name: str, reason: str) -> None:
        """Notes that a value was read and not honoured, with the reason and what to do."""
        self._taken.discard((op.operation, name))
        self._reasons[op.operation, name] = reason

    def left(self, function: ir.Operation) -> list[tuple[ir.Operation, str, str]]:
        """(op, attribute, reason) of what is demanded and was not honoured; 1 asks for nothing special."""
        ops = [function.operation, *nested(function.operation)]
        found = [(op, name) for op in ops for name, value in of(op).items() if name in self.wanted and value != 1]
        enough = {name for op, name in found if (op, name) in self._taken and not _TABLE[name].each}
        found = [(op, name) for op, name in found if name != "vector" or not _one_element(op)]
        reasons = {name: reason for (_, name), reason in self._reasons.items()}  # of another op, where one has none
        return [
            (op, name, self._reasons.get((op, name)) or reasons.get(name, ""))
            for op, name in found
            if (op, name) not in self._taken and name not in enough
        ]
