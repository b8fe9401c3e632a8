"""Fusion: groups of bounded size, shared values computed once, and what cannot be one kernel kept in memory with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from ourcc.compiler.backends.cpu import lower_cpu, print_cpu
from ourcc.compiler.onnx_backend import compile_module
from ourcc.ir.errors import InternalError, UnsupportedError, UsageError
from ourcc.ir.expression import Constant
from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.region import Scalar, Store, parts, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import AVX2
from ourcc.ir.tile.program import For, Launch, Statement
from ourcc.ir.types import TensorType, f32
from ourcc.passes.fusion.partition import GROUP_OPS, Fusion
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.lower import fuse, kept, lower, lower_printed, print_each
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.regions.compose import COPIES, DEPTH, Group
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.cpu.nest import Nest

Body = Callable[[Builder, Value], Value]


def program(body: Body, *shape: str | int) -> Module:
    """A module with one input and one output; names are symbols without a bound."""
    module = Module("m")
    graph = Graph("main")
    module.functions["main"] = graph
    sizes = tuple(module.declare(size) if isinstance(size, str) else size for size in shape)
    x = graph.add_input("x", TensorType(f32, sizes))
    graph.set_outputs([body(Builder(module, graph), x)], ["y"])
    return module


def chain(length: int) -> Body:
    def body(b: Builder, x: Value) -> Value:
        for n in range(length):
            x = b.sin(x) if n % 2 else b.relu(x)
        return x

    return body


def branches(count: int) -> Body:
    def body(b: Builder, x: Value) -> Value:
        scales = [b.module.add_constant(f"c{n}", ConstantData(np.float32(n / count))) for n in range(count)]
        total = b.sin(x)
        for scale in scales:
            total = b.add(total, b.sin(b.mul(x, scale)))
        return total

    return body


def repeated(step: Callable[[Builder, Value], Value], count: int) -> Body:
    def body(b: Builder, x: Value) -> Value:
        x = b.sin(x)
        for _ in range(count):
            x = step(b, x)
        return x

    return body


def doubled(b: Builder, x: Value) -> Value:
    return b.add(x, x)


def twice(b: Builder, x: Value) -> Value:
    return b.concat(x, x, axis=0)


def centred(b: Builder, x: Value) -> Value:
    """What several read, a fold of it among them: their places are the same ones."""
    y = b.tanh(x)
    return b.mul(b.sub(y, b.mean(y, axes=(x.type.rank - 1,), keepdims=True)), y)


def crossed(b: Builder, x: Value) -> Value:
    """Folds along one axis of a square, read along the other."""
    y = b.tanh(x)
    rows, columns = b.mean(y, axes=(1,), keepdims=True), b.mean(y, axes=(0,), keepdims=True)
    return b.add(b.sub(b.transpose(y, permutation=(1, 0)), rows), b.mul(b.sub(y, columns), rows))


def steps(body: Sequence[Statement]) -> set[int]:
    """The steps of all loops."""
    loops = [statement for statement in body if isinstance(statement, For)]
    return {loop.step for loop in loops}.union(*(steps(loop.body) for loop in loops))


def groups(module: Module) -> list[Group]:
    found = Fusion(module, module.main).units(lambda group: group)
    return [unit for unit in found if isinstance(unit, Group)]


def lines(module: Module) -> int:
    """Lines of C of all kernels."""
    lowered = lower_cpu(module, AVX2, cheapest(AVX2))
    return sum(text.count("\n") for name, text in print_cpu(lowered, AVX2).items() if name.startswith("kernel"))


def depth(value: Scalar) -> int:
    return 1 + max((depth(part) for part in parts(value)), default=0)


def deepest(found: list[Group]) -> int:
    return max(depth(statement.value) for group in found for statement in group.region.body)


@pytest.mark.parametrize(
    ("body", "shape", "count"),
    [
        (chain(148), (64,), 2),
        (chain(5000), (64,), 40),
        (branches(500), (64,), 12),
        (repeated(doubled, 40), (64,), 1),
        (repeated(twice, 12), (8,), 12),
        (repeated(twice, 12), ("N",), 12),
    ],
    ids=["148 ops", "5,000 ops", "500 branches", "v + v", "concat(v, v)", "concat(v, v) of any size"],
)
def test_groups_grow_with_the_program(body: Body, shape: tuple[str | int, ...], count: int) -> None:
    module = program(body, *shape)
    found = groups(module)
    assert len(found) <= count
    assert all(len(group.ops) <= GROUP_OPS for group in found)
    assert sum(len(group.region.body) for group in found) <= COPIES * len(module.main)
    assert deepest(found) <= DEPTH + 3


def turned(b: Builder, x: Value) -> Value:
    return b.mul(b.sin(x), b.cos(x))


def chosen(b: Builder, x: Value) -> Value:
    return b.where(b.lt(x, b.sin(x)), b.neg(x), b.exp(x))


@pytest.mark.parametrize(
    "body", [chain(300), branches(100), repeated(doubled, 40), repeated(twice, 5), repeated(turned, 12), repeated(chosen, 7)]
)
def test_groups_keep_the_meaning(body: Body) -> None:
    module = program(body, 5)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    values: dict[Value, np.ndarray] = {module.main.inputs[0]: x}
    values |= {value: value.constant.array for value in module.constants.values() if value.constant is not None}
    for group in groups(module):
        arrays = {operand.name: values[value] for operand, value in zip(group.region.inputs, group.inputs, strict=True)}
        results = run_region(group.region, arrays)
        values |= {value: results[operand.name] for operand, value in zip(group.region.outputs, group.outputs, strict=True)}
    (expected,) = interpret(module, [x])
    np.testing.assert_array_equal(values[module.main.outputs[0]], expected)


STEPS = [(doubled, 10, 40), (twice, 6, 12), (turned, 10, 40), (chosen, 10, 40), (centred, 5, 20)]


@pytest.mark.parametrize(
    ("step", "few", "many"), STEPS, ids=["v + v", "concat(v, v)", "sin(v) cos(v)", "where(v < sin(v), -v, exp(v))", "(y - mean y) y"]
)
def test_the_code_of_shared_values_is_linear(step: Callable[[Builder, Value], Value], few: int, many: int) -> None:
    """Each op adds the same number of lines, where each used to double them."""
    some, more = lines(program(repeated(step, few), 8)), lines(program(repeated(step, many), 8))
    assert more - some < 2 * (many - few) / few * some


@pytest.mark.parametrize(("step", "count"), [(centred, 8), (crossed, 1), (crossed, 3)])
def test_folds_over_squares_keep_the_meaning(step: Callable[[Builder, Value], Value], count: int) -> None:
    module = program(repeated(step, count), 24, 24)
    x = np.random.default_rng(3).standard_normal((24, 24)).astype(np.float32)
    (got,), (expected,) = compile_module(module)([x]), interpret(module, [x], wide=True)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_a_fold_runs_along_the_axis_that_its_operand_is_read_along() -> None:
    (group,) = groups(program(repeated(centred, 4), 16, 768))
    assert len(group.region.axes) == 2
    (launch,) = lower_cpu(program(repeated(centred, 4), 16, 768), AVX2, cheapest(AVX2)).kernels.values()
    assert steps(launch.body) == {32}


def test_named_values_that_are_read_by_a_fold_are_computed_once_in_its_loop() -> None:
    def body(b: Builder, x: Value) -> Value:
        for _ in range(40):
            x = b.add(b.sin(x), x)
        return b.sum(x, axes=(0,), keepdims=False)

    module = program(body, 64, 8)
    assert lines(module) < 3000
    assert len(lower_cpu(module, AVX2, cheapest(AVX2)).kernels) == 1


def test_a_shared_value_behind_padding_is_not_read_outside_of_its_operand() -> None:
    def body(b: Builder, x: Value) -> Value:
        value = b.sin(x)
        both = b.mul(b.neg(value), b.neg(value))
        return b.pad(b.add(both, value), before=(2,), after=(1,), mode="constant", value=3.0)

    module = program(body, 5)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    (group,) = groups(module)
    result = run_region(group.region, {group.region.inputs[0].name: x})
    np.testing.assert_array_equal(next(iter(result.values())), interpret(module, [x])[0])


def test_a_concat_of_many_operands_chooses_among_few() -> None:
    module = program(lambda b, x: b.concat(*[x] * 100, axis=0), 3)
    (group,) = groups(module)
    stores = [statement for statement in group.region.body if isinstance(statement, Store)]
    assert len(stores) == 7
    assert deepest([group]) < 8
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run_region(group.region, {group.region.inputs[0].name: x})["y0"], np.tile(x, 100))


def number(b: Builder, value: float) -> Value:
    return b.module.add_constant(f"n{len(b.module.constants)}", ConstantData(np.float32(value)))


ACTIVATIONS: dict[str, tuple[Callable[[Builder, Value], Value], Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": (lambda b, x: b.mul(x, b.sigmoid(x)), torch.nn.functional.silu),
    "gelu": (
        lambda b, x: b.mul(b.mul(x, number(b, 0.5)), b.add(b.erf(b.mul(x, number(b, math.sqrt(0.5)))), number(b, 1))),
        torch.nn.functional.gelu,
    ),
    "gelu by tanh": (
        lambda b, x: b.mul(
            b.mul(x, number(b, 0.5)),
            b.add(
                b.tanh(b.mul(b.add(x, b.mul(b.mul(b.mul(x, x), x), number(b, 0.044715))), number(b, math.sqrt(2 / math.pi)))), number(b, 1)
            ),
        ),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "hardswish": (
        lambda b, x: b.mul(x, b.mul(b.minimum(b.maximum(b.add(x, number(b, 3)), number(b, 0)), number(b, 6)), number(b, 1 / 6))),
        torch.nn.functional.hardswish,
    ),
    "mish": (lambda b, x: b.mul(x, b.tanh(b.log1p(b.exp(x)))), torch.nn.functional.mish),
}
"""Activations as exporters write them, in ops that read one value several times, and torch's own."""


