"""Random `linalg`-level modules of f32 tensors, for tests that compare levels."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

SIZES = (1, 2, 3, 5)


def tensor(shape: list[int], element: str = "f32") -> str:
    return f"tensor<{'x'.join(map(str, [*shape, element]))}>"


@dataclass
class GraphWriter:
    """Writes one random op after another; `values` are the names and shapes so far."""

    random: random.Random
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, list[int]]] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def pick(self) -> tuple[str, list[int]]:
        recent = self.values[-5:]
        return self.random.choice(recent if self.random.random() < 0.7 else self.values)

    def add(self, text: str, shape: list[int]) -> None:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        self.values.append((name, shape))

    def empty(self, shape: list[int]) -> str:
        name = self.name()
        self.lines.append(f"  {name} = tensor.empty() : {tensor(shape)}")
        return name

    def filled(self, shape: list[int], value: str) -> str:
        empty, name = self.empty(shape), self.name()
        self.lines.append(
            f"  {name} = linalg.fill ins({value} : f32) outs({empty} : {tensor(shape)}) -> {tensor(shape)}"
        )
        return name

    def generic(self, inputs: list[tuple[str, list[int], str]], shape: list[int], body: list[str], out: str, init=None,
                kinds=None) -> None:  # fmt: skip
        """Adds a `linalg.generic`; inputs are (name, shape, results of its map over d0, d1, ...)."""
        kinds = kinds or ["parallel"] * len(shape)
        dims = ", ".join(f"d{i}" for i in range(len(kinds)))
        maps = ", ".join(f"affine_map<({dims}) -> ({m})>" for m in [*(i[2] for i in inputs), out])
        init = init or self.empty(shape)
        names = ", ".join(i[0] for i in inputs)
        types = ", ".join(tensor(i[1]) for i in inputs)
        ins = f"ins({names} : {types})" if inputs else ""
        arguments = ", ".join(f"%i{k}: f32" for k in range(len(inputs))) + (", " if inputs else "") + "%o: f32"
        listed = ", ".join(f'"{k}"' for k in kinds)
        lines = "\n".join("    " + line for line in body)
        self.add(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{listed}]}} {ins} "
            f"outs({init} : {tensor(shape)}) {{\n  ^bb0({arguments}):\n{lines}\n    linalg.yield %r : f32\n"
            f"  }} -> {tensor(shape)}",
            shape,
        )

    def identity(self, shape: list[int]) -> str:
        return ", ".join(f"d{i}" for i in range(len(shape)))

    def unary(self) -> None:
        name, shape = self.pick()
        op = self.random.choice(["arith.negf %i0", "math.tanh %i0", "math.absf %i0", "arith.mulf %i0, %i0"])
        self.generic([(name, shape, self.identity(shape))], shape, [f"%r = {op} : f32"], self.identity(shape))

    def binary(self) -> None:
        """A map of two tensors; the second is broadcast from, or permuted to, the first one's shape."""
        (a, shape), rank = self.pick(), 0
        rank = len(shape)
        fitting = []
        for b, other in self.values:
            dims, used = [], -1
            for n in other:
                at = next((i for i in range(used + 1, rank) if shape[i] == n or n == 1), None)
                if at is None:
                    break
                dims.append("0" if n == 1 and shape[at] != 1 else f"d{at}")
                used = at
            else:
                fitting.append((b, other, ", ".join(dims)))
        second = self.random.choice(fitting)
        op = self.random.choice(["arith.addf", "arith.mulf", "arith.maximumf", "arith.subf"])
        self.generic([(a, shape, self.identity(shape)), second], shape, [f"%r = {op} %i0, %i1 : f32"],
                     self.identity(shape))  # fmt: skip

    def positions(self) -> None:
        name, shape = self.pick()
        if shape:
            at = self.random.randrange(len(shape))
            body = [f"%p = linalg.index {at} : index", "%q = arith.index_cast %p : index to i64",
                    "%f = arith.sitofp %q : i64 to f32", "%r = arith.addf %i0, %f : f32"]  # fmt: skip
            self.generic([(name, shape, self.identity(shape))], shape, body, self.identity(shape))

    def gather(self) -> None:
        """Rows of a table at indices computed from a tensor's values, which may lie outside of it."""
        name, shape = self.pick()
        tables = [(t, s) for t, s in self.values if len(s) == 2]
        if tables and len(shape) == 1:
            table, rows = self.random.choice(tables)
            self.generic(
                [(name, shape, "d0")],
                [shape[0], rows[1]],
                [
                    f"%c = arith.constant {rows[0] - 1} : i64",
                    "%z = arith.constant 0 : i64",
                    "%n = arith.fptosi %i0 : f32 to i64",
                    "%n1 = arith.maxsi %n, %z : i64",
                    "%n2 = arith.minsi %n1, %c : i64",
                    "%x = arith.index_cast %n2 : i64 to index",
                    "%y = linalg.index 1 : index",
                    f"%r = tensor.extract {table}[%x, %y] : {tensor(rows)}",
                ],
                "d0, d1",
            )

    def transpose(self) -> None:
        name, shape = self.pick()
        if not shape:
            return
        order = self.random.sample(range(len(shape)), len(shape))
        moved = [shape[p] for p in order]
        empty = self.empty(moved)
        operands = f"ins({name} : {tensor(shape)}) outs({empty} : {tensor(moved)})"
        self.add(f"linalg.transpose {operands} permutation = {order}", moved)

    def reshape(self) -> None:
        name, shape = self.pick()
        if len(shape) > 1 and self.random.random() < 0.5:
            at = self.random.randrange(len(shape) - 1)
            groups = [[i] for i in range(at)] + [[at, at + 1]] + [[i] for i in range(at + 2, len(shape))]
            new = [prod(shape[i] for i in g) for g in groups]
            self.add(f"tensor.collapse_shape {name} {groups} : {tensor(shape)} into {tensor(new)}", new)
        elif 0 < len(shape) < 4:
            at = self.random.randrange(len(shape))
            factor = self.random.choice([k for k in range(1, shape[at] + 1) if shape[at] % k == 0])
            new = [*shape[:at], factor, shape[at] // factor, *shape[at + 1 :]]
            groups = [[i] for i in range(at)] + [[at, at + 1]] + [[i + 1] for i in range(at + 1, len(shape))]
            text = f"tensor.expand_shape {name} {groups} output_shape {new} : {tensor(shape)} into {tensor(new)}"
            self.add(text, new)

    def slice(self) -> None:
        name, shape = self.pick()
        offsets, sizes, strides = [], [], []
        for n in shape:
            offset, stride = self.random.randrange(n), self.random.choice([1, 1, 2])
            offsets.append(offset)
            strides.append(stride)
            sizes.append(self.random.randint(1, (n - offset + stride - 1) // stride))
        drop = len(sizes) > 1 and sizes[0] == 1 and self.random.random() < 0.5
        new = sizes[1:] if drop else sizes
        self.add(f"tensor.extract_slice {name}{offsets} {sizes} {strides} : {tensor(shape)} to {tensor(new)}", new)

    def concat(self) -> None:
        name, shape = self.pick()
        if not shape:
            return
        at = self.random.randrange(len(shape))
        same = [
            (v, s)
            for v, s in self.values
            if len(s) == len(shape) and s[:at] + s[at + 1 :] == shape[:at] + shape[at + 1 :]
        ]
        parts = [(name, shape)] + self.random.choices(same, k=self.random.randint(1, 2))
        new = [*shape[:at], sum(s[at] for _, s in parts), *shape[at + 1 :]]
        if prod(new) < 400:
            names, types = ", ".join(v for v, _ in parts), ", ".join(tensor(s) for _, s in parts)
            self.add(f"tensor.concat dim({at}) {names} : ({types}) -> {tensor(new)}", new)

    def insert(self) -> None:
        name, shape = self.pick()
        outer = [n + self.random.randint(0, 2) for n in shape]
        if shape and prod(outer) < 400:
            dest = self.filled(outer, "%half")
            offsets = [self.random.randint(0, big - n) for big, n in zip(outer, shape, strict=True)]
            ones = [1] * len(shape)
            text = (
                f"tensor.insert_slice {name} into {dest}{offsets} {shape} {ones} : {tensor(shape)} into {tensor(outer)}"
            )
            self.add(text, outer)

    def pad(self) -> None:
        name, shape = self.pick()
        low, high = ([self.random.randint(0, 1) for _ in shape] for _ in range(2))
        new = [n + a + b for n, a, b in zip(shape, low, high, strict=True)]
        if shape and prod(new) < 400:
            arguments = ", ".join(f"%p{i}: index" for i in range(len(shape)))
            self.add(f"tensor.pad {name} low{low} high{high} {{\n  ^bb0({arguments}):\n    tensor.yield %half : f32\n"
                     f"  }} : {tensor(shape)} to {tensor(new)}", new)  # fmt: skip

    def reduce(self) -> None:
        name, shape = self.pick()
        if not shape:
            return
        dims = set(self.random.sample(range(len(shape)), self.random.randint(1, min(2, len(shape)))))
        keep = self.random.random() < 0.5
        new = [1 if i in dims else n for i, n in enumerate(shape) if keep or i not in dims]
        out = ", ".join("0" if i in dims else f"d{i}" for i in range(len(shape)) if keep or i not in dims)
        kinds = ["reduction" if i in dims else "parallel" for i in range(len(shape))]
        op = self.random.choice(["arith.addf", "arith.maximumf"])
        init = self.filled(new, "%zero" if op == "arith.addf" else "%low")
        source = [(name, shape, self.identity(shape))]
        self.generic(source, new, [f"%r = {op} %i0, %o : f32"], out, init, kinds)

    def norm(self) -> None:
        """Divides rows by their largest magnitude plus one: a reduction between maps."""
        name, shape = self.pick()
        if len(shape) < 2:
            return
        self.values.append((name, shape))
        ident, rows = self.identity(shape), shape[:-1]
        self.generic([(name, shape, ident)], shape, ["%r = math.absf %i0 : f32"], ident)
        magnitude = self.values[-1][0]
        kinds = ["parallel"] * len(rows) + ["reduction"]
        out = self.identity(rows)
        self.generic([(magnitude, shape, ident)], rows, ["%r = arith.maximumf %i0, %o : f32"], out,
                     self.filled(rows, "%zero"), kinds)  # fmt: skip
        self.generic([(self.values[-1][0], rows, out)], rows,
                     ["%c = arith.constant 1.0 : f32", "%r = arith.addf %i0, %c : f32"], out)  # fmt: skip
        divisor = self.values[-1][0]
        self.generic([(name, shape, ident), (divisor, rows, out)], shape, ["%r = arith.divf %i0, %i1 : f32"], ident)

    def matmul(self) -> None:
        name, shape = self.pick()
        if len(shape) == 2:
            fitting = [(v, s) for v, s in self.values if len(s) == 2 and s[0] == shape[1]]
            if fitting:
                other, right = self.random.choice(fitting)
                new = [shape[0], right[1]]
                init = self.filled(new, self.random.choice(["%zero", "%zero", "%half"]))
                self.add(f"linalg.matmul ins({name}, {other} : {tensor(shape)}, {tensor(right)}) "
                         f"outs({init} : {tensor(new)}) -> {tensor(new)}", new)  # fmt: skip
        elif len(shape) == 3:
            fitting = [(v, s) for v, s in self.values if len(s) == 3 and s[0] == shape[0] and s[1] == shape[2]]
            if fitting:
                other, right = self.random.choice(fitting)
                new = [shape[0], shape[1], right[2]]
                init = self.filled(new, "%zero")
                self.add(f"linalg.batch_matmul ins({name}, {other} : {tensor(shape)}, {tensor(right)}) "
                         f"outs({init} : {tensor(new)}) -> {tensor(new)}", new)  # fmt: skip


def random_module(seed: int, ops: int = 14) -> str:
    """The text of a module with about `ops` random ops after three random inputs, and one to three results."""
    r = random.Random(seed)
    writer = GraphWriter(r)
    arguments = []
    for i in range(3):
        shape = [r.choice(SIZES) for _ in range(r.choice([1, 2, 2, 3]))]
        arguments.append(f"%a{i}: {tensor(shape)}")
        writer.values.append((f"%a{i}", shape))
    for _ in range(2):  # square matrices, so that matmuls find operands
        n = r.choice(SIZES)
        arguments.append(f"%a{len(arguments)}: {tensor([n, n])}")
        writer.values.append((f"%a{len(arguments) - 1}", [n, n]))
    steps = [writer.unary, writer.binary, writer.binary, writer.transpose, writer.reshape, writer.slice, writer.concat,
             writer.insert, writer.pad, writer.reduce, writer.norm, writer.matmul, writer.matmul, writer.positions,
             writer.gather]  # fmt: skip
    for _ in range(ops):
        r.choice(steps)()
    results = [writer.values[-1]] + r.sample(writer.values, r.randint(0, 2))
    types = ", ".join(tensor(s) for _, s in results)
    names = ", ".join(v for v, _ in results)
    values = {"%zero": "0.0", "%half": "0.5", "%low": "0xFF800000"}
    constants = "".join(f"  {name} = arith.constant {value} : f32\n" for name, value in values.items())
    body = "\n".join(writer.lines)
    return (
        f"func.func @main({', '.join(arguments)}) -> ({types}) {{\n{constants}{body}\n  return {names} : {types}\n}}\n"
    )
