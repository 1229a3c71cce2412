"""A graph of a few layers becomes the graph of all of a model's layers, at the levels `torch`, `linalg` and `kernels`.

An operation of `@main` belongs to the last layer whose tensors it depends on; a view of what an earlier layer has made,
to the layer that reads it. The operations of the graph's first
period of layers have to be those of the second, one by one, but for the layers' own tensors and for what the period in
front hands over; copies of the second period then stand for the layers that are left out. Whatever does not fit raises
`NotRepeated`: nothing is guessed.
"""

from __future__ import annotations

import itertools
from typing import Any

from mlirc.ir import levels
from mlirc.ir.layer_names import Layers, NotRepeated
from mlirc.mlir import context, func, ir

_NONE = -1  # what belongs to no layer


def with_all_layers(module: ir.Module, layers: Layers) -> ir.Module:
    """A new module with all layers. Raises NotRepeated where the module is none of repeated layers."""
    with context(), ir.Location.unknown():
        new = levels.copy(module)
        _Repeating(levels.functions(new)["main"], layers).write()
        try:
            new.operation.verify()
        except ir.MLIRError as e:
            raise NotRepeated(str(e)) from e
    return new


def require_repeated(module: ir.Module, layers: Layers) -> None:
    """Raises NotRepeated where the layers of a module of the `torch` level are not repeated: also where all layers read
    one value that belongs to an early one. Further down that is one of no layer, which shares a kernel with a layer."""
    with context(), ir.Location.unknown():
        _Repeating(levels.functions(module)["main"], layers, strict=True)