@pytest.mark.parametrize("size", [1, 7, 33])
@pytest.mark.parametrize("kind", ["product", "convolution"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_that_read_a_product_often_are_one_kernel_with_it(name: str, kind: str, size: int) -> None:
    """Behind a bias, with a residual, at sizes that fill no tile; torch in float64 is the judge."""
    spelled, eager = ACTIVATIONS[name]
    random = np.random.default_rng(size)
    product = kind == "product"
    shapes = [(size, 12), (12, 20), (20,), (size, 20)] if product else [(2, 3, size, 5), (6, 3, 3, 3), (6, 1, 1), (2, 6, size, 5)]
    x, w, bias, rest = (random.standard_normal(shape).astype(np.float32) for shape in shapes)

    def body(b: Builder, x: Value) -> Value:
        weight, shift, residual = (b.module.add_constant(f"w{n}", ConstantData(each)) for n, each in enumerate((w, bias, rest)))
        even = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1}
        made = b.matmul(x, weight) if product else b.conv(x, weight, **even)
        return b.add(spelled(b, b.add(made, shift)), residual)

    module = program(body, *x.shape)
    assert len(groups(module)) == 1
    (got,) = compile_module(module)([x])
    wide = [torch.from_numpy(each).double() for each in (x, w, bias, rest)]
    made = wide[0] @ wide[1] if product else torch.nn.functional.conv2d(wide[0], wide[1], padding=1)
    np.testing.assert_allclose(got, (eager(made + wide[2]) + wide[3]).numpy(), rtol=2e-5, atol=2e-5)


NORMED = """module @m {
  func @main(%x: f32[8, 16], %w: f32[16, 16]) -> (f32[8, 16], bf16[8, 16]) {
    %p = matmul(%x, %w) : f32[8, 16]
    %n = layer_norm(%p, _, _) {axes = [1], epsilon = 1e-05} : f32[8, 16]
    %c = cast(%n) {dtype = bf16} : bf16[8, 16]
    %d = cast(%w) {dtype = bf16} : bf16[16, 16]
    %q = matmul(%c, %d) {wide = true} : f32[8, 16]
    %y = add(%q, %n) : f32[8, 16]
    return %y, %c
  }
}"""
ATTENDED = """module @m {
  func @main(%q: f32[2, 4, 8, 16], %w: bf16[64, 16]) -> f32[16, 16] {
    %a = attention(%q, %q, %q, _) {scale = 0.25} : f32[2, 4, 8, 16]
    %c = cast(%a) {dtype = bf16} : bf16[2, 4, 8, 16]
    %t = transpose(%c) {permutation = [0, 2, 1, 3]} : bf16[2, 8, 4, 16]
    %r = reshape(%t) {shape = [16, 64]} : bf16[16, 64]
    %y = matmul(%r, %w) {wide = true} : f32[16, 16]
    return %y
  }
}"""


@pytest.mark.parametrize(
    ("text", "together"),
    [(NORMED, {"layer_norm", "cast"}), (ATTENDED, {"attention", "cast", "transpose", "reshape"})],
    ids=["norm", "attention"],
)
def test_a_kernel_stores_what_products_read_as_they_read_it(text: str, together: set[str]) -> None:
    """Beside the norm that is added later its narrow form; attention's result narrow, in the order of the product's rows."""
    assert together in [{op.name for op in group.ops} for group in groups(parse_module(text))]


# --- what is kept in memory ---------------------------------------------------------------------------------------------


def softmax_then_sum(b: Builder, x: Value) -> Value:
    return b.sum(b.softmax(x, axis=-1), axes=(1,), keepdims=False)


def test_a_sum_over_the_rows_of_a_softmax_of_any_size_keeps_the_softmax() -> None:
    lowered = lower_cpu(program(softmax_then_sum, "B", "S", "S"), AVX2, cheapest(AVX2))
    assert len(lowered.kernels) == 2
    (row,) = lowered.kept
    assert row.why == "a kernel that computes it would hold sums for all of k at once"
    assert str(row).startswith(f"kept %{row.value} in memory: ")


def test_a_small_one_is_one_kernel() -> None:
    lowered = lower_cpu(program(softmax_then_sum, 2, 5, 5), AVX2, cheapest(AVX2))
    assert len(lowered.kernels) == 1
    assert lowered.kept == ()


def test_the_reason_of_a_bounded_group_is_told() -> None:
    lowered = lower_cpu(program(chain(200), 8), AVX2, cheapest(AVX2))
    assert [row.why for row in lowered.kept] == ["the kernel that reads it would have more than 128 ops if it computed it too"]


def failing_over(most: int, failure: Exception) -> Callable[[Group], Group]:
    def make(group: Group) -> Group:
        if len(group.ops) > most:
            raise failure
        return group

    return make


@pytest.mark.faults
@pytest.mark.parametrize("body", [chain(100), branches(40), repeated(doubled, 30), repeated(twice, 4)])
@pytest.mark.parametrize("most", [1, 3])
def test_what_fails_as_one_kernel_is_made_smaller(body: Body, most: int) -> None:
    module = program(body, 4, 4, 4)
    fusion = Fusion(module, module.main)
    made = fusion.units(failing_over(most, KeyError("no place")))
    assert {op for group in made if isinstance(group, Group) for op in group.ops} == set(module.main)
    assert all("it could not be made one kernel with what reads it: KeyError: 'no place'" in row.why for row in kept((fusion,)))
    assert kept((fusion,))


STORED_LATE = """
module @case symbols { B in 0.., S in 0.. } {
  func @main(%x: f32[B, S, S], %z: f32[B, S, S]) -> (f32[B, S, 1], f32[B, S, S]) {
    %m = mean(%x) {axes = [2], keepdims = true} : f32[B, S, 1]
    %n = reduce_min(%m) {axes = [2], keepdims = true} : f32[B, S, 1]
    %w = broadcast_to(%n) {shape = [B, S, S]} : f32[B, S, S]
    %y = matmul(%w, %z) : f32[B, S, S]
    return %m, %y
  }
}"""


@pytest.mark.faults
@pytest.mark.parametrize("most", [1, 2, 3])
def test_what_fails_may_take_back_what_it_stores_for_others(most: int) -> None:
    """The smallest of the means gets a kernel of its own, in front of the product that was to store the means: they get one too."""
    module = parse_module(STORED_LATE)
    fusion = Fusion(module, module.main)
    made = fusion.units(failing_over(most, RuntimeError("no")))
    assert {op for group in made if isinstance(group, Group) for op in group.ops} == set(module.main)
    assert max(len(group.ops) for group in made if isinstance(group, Group)) <= most


@pytest.mark.faults
def test_what_is_folded_inside_is_kept_first() -> None:
    module = program(lambda b, x: softmax_then_sum(b, b.abs(b.neg(x))), 4, 5, 5)
    fusion = Fusion(module, module.main)
    fusion.units(failing_over(3, RuntimeError("no")))
    assert [row.value for row in kept((fusion,))] == [next(op for op in module.main if op.name == "softmax").result.name]


@pytest.mark.faults
def test_halving_needs_few_attempts() -> None:
    module, attempts = program(chain(128), 4), []

    def make(group: Group) -> Group:
        attempts.append(len(group.ops))
        return failing_over(1, ValueError("no"))(group)

    Fusion(module, module.main).units(make)
    assert len(attempts) < 4 * 128


@pytest.mark.faults
def test_views_behind_a_sum_become_kernels_of_their_own() -> None:
    module = program(lambda b, x: b.transpose(b.sum(x, axes=(0,), keepdims=False), permutation=(1, 0)), 3, 4, 5)
    assert len(groups(module)) == 1
    fusion = Fusion(module, module.main)
    assert len(fusion.units(failing_over(1, RuntimeError("no")))) == 2
    assert [row.why for row in kept((fusion,))] == ["it could not be written in the shape of %v1: RuntimeError: no"]


@pytest.mark.parametrize("failure", [UsageError("got x, expected y"), MemoryError(), OSError("disk")])
def test_what_is_not_the_compilers_fault_goes_on(failure: Exception) -> None:
    module = program(chain(4), 4)
    with pytest.raises(type(failure)):
        Fusion(module, module.main).units(failing_over(1, failure))


def test_a_single_op_that_fails_is_an_error() -> None:
    module = program(chain(4), 4)
    with pytest.raises(UnsupportedError, match="never"):
        Fusion(module, module.main).units(failing_over(0, UnsupportedError("never")))


def printing_at_most(most: int, failure: Exception) -> Callable[[Lowered], dict[str, str]]:
    """A printer that fails on kernels of more ops."""

    def print_all(lowered: Lowered) -> dict[str, str]:
        def print_kernel(name: str, launch: Launch) -> str:
            if len(lowered.scheduled[name].group.ops) > most:
                raise failure
            return "printed"

        return print_each(lowered, print_kernel)

    return print_all


class Bad(Nest):
    """Fails where it is told to."""

    def __init__(self, where: str, vectors: int = 0) -> None:
        super().__init__(name="bad")
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "vectors", vectors)

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name == object.__getattribute__(self, "where"):
            raise RuntimeError(f"no {name}")
        return object.__getattribute__(self, name)


