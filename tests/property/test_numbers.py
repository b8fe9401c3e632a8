"""Numbers at their edges, drawn: indices in and out of range, sums of many terms, special values through every family of ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ourcc
from ourcc.compiler.onnx_backend import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import cpu_level, gpu_target
from ourcc.ir.tile.interpret import run as run_tiles
from ourcc.ir.types import TensorType, f32, type_of
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile import cpu, gpu
from ourcc.passes.tile.schedule import Problem, matches

Array = np.ndarray[Any, Any]
NAN, INF = float("nan"), float("inf")
EDGES = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 7.3, -7.3, INF, -INF, NAN, 3e38, -3e38, 1e-38, 1e10, -1e10, 255.5, 2.0, -2.0),
    *(1e-40, -1e-40),
)
# Where a sum of numbers near the largest overflows depends on the order of the terms.
SUMMED = tuple(value for value in EDGES[:-2] if not 1e9 < abs(value) < INF)
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]


def share(request: pytest.FixtureRequest, part: int) -> tuple[int, np.random.Generator]:
    """How many cases to draw, and what to draw them with."""
    return max(2, request.config.getoption("--cases") // part), np.random.default_rng(request.config.getoption("--seed", 0))


def onnx_model(nodes: list[onnx.NodeProto], inputs: dict[str, Array], outputs: list[str]) -> onnx.ModelProto:
    kinds = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()]
    graph = helper.make_graph(nodes, "g", kinds, [helper.make_empty_tensor_value_info(name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def by_onnxruntime(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


# --- indices ----------------------------------------------------------------------------------------------------------

SIZE, COUNT = 5, 4
ONNX_INDEXED = {
    "Gather": {"axis": 0},
    "GatherElements": {"axis": 0},
    "GatherND": {},
    "ScatterElements": {"axis": 0},
    "ScatterND": {},
}


def _indexed_inputs(op: str) -> dict[str, Array]:
    inputs = {"x": np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3)}
    inputs["i"] = np.zeros({"Gather": (COUNT,), "GatherND": (COUNT, 1), "ScatterND": (COUNT, 1)}.get(op, (COUNT, 3)), np.int64)
    if op.startswith("Scatter"):
        inputs["u"] = -np.ones((COUNT, 3), np.float32)
    return inputs


def _draw_indices(random: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Array:
    """Half of the time one index is out of range."""
    found = random.integers(low, high, shape)
    if random.random() < 0.5:
        bad = int(random.choice([low - 1, high, low - 100, high + 2**40, -(2**62), 2**63 - 1, -(2**63)]))
        found.reshape(-1)[random.integers(found.size)] = bad
    return found.astype(np.int64)


@pytest.mark.parametrize("op", ONNX_INDEXED)
def test_onnx_indices(op: str, request: pytest.FixtureRequest) -> None:
    count, random = share(request, 8)
    inputs = _indexed_inputs(op)
    model = onnx_model([helper.make_node(op, list(inputs), ["y"], name="indexed", **ONNX_INDEXED[op])], inputs, ["y"])
    engine = ourcc.build(model)
    wrong = []
    for _ in range(count):
        # Where places repeat a scatter has no order.
        inputs["i"] = _draw_indices(random, inputs["i"].shape, -SIZE, SIZE)
        inside = bool(((inputs["i"] >= -SIZE) & (inputs["i"] < SIZE)).all())
        try:
            answer = engine.run(inputs)["y"]
            right = inside and np.array_equal(answer, by_onnxruntime(model, inputs)[0])
        except IndexError as error:
            right = not inside and "input 'i'" in str(error) and "indexed" in str(error)
        if not right:
            wrong.append(inputs["i"].reshape(-1).tolist())
    assert not wrong, f"{len(wrong)} of {count}: {wrong[:3]}"


TORCH_INDEXED: dict[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "embedding": (lambda x, i: torch.nn.functional.embedding(i, x), (COUNT,), 0),
    "index_select": (lambda x, i: x.index_select(0, i), (COUNT,), 0),
    "gather": (lambda x, i: x.gather(0, i), (COUNT, 3), 0),
    "index": (lambda x, i: x[i], (COUNT,), -SIZE),
    "index2": (lambda x, i: x[i, i % 3], (COUNT,), -SIZE),
    "take": (lambda x, i: x[:, 0].take(i), (COUNT,), -SIZE),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, torch.ones(COUNT, 3)), (COUNT, 3), 0),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(3), accumulate=True), (COUNT,), -SIZE),
}


@pytest.mark.parametrize("name", TORCH_INDEXED)
def test_torch_indices(name: str, request: pytest.FixtureRequest) -> None:
    count, random = share(request, 8)
    function, shape, low = TORCH_INDEXED[name]
    torch._dynamo.reset()
    fast = torch.compile(function, backend="ourcc", dynamic=False)
    x = torch.arange(SIZE * 3, dtype=torch.float32).reshape(SIZE, 3)
    wrong = []
    for _ in range(count):
        indices = torch.from_numpy(_draw_indices(random, shape, low, SIZE))
        try:
            expected = function(x, indices)
        except (IndexError, RuntimeError):
            expected = None
        try:
            answer = fast(x, indices)
        except IndexError:
            answer = None
        if (answer is None) != (expected is None) or (answer is not None and not torch.equal(answer, expected)):
            wrong.append(indices.reshape(-1).tolist())
    assert not wrong, f"{len(wrong)} of {count}: {wrong[:3]}"


# --- sums of many terms -----------------------------------------------------------------------------------------------

SUMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sum", {}),
    ("mean", {}),
    ("cumsum", {}),
    ("cumsum", {"reverse": True}),
    ("logsumexp", {}),
    ("layer_norm", {"epsilon": 1e-5}),
    ("matmul", {}),
    ("variance", {}),
)


def _sum_module(op: str, attrs: dict[str, Any], shape: tuple[int, ...], axis: int) -> Module:
    module, graph = Module("long"), Graph("main")
    module.functions["main"] = graph
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, shape))
    if op == "variance":
        mean = b.mean(x, axes=(axis,), keepdims=True)
        centred = b.sub(x, mean)
        result = b.mean(b.mul(centred, centred), axes=(axis,))
    elif op == "matmul":
        result = b.matmul(x, x, transpose_a=axis == 0, transpose_b=axis == 1)
    else:
        result = getattr(b, op)(x, **({"axis": axis} if op == "cumsum" else {"axes": (axis,)}), **attrs)
    graph.set_outputs([result], ["y"])
    return module


def _terms(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers with a mean that is not 0, so that a running sum grows and loses its last digits."""
    if random.random() < 0.3:
        return np.full(shape, random.choice([0.1, 1 / 3, 0.7, 1.1]), np.float32)
    return (random.standard_normal(shape) * 0.3 + random.choice([1.0, 0.5, -2.0])).astype(np.float32)


