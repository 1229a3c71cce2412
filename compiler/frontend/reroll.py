"""Python's loops over time steps become loops again: the repeated part of an exported graph becomes one step of
`mlirc::scan`.

A loop in a model's code is exported once per iteration. Where iterations are equal but for the slice that they read or
write, one of them is kept: what they share is given to every step, what one makes for the next is carried, slices of
one tensor are taken step by step, and what is gathered by `stack`, `cat` or assignments to slices is stacked. A graph
that does not fit stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from mlirc.frontend.evaluate import place
from mlirc.frontend.loops import trace_step
from mlirc.frontend.random.graph import is_random
from mlirc.frontend.recurrent import RECURRENT
from mlirc.frontend.repetitions import Iterations, NoLoop, Slice, find_runs, read_iterations
from mlirc.frontend.scan import number_of

aten = torch.ops.aten
_MANY = 16  # iterations from which on a loop over nothing is one
_SPLIT = 8  # parts of a split that are iterations rather than gates
_FRESH = frozenset(
    "zeros zeros_like empty empty_like new_zeros new_empty full full_like new_full ones ones_like new_ones".split()
)


def reroll(graph: Graph) -> Graph | None:
    """A copy of the graph with its loops over time steps as loops, None where there are none."""
    new = Graph()
    new.output(new.graph_copy(graph, {}))
    mode = next((n.meta["val"].fake_mode for n in new.nodes if hasattr(n.meta.get("val"), "fake_mode")), None)
    if mode is None or len(new.nodes) < 24:
        return None
    with mode, torch.no_grad():
        _move_slices(new)
        found = False
        while _reroll_once(new):
            found = True
    return new if found else None


def _reroll_once(graph: Graph) -> bool:
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    known: dict[Node, list[Any]] = {}
    for tried, run in enumerate(find_runs(nodes)):
        if tried > 256:
            break
        try:
            iterations = read_iterations(nodes, run, known)
            _Loop(graph, iterations).write()
            return True
        except NoLoop:
            continue
    return False


def _move_slices(graph: Graph) -> None:
    """Slices to where they are used, so that they are parts of iterations: what `unbind` and `split` give, too."""
    for node in list(graph.nodes):
        if node.target in (aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default):
            _apart(graph, node)
    for node in list(graph.nodes):
        if node.target is aten.select.int and len(node.users) == 1:
            user = next(iter(node.users))
            if user.target not in (aten.stack.default, aten.cat.default):  # these gather what iterations make
                user.prepend(node)


def _apart(graph: Graph, node: Node) -> None:
    parts = [u for u in node.users if u.target is operator.getitem]
    values = node.meta["val"]
    if len(parts) != len(node.users) or len(values) < _SPLIT:
        return
    source: Any = node.args[0]
    single = node.target is aten.unbind.int
    dim = (node.args[1] if single and len(node.args) > 1 else node.args[2] if len(node.args) > 2 else 0) or 0
    dim = dim % source.meta["val"].dim()  # type: ignore[operator]
    if not single and any(v.shape[dim] != 1 for v in values):
        return
    order = {n: i for i, n in enumerate(graph.nodes)}
    for part in parts:
        if not part.users:
            graph.erase_node(part)
            continue
        index: Any = part.args[1]
        target, args = (aten.select.int, (source, dim, index)) if single else (
            aten.slice.Tensor, (source, dim, index, index + 1))  # fmt: skip
        with graph.inserting_before(min(part.users, key=order.__getitem__)):
            new = graph.call_function(target, args)
        new.meta = dict(part.meta)
        part.replace_all_uses_with(new)
        graph.erase_node(part)
    graph.erase_node(node)


def _stays(node: Node) -> bool:
    """Whether a node may not be in a loop's step: it draws random numbers, is a loop itself, or depends on how its
    tensor lies in memory."""
    if "as_strided" in str(node.target):
        return True
    if is_random(node.target) or node.target in RECURRENT or node.target is torch.ops.mlirc.scan.default:
        return True
    return any(word in str(node.target) for word in ("dropout", "rrelu")) and True in node.args


def _is_changed(node: Node, inside: Any) -> bool:
    """Whether operations in place change a node's tensor, or a view of it, after the loop."""
    for user in node.users:
        if user in inside or not isinstance(user.target, torch._ops.OpOverload):
            continue
        schema = user.target._schema
        if schema.is_mutable:
            return True
        if any(r.alias_info for r in schema.returns) and _is_changed(user, inside):
            return True
    return False