@pytest.mark.faults
@pytest.mark.parametrize("where", ["match", "space", "cost", "tile"])
def test_a_strategy_that_fails_is_passed_over_with_its_reason(where: str, faults: list[str]) -> None:
    module = program(chain(4), 4)
    scheduler = Scheduler([Bad(where), *STRATEGIES], AVX2, cheapest(AVX2), lambda region, constants: {})
    lowered = lower(fuse(module), scheduler, "cpu")
    (unit,) = lowered.scheduled.values()
    assert unit.schedule.strategy == "nest"
    assert any(f"RuntimeError: no {where}" in why for _, why in unit.refusals)
    assert lowered.kept == ()
    assert lowered.faults == tuple(faults) != ()
    for note in faults:
        assert note.startswith("internal error: strategy bad, ") and f"for region {unit.group.region.name}" in note
        assert note.endswith(f"failed, and another choice was taken: RuntimeError: no {where}")


def test_what_a_strategy_says_that_it_does_not_take_is_no_mistake() -> None:
    class Refusing(Bad):
        def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
            if name == "tile":
                raise UnsupportedError("too wide")
            return Nest.__getattribute__(self, name)

    scheduler = Scheduler([Refusing("tile"), *STRATEGIES], AVX2, cheapest(AVX2), lambda region, constants: {})
    assert lower(fuse(program(chain(4), 4)), scheduler, "cpu").faults == ()


