"""Every op of ONNX with no size known: the answer that ONNX's own case for it expects, or one clear "not supported"."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph.reference import interpret, judge

NO_INFERENCE = re.compile(r"^test_(bernoulli|training_dropout|gradient|adagrad|adam|momentum|nesterov_momentum)")


@pytest.fixture(scope="module")
def every_case() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in load_model_tests(kind="node") if case.data_sets and not NO_INFERENCE.match(case.name)]


def array_of(value: Any) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def without_sizes(case: Any, draw: random.Random) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]], list[Any]]:
    """The model with a symbol for every size, the inputs to fix as constants (what names axes and shapes), and the others.

    Sizes that are equal get one symbol, or each its own where there are few: to prove what many sizes broadcast to takes long.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    is_shared = draw.random() < 0.5 or len(model.graph.input) > 2
    inputs, fixed, given = case.data_sets[0][0], {}, []
    for number, info in enumerate(model.graph.input):
        value = inputs[number] if number < len(inputs) else None
        if not info.type.HasField("tensor_type"):
            given.append(value)
            continue
        array = array_of(value)
        if array.ndim <= 1 and array.dtype.kind in "iub" and number:
            fixed[info.name] = array
            continue
        given.append(array)
        for axis, size in enumerate(info.type.tensor_type.shape.dim):
            size.dim_param = f"size_{size.dim_value}" if is_shared else f"size_{number}_{axis}"
    for info in model.graph.output:
        for size in info.type.tensor_type.shape.dim:
            size.Clear()
    return model, fixed, given


def outcome(case: Any, draw: random.Random) -> str | None:
    """What is wrong with a case, or None."""
    model, fixed, given = without_sizes(case, draw)
    try:
        module = import_onnx(model, values=fixed)
    except UnsupportedError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever else it is, it is a finding
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if any(not isinstance(value, np.ndarray) for value in given):
        return None
    try:
        results = interpret(module, given)
    except UnsupportedError:
        return None
    except Exception as error:  # noqa: BLE001
        return f"at run time: {type(error).__name__}: {str(error).splitlines()[0]}"
    return wrong(results, interpret(module, given, wide=True), case.data_sets[0][1], case)


def wrong(results: Sequence[Any], exact: Sequence[Any], expected: Sequence[Any], case: Any) -> str | None:
    for got, true, want in zip(results, exact, expected, strict=True):
        ours, theirs = np.asarray(got), array_of(want)
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"got {ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
        if ours.dtype.kind in "OUST":
            continue
        wide = np.complex128 if ours.dtype.kind == "c" else np.float64
        close = np.allclose(ours.astype(wide), theirs.astype(wide), rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True)
        # The suite's tolerance is less than one rounding of bfloat16: the judge compares both with the exact result.
        if not close and not (ours.dtype.kind not in "iub" and judge(ours, theirs, np.asarray(true)).passed):
            return f"got {ours.reshape(-1)[:4]}, expected {theirs.reshape(-1)[:4]}"
    return None


def test_ops_without_known_sizes(every_case: list[Any], request: pytest.FixtureRequest) -> None:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    draw = random.Random(f"symbolic {seed}")
    cases = draw.sample(every_case, min(len(every_case), count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name: why for case in cases if (why := outcome(case, draw)) is not None}
    shown = "\n".join(f"{name}: {why}" for name, why in list(found.items())[:20])
    assert not found, f"{len(found)} of {len(cases)} cases fail; the first ones:\n{shown}"
