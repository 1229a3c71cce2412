"""Samples of PyTorch's operators, one after another, in a process that may die of any: see opinfo_suite.py."""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from case_check import Call, Outcome, check_call, import_mlirc, last_line, own_output, serve

DTYPES = ("float32", "bfloat16", "int64", "bool", "uint8")
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_")


@functools.cache
def operators() -> dict[str, Any]:
    """PyTorch's OpInfo entries by name and variant."""
    warnings.simplefilter("ignore")
    import torch

    frozen = torch.backends.flags_frozen()
    from torch.testing._internal.common_methods_invocations import op_db

    if not frozen:  # the import freezes the flags of back ends for all of the process
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return {op.full_name: op for op in op_db}


@functools.lru_cache(maxsize=1)
def samples(operator: str, dtype: str) -> list[Any]:
    """The samples of one operator in one dtype, always the same ones; none where it does not take the dtype."""
    import torch

    op, kind = operators()[operator], getattr(torch, dtype)
    if kind not in op.dtypes:
        return []
    torch.manual_seed(0)
    return list(op.sample_inputs("cpu", kind, requires_grad=False))


def case_names(most: int, dtypes: tuple[str, ...] = DTYPES, pattern: str = "") -> list[str]:
    """`operator/dtype/number` of up to `most` samples of each operator and dtype, evenly spread over all of them.
    `pattern` is a regular expression that the operators' names match."""
    names = []
    for operator in sorted(o for o in operators() if re.search(pattern, o)):
        for dtype in dtypes:
            count = len(samples(operator, dtype))
            kept = sorted({i * count // most for i in range(most)}) if count > most else range(count)
            names += [f"{operator}/{dtype}/{i}" for i in kept]
    return names


def run_case(name: str, level: str, say: Callable[[str], None]) -> Outcome:
    """Compiles an operator for the tensors of one sample, and compares `level` of it with PyTorch on them."""
    import torch

    operator, dtype, number = name.rsplit("/", 2)
    say("PyTorch")
    if operator in UNDEFINED:
        return Outcome("nothing to compare", "PyTorch leaves its values undefined")
    sample = samples(operator, dtype)[int(number)]
    leaves, spec = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return Outcome("nothing to compare", "no tensor goes in")
    if any(t.layout != torch.strided for t in tensors):
        return Outcome("nothing to compare", "a sparse tensor goes in")
    function = operators()[operator].op

    class Sample(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            rest = iter(given)
            values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            own, args, kwargs = torch.utils._pytree.tree_unflatten(values, spec)
            return function(own, *args, **kwargs)

    try:
        with torch.no_grad():
            results = Sample()(*[t.clone() for t in tensors])
    except Exception as e:
        return Outcome("nothing to compare", f"PyTorch cannot run it: {last_line(e)}")
    if not any(isinstance(r, torch.Tensor) for r in torch.utils._pytree.tree_leaves(results)):
        return Outcome("nothing to compare", "no tensor comes out")
    say("mlirc")
    return check_call(Sample(), name, Call("forward", tuple(tensors), {}), level)


def main() -> None:
    """Runs the cases that standard input names, at the level of the command line."""
    with own_output() as out:
        import_mlirc()
        operators()
        serve(lambda name, say: run_case(name, sys.argv[1], say), out)


if __name__ == "__main__":
    main()
