"""Whose fault it is that a rule stumbled over a node: the model's, that of sizes known only to a call, or our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....ir import dims
from ....ir.errors import InternalError, ModelError, Source, UnsupportedError
from ....ir.graph import Value
from .context import Item, Optional, Stack, ValueSequence
from .symbolic import FoldingBuilder

if TYPE_CHECKING:
    import onnx

STUMBLES = (IndexError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What Python raises where a rule met what it did not expect."""

_OURS = (TypeError, AttributeError, KeyError)
"""Among them, those that no number in a model leads to: a rule took something for what it is not."""


def judged(
    error: Exception, proto: onnx.NodeProto, inputs: Sequence[Item | None], b: FoldingBuilder, opsets: Mapping[str, int], source: Source
) -> ModelError | UnsupportedError | InternalError:
    """The error to raise for one that a rule let through."""
    broken = _broken(proto, opsets)
    if broken is not None:
        return ModelError(f"{proto.op_type}: node is malformed: {broken}", source=source)
    if not isinstance(error, _OURS):
        return ModelError(f"{proto.op_type}: node is malformed: {error}", source=source)
    symbols = sorted({name for item in inputs for name in _symbols(item, b)})
    if symbols:
        return UnsupportedError(f"not with the symbolic sizes {', '.join(symbols)}", source=source, hint="fix them at import (shapes)")
    return InternalError(f"{proto.op_type} at {source}: {type(error).__name__}: {error}")


def _broken(proto: onnx.NodeProto, opsets: Mapping[str, int]) -> str | None:
    """What ONNX's own checker says against a node; None for a good one, and for ops that it does not know."""
    import onnx
    from onnx import checker

    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    try:
        checker.check_node(proto, context)
    except checker.ValidationError as error:
        return str(error).partition("\n")[0].strip().rstrip(".")
    return None


def _symbols(item: Item | None, b: FoldingBuilder) -> set[str]:
    """The symbols in the sizes of an operand, and in its elements where they are known."""
    if isinstance(item, ValueSequence):
        return {name for part in item.items for name in _symbols(part, b)}
    if isinstance(item, Stack):
        return _symbols(item.rows, b)
    if isinstance(item, Optional):
        return _symbols(item.item, b)
    if not isinstance(item, Value):
        return set()
    known = b.known.get(item)
    parts = (*item.shape, *(() if known is None else known.flat))
    return {name for part in parts if isinstance(part, dims.Expr) for name in dims.symbols(part)}
