"""Copies of exported graphs."""

from __future__ import annotations

from torch.fx import Graph


def copied(graph: Graph) -> Graph:
    """A copy whose placeholders have the names of the graph's own, which signatures tell them by; a plain copy would
    give those that are names in Python (`input`) others."""
    new = Graph()
    new.output(new.graph_copy(graph, {}))
    for old, node in zip(graph.nodes, new.nodes, strict=False):
        if old.op == "placeholder":
            node.name, node.target = old.name, old.target
    return new
