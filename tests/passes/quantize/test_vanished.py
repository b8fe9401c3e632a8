"""What vanishes when weights are rounded is told, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import TensorType, f32
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.encode_weights import why_not
from ourcc.passes.weights.weights import weights_of

FORMATS = ("encode_weights{format=int4.g32}", "encode_weights{format=nvfp4}", "encode_weights{format=mxfp4}", "quantize_int8_weight")


def notes(step: str, numbers: np.ndarray) -> list[str]:
    """What the pass says of a product with these weights [K, N]."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (3, numbers.shape[0])))
    graph.set_outputs([Builder(module, graph).matmul(x, module.add_constant("w", numbers.astype(np.float32)))], ["y"])
    (record,) = PassManager(parse_pipeline(step), strict=True).run(module)
    assert record.changed
    return list(record.notes)


def drawn() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 8))


@pytest.mark.parametrize("step", FORMATS)
def test_ordinary_weights_are_not_worth_a_word(step: str) -> None:
    zeros = drawn()
    zeros[:, 3] = 0
    assert notes(step, drawn()) == notes(step, zeros) == []


@pytest.mark.parametrize(
    ("step", "column", "factor", "said"),
    [
        (FORMATS[0], 2, 1e-7, "w in int4.g32: 2 of 16 groups of 32 numbers are 0"),
        (FORMATS[1], slice(1, None), 1e-7, "w in nvfp4: 28 of 32 groups of 16 numbers are 0"),
        (FORMATS[2], 2, 1e-41, "w in mxfp4: 2 of 16 groups of 32 numbers are 0"),
        (FORMATS[3], 5, 1e-37, "w in int8: 1 of 8 channels are 0"),
    ],
)
def test_what_is_too_small_is_told(step: str, column: int | slice, factor: float, said: str) -> None:
    small = drawn()
    small[:, column] *= factor
    (found,) = notes(step, small)
    assert found.startswith(said)


@pytest.mark.parametrize("step", FORMATS)
def test_small_is_not_vanished(step: str) -> None:
    """A channel that is much smaller and that the format holds nonetheless."""
    small = drawn()
    small[:, 2] *= 1e-2
    assert notes(step, small) == []


def test_a_format_that_takes_more_memory_leaves_a_weight_as_it_is() -> None:
    """A scale for each number, where a channel of a convolution is multiplied by itself."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (1, 16, 9, 9)))
    filters = module.add_constant("w", np.random.default_rng(0).normal(size=(16, 1, 3, 3)).astype(np.float32))
    around = {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0)}
    graph.set_outputs([b.conv(x, filters, groups=16, **around)])
    (record,) = PassManager(parse_pipeline("encode_weights{format=fp8.e4m3}"), strict=True).run(module)
    assert not record.changed
    (weight,) = weights_of(graph)
    assert why_not(weight, "fp8.e4m3") == "it would take 720 bytes, and takes 576"


def test_the_report_says_it_too() -> None:
    small = drawn().astype(np.float32)
    small[:, 2] *= 1e-7
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (3, 64)))
    graph.set_outputs([Builder(module, graph).matmul(x, module.add_constant("w", small))], ["y"])
    contents = compile_module(module, build_options({"quantize": "int4-weight", "tune": "off"}))
    assert any(note.startswith("w in int4.g32: 2 of 16 groups") for note in contents.report["notes"])
