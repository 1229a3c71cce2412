"""What `@main` says of sizes that a call decides (docs/sizes.md): `mlirc.dims` of an argument or a result, such as
`"b<=8, s<=2048, 768"`; `mlirc.size` of the scalar arguments that hold the sizes, such as `"1<=s<=2048"`; and
their `mlirc.conditions`, the same of all."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.runtime.sizes import Dims, Sizes, parse_dims, parse_symbol

DIMS, SIZE, CONDITIONS = "mlirc.dims", "mlirc.size", "mlirc.conditions"


def read_sizes(main: ir.OpView | ir.Operation) -> Sizes | None:
    """The sizes of a model, None where all are static. Raises MlircError for attributes that say nothing sensible."""
    arguments = _attributes(main, "arg_attrs")
    symbols = [parse_symbol(a[SIZE]) for a in arguments if SIZE in a]
    if not symbols:
        return None
    for a in arguments:
        if SIZE in a and a.get("mlirc.name") != parse_symbol(a[SIZE]).name:
            raise MlircError(f"main: the size {a[SIZE]} has the name '{a.get('mlirc.name')}'")
    conditions = next((a[CONDITIONS] for a in arguments if a.get(CONDITIONS)), "")
    inputs = {a.get("mlirc.name", f"arg{i}"): parse_dims(a[DIMS]) for i, a in enumerate(arguments) if DIMS in a}
    results = _attributes(main, "res_attrs")
    outputs = {a.get("mlirc.name", f"out{i}"): parse_dims(a[DIMS]) for i, a in enumerate(results) if DIMS in a}
    return Sizes(tuple(symbols), inputs, outputs, tuple(c.strip() for c in conditions.split(";") if c.strip()))


def result_dims(main: ir.OpView) -> list[Dims | None]:
    """The dimensions of every result of `@main`, None for one of static shape."""
    found = [parse_dims(a[DIMS]) if DIMS in a else None for a in _attributes(main, "res_attrs")]
    return found or [None] * len(main.type.results)


def _attributes(main: ir.OpView | ir.Operation, key: str) -> list[dict[str, str]]:
    attributes = main.operation.attributes
    if key not in attributes:
        return []
    rows = [ir.DictAttr(a) for a in ir.ArrayAttr(attributes[key])]
    return [{n.name: ir.StringAttr(n.attr).value for n in row if isinstance(n.attr, ir.StringAttr)} for row in rows]
