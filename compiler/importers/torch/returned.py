"""What a torch graph returns, as outputs of an engine: tensors, numbers, sizes, and the memory that views share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import UnsupportedError
from ....ir.graph import Value
from .context import Number
from .imported import Result
from .views import Root

if TYPE_CHECKING:
    from .walk import Walker


class Returned:
    """The engine's outputs as they are found: one for each value, however often it is returned or viewed."""

    def __init__(self, walker: Walker, wanted: Mapping[int, str] | None) -> None:
        self.walker = walker
        self.wanted = wanted
        self.values: list[Value] = []
        self.labels: list[str] = []
        self.positions: dict[Any, int] = {}

    def result(self, output: Any, number: int) -> Result:
        """What stands at one place of the graph's result, where it shares memory with nothing."""
        value = self.walker.argument(output)
        label = None if self.wanted is None else self.wanted[number]
        if isinstance(value, Value):
            return Result(self.tensor(output, value, label))
        if isinstance(value, (int, dims.Expr)) and self.walker.arguments.decides((value,)):
            return Result(size=value)
        if isinstance(value, (dims.Expr, Number)):
            return Result(self.scalar(output, value, label), is_number=True)
        if value is None:
            return Result()
        raise UnsupportedError(f"output {number} of the graph is a {type(value).__name__}, expected a tensor, a size or None")

    def tensor(self, node: Any, value: Value, label: str | None = None, is_viewed: bool = False) -> int:
        """The position of a tensor; where the data decide its strides, only what is viewed needs them."""
        fake: Any = getattr(node, "meta", {}).get("val")
        if is_viewed:
            self.walker.symbols.shape(fake.stride())  # one that has no form is refused
        strides = self.walker.strides_of(fake)
        if strides is not None and not self.walker.arguments.decides(strides):
            strides = self.sizes(strides) if is_viewed else None
        return self._position(node, value, label, strides, self._offset(fake))

    def _offset(self, fake: Any) -> Dim:
        """Where an output begins in its memory, which torch reads off a graph that writes its arguments: it may view one of them."""
        if not self.walker.arguments.overwritten or not hasattr(fake, "storage_offset"):
            return 0
        offset = self.walker.symbols.dim(fake.storage_offset())
        return offset if self.walker.arguments.decides((offset,)) else 0

    def scalar(self, key: Any, value: Dim | Number, label: str | None = None) -> int:
        """The position of a number that a call decides."""
        if key in self.positions and label is None:
            return self.positions[key]
        return self._position(key, self.walker.scalars.value(value), label, None)

    def sizes(self, sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Sizes of what a call makes again; the engine gives the symbols that no argument does."""
        for name in sorted(set().union(*(dims.symbols(size) for size in sizes)) - self.walker.arguments.places.keys()):
            self.walker.given[name] = self.scalar(name, dims.symbol(name))
        return sizes

    def root(self, node: Any) -> Root:
        """Where a tensor that others view comes from."""
        if node.op == "call_function":
            return Root("output", self.tensor(node, self.walker.argument(node), is_viewed=True))
        return Root("argument", self.walker.arguments.numbers[node]) if node.op == "placeholder" else Root("attribute", str(node.target))

    def size(self, node: Any) -> Any:
        """A number in the arguments of a view."""
        value = self.walker.argument(node)
        if isinstance(value, (Value, Number, tuple)):
            raise UnsupportedError(f"the view of an output needs {node.name}, which is no size", hint="return a clone of it")
        return self.sizes((value,))[0] if isinstance(value, dims.Expr) else value

    def _position(self, key: Any, value: Value, label: str | None, strides: tuple[Dim, ...] | None, offset: Dim = 0) -> int:
        if label is not None or key not in self.positions:
            self.positions[key] = len(self.values)
            self.walker.strides.append(strides)
            self.walker.offsets.append(offset)
            self.walker.devices.append(getattr(getattr(key, "meta", {}).get("val"), "device", None))
            self.labels.append(label or f"output{len(self.labels)}")
            self.values.append(value)
        return self.positions[key]
