"""Quantizes ONNX models with ONNX Runtime's tools, and compares what is imported with what ONNX Runtime computes."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from generator import Case
from harness import built, joined
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from ourcc.ir.graph import Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.ops.quantization import limits

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
I8, U8, I16, U16, I4 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16, QuantType.QUInt16, QuantType.QInt4


@dataclass(frozen=True)
class Setting:
    """How a model is quantized: the tool's own words, `None` for the dynamic form."""

    form: QuantFormat | None = QuantFormat.QDQ
    activation: QuantType = U8
    weight: QuantType = I8
    per_channel: bool = False
    symmetric: bool = False
    reduce_range: bool = False
    prepared: bool = False

    def __str__(self) -> str:
        form = "dynamic" if self.form is None else self.form.name
        flags = [name for name in ("per_channel", "symmetric", "reduce_range", "prepared") if getattr(self, name)]
        return "-".join((form, self.activation.name[1:], self.weight.name[1:], *flags))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Any:
        return next(self.left, None)


@contextmanager
def quiet_log() -> Iterator[None]:
    """The quantizer warns by the root logger, of which every later test in this process would hear no warning."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def quantized(model: onnx.ModelProto, setting: Setting, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """The model as ONNX Runtime's quantizer writes it."""
    with quiet_log(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "quantized.onnx")
        onnx.save(model, source)
        if setting.prepared:
            quant_pre_process(source, prepared := Path(folder, "prepared.onnx"), skip_symbolic_shape=True)
            source = prepared
        common = {"weight_type": setting.weight, "per_channel": setting.per_channel, "reduce_range": setting.reduce_range}
        if setting.form is None:
            quantize_dynamic(source, target, **common)
        else:
            options = {"ActivationSymmetric": setting.symmetric, "WeightSymmetric": setting.symmetric or setting.weight != U8}
            quantize_static(
                source,
                target,
                _Reader(feeds),
                quant_format=setting.form,
                activation_type=setting.activation,
                extra_options=options,
                **common,
            )
        return onnx.load(target)


def theirs(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    """What ONNX Runtime computes, every node as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, dict(feeds))]


def disagreement(module: Module, feeds: Feeds, wanted: Sequence[Array], approximate: bool = False) -> str | None:
    """What ONNX Runtime computes otherwise, by the judge; a value at a rounding's tie may fall either way, by one code.

    `approximate`: ONNX Runtime computes some function of the model by an approximation, so any value may be at a tie.
    """
    inputs = [feeds[value.name] for value in module.main.inputs]
    ours, wide = interpret(module, inputs), interpret(module, inputs, wide=True)
    for name, got, want, exact in zip(module.main.output_names, ours, wanted, wide, strict=True):
        verdict = judge(want, got, exact)
        if verdict.passed:
            continue
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{name}: {verdict.reason}"
        tie, step = _closest_tie(module, inputs)
        apart = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
        if not (tie or approximate) or not apart <= max(step, 1.0 if got.dtype.kind in "iu" else 0.0):
            return f"{name}: {verdict.reason}; {'at a tie' if tie else 'no tie'}, {apart:.3g} apart, codes are up to {step:.3g} apart"
    return None


def engine_results(cases: Sequence[Case]) -> list[list[list[Array]]]:
    """What one engine made of all the cases computes: for each case and binding its outputs."""
    engine = built(joined(cases))
    found: list[list[list[Array]]] = [[] for _ in cases]
    for run in range(len(cases[0].inputs)):
        results = engine(*(array for case in cases for array in case.inputs[run]))
        left = iter(results if isinstance(results, tuple) else (results,))
        for place, case in enumerate(cases):
            found[place].append([np.asarray(next(left)) for _ in case.module.main.outputs])
    return found


def wrong_engines(cases: Sequence[Case], names: Sequence[str]) -> list[str]:
    """The cases whose engine computes something else than the reference; a group that does not build is tried one by one."""
    try:
        results = engine_results(cases)
    except Exception as error:  # noqa: BLE001 - whatever the compiler does wrong is what this is looking for
        if len(cases) == 1:
            return [f"{names[0]}: {type(error).__name__}: {error}"]
        half = len(cases) // 2
        return wrong_engines(cases[:half], names[:half]) + wrong_engines(cases[half:], names[half:])
    wrong = []
    for name, case, runs in zip(names, cases, results, strict=True):
        for inputs, outputs in zip(case.inputs, runs, strict=True):
            why = disagreement(case.module, {v.name: array for v, array in zip(case.module.main.inputs, inputs, strict=True)}, outputs)
            wrong += [f"{name}: {why}"] if why else []
    return wrong


def _closest_tie(module: Module, inputs: Sequence[Array]) -> tuple[bool, float]:
    """Whether any quantized value lies at a tie as far as f32 can tell, and how far codes move a result: four of the largest."""
    graph = module.main
    ops = [op for op in graph if op.name == "quantize"]
    outputs = graph.outputs
    graph.outputs = [value for op in ops for value in op.operands[:2] if value is not None]
    try:
        values = interpret(module, inputs, wide=True)
    finally:
        graph.outputs = outputs
    tie, step = False, 0.0
    for op, x, scale in zip(ops, values[::2], values[1::2], strict=True):
        if not x.size or scale.size != 1:
            continue
        codes = np.abs(x / scale.reshape(()))
        low, high = limits(op.attrs["dtype"])
        # A scale of 1 stands behind products that were scaled before.
        step = max(step, float(scale.reshape(())) if float(scale.reshape(())) != 1.0 else 0.0)
        distance = np.abs(codes - np.floor(codes) - 0.5)
        tie = tie or bool((distance <= 2e-6 * min(float(codes.max()), high - low) + 1e-6).any())
    scales = [value.constant.array for value in module.constants.values() if value.constant is not None and value.name.endswith("_scale")]
    step = max([step, *(float(np.max(scale)) for scale in scales if scale.size == 1)])
    return tie, 4 * step
