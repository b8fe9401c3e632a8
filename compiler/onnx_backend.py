"""ONNX's own backend interface over this compiler, so that any suite written for it can be pointed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from ..ir.errors import InputError, UnsupportedError
from ..ir.graph import Module
from ..ir.graph.reference import interpret
from ..ir.graph.verify import verify
from ..runtime.engine import Engine
from . import pipeline
from .importers.onnx import import_onnx
from .importers.onnx.context import UnsupportedModelError
from .importers.onnx.symbols import Shape
from .options import BuildOptions

Array = np.ndarray[Any, Any]
Program = Callable[[Sequence[Array]], list[Array]]
Key = tuple[tuple[str, str, tuple[int, ...], str], ...]

# An input this small may be a shape, an axis or a count; a larger one is data and is never fixed.
FIXED_ELEMENTS = 64
FIXED_ROUNDS = 8


def compile_module(module: Module) -> Program:
    """The module as a callable on arrays, compiled for this machine."""
    contents = pipeline.compile_module(module, BuildOptions())
    engine = Engine(contents, threads=1)
    names = [port.name for port in engine.inputs]
    results = [port.name for port in engine.outputs]

    def run(inputs: Sequence[Array]) -> list[Array]:
        answers = engine.run(dict(zip(names, inputs, strict=True)))
        return [answers[name] for name in results]

    return run


def interpret_module(module: Module) -> Program:
    """The module as a callable on arrays, run by the reference interpreter."""
    verify(module)
    return lambda inputs: interpret(module, inputs)


class Prepared(BackendRep):  # type: ignore[misc]
    """A prepared model.

    Some models compute shapes from the *values* of small inputs. Such a model is compiled at the first run, for the
    values given, and again for other values: `fixed` names these inputs.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        constants = {tensor.name for tensor in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in constants]
        self.fixed: frozenset[str] = frozenset()
        self.modules: dict[Key, Module] = {}
        self.programs: dict[Key, Program] = {}
        try:
            self.modules[()] = import_onnx(model)
            self.programs[()] = compile_module(self.modules[()])
        except UnsupportedModelError as error:
            if not self._may_fix(error):
                raise

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs given in order or by name."""
        key, free = self.bind(inputs)
        if key not in self.programs:
            self.programs[key] = compile_module(self.modules[key])
        return tuple(self.programs[key](free))

    def bind(self, inputs: Any) -> tuple[Key, list[Array]]:
        """Which of `modules` answers these inputs, and the inputs that it takes."""
        named = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(self.inputs, inputs, strict=False))
        if set(named) != set(self.inputs) or len(inputs) != len(self.inputs):
            raise InputError(f"got {len(inputs)} inputs, expected {len(self.inputs)}: {', '.join(self.inputs)}")
        arrays = {name: np.asarray(value) for name, value in named.items()}
        key = self._key(arrays)
        return key, [arrays[name] for name in self.inputs if name not in self.fixed]

    def _key(self, arrays: Mapping[str, Array]) -> Key:
        """The key of the module for these inputs; imported where it is new."""
        shapes: dict[str, Shape] = dict.fromkeys(self._empty(arrays), (0, None))
        for _ in range(FIXED_ROUNDS):
            values = {name: arrays[name] for name in sorted(self.fixed)}
            key = tuple((name, str(array.dtype), array.shape, repr(array.tolist())) for name, array in values.items())
            key += tuple((name, "empty", (), "") for name in shapes)
            if key in self.modules:
                return key
            try:
                self.modules[key] = import_onnx(self.model, shapes=shapes, values=values)
            except UnsupportedModelError as error:
                more = frozenset(name for name in error.inputs if arrays[name].size <= FIXED_ELEMENTS and arrays[name].ndim <= 1)
                if not self._may_fix(error) or not more - self.fixed:
                    raise
                self.fixed |= more
        raise UnsupportedError("the model's shapes depend on too many inputs", hint="make them constants of the model")

    def _empty(self, arrays: Mapping[str, Array]) -> list[str]:
        """Named dimensions that are 0 in these inputs; a module is for sizes from 1 on unless it is asked for more."""
        found: dict[str, None] = {}
        for value in self.model.graph.input:
            sizes = arrays[value.name].shape if value.name in arrays else ()
            for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
                if size == 0 and dim.dim_param:
                    found[dim.dim_param] = None
        return sorted(found)

    @staticmethod
    def _may_fix(error: UnsupportedModelError) -> bool:
        """Whether knowing some inputs is all that is missing."""
        return all(problem.inputs for problem in error.problems)


class Backend(OnnxBackend):  # type: ignore[misc]
    """Entry points of `onnx.backend.base.Backend`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Import and compile a model."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"device {device!r}", hint="expected CPU")
        return Prepared(model)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Run one node on arrays."""
        arrays = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        types = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", types, outputs)
        return cls.run_model(onnx.helper.make_model(graph), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there."""
        return device.upper() == "CPU"


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