class _Repeating:
    """What is known of `@main`: `layer` says which layer each value belongs to, `image` which value of the second
    period each of the first is."""

    def __init__(self, main: ir.OpView, layers: Layers, strict: bool = False):
        self.main, self.layers, self.strict = main, layers, strict
        block = main.regions[0].blocks[0]
        self.arguments = list(block.arguments)
        self.names = _names(main, "arg_attrs", len(self.arguments))
        self.results = _names(main, "res_attrs", len(main.type.results))
        self.operations = [op.operation for op in block.operations]
        self.layer: dict[ir.Value, int] = {}
        self.argument: dict[ir.Value, str] = {}
        for value, name in zip(self.arguments, self.names, strict=True):
            number = layers.number(name)
            self.layer[value] = _NONE if number is None else number
            if number is not None:
                self.argument[value] = name
        self.by_name = dict(zip(self.names, self.arguments, strict=True))
        self.image: dict[ir.Value, ir.Value] = {}
        self._carried: dict[ir.Value, ir.Value] = {}
        self._shared: dict[ir.Value, Any] = {}
        self.owner = {id(op): self._belongs(op) for op in self.operations}
        self._give_to_readers()
        start, behind = layers.start, layers.start + layers.period
        body = self.operations[:-1]
        first = [op for op in body if layers.first <= self.owner[id(op)] < start]
        self.second = [op for op in body if start <= self.owner[id(op)] < behind]
        self._second = {value for op in self.second for value in op.results}
        if len(first) != len(self.second) or not first:
            raise NotRepeated(f"{len(first)} operations, then {len(self.second)}")
        for a, b in zip(first, self.second, strict=True):
            self._compare(a, b, {})
            self.image |= dict(zip(a.results, b.results, strict=True))
        self._check_results()
        for op in [op for op in body if self.owner[id(op)] >= behind]:
            for _, _, value in self._uses(op):
                self._check_behind(value)

    def _belongs(self, op: ir.Operation) -> int:
        owner = max((self.layer[value] for _, _, value in self._uses(op)), default=_NONE)
        for value in op.results:
            self.layer[value] = owner
        if owner == _NONE and not len(list(op.regions)):
            operands = tuple(self._shared.get(v, v) for v in op.operands)
            said = (op.name, repr(_attributes(op)), operands, tuple(str(v.type) for v in op.results))
            for number, value in enumerate(op.results):
                self._shared[value] = (said, number)
        return owner

    def _give_to_readers(self) -> None:
        """What is made of one value, as a view, and only later layers read, belongs to the first of them."""
        readers: dict[ir.Value, set[int]] = {}
        returned = set(self.operations[-1].operands)
        for op in reversed(self.operations):
            owner = self.owner[id(op)]
            reading = {r for value in op.results for r in readers.get(value, ())}
            kept = any(value in returned for value in op.results)
            of = [value for _, _, value in self._uses(op) if self.layer[value] != _NONE]
            view = len(of) == 1 and of[0] not in self.argument
            if reading and not kept and view and min(reading) > owner:
                owner = self.owner[id(op)] = min(reading)
                for value in op.results:
                    self.layer[value] = owner
            for _, _, value in self._uses(op):
                readers.setdefault(value, set()).add(owner)

    def _uses(self, op: ir.Operation) -> list[tuple[ir.Operation, int, ir.Value]]:
        """The operands of an operation, and of those inside of it, that are values of `@main`."""
        found: list[tuple[ir.Operation, int, ir.Value]] = []
        for inner in _with_inner(op):
            found += [(inner, i, value) for i, value in enumerate(inner.operands) if value in self.layer]
        return found

    def _compare(self, a: ir.Operation, b: ir.Operation, inside: dict[ir.Value, ir.Value]) -> None:
        """Raises NotRepeated unless `b` is to the second period what `a` is to the first."""
        said = ((op.name, _attributes(op), [value.type for value in op.results]) for op in (a, b))
        if next(said) != next(said) or len(a.operands) != len(b.operands) or len(a.regions) != len(b.regions):
            raise NotRepeated(f"{a.name} and {b.name}")
        for u, v in zip(a.operands, b.operands, strict=True):
            if inside.get(u) != v if u in inside else not self._corresponds(u, v):
                raise NotRepeated(f"an operand of {a.name}")
        for r, s in zip(a.regions, b.regions, strict=True):
            for x, y in zip(r.blocks, s.blocks, strict=True):
                inside |= dict(zip(x.arguments, y.arguments, strict=True))
                inner = [[o.operation for o in block.operations] for block in (x, y)]
                if len(inner[0]) != len(inner[1]):
                    raise NotRepeated(f"the body of {a.name}")
                for o, p in zip(*inner, strict=True):
                    self._compare(o, p, inside)
                    inside |= dict(zip(o.results, p.results, strict=True))

    def _corresponds(self, u: ir.Value, v: ir.Value) -> bool:
        """Whether `v` is to the second period what `u` is to the first."""
        if u not in self.layer or v not in self.layer:
            return False
        if u in self.argument or v in self.argument:
            if self.layer[u] == _NONE and u == v:
                return True
            moved = self.layers.moved(self.argument[u], self.layers.period) if u in self.argument else ""
            return u in self.argument and self.argument.get(v) == moved
        if self.layer[u] == _NONE or self.layer[v] == _NONE:
            return u == v or (u in self._shared and self._shared[u] == self._shared.get(v))
        if u == v:
            return self._is_shared(u)
        if u in self.image or v in self._second:
            return self.image.get(u) == v
        handed_over = self.layer[u] < self.layers.first <= self.layer[v]
        return handed_over and self._carried.setdefault(v, u) == u

    def _is_shared(self, value: ir.Value) -> bool:
        """Whether all layers may read a value."""
        of_early = not self.strict and self.layer[value] < self.layers.first and value not in self.argument
        return self.layer[value] == _NONE or of_early

    def _check_results(self) -> None:
        ends = list(self.operations[-1].operands)
        known = dict(zip(self.results, ends, strict=True))
        for name, value in known.items():
            number = self.layers.number(name)
            if number is None:
                self._check_behind(value)
            elif self.layer[value] != number:
                raise NotRepeated(f"{name} is none of its layer's")
            elif self.layers.first <= number < self.layers.start:
                other = known.get(self.layers.moved(name, self.layers.period))
                if other is None or not self._corresponds(value, other):
                    raise NotRepeated(name)

    def _check_behind(self, value: ir.Value) -> None:
        """Raises NotRepeated for a value that nothing behind the second period may read: one of an earlier layer."""
        if self.layer[value] < self.layers.start and not self._is_shared(value):
            raise NotRepeated("an early layer is read by the last ones")

    # Writing

    def write(self) -> None:
        """Puts a function of all layers in the place of `@main`."""
        layers, main = self.layers, self.main
        places = layers.spread(self.names)
        types = [self.arguments[at].type for at, _ in places]
        ends = list(self.operations[-1].operands)
        results = layers.spread(self.results)
        with main.location, ir.InsertionPoint(main):
            new = func.FuncOp("main", (types, [ends[at].type for at, _ in results]))
        for name, value in _attributes(main.operation).items():
            if name not in ("function_type", "sym_name", "arg_attrs", "res_attrs"):
                new.attributes[name] = value
        entry = new.add_entry_block([self.arguments[at].location for at, _ in places])
        self.all = {layers.moved(self.names[at], by): entry.arguments[i] for i, (at, by) in enumerate(places)}
        self._describe(new, places, results)
        copies = self._copy()
        last = copies[-1]
        behind = layers.start + layers.period
        for op in [op for op in self.operations[:-1] if self.owner[id(op)] >= behind]:
            for inner, i, value in self._uses(op):
                number = self.layer[value] if value in self.argument else _NONE
                if value in last:
                    inner.operands[i] = last[value]
                elif layers.start <= number < behind:
                    inner.operands[i] = self.all[layers.moved(self.argument[value], layers.period * layers.copies)]
        returned = []
        for at, by in results:
            value = ends[at]
            if layers.number(self.results[at]) is None:
                value = last.get(value, value)
            elif by:
                value = self._shifted(value, copies, by // layers.period)
            returned.append(value)
        with ir.InsertionPoint(entry):
            ending = func.ReturnOp(returned)
        ending.operation.location = self.operations[-1].location
        block = main.regions[0].blocks[0]
        for op in [o.operation for o in block.operations][:-1]:
            op.move_before(ending)
        for name, value in zip(self.names, self.arguments, strict=True):
            value.replace_all_uses_with(self.all[name])
        main.operation.erase()

    def _copy(self) -> list[dict[ir.Value, ir.Value]]:
        """Copies of the second period, each run of it behind the run; for each what the values of the run are there."""
        copies: list[dict[ir.Value, ir.Value]] = [{} for _ in range(self.layers.copies + 1)]
        copies[0] = {value: value for value in self._second}
        chosen = {id(op) for op in self.second}
        run: list[ir.Operation] = []
        behind = self.operations[0]  # the operation behind the run
        for op, following in itertools.pairwise(self.operations):
            if id(op) in chosen:
                run.append(op)
                behind = following
            if run and id(following) not in chosen and self.owner[id(following)] != _NONE:
                with ir.InsertionPoint(behind):
                    for number in range(1, len(copies)):
                        for old in run:
                            self._copy_of(old, copies, number)
                run = []
        for inner in (inner for op in self.second for inner in _with_inner(op)):
            inner.location = self._location(inner.location, 0)
        return copies

    def _copy_of(self, old: ir.Operation, copies: list[dict[ir.Value, ir.Value]], number: int) -> None:
        new = old.clone().operation
        by = number * self.layers.period
        for inner, like in zip(_with_inner(new), _with_inner(old), strict=True):
            inner.location = self._location(like.location, by)
            for i, value in enumerate(like.operands):
                if value in self.layer:
                    inner.operands[i] = self._shifted(value, copies, number)
        copies[number] |= dict(zip(old.results, new.results, strict=True))

    def _shifted(self, value: ir.Value, copies: list[dict[ir.Value, ir.Value]], number: int) -> ir.Value:
        """What a value that the second period reads is to its copy of this number."""
        if value in self.argument:
            return self.all[self.layers.moved(self.argument[value], number * self.layers.period)]
        if self._is_shared(value) and value not in self._carried:
            return value
        source, at = (value, number) if value in self._second else (self.image.get(value), number - 1)
        if source not in copies[at]:
            raise NotRepeated("the order of operations")
        return copies[at][source]

    def _location(self, location: ir.Location, by: int) -> ir.Location:
        """Of an operation of the second period, so many layers further on."""
        known = self.__dict__.setdefault("_locations", {})
        text = str(location)
        if (text, by) not in known:
            moved = self.layers.moved_from_second(text, by)
            known[text, by] = location if moved == text else ir.Module.parse(f"module {{}} {moved}").operation.location
        return known[text, by]

    def _describe(self, new: ir.OpView, arguments: list, results: list) -> None:
        numbers = {name: i for i, name in enumerate(self.all)}
        for key, places in (("arg_attrs", arguments), ("res_attrs", results)):
            if key not in self.main.attributes:
                raise NotRepeated("arguments without names")
            old = list(ir.ArrayAttr(self.main.attributes[key]))
            made = []
            for at, by in places:
                entries = {x.name: x.attr for x in ir.DictAttr(old[at])}
                if "mlirc.name" in entries:
                    name = self.layers.moved(ir.StringAttr(entries["mlirc.name"]).value, by)
                    entries["mlirc.name"] = ir.StringAttr.get(name)
                if levels.WRITES in entries:
                    written = self.layers.moved(self.names[ir.IntegerAttr(entries[levels.WRITES]).value], by)
                    i64 = ir.IntegerType.get_signless(64)
                    entries[levels.WRITES] = ir.IntegerAttr.get(i64, numbers[written])
                made.append(ir.DictAttr.get(entries))
            new.attributes[key] = ir.ArrayAttr.get(made)


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}


def _with_inner(op: ir.Operation) -> list[ir.Operation]:
    """The operation and those inside of it, in order."""
    found = [op]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += _with_inner(inner.operation)
    return found


def _names(main: ir.OpView, key: str, count: int) -> list[str]:
    """The names of arguments or results; of those without one, their numbers."""
    if key not in main.attributes:
        raise NotRepeated("arguments without names")
    found = [ir.DictAttr(a) for a in ir.ArrayAttr(main.attributes[key])]
    names = [ir.StringAttr(a["mlirc.name"]).value if "mlirc.name" in a else f"({i})" for i, a in enumerate(found)]
    if len(names) != count or len(set(names)) < count:
        raise NotRepeated("arguments of one name")
    return names
