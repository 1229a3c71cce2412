"""The table of rules: what an op does to padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
from torch.fx import Node

Rule = Callable[..., Node]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule: a function of the walker and the call's arguments, whose tensors are nodes of the new graph."""

    def register(function: Rule) -> Rule:
        for target in targets:
            RULES[target] = function
        return function

    return register


@dataclass(frozen=True)
class Number:
    """What a number computed from sizes is, in symbols."""

    expr: sympy.Expr
