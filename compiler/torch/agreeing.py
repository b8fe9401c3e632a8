"""Sizes that an op takes to be equal and torch has not compared: they are guarded, as by Inductor, so that one symbol stands for both.

A static cache of transformers gives keys and values whose lengths are symbols of their own; kernels of attention are for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule

ATTENTION = "scaled_dot_product"
"""What the names of all attention operators have in them."""


def guard_equal_sizes(graph_module: GraphModule) -> None:
    """Compare what must be equal while torch still takes guards; what differs is left to the op, which refuses it."""
    import torch

    for left, right in _equal(graph_module):
        sizes = [size for size in (left, right) if isinstance(size, torch.SymInt)]
        if sizes and not sizes[0].node.shape_env.frozen:
            bool(left == right)


def _equal(graph_module: GraphModule) -> Iterator[tuple[Any, Any]]:
    """The lengths of keys and of values, of each attention."""
    from torch.fx import Node

    for node in graph_module.graph.nodes:
        if node.op == "call_function" and ATTENTION in str(node.target) and "backward" not in str(node.target):
            shapes: list[Any] = [getattr(each.meta.get("val"), "shape", ()) for each in node.args[1:3] if isinstance(each, Node)]
            if len(shapes) == 2 and min(map(len, shapes)) >= 2:
                yield shapes[0][-2], shapes[1][-2]
