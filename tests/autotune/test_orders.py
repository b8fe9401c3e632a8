"""Orders of summation: schedules that declare the same one give the same bits, and rows do not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.autotune.measure import Measurer, Policy
from ourcc.autotune.record import Trial
from ourcc.codegen.c.toolchain import find_compiler
from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.interpret import interpret
from ourcc.compiler.models.importing import import_model
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, lower, simplify
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.graph import Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.plan import Launch
from ourcc.ir.target import gpu_target, level_for
from ourcc.ir.types import TensorType
from ourcc.ir.workload import Point
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.schedule import Candidate, cheapest
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.gpu import STRATEGIES as GPU
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime.engine import Engine
from ourcc.runtime.native import cpu_flags

BORDERS = (1, 8, 15, 16, 17, 33, 63, 64, 65, 130)
LEVEL = level_for(cpu_flags())
RANDOM = np.random.default_rng(5)


def model(nodes: Sequence[onnx.NodeProto], *shape: int, **constants: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """A model of x [S, shape] with floats in all constants but those of integers."""
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["S", *shape])
    graph = helper.make_graph(list(nodes), "m", [x], [helper.make_empty_tensor_value_info("y")], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return (RANDOM.standard_normal(shape) / 4).astype(np.float32)


def stepped(*shape: int) -> np.ndarray[Any, Any]:
    """Numbers of which 64 products add up without rounding and 136 do not: what is shown of steps does not depend on how a library
    of products adds within one.
    """
    return (RANDOM.integers(0, 800, shape) * 2.0**-12).astype(np.float32)


def product(depth: int, width: int, draw: Callable[..., np.ndarray[Any, Any]] = drawn) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("Tanh", ["a"], ["y"]),
    ]
    return model(nodes, depth, w=draw(depth, width), b=drawn(width))


def attention(keys: str, **attrs: Any) -> Module:
    """Rows that ask the same keys, or below the diagonal each other."""
    made = " ".join(f", {name} = {value}" for name, value in attrs.items())
    return parse_module(f"""
module @m symbols {{ S in 1..4096 }} {{
  func @main(%x: f32[S, 64], %k: f32[{keys}, 64], %v: f32[{keys}, 64]) -> f32[S, 64] {{
    %a = reshape(%x) {{shape = [1, 1, S, 64]}} : f32[1, 1, S, 64]
    %b = reshape(%k) {{shape = [1, 1, {keys}, 64]}} : f32[1, 1, {keys}, 64]
    %c = reshape(%v) {{shape = [1, 1, {keys}, 64]}} : f32[1, 1, {keys}, 64]
    %d = attention(%a, %b, %c) {{scale = 0.125{made}}} : f32[1, 1, S, 64]
    %y = reshape(%d) {{shape = [S, 64]}} : f32[S, 64]
    return %y
  }}
}}
""")


def normalized(width: int) -> onnx.ModelProto:
    return model([helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"])], width, g=drawn(width), b=drawn(width))


MODELS: dict[str, Callable[[], onnx.ModelProto | Module]] = {
    "product": lambda: product(96, 80),
    "product_of_odd_sizes": lambda: product(75, 37),
    "product_of_long_sums": lambda: product(2100, 48),
    "product_of_unending_sums": lambda: product(9000, 32),
    "wide_product": lambda: product(136, 3072, stepped),
    "attention": lambda: attention("150"),
    "causal_attention": lambda: attention("S", causal="true"),
    "norm": lambda: normalized(300),
    "softmax": lambda: model([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], 333),
    "sum": lambda: model([helper.make_node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], 40, 9, a=np.array([1])),
    "pooling": lambda: model([helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)], 5, 11, 9),
    "convolution": lambda: model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], 5, 7, 9, w=drawn(12, 5, 3, 3)),
    "wide_convolution": lambda: model(
        [
            helper.make_node("Conv", ["x", "u"], ["h"]),
            helper.make_node("Conv", ["h", "w"], ["k"], pads=[1] * 4),
            helper.make_node("Conv", ["k", "v"], ["y"]),
        ],
        *(5, 13, 9),
        u=drawn(32, 5, 1, 1),
        w=drawn(32, 32, 3, 3),
        v=drawn(5, 32, 1, 1),
    ),
}


def module_of(name: str) -> Any:
    options = build_options({"shapes": {"S": "1..4096"}})
    made = MODELS[name]()
    module = made if isinstance(made, Module) else import_model(made, options)
    simplify(module, options)
    return module


def problems(name: str) -> Iterator[Problem]:
    """What the strategies of this machine's level are asked for a model."""
    from ourcc.compiler.backends.cpu import lower_cpu

    found: list[Problem] = []

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        found.append(problem)
        return cheapest(LEVEL)(problem, families)

    lower_cpu(module_of(name), LEVEL, choose)
    yield from {str(problem): problem for problem in found}.values()


def measured(problem: Problem, candidates: Sequence[Candidate], cache: Path) -> tuple[Trial, ...]:
    return Measurer(LEVEL, find_compiler(), Policy(rounds=1, batch_microseconds=1), cache=cache).measure(problem, candidates)