@pytest.mark.faults
def test_a_printer_s_mistake_is_a_note(faults: list[str]) -> None:
    scheduler = Scheduler(STRATEGIES, AVX2, cheapest(AVX2), lambda region, constants: {})
    lowered, _ = lower_printed(fuse(program(chain(4), 4)), scheduler, "cpu", printing_at_most(2, KeyError("lost")))
    assert lowered.faults == tuple(faults)
    assert all("printing" in note and note.endswith("KeyError: 'lost'") for note in faults) and "strategy nest, printing nest" in faults[0]


@pytest.mark.faults
def test_no_strategy_left_is_an_error_for_one_op_only() -> None:
    scheduler = Scheduler([Bad("tile")], AVX2, cheapest(AVX2), lambda region, constants: {})
    with pytest.raises(InternalError, match="no strategy takes region region: bad: every schedule is bad: RuntimeError: no tile"):
        lower(fuse(program(chain(4), 4)), scheduler, "cpu")


def test_a_kernel_that_cannot_be_printed_is_scheduled_otherwise() -> None:
    refused: list[str] = []

    def print_all(lowered: Lowered) -> dict[str, str]:
        def print_kernel(name: str, launch: Launch) -> str:
            unit = lowered.scheduled[name]
            if len(unit.group.ops) > 2:
                refused.append(str(unit.schedule))
                raise UnsupportedError("too wide")
            return "printed"

        return print_each(lowered, print_kernel)

    scheduler = Scheduler(STRATEGIES, AVX2, cheapest(AVX2), lambda region, constants: {})
    lowered, text = lower_printed(fuse(program(chain(4), 4)), scheduler, "cpu", print_all)
    assert set(text.values()) == {"printed"}
    assert len(set(refused)) > 1
    assert lowered.kept
    assert "too wide" in lowered.kept[0].why


