"""From an ONNX model to a graph module: inputs, constants, the walk over nodes, and one error for all that is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ir.dims import Dim
from ....ir.errors import ModelError, Source, UnsupportedError, UsageError
from ....ir.graph import Graph, Module, Value
from ....ir.graph.dead import dead_ops
from ....ir.types import TensorType
from .context import UnsupportedModelError
from .load import Model, OpenModel, open_model, opset_versions
from .symbolic import FoldingBuilder
from .symbols import NarrowerError, Shape, Symbols, size
from .tensors import check_shape, element_type
from .walk import Scope, Walker

if TYPE_CHECKING:
    import onnx


def import_onnx(
    model: Model,
    *,
    shapes: Mapping[str, Shape] | None = None,
    values: Mapping[str, np.ndarray[Any, Any]] | None = None,
    name: str | None = None,
) -> Module:
    """The graph module of an ONNX model.

    `shapes` says what is known of named dimensions: {"B": 8}, {"B": (1, 32)}, {"B": "1..32"}, or {"T": "S"} where two
    are the same. Unless it says otherwise, the first dimension of an input is 0 or more where the model means something
    for an empty batch, and every other one 1 or more. `values` fixes inputs to constants: such an input is no longer one
    of the program. Raises ModelError for a damaged file and one UnsupportedError that lists every node which cannot be
    represented.
    """
    opened = open_model(model)
    limits: dict[str, tuple[int, int]] = {}
    least = 0
    while True:
        attempt = _Import(opened, name, limits, least)
        try:
            return attempt.run(shapes, values or {})
        except NarrowerError as error:
            low, high = limits.get(error.name, (error.low, error.high))
            limits[error.name] = max(low, error.low), min(high, error.high)
        except UnsupportedModelError:
            # A model may mean nothing for an empty batch (it divides by it): then there is none.
            if least or not any(r.low == 0 for r in attempt.module.facts.ranges.values()):
                raise
            least = 1


def input_shapes(model: Model) -> dict[str, tuple[str | int | None, ...]]:
    """The inputs of a model by name, each dimension by its name or its size, None where it has neither."""
    proto = open_model(model).proto
    constants = {tensor.name for tensor in proto.graph.initializer}
    shapes: dict[str, tuple[str | int | None, ...]] = {}
    for value in proto.graph.input:
        if value.name not in constants:
            sizes = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in sizes)
    return shapes


class _Import:
    """One import: the module under construction."""

    def __init__(self, opened: OpenModel, name: str | None, limits: Mapping[str, tuple[int, int]], least: int) -> None:
        """`least` is the size that a batch has at least."""
        proto, file = self.proto, self.file = opened.proto, opened.name
        self.least = least
        self.limits = limits
        self.pasts = frozenset(_pasts(proto.graph))
        self.module = Module(name or proto.graph.name or "model")
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = FoldingBuilder(self.module, self.graph)
        self.walker = Walker(self.builder, opened)
        self.scope = Scope(opset_versions(proto.opset_import, Source(file or "model"), proto.ir_version))

    def run(self, shapes: Mapping[str, Shape] | None, values: Mapping[str, np.ndarray[Any, Any]]) -> Module:
        self._inputs(shapes, values)
        self.walker.is_sized = bool(shapes)
        self.walker.initializers(self.proto.graph, self.scope)
        self.walker.nodes(self.proto.graph.node, self.scope)
        outputs = self._outputs()
        if self.walker.problems:
            raise UnsupportedModelError(self.walker.problems, Source(self.file) if self.file else None)
        self.graph.set_outputs(outputs, [output.name for output in self.proto.graph.output])
        remove_dead(self.module)
        return self.module

    def _inputs(self, shapes: Mapping[str, Shape] | None, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        symbols = Symbols(self.module, shapes, self.limits)
        constants = {tensor.name for tensor in self.proto.graph.initializer} | {t.values.name for t in self.proto.graph.sparse_initializer}
        known = {value.name for value in self.proto.graph.input}
        for wrong in sorted(set(values) - known):
            raise UsageError(f"the model has no input named {wrong!r}", hint=f"its inputs are: {', '.join(sorted(known))}")
        for info in self.proto.graph.input:
            # Before IR version 4 every constant was listed as an input too.
            if info.name in constants:
                continue
            source = Source(info.name, self.file)
            type = self._type(info, symbols, source)
            if info.name in values:
                self.scope.items[info.name] = self.module.add_constant(info.name, _fitting(info.name, values[info.name], type), source)
            else:
                self.scope.items[info.name] = self.graph.add_input(info.name, type, source)
        symbols.finish()

    def _type(self, info: onnx.ValueInfoProto, symbols: Symbols, source: Source) -> TensorType:
        if not info.type.HasField("tensor_type"):
            kind = info.type.WhichOneof("value") or "no type"
            raise UnsupportedError(
                f"input {info.name!r} is {kind.replace('_', ' ')}, expected a tensor",
                source=source,
                hint="pass its tensors as inputs of their own",
            )
        declared = info.type.tensor_type
        dtype = element_type(declared.elem_type, source)
        if not declared.HasField("shape"):
            raise UnsupportedError(
                f"input {info.name!r} has no shape",
                source=source,
                hint="give it a rank in the model: symbolic sizes are fine, an unknown rank is not",
            )
        shape: list[Dim] = []
        for axis, dim in enumerate(declared.shape.dim):
            fallback = f"{info.name}_{axis}"
            # A batch may be empty, the first axis, and before the first call nothing is past; what lies within an element is there.
            low = self.least if axis == 0 or (info.name, axis) in self.pasts else 1
            if dim.HasField("dim_value"):
                # Exporters write -1 and 0 for "any".
                shape.append(
                    size(dim.dim_value, source) if dim.dim_value >= 0 else self._negative(dim.dim_value, symbols, fallback, low, source)
                )
            elif dim.dim_param:
                shape.append(symbols.named(dim.dim_param, fallback, low))
            else:
                shape.append(symbols.fresh(fallback, low))
        check_shape(tuple(d for d in shape if isinstance(d, int)), dtype, source)
        if len(shape) > 32:
            raise ModelError(f"input {info.name!r} has rank {len(shape)}, expected at most 32", source=source)
        return TensorType(dtype, tuple(shape))

    @staticmethod
    def _negative(value: int, symbols: Symbols, fallback: str, low: int, source: Source) -> Dim:
        return symbols.fresh(fallback, low) if value == -1 else size(value, source)

    def _outputs(self) -> list[Value]:
        outputs: list[Value] = []
        names = [output.name for output in self.proto.graph.output]
        if len(set(names)) != len(names):
            raise ModelError("two outputs of the graph have the same name", source=Source(self.file or "model"))
        for name in names:
            source = Source(name, self.file)
            item = self.scope.lookup(name, source)
            if isinstance(item, Value):
                outputs.append(item)
            elif not self.walker.is_poison(item):
                self.walker.report(
                    name,
                    "output",
                    UnsupportedError("is a sequence or an optional, expected a tensor", hint="return its tensors as outputs of their own"),
                )
        return outputs


PASTS = {
    **{("com.microsoft", "GroupQueryAttention"): ((3, 2), (4, 2)), ("com.microsoft", "MultiHeadAttention"): ((6, 2), (7, 2))},
    **{("com.microsoft", "Attention"): ((4, 3),), ("com.microsoft", "QAttention"): ((8, 3),), ("", "Attention"): ((4, 2), (5, 2))},
}
"""By ops with a cache its operands, and the axis of each along which calls before have written it."""


def _pasts(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """The inputs of a graph that are caches, and their axes of what is past."""
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        yield from ((node.input[n], axis) for n, axis in PASTS.get((domain, node.op_type), ()) if n < len(node.input))


def _fitting(name: str, array: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    if (type.dtype.kind != "string" and array.dtype != type.dtype.numpy) or array.ndim != type.rank:
        raise UsageError(f"value of input {name!r}: got {array.dtype}{list(array.shape)}, expected {type}")
    if any(isinstance(want, int) and want != got for want, got in zip(type.shape, array.shape, strict=True)):
        raise UsageError(f"value of input {name!r}: got {array.dtype}{list(array.shape)}, expected {type}")
    return array.astype(object) if type.dtype.kind == "string" else array


def remove_dead(module: Module) -> None:
    """Drop ops and constants that no output needs."""
    wanted = {value for graph in module.functions.values() for value in graph.outputs}
    for graph in module.functions.values():
        for op in dead_ops(graph):
            graph.remove(op)
    for name, value in list(module.constants.items()):
        if not value.uses and value not in wanted:
            del module.constants[name]


__all__ = ["import_onnx"]