@pytest.mark.parametrize(
    "name",
    ["product", "product_of_odd_sizes", "product_of_unending_sums", "attention", "sum", "pooling", "convolution", "wide_convolution"],
)
def test_schedules_of_one_order_give_equal_bits(name: str, object_files: Path) -> None:
    compared = 0
    for problem in problems(name):
        at = replace(problem, points=(Point(tuple((symbol, min(37, problem.sizes[symbol])) for symbol in problem.symbols.ranges)),))
        for match in matches(STRATEGIES, at, LEVEL):
            space = list(match.strategy.space(match, LEVEL))
            orders = {schedule: str(match.strategy.order(match, schedule, LEVEL)) for schedule in space}
            for _, equal in groupby(sorted(space, key=orders.__getitem__), key=orders.__getitem__):
                alike = list(equal)
                trials = measured(at, [(match, schedule) for schedule in alike], object_files)
                deviations = {str(trial.schedule): [sample.deviation for sample in trial.samples] for trial in trials}
                assert all(values == [0.0] for values in deviations.values()), deviations
                compared += len(alike) - 1
    assert compared > 0


def test_other_orders_give_other_bits(object_files: Path) -> None:
    """The comparison sees what it is there to see."""
    (problem,) = (p for p in problems("norm") if p.symbols.ranges)
    (match,) = matches([s for s in STRATEGIES if s.name == "nest"], problem, LEVEL)
    space = list(match.strategy.space(match, LEVEL))
    assert len({match.strategy.order(match, schedule, LEVEL) for schedule in space}) == len(space)
    trials = measured(problem, [(match, schedule) for schedule in space], object_files)
    assert any(sample.deviation > 0 for trial in trials for sample in trial.samples)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "wide_product"])
def test_rows_do_not_depend_on_how_many_there_are(name: str) -> None:
    # At one row a block for several leaves units idle: products have a kernel of their own for few rows.
    options = build_options({"targets": ["native"], "tune": "off", "workload": ["S=1", "S=512"]})
    engine = Engine(compile_module(module_of(name), options), threads=1)
    given = inputs_of([port.type for port in engine.inputs], BORDERS[-1])
    whole = engine(*given[0])
    for rows in BORDERS:
        some = engine(*(x[:rows] if varies else x for x, varies in zip(*given, strict=True)))
        np.testing.assert_array_equal(some.view(np.uint32), whole[:rows].view(np.uint32), err_msg=f"{rows} rows")
    if name in ("product", "product_of_long_sums"):
        launches = [step for step in engine.contents.best.plan.steps if isinstance(step, Launch)]
        assert any(len(launch.variants) > 1 for launch in launches)


def inputs_of(
    types: Sequence[TensorType], rows: int, draw: Callable[..., np.ndarray[Any, Any]] = drawn
) -> tuple[list[np.ndarray[Any, Any]], list[bool]]:
    """Inputs with as many rows, and which of them vary with these."""
    shapes = [tuple(dims.evaluate(size, {"S": rows}) for size in type.shape) for type in types]
    return [draw(*shape) for shape in shapes], ["S" in map(str, type.shape) for type in types]


def interpreted(lowered: Lowered, inputs: Sequence[np.ndarray[Any, Any]], constants: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """What each kernel of a plan of one launch gives through Triton's interpreter, if it serves these sizes."""
    (step,) = (step for step in lowered.plan.steps if isinstance(step, Launch))
    given = dict(zip((buffer for _, buffer in lowered.plan.inputs), inputs, strict=True))
    answers = []
    for variant in step.variants:
        unit = lowered.scheduled[variant.kernel]
        own = {name: dims.evaluate(size, {"S": len(inputs[0])}) for name, size in step.symbols}
        if unit.when is not None and not unit.when.holds(own):
            continue
        memory = {}
        for param, buffer in zip(unit.program.launches[0].params, variant.arguments, strict=True):
            shape = tuple(dims.evaluate(extent, own) for extent in param.shape)
            value = given.get(buffer, constants.get(getattr(lowered.plan.named[buffer].storage, "value", "")))
            memory[param.name] = np.zeros(shape, param.dtype.numpy) if value is None else value.reshape(shape)
        (kernel,) = print_program(unit.program, unit.problem.symbols)
        answers.append(interpret(kernel, memory, own)[unit.problem.region.outputs[0].name])
    return answers


@pytest.mark.parametrize("name", ["wide_product", "attention", "causal_attention", "norm", "softmax"])
def test_rows_are_alike_in_the_interpreter_of_triton(name: str) -> None:
    module = module_of(name)
    lowered = lower(module, TARGETS["sm_90a"])
    constants = {key: value.constant.array for key, value in module.constants.items() if value.constant is not None}
    inputs, varying = inputs_of([value.type for value in module.main.inputs], 257, stepped if name == "wide_product" else drawn)
    found = {
        rows: interpreted(lowered, [x[:rows] if varies else x for x, varies in zip(inputs, varying, strict=True)], constants)
        for rows in (16, 17, 64, 65, 257)
    }
    whole = found[257][-1]
    assert all(np.array_equal(answer, whole[:rows]) for rows, answers in found.items() for answer in answers)
    assert len(lowered.scheduled) == (4 if name == "wide_product" else 1)


def test_no_kernel_adds_in_another_order_than_the_one_for_all_sizes() -> None:
    device = gpu_target("sm_90a")
    lowered = lower(module_of("wide_product"), TARGETS["sm_90a"])
    orders = {
        match.strategy.order(match, unit.schedule, device)
        for unit in lowered.scheduled.values()
        for match in matches(GPU, unit.problem, device)
        if match.strategy.name == unit.schedule.strategy
    }
    assert len(lowered.kernels) > 1 and len(orders) == 1
