"""What a model's `forward` writes: to buffers, which are the compiled model's state; to inputs, which are changed in
place; and to other attributes, which is refused where the next call would read them."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument

from mlirc.errors import MlircError
from mlirc.frontend.graph_copy import copied

Written = list[str | int]  # names of buffers, and positions of input tensors


def written_state(signature: Any) -> Written:
    """What an exported program writes, in the order of its outputs."""
    user = [s.arg for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
    inputs = [arg.name for arg in user if isinstance(arg, TensorArgument)]
    found: Written = []
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            found.append(spec.target)
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            found.append(inputs.index(spec.target))
    return found


def with_returned_states(program: Any, names: Sequence[str]) -> Any:
    """The program whose last results are the new values of these buffers, in order, as one that writes them."""
    graph, signature = copied(program.graph), copy.copy(program.graph_signature)
    specs, output = list(signature.output_specs), next(n for n in graph.nodes if n.op == "output")
    outer = [s for s in specs if s.kind == OutputKind.USER_OUTPUT]
    if len(outer) < len(specs) or len(outer) <= len(names):
        raise MlircError("forward writes buffers, and is to return their new values")
    first = len(specs) - len(names)
    written = [
        OutputSpec(OutputKind.BUFFER_MUTATION, spec.arg, name) for spec, name in zip(specs[first:], names, strict=True)
    ]
    signature.output_specs = [*written, *specs[:first]]
    output.args = (tuple([*output.args[0][first:], *output.args[0][:first]]),)
    return program._update(torch.fx.GraphModule(program.graph_module, graph), signature)


def call_and_restore(
    module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], written: Written
) -> tuple[Any, list[torch.Tensor]]:
    """What `module` returns, and what it has written then. Its buffers are put back; inputs are not."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    buffers = {name: module.get_buffer(name) for name in written if isinstance(name, str)}
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        output = module(*args, **kwargs)
        after = [inputs[w] if isinstance(w, int) else module.get_buffer(w).clone() for w in written]
    finally:
        for name, buffer in buffers.items():
            owner, _, key = name.rpartition(".")
            module.get_submodule(owner)._buffers[key] = buffer.copy_(before[name])
    return output, after


def with_own_memory(name: str, program: Any) -> Any:
    """The program without the second names of tensors that go by two, where one name is enough and the tensor is
    written. Raises MlircError where a buffer that is written shares memory with another tensor that the program uses:
    compiled, each has its own, and the other would not change."""
    known = {**program.constants, **program.state_dict}
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    held = [(spec, node) for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True)
            if _is_real(known.get(spec.target))]  # fmt: skip
    spans = {spec.target: _span(known[spec.target]) for spec, _ in held}
    ends = {s.target for s in program.graph_signature.output_specs}
    buffers = [(spec.target, node) for spec, node in held if spec.kind == InputKind.BUFFER]
    written = [target for target, node in buffers if target in ends or is_written(node)]
    idle: dict[str, torch.fx.Node] = {}
    for target in written:
        first, last = spans[target]
        for other, node in ((spec.target, node) for spec, node in held if spec.target != target):
            if spans[other][0] >= last or spans[other][1] <= first:
                continue
            if node.users:
                raise MlircError(
                    f"{name}: forward writes into '{target}', which shares memory with '{other}': give each memory of "
                    "its own, or both one name"
                )
            idle[other] = node
    if not idle:
        return program
    signature = copy.copy(program.graph_signature)
    signature.input_specs = [s for s in signature.input_specs if s.target not in idle]
    graph = copied(program.graph)
    for node in [n for n in graph.nodes if n.op == "placeholder" and n.name in {i.name for i in idle.values()}]:
        graph.erase_node(node)
    return program._update(torch.fx.GraphModule(program.graph_module, graph), signature)


def is_written(node: torch.fx.Node) -> bool:
    """Whether an operation changes a tensor in place that shares its memory with the node's."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return True
        passes_on = user.target is operator.getitem or schema is not None and any(r.alias_info for r in schema.returns)
        if passes_on and is_written(user):
            return True
    return False


def _is_real(tensor: Any) -> bool:
    """Whether it is a tensor that has memory."""
    real = isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch._subclasses.FakeTensor)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return real and not wrapped(tensor) and tensor.numel() > 0 and tensor.device.type != "meta"


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to behind its last."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


@contextlib.contextmanager
def replaced_attributes(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors, neither parameters nor buffers, that attributes held before the body gave them others, by the
    attributes' paths."""
    paths = {id(child): path for path, child in module.named_modules()}
    old: dict[str, torch.Tensor] = {}
    assign = torch.nn.Module.__setattr__

    def noted(self: torch.nn.Module, name: str, value: Any) -> None:
        held = self.__dict__.get(name)
        if id(self) in paths and isinstance(held, torch.Tensor) and held is not value:
            old.setdefault(".".join(filter(None, (paths[id(self)], name))), held)
        assign(self, name, value)

    torch.nn.Module.__setattr__ = noted  # type: ignore[assignment]
    try:
        yield old
    finally:
        torch.nn.Module.__setattr__ = assign  # type: ignore[method-assign]


def require_no_state(name: str, program: Any, replaced: dict[str, torch.Tensor]) -> None:
    """Raises MlircError where the program reads a tensor that an attribute held before it got another."""
    read: Sequence[Any] = [c for c in program.constants.values() if isinstance(c, torch.Tensor)]
    for path, tensor in replaced.items():
        if any(c is tensor or (c.data_ptr() == tensor.data_ptr() and c.numel()) for c in read):
            raise MlircError(
                f"{name}: forward reads the tensor '{path}' and replaces it, so that the next call would see another: "
                "make it a buffer (register_buffer); its new value is an output of the compiled model then"
            )
