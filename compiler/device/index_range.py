"""What an index can be at the least and at the most, as far as the text of a kernel tells: index arithmetic whose
results fit in 32 bits need not be looked at while it runs."""

from __future__ import annotations

from mlirc.mlir import ir, nested

Range = tuple[int, int]
_THREADS = 1024  # the most that a block can have
_GRID = (1 << 31) - 1


def _sizes(function: ir.Operation) -> dict[str, tuple[int, ...]]:
    """The grid and the block of a kernel's one launch, where there is one, as gpu.launch_func has them."""
    module = function.parent.parent if function.parent is not None else None
    name = ir.StringAttr(function.attributes["sym_name"]).value
    launches = [op for op in nested(module.operation) if op.name == "gpu.launch_func"] if module is not None else []
    launches = [op for op in launches if ir.SymbolRefAttr(op.attributes["kernel"]).value[-1] == name]
    if len(launches) != 1:
        return {}
    (op,) = launches
    first = sum(list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[:1])
    found = []
    for value in list(op.operands)[first : first + 6]:
        owner = value.owner
        if not isinstance(owner, ir.Operation | ir.OpView) or owner.operation.name != "arith.constant":
            return {}
        found.append(ir.IntegerAttr(owner.operation.attributes["value"]).value)
    return {"grid": tuple(found[:3]), "block": tuple(found[3:])}


class IndexRanges:
    """Ranges of the values of one function; None: not known."""

    def __init__(self, function: ir.Operation | None):
        self.sizes = _sizes(function) if function is not None else {}
        self.known: dict[ir.Value, Range | None] = {}

    def of(self, value: ir.Value) -> Range | None:
        """The range of an integer or index. Operands come before what uses them, so that this does not recurse deeply
        where it is asked for each operation in turn."""
        if value not in self.known:
            self.known[value] = None  # of what a value is in terms of itself nothing is known
            self.known[value] = self._find(value)
        return self.known[value]

    def _find(self, value: ir.Value) -> Range | None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            loop = owner.owner.operation if owner.owner is not None else None
            if loop is None or loop.name != "scf.for" or ir.BlockArgument(value).arg_number:
                return None
            low, high = self.of(loop.operands[0]), self.of(loop.operands[1])
            return (low[0], max(high[1] - 1, low[0])) if low and high else None
        op = owner.operation
        if op.name == "arith.constant":
            attr = op.attributes["value"]
            return (attr.value, attr.value) if isinstance(attr, ir.IntegerAttr) else None
        if op.name.startswith("gpu."):
            return self._position(op)
        if op.name == "arith.select":
            return _union(self.of(op.operands[1]), self.of(op.operands[2]))
        if op.name in ("arith.index_cast", "arith.extsi"):
            return self.of(op.operands[0])
        if op.name.startswith("arith.") and len(op.operands) == 2:
            return _arithmetic(op.name, self.of(op.operands[0]), self.of(op.operands[1]))
        return None

    def _position(self, op: ir.Operation) -> Range | None:
        name = op.name.removeprefix("gpu.")
        if name == "lane_id":
            return 0, 31
        if name not in ("thread_id", "block_id", "block_dim", "grid_dim"):
            return None
        d = "xyz".index(str(op.attributes["dimension"]).split()[-1].rstrip(">"))
        block = name in ("thread_id", "block_dim")
        sizes = self.sizes.get("block" if block else "grid")
        extent = sizes[d] if sizes else _THREADS if block else _GRID
        return (0, extent - 1) if name.endswith("_id") else (0, extent)


def _union(a: Range | None, b: Range | None) -> Range | None:
    return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None


def _arithmetic(name: str, a: Range | None, b: Range | None) -> Range | None:
    """The range of a binary operation's result."""
    name = name.removeprefix("arith.")
    if name in ("remui", "remsi") and b and b[0] > 0:
        return (0, b[1] - 1) if name == "remui" or (a and a[0] >= 0) else (1 - b[1], b[1] - 1)
    if name == "andi" and (bounds := [r[1] for r in (a, b) if r and r[0] >= 0]):
        return 0, min(bounds)
    if a is None or b is None:
        return None
    if name == "addi":
        return a[0] + b[0], a[1] + b[1]
    if name == "subi":
        return a[0] - b[1], a[1] - b[0]
    if name == "muli":
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if name in ("minsi", "maxsi"):
        f = min if name == "minsi" else max
        return f(a[0], b[0]), f(a[1], b[1])
    if a[0] < 0 or b[0] < 0:
        return None
    if name in ("divui", "divsi", "floordivsi") and b[0] > 0:
        return a[0] // b[1], a[1] // b[0]
    if name in ("ceildivsi", "ceildivui") and b[0] > 0:
        return 0, -(-a[1] // b[0])
    if name in ("xori", "ori"):
        return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
    if name == "shli" and b[1] < 32:
        return a[0] << b[0], a[1] << b[1]
    if name in ("shrui", "shrsi"):
        return a[0] >> min(b[1], 63), a[1] >> min(b[0], 63)
    if name in ("minui", "maxui"):
        return min(a[0], b[0]), max(a[1], b[1])
    return None
