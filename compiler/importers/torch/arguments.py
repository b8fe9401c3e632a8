"""What a torch graph is given: tensors and numbers as inputs of the engine, parameters as constants, states, sizes by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import ModelError, UnsupportedError
from ....ir.graph import ConstantData, Value
from ....ir.types import TensorType, i64, type_of
from .imported import Feed, KeptState
from .nodes import is_effect, is_overwriting, plain, source_of
from .scalars import given_sizes, symbol_of
from .tensors import array_of

if TYPE_CHECKING:
    from .walk import Walker


class Arguments:
    """The arguments of a graph as they are met: where the engine's inputs come from, and which argument gives each size.

    `frozen` arguments become constants, `kept` ones states, each by its number; `names` are the user's names of all.
    """

    def __init__(self, walker: Walker, frozen: Mapping[int, Any], kept: Mapping[int, KeptState], names: Sequence[str] | None) -> None:
        self.walker = walker
        self.frozen = frozen
        self.kept = kept
        self.names = names
        self.feeds: list[Feed] = []
        self.places: dict[str, tuple[int, int | None]] = {}
        self.numbers: dict[Any, int] = {}
        self.states: dict[str, int] = {}
        self.digests: dict[int, str] = {}
        self.overwritten = {node.args[0] for node in walker.graph_module.graph.nodes if is_overwriting(node)}

    def value(self, node: Any, tied: frozenset[str]) -> Any:
        """The value of a placeholder; states whose next values are `tied` are there although nobody reads them."""
        number = self.numbers[node] = len(self.numbers)
        fake = node.meta.get("val")
        if number in self.frozen:
            found = self._stored(node, number, self.frozen[number])
            if self.frozen[number].device.type == "cuda" and found.constant is not None:
                self.digests[number] = found.constant.digest
            return found
        if number in self.kept:
            return self._kept(node, number, self.kept[number], tied)
        if node in self.overwritten and self.walker.type_of(fake).is_static:
            name = self._name(node, number)
            self.states[name] = number
            return self.walker.graph.add_state(self.walker.module.add_state(name, self.walker.type_of(fake)), self.walker.b.source)
        if any(is_effect(user) for user in node.users):
            # The token that keeps calls with side effects in order: ours stay in order by themselves.
            return None
        if hasattr(fake, "shape"):
            given = self.walker.graph.add_input(self._name(node, number), self.walker.type_of(fake), self.walker.b.source)
            self.feeds.append(Feed(number))
            for axis, size in enumerate(given.shape):
                self._place(size, number, axis)
            return given
        if fake is None or isinstance(fake, (bool, float, str)):
            return fake
        size = self.walker.symbols.dim(fake)
        self._place(size, number, None)
        return size

    def find_sizes(self) -> None:
        """Which symbols tensors give, and which integers; those become inputs when somebody reads them."""
        symbols = self.walker.symbols
        placeholders = [node for node in self.walker.graph_module.graph.nodes if node.op == "placeholder"]
        read = {n: node for n, node in enumerate(placeholders) if n not in self.frozen}
        fakes = {n: node.meta.get("val") for n, node in read.items()}
        symbols.sizes = given_sizes([self.walker.type_of(fake) for fake in fakes.values() if hasattr(fake, "shape")], self.walker.module)
        for number, fake in fakes.items():
            name = symbol_of(fake, symbols)
            if name is not None and name not in symbols.sizes:
                symbols.arguments.setdefault(name, functools.partial(self._number_input, read[number], number))

    def in_order(self) -> tuple[Feed, ...]:
        """The inputs in the order of the arguments that they come from, in the graph too."""
        graph, count = self.walker.graph, len(self.feeds)
        order = sorted(zip(self.feeds, graph.arguments, strict=True), key=lambda pair: pair[0].argument)
        self.feeds, graph.inputs[:count] = [feed for feed, _ in order], [value for _, value in order]
        return tuple(self.feeds)

    def decides(self, sizes: Sequence[Dim]) -> bool:
        """Whether arguments alone decide sizes."""
        return all(dims.symbols(size) <= self.places.keys() for size in sizes)

    def _stored(self, node: Any, number: int, tensor: Any) -> Value:
        """A parameter as a constant; another function of the module may hold the same one."""
        module, source = self.walker.module, self.walker.b.source
        array, expected, name = array_of(tensor), self.walker.type_of(node.meta["val"]), self._name(node, number)
        if type_of(array) != expected:
            raise ModelError(f"parameter {node.name} is {type_of(array)}, expected {expected}", source=source)
        data, known = ConstantData(array), module.constants.get(name)
        if known is not None and known.constant is not None and known.type == expected and known.constant.digest == data.digest:
            return known
        return module.add_constant(name, data, source)

    def _kept(self, node: Any, number: int, kept: KeptState, tied: frozenset[str]) -> Value | None:
        """A state; another function of the module may have declared it. One that is not used is none of this function."""
        if not node.users and kept.name not in tied:
            return None
        module, graph, source = self.walker.module, self.walker.graph, self.walker.b.source
        type, state = self.walker.type_of(node.meta["val"]), module.states.get(kept.name)
        begins = self._stored(node, number, kept.initial) if bool((kept.initial != 0).any()) else None
        if state is None:
            state = module.add_state(kept.name, type, begins)
        if state.type != type or state.initial is not begins:
            what = f"is {type}, and {state.type}" if state.type != type else "begins with other values than"
            why = f"state {kept.name!r} {what} in another function, in function {graph.name!r}"
            raise UnsupportedError(why, source=source, hint="export all functions from modules with one state_dict")
        return graph.add_state(state, source)

    def _place(self, size: Dim, number: int, axis: int | None) -> None:
        name = dims.name_of(size)
        if name is not None:
            self.places.setdefault(name, (number, axis))

    def _name(self, node: Any, number: int) -> str:
        return self.names[number] if self.names is not None and number < len(self.names) else plain(str(node.name))

    def _number_input(self, node: Any, number: int) -> Value:
        self.feeds.append(Feed(number, True))
        return self.walker.graph.add_input(self._name(node, number), TensorType(i64, ()), source_of(node))
