"""Which outputs of a graph share memory, and how: tensors that exist, and the views of them that torch makes again at each call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ....ir import dims
from ....ir.dims import Dim

Sizes = Callable[[Dim], int]


@dataclass(frozen=True)
class Root:
    """A tensor that others view: an argument of the graph, an output of the engine, or a tensor that the graph holds."""

    kind: Literal["argument", "output", "attribute"]
    place: int | str


@dataclass(frozen=True)
class ViewSlot:
    """The place of a root or of an earlier view among those of a call."""

    number: int


@dataclass(frozen=True)
class View:
    """One operator that views its operand: Slots stand where tensors come in, dimensions where sizes do."""

    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Views:
    """The tensors that outputs share, and the views of them in order."""

    roots: tuple[Root, ...] = ()
    views: tuple[View, ...] = ()

    def make(self, find: Callable[[Root], Any], sizes: Sizes) -> list[Any]:
        """All roots and views of one call, in order of their slots."""
        made = [find(root) for root in self.roots]
        for view in self.views:
            keywords = {name: _filled(value, made, sizes) for name, value in view.keywords.items()}
            made.append(view.operator(*(_filled(value, made, sizes) for value in view.arguments), **keywords))
        return made


NO_VIEWS = Views()


def _filled(argument: Any, made: Sequence[Any], sizes: Sizes) -> Any:
    if isinstance(argument, ViewSlot):
        return made[argument.number]
    if isinstance(argument, dims.Expr):
        return sizes(argument)
    if isinstance(argument, (tuple, list)):
        return type(argument)(_filled(part, made, sizes) for part in argument)
    return argument


@dataclass(frozen=True)
class Shared:
    """What a graph's outputs share: the root of each output that is a view or is viewed, by node."""

    roots: Mapping[Any, Any]

    @property
    def computed(self) -> tuple[Any, ...]:
        """The roots that the engine must give."""
        return tuple(root for root in dict.fromkeys(self.roots.values()) if root.op == "call_function")


def shared(graph: Any) -> Shared:
    """Find the outputs that are inputs, that view the same tensor, or that torch would conjugate only when they are read.

    A view that is alone is an ordinary output: nobody can see what else its memory holds.
    """
    import torch

    tensors = [
        node for node in dict.fromkeys(output_nodes(graph)) if node.op != "call_function" or isinstance(node.meta.get("val"), torch.Tensor)
    ]
    roots = {node: root_of(node) for node in tensors}
    viewers: dict[Any, int] = {}
    for root in roots.values():
        viewers[root] = viewers.get(root, 0) + 1
    return Shared(
        {
            node: root
            for node, root in roots.items()
            if viewers[root] > 1 or root.op != "call_function" or (root is not node and is_lazy(node.meta["val"]))
        }
    )


def output_nodes(graph: Any) -> list[Any]:
    """The nodes that a graph returns, in order."""
    import torch

    found: list[Any] = []
    torch.fx.node.map_arg(next(node for node in reversed(graph.nodes) if node.op == "output").args, found.append)
    return found


def is_lazy(fake: Any) -> bool:
    """Whether a tensor is conjugated or negated only when it is read: a bit that memory does not hold."""
    return bool(fake.is_conj() or fake.is_neg())


def root_of(node: Any) -> Any:
    """The node that made the memory of a node's value."""
    while (viewed := viewed_by(node)) is not None:
        node = viewed
    return node


def viewed_by(node: Any) -> Any:
    """The node whose value a node's value is a view of; None where it has memory of its own."""
    import torch

    maker = node.args[0] if node.target is operator.getitem else node
    if maker.op != "call_function" or not isinstance(maker.target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded in maker.target.tags or maker.target._schema.is_mutable:
        return None
    place = _storage(node)
    return None if place is None else next((operand for operand in maker.all_input_nodes if _storage(operand) == place), None)


def _storage(node: Any) -> int | None:
    import torch

    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    return int(fake.untyped_storage()._cdata)


class Replay:
    """Writes down the views that lead from roots to the outputs that share them."""

    def __init__(self, find: Callable[[Any], Root], size: Callable[[Any], Any]) -> None:
        self.find = find
        self.size = size
        self.slots: dict[Any, int] = {}
        self.roots: list[Root] = []
        self.views: list[View] = []

    def add(self, outputs: Mapping[Any, Any]) -> dict[Any, int]:
        """The slot of each output, by node; all roots come before all views."""
        for root in dict.fromkeys(outputs.values()):
            self.slots[root] = len(self.slots)
            self.roots.append(self.find(root))
        return {node: self._slot(node) for node in outputs}

    def result(self) -> Views:
        """What a call has to do."""
        return Views(tuple(self.roots), tuple(self.views))

    def _slot(self, node: Any) -> int:
        """The slot of a node; the views that it rests on are written down first."""
        missing = []
        viewed = node
        while viewed not in self.slots:
            missing.append(viewed)
            if viewed.target is operator.getitem and viewed.args[0] not in self.slots:
                missing.append(viewed.args[0])
            viewed = viewed_by(viewed)
        for step in reversed(missing):
            keywords = {name: self._argument(value) for name, value in step.kwargs.items()}
            self.views.append(View(step.target, tuple(self._argument(value) for value in step.args), keywords))
            self.slots[step] = len(self.slots)
        return self.slots[node]

    def _argument(self, argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            return ViewSlot(self.slots[argument]) if argument in self.slots else self.size(argument)
        if isinstance(argument, (tuple, list)):
            return (tuple if isinstance(argument, tuple) else list)(self._argument(part) for part in argument)
        return argument
