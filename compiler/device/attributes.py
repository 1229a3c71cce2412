"""What a rule reads off an operation: operands by segment, and attributes."""

from __future__ import annotations

from mlirc.mlir import ir


def segments_of(op) -> list[list[ir.Value]]:
    """The operands of an operation with several variadic ones."""
    sizes, operands = integers(op, "operandSegmentSizes"), list(op.operands)
    return [operands[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


def word(op, name: str) -> str:
    """The last word of an enumeration attribute, as in `#nvvm.wgmma_type<bf16>`; "" where there is none."""
    return str(op.attributes[name]).split("<")[-1].rstrip(">").split()[-1] if name in op.attributes else ""


def number(op, name: str, default: int = 0) -> int:
    """An integer attribute; the default where there is none."""
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else default


def integers(op, name: str) -> list[int]:
    """An attribute that is an array of integers."""
    return [x if isinstance(x, int) else ir.IntegerAttr(x).value for x in op.attributes[name]]


def flag(op, name: str) -> bool:
    """A boolean attribute; False where there is none."""
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value


def sizes_of(op) -> tuple[int, int, int]:
    """m, n and k of a product's shape."""
    given = str(op.attributes["shape"]).split("<")[-1].rstrip(">").replace(" ", "")
    sizes = dict(part.split("=") for part in given.split(","))
    return int(sizes["m"]), int(sizes["n"]), int(sizes["k"])