def test_long_sums_are_as_exact_as_short_ones(request: pytest.FixtureRequest) -> None:
    count, random = share(request, 25)
    wrong = []
    for number in range(count):
        op, attrs = SUMS[number % len(SUMS)]
        length, width, axis = int(10 ** random.uniform(5, 6.3)), int(random.integers(1, 4)), int(random.integers(2))
        width = 8 if op == "matmul" and random.random() < 0.5 else width
        shape = (length, width) if axis == 0 else (width, length)
        module = _sum_module(op, attrs, shape, axis)
        x = _terms(random, shape)
        (stepwise,), (wide,) = interpret(module, [x]), interpret(module, [x], wide=True)
        (got,) = compile_module(module)([x])
        verdict = judge(got, stepwise, wide)
        error = verdict.error / max(float(np.abs(wide).max()), 1e-30)
        # The judge allows what the reference itself loses: it must lose little.
        magnitude = float(np.abs(wide).max())
        own = float(np.abs(stepwise - wide).max()) / magnitude if magnitude > 1e-3 else 0.0
        # Numbers that are all equal are divided by the root of epsilon: a mean that is one digit off shows as so much, itself rounded.
        digit = (1 + 1e-6) * float(np.spacing(np.abs(x).max())) / math.sqrt(attrs["epsilon"]) if op == "layer_norm" else 0.0
        if not (verdict.passed or verdict.error <= digit) or own > 1e-6:
            wrong.append(f"{op}{attrs} over axis {axis} of {shape}: off by {error:.2g}, the reference by {own:.2g}")
    assert not wrong, f"{len(wrong)} of {count}: " + "\n".join(wrong)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "names"),
    [
        ("sum", ((20_000,),), {"axes": (0,)}, ("nest", "rows")),
        ("sum", ((4500, 3),), {"axes": (0,)}, ("nest", "rows")),
        ("cumsum", ((4500,),), {"axis": 0}, ("nest", "steps")),
        ("matmul", ((2, 70_000), (70_000, 5)), {}, ("packed", "vector")),
        ("matmul", ((16, 20_000), (20_000, 16)), {}, ("tensor", "split_k")),
    ],
)
def test_long_sums_in_tiles_of_every_strategy(
    op: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any], names: tuple[str, ...]
) -> None:
    random = np.random.default_rng(1)
    arrays = [(random.random(shape) + 0.5).astype(np.float32) for shape in shapes]
    region = region_of(OPS[op], [type_of(array) for array in arrays], attrs)
    assert region is not None
    given = {f"x{n}": array for n, array in enumerate(arrays)}
    (expected,) = run_region(region, given).values()
    problem = Problem(simplify_region(region, dims.NO_FACTS), dims.NO_FACTS, {})
    flat = {o.name: given[o.name].reshape(tuple(dims.evaluate(d, {}) for d in o.type.shape)) for o in problem.region.inputs}
    exact = [array.astype(np.float64) for array in arrays]
    wide = exact[0] @ exact[1] if len(exact) > 1 else (exact[0].cumsum(0) if op == "cumsum" else exact[0].sum(0))
    ran = 0
    for strategies, target in ((cpu.STRATEGIES, cpu_level("x86-64-v3")), (gpu.STRATEGIES, gpu_target("sm_90a"))):
        # Strategies that walk such an axis one index at a time take minutes in the interpreter.
        for match in matches([strategy for strategy in strategies if strategy.name in names], problem, target):
            strategy = match.strategy
            program = strategy.tile(match, next(iter(strategy.space(match, target))), target)
            (got,) = (array for name, array in run_tiles(program, flat, {}).items() if name == "y0")
            verdict = judge(got.reshape(wide.shape), expected, wide)
            assert verdict.passed, f"{strategy.name}: {verdict.reason}"
            ran += 1
    assert ran


