"""Facts about ops that the grouping asks for again and again: what they look at."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.ir import levels
from mlirc.mlir import ir, nested
from mlirc.passes.graph import facts

MAP = """  %e{i} = tensor.empty() : tensor<4xf32>
  %v{i} = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}} ins(%v{a}, %v{b} : tensor<4xf32>, tensor<4xf32>) outs(%e{i} : tensor<4xf32>) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  }} -> tensor<4xf32>
"""


@pytest.mark.parametrize("length", [3, 60])
def test_producers_that_are_shared_are_looked_at_once(length: int, monkeypatch) -> None:
    """Each map reads the two in front of it: there are as many ways through them as Fibonacci's numbers."""
    maps = "".join(MAP.format(i=i, a=i - 1, b=i - 2) for i in range(2, length + 2))
    last = f"  return %v{length + 1} : tensor<4xf32>"
    module = mlir.parse(
        f"func.func @main(%v0: tensor<4xf32>, %v1: tensor<4xf32>) -> tensor<4xf32> {{\n{maps}{last}\n}}", "maps"
    )
    main = levels.functions(module)["main"]
    generics: list[ir.Operation] = [op for op in nested(main.operation) if op.name == "linalg.generic"]
    seen: list[ir.Operation] = []
    known = facts._is_small_and_cheap
    monkeypatch.setattr(facts, "_is_small_and_cheap", lambda op: (seen.append(op), known(op))[1])
    assert not facts.is_small_index_map(generics[-1])
    assert len(seen) == len(set(seen)) >= min(length, facts.INDEX_CHAIN)
    assert len(seen) <= facts.INDEX_CHAIN