def test_all_kernels_that_cannot_be_printed_are_refused_at_once() -> None:
    rounds: list[int] = []

    def print_all(lowered: Lowered) -> dict[str, str]:
        rounds.append(len(lowered.kernels))

        def print_kernel(name: str, launch: Launch) -> str:
            if len(rounds) == 1:
                raise UnsupportedError("too heavy")
            return "printed"

        return print_each(lowered, print_kernel)

    scheduler = Scheduler(STRATEGIES, AVX2, cheapest(AVX2), lambda region, constants: {})
    lower_printed(fuse(program(branches(500), 64)), scheduler, "cpu", print_all)
    assert rounds[0] > 1
    assert len(rounds) == 2


def test_what_is_refused_of_a_group_is_not_refused_of_its_op() -> None:
    """An op and the reshape that reads it pose the problem that the op alone poses; a group can be made smaller, an op cannot."""
    scheduler = Scheduler(STRATEGIES, AVX2, cheapest(AVX2), lambda region, constants: {})
    module = program(lambda b, x: b.reshape(b.reduce_max(x, axes=(1,), keepdims=True), shape=(6,)), 6, 40)
    lowered, text = lower_printed(fuse(module), scheduler, "cpu", printing_at_most(1, UnsupportedError("too heavy")))
    assert set(text.values()) == {"printed"} and len(lowered.scheduled) == 2
    (row,) = lowered.kept
    assert "too heavy" in row.why


@pytest.mark.parametrize(
    ("number", "stands"), [(448.0, True), (127.0, True), (2.0**-126, True), (-0.0, True), (0.1, False), (np.inf, False)]
)
def test_numbers_of_few_digits_stand_in_kernels(number: float, stands: bool) -> None:
    def body(b: Builder, x: Value) -> Value:
        return b.maximum(b.div(x, b.module.add_constant("c", ConstantData(np.float32(number)))), b.sin(x))

    module = program(body, "N", 40)
    (group,) = (unit for unit in Fusion(module, module.functions["main"]).units(lambda group: group) if isinstance(unit, Group))
    assert len(group.inputs) == (1 if stands else 2)
    numbers = [part.value for s in group.region.body for part in walk(s.value) if isinstance(part, Constant)]
    assert numbers == ([number] if stands else []) and all(np.signbit(each) == np.signbit(number) for each in numbers)


def test_vectors_of_one_number_stay_operands() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b.mul(x, b.module.add_constant("c", ConstantData(np.full(40, 2.0, np.float32))))

    module = program(body, "N", 40)
    (group,) = (unit for unit in Fusion(module, module.functions["main"]).units(lambda group: group) if isinstance(unit, Group))
    assert len(group.inputs) == 2
