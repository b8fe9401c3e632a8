"""What an import leaves to torch: nodes without a rule and side effects, as ATen calls of the program, or as one error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....ir import dims
from ....ir.errors import Source, UnsupportedError
from ....ir.graph import Value
from ....ir.types import TensorType, boolean
from .context import Number
from .fallback import AtenCall, TensorOperand
from .imported import Fallback
from .nodes import is_whole_memory, operator_name, parts_of
from .scalars import Refused

if TYPE_CHECKING:
    from .walk import Walker


class Calls:
    """The calls of a module, numbered through all of its functions; where none are `allowed`, each is a problem."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.made: list[AtenCall] = []
        self.fallbacks: list[Fallback] = []

    def run(self, walker: Walker, node: Any, name: str, why: str) -> None:
        """Have torch run a node; the parts of its result that somebody reads get their values."""
        source = walker.b.source
        if name.startswith("aten.as_strided") and not is_whole_memory(node.args[0].meta.get("val")):
            raise UnsupportedError(f"{name} reads memory around its operand", source=source, hint="index the tensor instead")
        self.fallbacks.append(Fallback(name, source or Source(name), why))
        parts = parts_of(node)
        if not parts:
            return
        types = [_result_type(walker, name, part.meta.get("val")) for _, part in parts]
        operands: list[Value] = []
        arguments = tuple(_operand(walker, argument, operands) for argument in node.args)
        keywords = {key: _operand(walker, argument, operands) for key, argument in node.kwargs.items()}
        attrs = {
            "target": name,
            "key": len(self.made),
            "why": why,
            "dtypes": tuple(t.dtype for t in types),
            "shapes": tuple(t.shape for t in types),
        }
        self.made.append(AtenCall(node.target, arguments, keywords, tuple(path for path, _ in parts)))
        built = walker.b.aten_call(*operands, **attrs)
        results = built if isinstance(built, tuple) else (built,)
        walker.values.update((part, result) for (_, part), result in zip(parts, results, strict=True))

    def effect(self, walker: Walker, node: Any) -> None:
        """An operator with a side effect and no result, called in the order that its token says."""
        _, operator, *rest = node.args
        fakes = node.meta.get("val")
        if not isinstance(fakes, (tuple, list)) or any(fake is not None for fake in fakes[1:]):
            raise UnsupportedError(
                f"{operator_name(operator)} has a side effect and results",
                source=walker.b.source,
                hint="leave it outside the compiled function",
            )
        self.run_effect(walker, operator, rest, node.kwargs)
        walker.values[node] = (None,) * len(fakes)

    def run_effect(self, walker: Walker, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """A call for its side effect, such as a check that raises: always torch's own."""
        operands: list[Value] = []
        name, why = operator_name(operator), "it has a side effect"
        given = tuple(_operand(walker, argument, operands) for argument in arguments)
        named = {key: _operand(walker, argument, operands) for key, argument in keywords.items()}
        self.fallbacks.append(Fallback(name, walker.b.source or Source(name), why))
        walker.b.aten_call(*operands, target=name, key=len(self.made), why=why, dtypes=(boolean,), shapes=((0,),))
        self.made.append(AtenCall(operator, given, named, ()))

    def enforce(self) -> None:
        """UnsupportedError that lists all calls where none are allowed."""
        if self.allowed or not self.fallbacks:
            return
        names = sorted({problem.operator for problem in self.fallbacks})
        lines = [f"{problem.operator} at {problem.source}: {problem.why}" for problem in self.fallbacks]
        nodes = "node is" if len(lines) == 1 else "nodes are"
        raise UnsupportedError(
            f"{len(lines)} {nodes} not supported: {', '.join(names)}",
            note="\n".join(lines),
            hint="use torch.compile(model, backend='ourcc'), which runs them as ATen calls, or take them out of the model",
        )


def _result_type(walker: Walker, name: str, fake: Any) -> TensorType:
    if not hasattr(fake, "layout"):
        raise UnsupportedError(
            f"{name} gives a {type(fake).__name__}, expected tensors",
            source=walker.b.source,
            hint="leave it outside the compiled function",
        )
    return walker.type_of(fake)


def _operand(walker: Walker, argument: Any, operands: list[Value]) -> Any:
    import torch

    if isinstance(argument, torch.fx.Node):
        return _node_operand(walker, argument, operands)
    if isinstance(argument, (tuple, list)):
        return (tuple if isinstance(argument, tuple) else list)(_operand(walker, part, operands) for part in argument)
    if isinstance(argument, Mapping):
        return {key: _operand(walker, part, operands) for key, part in argument.items()}
    return argument


def _node_operand(walker: Walker, argument: Any, operands: list[Value]) -> Any:
    value = walker.values[argument]
    if isinstance(value, Value):
        strides = walker.strides_of(argument.meta.get("val"))
        operands.append(value)
        fixed = strides is not None and all(isinstance(s, int) for s in strides)
        return TensorOperand(len(operands) - 1, tuple(dims.number(s) for s in strides) if strides and fixed else None)
    if isinstance(value, (dims.Expr, Number)):
        operands.append(walker.scalars.value(value))
        return TensorOperand(len(operands) - 1, is_size=True)
    if isinstance(value, (Refused, tuple)):
        why = value.why if isinstance(value, Refused) else "it is several tensors"
        raise UnsupportedError(f"an ATen call needs {argument.name}: {why}", source=walker.b.source, hint="take it out of the model")
    return value
