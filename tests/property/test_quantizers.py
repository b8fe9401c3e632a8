"""Drawn ONNX graphs with symbolic sizes, quantized with drawn settings, against ONNX Runtime and through the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from generator import Case
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat
from quantizing import I4, I8, I16, U8, U16, Array, Feeds, Setting, disagreement, quantized, theirs, wrong_engines

from ourcc.compiler.importers.onnx import import_onnx

SHARE = 0.05
"""Of the option --cases: a case here is a model that ONNX Runtime quantizes, runs and calibrates."""
BATCH = 12
SHOWN = 5
FORMS = (QuantFormat.QDQ, QuantFormat.QDQ, QuantFormat.QOperator, None)
SIZES = {"B": (0, 1, 2, 3), "A": (1, 2, 3), "H": (4, 5, 7)}


@dataclass
class Sketch:
    """A graph under construction: values are [B, C, H, 4] images, or [B, C] rows once they are flattened."""

    rng: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, list[int | str]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, array: Array) -> str:
        name = self.name("c")
        self.constants[name] = array
        return name

    def weights(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.5).astype(np.float32))

    def op(self, op_type: str, *inputs: str, **attrs: object) -> str:
        name = self.name("v")
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attrs))
        return name

    def model(self, result: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.inputs.items()]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            infos,
            [helper.make_empty_tensor_value_info(result)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        version = max(8, helper.find_min_ir_version_for([helper.make_opsetid("", self.opset)]))
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=version)
        )


def image_step(s: Sketch, x: str, channels: int) -> tuple[str, int]:
    """One op on an image."""
    kind = int(s.rng.integers(8))
    if kind == 0:
        wide = int(s.rng.integers(1, 5))
        bias = [s.weights(wide)] if s.rng.integers(2) else []
        return s.op("Conv", x, s.weights(wide, channels, 3, 3), *bias, pads=[1, 1, 1, 1]), wide
    if kind == 1:
        return s.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], ceil_mode=int(s.rng.integers(2))), channels
    if kind == 2:
        return s.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), channels
    if kind == 3:
        return s.op("Concat", x, s.op("Sigmoid", x), axis=1), 2 * channels
    if kind == 4:
        # Another batch size, which may be 1.
        other = s.name("x")
        s.inputs[other] = ["A", channels, 1, 4]
        return s.op(str(s.rng.choice(["Add", "Mul"])), x, other), channels
    if kind == 5:
        scales = s.constant(np.array([1, 1, 2, 1], np.float32))
        roi = s.constant(np.zeros(0, np.float32))
        return s.op("Resize", x, roi, scales, mode=str(s.rng.choice(["nearest", "linear"]))), channels
    if kind == 6:
        return s.op("LeakyRelu", x, alpha=0.1) if s.rng.integers(2) else s.op("Relu", x), channels
    return s.op("Add", x, s.weights(channels, 1, 1)), channels


def row_step(s: Sketch, x: str, width: int) -> tuple[str, int]:
    """One op on rows."""
    kind = int(s.rng.integers(5))
    wide = int(s.rng.integers(2, 7))
    if kind == 0:
        return s.op("MatMul", x, s.weights(width, wide)), wide
    if kind == 1:
        return s.op("Gemm", x, s.weights(wide, width), s.weights(wide), transB=1), wide
    if kind == 2:
        return s.op("Softmax", x, axis=1), width
    if kind == 3:
        return s.op("Reshape", s.op("Reshape", x, s.constant(np.array([0, 1, width]))), s.constant(np.array([0, width]))), width
    return s.op("Relu", s.op("Add", x, s.weights(width))), width


def drawn_model(rng: np.random.Generator) -> onnx.ModelProto:
    s = Sketch(rng, int(rng.choice([11, 13, 17, 19, 21, 23, 24, 25, 26])))
    channels = int(rng.integers(1, 4))
    s.inputs["x"] = ["B", channels, "H", 4]
    x = "x"
    for _ in range(int(rng.integers(1, 5))):
        x, channels = image_step(s, x, channels)
    if rng.integers(4):
        x = s.op("Flatten", s.op("GlobalAveragePool", x))
        for _ in range(int(rng.integers(1, 4))):
            x, channels = row_step(s, x, channels)
    return s.model(x)


def drawn_setting(rng: np.random.Generator) -> Setting:
    form = FORMS[int(rng.integers(len(FORMS)))]
    activations = [U8, I8] if form is QuantFormat.QOperator else [U8, I8, U16, I16]
    weights = [U8, I8] if form is not QuantFormat.QDQ else [U8, I8, I8, I4]
    flags = [bool(flag) for flag in rng.integers(2, size=3)]
    return Setting(form, activations[int(rng.integers(len(activations)))], weights[int(rng.integers(len(weights)))], *flags)


def feeds_of(model: onnx.ModelProto, rng: np.random.Generator, sizes: dict[str, int]) -> Feeds:
    found = {}
    for info in model.graph.input:
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in info.type.tensor_type.shape.dim]
        found[info.name] = rng.standard_normal(shape).astype(np.float32)
    return found


@dataclass
class Drawn:
    """One quantized model, inputs at three bindings of its sizes, and what ONNX Runtime makes of them."""

    name: str
    model: onnx.ModelProto
    feeds: list[Feeds]
    wanted: list[list[Array]]


def draws(count: int, seed: int) -> Iterator[Drawn]:
    """So many models that ONNX Runtime can quantize and run."""
    found = tries = 0
    while found < count:
        tries += 1
        assert tries < 20 * count + 100, f"ONNX Runtime refuses nearly all of {tries} models"
        rng = np.random.default_rng((seed, tries))
        model, setting = drawn_model(rng), drawn_setting(rng)
        if setting.weight == I4 and model.opset_import[0].version < 21:
            continue
        try:
            calibration = [feeds_of(model, rng, {"B": 2, "A": 2, "H": 5}) for _ in range(2)]
            written = quantized(model, setting, calibration)
            bindings = [{"B": b, "A": 1 if b == 0 else int(rng.choice([1, b])), "H": h} for b, h in ((3, 4), (1, 7), (0, 5))]
            bindings[1]["A"] = int(rng.integers(1, 4))
            feeds = [feeds_of(model, rng, sizes) for sizes in bindings]
            wanted = [theirs(written, feed) for feed in feeds]
        except Exception:  # noqa: BLE001 - what the tools cannot quantize or run says nothing of us
            continue
        found += 1
        yield Drawn(f"{tries}-{setting}-opset{model.opset_import[0].version}", written, feeds, wanted)


@pytest.mark.timeout(3600)
def test_drawn_quantized_models_compute_what_onnxruntime_computes(request: pytest.FixtureRequest) -> None:
    count = max(1, int(request.config.getoption("--cases") * SHARE))
    wrong: list[str] = []
    cases: list[Case] = []
    names: list[str] = []
    for drawn in draws(count, request.config.getoption("--seed", 0)):
        try:
            shapes = {info.dim_param for value in drawn.model.graph.input for info in value.type.tensor_type.shape.dim if info.dim_param}
            module = import_onnx(drawn.model, shapes=dict.fromkeys(shapes & {"A", "B"}, (0, None)))
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            wrong.append(f"{drawn.name}: {type(error).__name__}: {error}")
            continue
        why = next((why for feed, want in zip(drawn.feeds, drawn.wanted, strict=True) if (why := disagreement(module, feed, want))), None)
        if why:
            wrong.append(f"{drawn.name}: {why}")
            continue
        cases.append(Case(module, tuple(tuple(feed[value.name] for value in module.main.inputs) for feed in drawn.feeds)))
        names.append(drawn.name)
    for start in range(0, len(cases), BATCH):
        wrong += wrong_engines(cases[start : start + BATCH], names[start : start + BATCH])
    shown = "\n\n".join(wrong[:SHOWN])
    assert not wrong, f"{len(wrong)} of {count} models fail; the first ones:\n{shown}"