def test_an_infinite_sum_stays_infinite() -> None:
    module = _sum_module("sum", {}, (1, 9000), 1)
    program = compile_module(module)
    x = np.ones((1, 9000), np.float32)
    for place, value, expected in ((3, INF, INF), (8000, -INF, -INF), (5, NAN, NAN), (0, 3e38, 3e38)):
        changed = x.copy()
        changed[0, place] = value
        np.testing.assert_array_equal(program([changed])[0], np.array([expected], np.float32))
    both = x.copy()
    both[0, 2], both[0, 7000] = INF, -INF
    assert np.isnan(program([both])[0]).all()


# --- special values ---------------------------------------------------------------------------------------------------

UNARY = (
    *("Sign", "Relu", "Abs", "Neg", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Softplus"),
    *("Softsign", "Elu", "Selu", "HardSigmoid", "LeakyRelu", "IsNaN", "IsInf", "HardSwish"),
)
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Equal", "Less")
FOLDS = ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceL1", "ArgMax", "ArgMin", "Softmax", "CumSum", "ReduceLogSumExp")


def _close(got: Array, expected: Array) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, expected))
    return bool(np.allclose(got, expected, rtol=1e-5, atol=1e-37, equal_nan=True))


def test_special_values_in_onnx(request: pytest.FixtureRequest) -> None:
    """Against the reference evaluator or ONNX Runtime: where they differ the standard leaves it open, and either is right."""
    from onnx.reference import ReferenceEvaluator

    count, random = share(request, 100)
    wrong = []
    for _ in range(count):
        inputs = {name: random.choice(EDGES, 60).astype(np.float32) for name in "ab"}
        inputs["rows"] = random.choice(SUMMED, (6, 7)).astype(np.float32)
        inputs["axis"], inputs["axes"] = np.array(1, np.int64), np.array([1], np.int64)
        inputs["zeros"] = random.choice([np.zeros(4), np.full(4, 2.0), np.full(4, -3.0)]).astype(np.float32)
        nodes = [helper.make_node(op, ["a"], [op]) for op in UNARY] + [helper.make_node(op, ["a", "b"], [op]) for op in BINARY]
        for op in FOLDS:
            second = ["axis"] if op == "CumSum" else ["axes"] if op.startswith("Reduce") else []
            nodes.append(helper.make_node(op, ["rows", *second], [op], **({"axis": 1} if op in ("ArgMax", "ArgMin", "Softmax") else {})))
        nodes.append(helper.make_node("Mod", ["a", "b"], ["Mod"], fmod=1))
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["zeros"], ["q", "scale", "zero"]))
        outputs = [name for node in nodes for name in node.output]
        constants = [onnx.numpy_helper.from_array(inputs.pop(name), name) for name in ("axis", "axes")]
        model = onnx_model(nodes, inputs, outputs)
        model.graph.initializer.extend(constants)
        got = ourcc.build(model).run(inputs)
        theirs = zip(outputs, by_onnxruntime(model, inputs), ReferenceEvaluator(model).run(None, inputs), strict=True)
        wrong += [
            name for name, first, second in theirs if not (_close(got[name], np.asarray(first)) or _close(got[name], np.asarray(second)))
        ]
    assert not wrong, sorted(set(wrong))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_sequences_of_no_steps_end_in_zeros(op: str) -> None:
    random, gates = np.random.default_rng(0), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    shapes = {"x": (3, 2, 4), "w": (1, gates * 5, 4), "r": (1, gates * 5, 5), "b": (1, 2 * gates * 5), "h": (1, 2, 5), "c": (1, 2, 5)}
    inputs: dict[str, Array] = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    names = ["x", "w", "r", "b", "lengths", "h", *(["c"] if op == "LSTM" else [])]
    inputs["lengths"] = np.array([0, 2], np.int32)
    outputs = ["y", "y_h", *(["y_c"] if op == "LSTM" else [])]
    inputs = {name: inputs[name] for name in names}
    model = onnx_model([helper.make_node(op, names, outputs, hidden_size=5)], inputs, outputs)
    got = ourcc.build(model).run(inputs)
    for name, expected in zip(outputs, by_onnxruntime(model, inputs), strict=True):
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