class _Loop:
    """Puts one loop in the place of its iterations. Everything is checked before the graph is changed."""

    def __init__(self, graph: Graph, found: Iterations):
        self.graph, self.found = graph, found
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        self.inside = {n: (i, q) for i, part in enumerate(found.nodes) for q, n in enumerate(part)}
        self.carried: list[tuple[int, int]] = []  # position and distance
        for leaves in found.leaves:
            for leaf in leaves:
                if leaf[0] == "carry":
                    self.carried += [(leaf[1], d) for d in range(1, leaf[2] + 1) if (leaf[1], d) not in self.carried]
        self.reads = [q for q in found.slices if q not in found.writes]
        self.used = self.uses_outside()
        self.last = [q for q, i in self.used.items() if i == {found.count - 1} and (q, 1) not in self.carried]
        self.stacked = [q for q, i in self.used.items() if i != {found.count - 1}]
        self.closed: list[Node] = []
        self.check()

    def uses_outside(self) -> dict[int, set[int]]:
        """The positions whose values are used after the loop, and of which iterations."""
        used: dict[int, set[int]] = {}
        for node, (iteration, position) in self.inside.items():
            if any(u not in self.inside for u in node.users):
                used.setdefault(position, set()).add(iteration)
        return used

    def check(self) -> None:
        found = self.found
        values = [found.first[q].meta.get("val") for q, _ in self.carried]
        values += [found.first[q].meta.get("val") for q in self.used]
        if not all(isinstance(v, torch.Tensor) for v in values):
            raise NoLoop("what is carried is no tensor")
        for (position, _), start in found.starts.items():
            old, new = start.meta.get("val"), found.first[position].meta["val"]
            if not isinstance(old, torch.Tensor) or (old.shape, old.dtype) != (new.shape, new.dtype):
                raise NoLoop("a carried tensor is another at first")
        if not (self.reads or self.stacked or found.writes or found.count >= _MANY):
            raise NoLoop("a loop over nothing")
        if any(_stays(n) for n in found.first) or any(q in self.used for q in found.slices):
            raise NoLoop("random numbers, a loop in the loop, or slices that others use")
        if any(_is_changed(n, self.inside) for n in self.inside):
            raise NoLoop("a result is changed in place")
        inputs = [leaf[1] for leaves in found.leaves for leaf in leaves if leaf[0] == "outer"]
        values = [v for n in [*found.first, *inputs] for v in pytree.tree_leaves(n.meta.get("val"))]
        if any(isinstance(v, torch.Tensor) and v.dtype == torch.uint8 for v in values):
            raise NoLoop("a loop takes no uint8")
        outer = [leaf[1] for q, leaves in enumerate(found.leaves) for leaf in leaves if leaf[0] == "outer"]
        for position in found.writes:
            buffer = found.leaves[position][0][1]
            after = {n for n in buffer.users if n not in self.inside}
            name = getattr(getattr(buffer.target, "_schema", None), "name", "").split("::")[-1]
            if (
                name not in _FRESH
                or outer.count(buffer) != 1
                or any(self.order[n] < self.order[found.first[0]] for n in after)
            ):
                raise NoLoop("what is written may be read")

    # -- the step

    def body(self) -> Graph:
        """The graph of one iteration: over carries, slices, and what all share; to carries and slices."""
        found, graph = self.found, Graph()
        made: dict[int, Node] = {}
        carries = {key: graph.placeholder(f"carry_{i}") for i, key in enumerate([*self.carried, *self.extra()])}
        slices = {q: graph.placeholder(f"slice_{i}") for i, q in enumerate(self.reads)}
        shared: dict[Node, Node] = {}
        for q in range(len(found.first)):
            for leaf in found.leaves[q] if q not in found.slices else ():
                if leaf[0] == "outer" and leaf[1] not in shared:
                    self.closed.append(leaf[1])
                    shared[leaf[1]] = graph.placeholder(f"shared_{len(shared)}")
        for q, node in enumerate(found.first):
            if q in found.writes or "_assert" in str(node.target):
                continue
            if q in slices:
                kept = found.slices[q].kept
                made[q] = (
                    graph.call_function(aten.unsqueeze.default, (slices[q], found.slices[q].dim)) if kept else slices[q]
                )
                continue
            arguments = iter(found.leaves[q])

            def resolve(value: Any, leaves: Any = arguments) -> Any:
                if not isinstance(value, Node):
                    return value
                kind, *rest = next(leaves)
                return (
                    made.get(rest[0])
                    if kind == "inner"
                    else shared[rest[0]]
                    if kind == "outer"
                    else carries[tuple(rest)]
                )

            args, kwargs = pytree.tree_map(resolve, (node.args, node.kwargs))
            if q in found.writes.values():
                made[q] = self.converted(graph, node, args[1])
            else:
                made[q] = graph.call_function(node.target, tuple(args), dict(kwargs))  # type: ignore[arg-type]
        new = [made[q] if d == 1 else carries[q, d - 1] for q, d in self.carried] + [made[q] for q in self.last]
        graph.output((*new, *(made[q] for q in [*self.stacked, *found.writes.values()])))
        return graph

    def extra(self) -> list[tuple[int, int]]:
        """Values of the last iteration that are used after it, and that no iteration reads."""
        return [(q, 1) for q in self.last]

    def converted(self, graph: Graph, copy: Node, value: Any) -> Node:
        """What a copy into a slice writes: of the slice's dtype and shape."""
        target = copy.args[0].meta["val"]  # type: ignore[union-attr]
        cast = graph.call_function(aten._to_copy.default, (value,), {"dtype": target.dtype})
        return graph.call_function(aten.expand.default, (cast, list(target.shape)))

    # -- the loop

    def call(self, target: Callable, *args: Any, **kwargs: Any) -> Node:
        """A new node at the insertion point, with its metadata."""
        node = self.graph.call_function(target, args, kwargs)
        fakes: Any = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta = {"val": target(*fakes, **kwargs), **place(self.found.first[0])}
        return node

    def write(self) -> None:
        found, graph = self.found, self.graph
        module = GraphModule(torch.nn.Module(), self.body())
        carries = len(self.carried) + len(self.last)

        def step(old: list, slices: list, closed: list) -> tuple[list, list]:
            out = module(*old, *slices, *closed)
            return list(out[:carries]), list(out[carries:])

        before = list(graph.nodes)
        with graph.inserting_before(found.first[0]):
            init = [found.starts[q, -d] for q, d in self.carried]
            for q in self.last:
                value = found.first[q].meta["val"]
                init.append(self.call(aten.full.default, list(value.shape), 0, dtype=value.dtype))
            xs = [self.sliced(found.leaves[q][0][1], found.slices[q]) for q in self.reads]
            try:
                number = number_of(step)
                self.require_traceable(number, init, xs)
                loop = self.call(torch.ops.mlirc.scan.default, init, xs, self.closed, found.count, False, number)
            except Exception as e:
                for node in [n for n in reversed(list(graph.nodes)) if n not in set(before)]:
                    graph.erase_node(node)
                raise NoLoop(str(e)) from e
            results = [self.call(operator.getitem, loop, i) for i in range(len(loop.meta["val"]))]
            stacks = dict(zip(self.stacked, results[carries:], strict=False))
            finals = {q: results[i] for i, (q, d) in enumerate(self.carried) if d == 1}
            finals |= dict(zip(self.last, results[len(self.carried) : carries], strict=True))
        last = found.nodes[-1][-1]
        self.replace_gathered(stacks)
        self.replace_single(stacks, finals, last)
        for number, position in enumerate(found.writes):
            self.replace_written(position, results[carries + len(self.stacked) + number], last)
        for part in reversed(found.nodes):
            for node in reversed(part):
                graph.erase_node(node)

    def require_traceable(self, number: int, init: list[Node], xs: list[Node]) -> None:
        """Raises what the import would raise for the step: no reason to refuse the model, which stays unrolled."""
        values = [n.meta["val"] for n in (*init, *xs, *self.closed)]
        trace_step(number, values, len(init), len(xs))

    def sliced(self, source: Node, moving: Slice) -> Node:
        """The slices of all iterations, in their order, along a new first dimension."""
        count, low = self.found.count, min(moving.first, moving.first + moving.step * (self.found.count - 1))
        high = low + abs(moving.step) * (count - 1) + 1
        if (low, high, abs(moving.step)) != (0, int(source.meta["val"].shape[moving.dim]), 1):
            source = self.call(aten.slice.Tensor, source, moving.dim, low, high, abs(moving.step))
        if moving.step < 0:
            source = self.call(aten.flip.default, source, [moving.dim])
        return self.call(aten.movedim.int, source, moving.dim, 0) if moving.dim else source

    def replace_gathered(self, stacks: dict[int, Node]) -> None:
        """`stack` and `cat` of what all iterations made."""
        users = dict.fromkeys(u for q in stacks for part in self.found.nodes for u in part[q].users)
        for user in [u for u in users if u not in self.inside and u.target in (aten.stack.default, aten.cat.default)]:
            parts = list(user.args[0])  # type: ignore[arg-type]
            count = self.found.count
            for q, stack in stacks.items():
                column = [part[q] for part in self.found.nodes]
                at = parts.index(column[0]) if column[0] in parts else -1
                back = at - count + 1
                if at >= 0 and parts[at : at + count] == column:
                    reverse, at = False, at
                elif back >= 0 and parts[back : at + 1] == column[::-1]:
                    reverse, at = True, back
                else:
                    continue
                with self.graph.inserting_before(user):
                    dim = (user.args[1] if len(user.args) > 1 else 0) % user.meta["val"].dim()  # type: ignore
                    block = self.call(aten.flip.default, stack, [0]) if reverse else stack
                    block = self.call(aten.movedim.int, block, 0, dim) if dim else block
                    if user.target is aten.cat.default:
                        shape = list(column[0].meta["val"].shape)
                        shape[dim] *= count
                        block = self.call(aten.reshape.default, block, shape)
                        rest = parts
                    else:
                        rest = [self.call(aten.unsqueeze.default, p, dim) if p not in column else p for p in parts]
                    new = self.call(aten.cat.default, [*rest[:at], block, *rest[at + count :]], dim)
                user.replace_all_uses_with(new)
                self.graph.erase_node(user)
                break

    def replace_single(self, stacks: dict[int, Node], finals: dict[int, Node], last: Node) -> None:
        """Every other use of an iteration's value after the loop."""
        for iteration, part in enumerate(self.found.nodes):
            for q in self.used:
                users = [u for u in part[q].users if u not in self.inside]
                if not users:
                    continue
                if iteration == self.found.count - 1 and q in finals:
                    new = finals[q]
                else:
                    with self.graph.inserting_after(last):
                        new = self.call(aten.select.int, stacks[q], 0, iteration)
                part[q].replace_all_uses_with(new, delete_user_cb=lambda user: user not in self.inside)

    def replace_written(self, position: int, stack: Node, last: Node) -> None:
        """The tensor whose slices the iterations wrote, after them."""
        moving, buffer = self.found.slices[position], self.found.leaves[position][0][1]
        count, dim = self.found.count, moving.dim
        low = min(moving.first, moving.first + moving.step * (count - 1))
        high = low + abs(moving.step) * (count - 1) + 1
        after = [u for u in buffer.users if u not in self.inside]
        with self.graph.inserting_before(last):
            if moving.kept:
                stack = self.call(aten.squeeze.dim, stack, dim + 1)
            block = self.call(aten.flip.default, stack, [0]) if moving.step < 0 else stack
            block = self.call(aten.movedim.int, block, 0, dim) if dim else block
            if (low, high, abs(moving.step)) != (0, int(buffer.meta["val"].shape[dim]), 1):
                block = self.call(aten.slice_scatter.default, buffer, block, dim, low, high, abs(moving.step))
            new = self.call(aten.clone.default, block)  # later operations in place must not reach the stack
        for user in after:
            user.replace_input_with(buffer, new)