def test_special_values_in_torch(request: pytest.FixtureRequest) -> None:
    count, random = share(request, 100)

    def floats(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
        found = [a.sign(), a.relu(), a.clamp(-1, 1), a.clamp_min(0.5), a.abs(), a.neg(), a.round(), a.floor(), a.trunc(), a.sqrt(), a.log()]
        found += [torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), a / b, a == b, a < b, torch.pow(a, b), a.isnan(), a.signbit()]
        found += [rows.amax(1), rows.amin(1), rows.argmax(1), rows.argmin(1), rows.sum(1), rows.cumsum(1)]
        found += [*rows.max(1), *rows.min(1), *torch.sort(rows, dim=1, stable=True), torch.topk(rows, 3)[0], rows.softmax(1)]
        return [*found, torch.nn.functional.max_pool2d(rows[None, None], 2), torch.where(a > 0, a, b)]

    def integers(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        found = [a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), a + b, a * b, a - b, a & b, a ^ b]
        return [*found, torch.maximum(a, b), a.abs(), -a, a.sign(), a << (b & 7), a >> (b & 7), a < b, a.float(), a.to(torch.uint8)]

    wrong = []
    for _ in range(count):
        torch._dynamo.reset()
        edges = [torch.from_numpy(random.choice(EDGES[:-2], 80).astype(np.float32)) for _ in range(2)]
        edges.append(torch.from_numpy(random.choice(SUMMED, (6, 7)).astype(np.float32)))
        dtype = [np.int32, np.int64, np.int8][int(random.integers(3))]
        limits = np.iinfo(dtype)
        pool = np.array([0, 1, 2, 3, 7, -1, -2, -7, limits.max, limits.max - 1, limits.min + 1], dtype)
        whole = [torch.from_numpy(random.choice(pool, 80)), torch.from_numpy(random.choice(pool[pool != 0], 80))]
        for function, given in ((floats, edges), (integers, whole)):
            expected, got = function(*given), torch.compile(function, backend="ourcc", dynamic=False)(*given)
            pairs = enumerate(zip(got, expected, strict=True))
            wrong += [f"{function.__name__} {n}" for n, (x, y) in pairs if not _close(x.numpy(), y.numpy())]
        zero = whole[1].clone()
        zero[int(random.integers(80))] = 0
        try:
            torch.compile(integers, backend="ourcc", dynamic=False)(whole[0], zero)
            wrong.append("integers by 0")
        except RuntimeError as error:
            wrong += [] if "divides integers by 0" in str(error) else [str(error)]
    assert not wrong, sorted(set(wrong))
