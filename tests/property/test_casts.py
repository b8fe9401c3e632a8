"""Drawn chains of casts, arithmetic and what tells whether a number was rounded, on the whole road to C.

What the rule of rounding leaves no freedom in must be equal to the stepwise reference, bit for bit: a written cast
rounds, and so does an op whose result is read by anything but arithmetic. What only arithmetic reads is judged.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from generator import Case
from harness import failing, failures, report

from ourcc.ir.errors import CompilerError
from ourcc.ir.graph import Builder, Graph, Module, Op, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import DIGITS, Array, interpret, judge
from ourcc.ir.ops import table
from ourcc.ir.ops.table import OPS
from ourcc.ir.types import DType, bf16, boolean, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, type_of, u8

BATCH = 20
SHOWN = 3
SHARE = 4
"""One case for so many that are asked for: a case here has a dozen kernels."""

FLOATS = (f32, f32, f16, f16, bf16, f64, f8e4m3, f8e5m2)
TARGETS = (f32, f32, f32, f16, f16, bf16, f64, f8e4m3, f8e5m2, i8, i32, u8, boolean)
KEEPS = frozenset("neg abs maximum minimum relu where concat pad reduce_max".split())
"""Arithmetic that rounds nothing by itself: what comes in wide goes out wide."""
ROUNDS = frozenset("add sub mul dequantize sum cumsum".split())
MOVES = frozenset("reshape transpose slice".split())
EDGES = (65504.0, 65519.9, 65520.0, 1e6, -1e6, 3e38, 448.0, 464.0, 464.1, 57344.0, 61440.0, 6e-8, 2.9e-8, 1e-30, 0.0, -0.0, 1.0009765)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[Case]:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [Chain(random.Random(f"casts {seed} {n}")).case() for n in range(max(1, count // SHARE))]


def test_the_rule_is_drawn(cases: list[Case]) -> None:
    ops = Counter(op.name for case in cases for op in case.module.main)
    assert ops["cast"] > 2 * len(cases)
    if len(cases) >= 40:
        assert {*KEEPS, *ROUNDS, *MOVES, "is_inf", "floor", "argmax", "quantize", "dequantize", "lt"} <= ops.keys()
        assert any(not Rule(case.module.main.outputs).is_exact(value) for case in cases for value in case.module.main.outputs)


@pytest.mark.timeout(3600)
def test_engines_round_where_the_rule_says(cases: list[Case]) -> None:
    batches = (cases[start : start + BATCH] for start in range(0, len(cases), BATCH))
    found = [pair for batch in batches for pair in failing(batch, differs)]
    shown = "\n\n".join(report(case, why, differs) for case, why in found[:SHOWN])
    assert not found, f"{len(found)} of {len(cases)} modules fail; the first ones:\n{shown}"


def differs(case: Case, run: int, results: Sequence[Array]) -> str | None:
    """What the rule does not allow in the results of a case."""
    stepwise, wide = interpret(case.module, case.inputs[run]), interpret(case.module, case.inputs[run], wide=True)
    outputs = case.module.main.outputs
    rule = Rule(outputs)
    for number, (value, got, step, exact) in enumerate(zip(outputs, results, stepwise, wide, strict=True)):
        is_exact = rule.is_exact(value)
        verdict = judge(np.asarray(got), step, step, floor=0.0) if is_exact else judge(np.asarray(got), step, exact)
        if not verdict.passed and (is_exact or verdict.error > verdict.allowed + 2 * noise(case, run, rule, number, step)):
            return f"%{value.name}{'' if is_exact else ' (wide)'}: {verdict.reason}"
    return None


def noise(case: Case, run: int, rule: Rule, output: int, expected: Array) -> float:
    """How far an output goes when values that may be wide are off by what rounding them takes away: two that are equal once
    rounded may cancel to that, though both references give 0.
    """
    drawn = np.random.default_rng(0)
    furthest = 0.0
    for _ in range(8):
        values = dict(zip(case.module.main.inputs, case.inputs[run], strict=True))
        values |= {value: value.constant.array for value in case.module.constants.values() if value.constant is not None}
        for op in case.module.main:
            operands = tuple(None if value is None else values[value] for value in op.operands)
            arrays = table.run(op.definition, operands, op.attrs, tuple(result.type for result in op.results), False)
            for result, array in zip(op.results, arrays, strict=True):
                is_wide = rule.may_be_wide(result)
                off = drawn.uniform(-1, 1, array.shape) * 2.0 ** -DIGITS[result.dtype.name] if is_wide else 0.0
                values[result] = array if not is_wide else (array.astype(np.float64) * (1 + off)).astype(np.float32)
        got = np.asarray(values[case.module.main.outputs[output]]).astype(np.float64)
        distance = np.abs(got - np.asarray(expected).astype(np.float64))
        furthest = max(furthest, float(distance[np.isfinite(distance)].max(initial=0.0)))
    return furthest


FOUND = {
    "there and back": """
    %a = cast(%x) {dtype = f16} : f16[12]
    %y = cast(%a) {dtype = f32} : f32[12]""",
    "8 bits": """
    %a = cast(%x) {dtype = f8e5m2} : f8e5m2[12]
    %y = cast(%a) {dtype = f32} : f32[12]""",
    "quantized": """
    %a = quantize(%x, @s) {dtype = f8e4m3} : f8e4m3[12]
    %y = dequantize(%a, @s) {dtype = f32} : f32[12]""",
    "overflow of a product": """
    %h = cast(%x) {dtype = f16} : f16[12]
    %a = mul(%h, %h) : f16[12]
    %t = is_inf(%a) : bool[12]
    %y = where(%t, %x, @s) : f32[12]""",
    "sum of rounded products": """
    %p = mul(%x, %x) : f32[12]
    %h = cast(%p) {dtype = bf16} : bf16[12]
    %w = cast(%h) {dtype = f32} : f32[12]
    %y = reduce_max(%w) {axes = [0], keepdims = true} : f32[1]""",
}


def test_what_was_found_stays_right() -> None:
    group = []
    for body in FOUND.values():
        size = 1 if "keepdims" in body else 12
        text = f"module @case {{\n  const @s : f32[] = 0.5\n  func @main(%x: f32[12]) -> f32[{size}] {{{body}\n    return %y\n  }}\n}}"
        x = np.asarray([*EDGES[:8], 300.0, 3.3, 0.1, -1.0], np.float32)
        group.append(Case(parse_module(text), ((x,), (-x,))))
    wrong = {list(FOUND)[n]: why for n, why in failures(group, differs).items()}
    assert wrong == {}


# --- the rule, once more ----------------------------------------------------------------------------------------------


class Rule:
    """Which values of a graph have one answer only; `outputs` are stored, whatever else reads them."""

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = frozenset(outputs)
        self.matters: set[Value] = set()
        pending = [value for value in outputs if 0 not in value.shape]
        while pending:
            value = pending.pop()
            if value not in self.matters:
                self.matters.add(value)
                pending += [operand for operand in (value.op.operands if value.op else ()) if operand is not None]

    def is_exact(self, value: Value) -> bool:
        """Whether no operand on the way may have been left wide."""
        op = value.op
        if op is None:
            return True
        operands = [operand for operand in op.operands if operand is not None]
        rounds = op.name in ROUNDS and any(self.may_be_wide(operand) for operand in operands)
        return not rounds and all(self.is_exact(operand) for operand in operands)

    def may_be_wide(self, value: Value) -> bool:
        """Whether a reader in the same kernel may find the value unrounded."""
        op = value.op
        if op is None or value.dtype.compute == value.dtype or not self.only_arithmetic_reads(value):
            return False
        return op.name in ROUNDS or (op.name in KEEPS | MOVES and any(self.may_be_wide(v) for v in op.operands if v is not None))

    def only_arithmetic_reads(self, value: Value) -> bool:
        """Whether nothing that reads a value, through movement too, tells whether it was rounded."""
        if value in self.outputs:
            return False
        readers = [user for user in value.uses if self.matters.intersection(user.results)]  # nothing else is computed
        return all(user.name in KEEPS | ROUNDS or (user.name in MOVES and self.only_arithmetic_reads(user.result)) for user in readers)


class AnyReader(Rule):
    """The rule for a graph that grows still: readers may come that are arithmetic, and no others."""

    def only_arithmetic_reads(self, value: Value) -> bool:
        return True


# --- drawing ----------------------------------------------------------------------------------------------------------


class Chain:
    """One module under construction, with its values at two inputs; ops whose answer is not determined are refused."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.random = np.random.default_rng(choices.getrandbits(32))
        self.module, self.graph = Module("case"), Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = Builder(self.module, self.graph)
        self.runs: list[dict[Value, Array]] = [{}, {}]
        self.values: list[Value] = []
        self.shape = (choices.choice((2, 3, 5, 8)), choices.choice((4, 7, 16, 19)))
        for _ in range(2):
            self.fresh(choices.choice(FLOATS))

    def case(self) -> Case:
        """The finished case."""
        steps = (
            self.cast,
            self.cast,
            self.arithmetic,
            self.arithmetic,
            self.unary,
            self.tell,
            self.tell,
            self.quantized,
            self.fold,
            self.move,
        )
        while len(self.graph) < 12:
            self.choices.choice(steps)()
        made = [value for value in self.values if value.op is not None]
        outputs = [value for value in made if not value.uses or self.choices.randrange(12) == 0]
        self.graph.set_outputs(outputs, [f"y{n}" for n in range(len(outputs))])
        return Case(self.module, tuple(tuple(run[value] for value in self.graph.inputs) for run in self.runs))

    def fresh(self, dtype: DType, kind: int | None = None) -> Value:
        """A new input: numbers of every size, on a coarse grid (sums are exact), or at the edges of the formats."""
        value = self.graph.add_input(f"x{len(self.graph.inputs)}", type_of(np.zeros(self.shape, dtype.numpy)))
        kind = self.choices.randrange(3) if kind is None else kind
        for run in self.runs:
            array = self.random.standard_normal(self.shape)
            if kind == 0:
                array = array * 10.0 ** self.random.uniform(-6, 6, self.shape)
            elif kind == 1:
                array = np.round(array * 16) / 8
            else:
                flat = array.reshape(-1)
                flat[: flat.size // 2] = self.random.choice(EDGES, flat.size // 2)
            run[value] = array.astype(dtype.numpy)
        self.values.append(value)
        return value

    def pick(self, *kinds: str) -> Value:
        """A value of these kinds, later ones more often."""
        found = [value for value in self.values if value.dtype.kind in (kinds or ("float",))]
        return self.choices.choice(found[-1:] if self.choices.randrange(4) else found)

    def beside(self, value: Value) -> Value:
        """Another operand of the same type."""
        found = [other for other in self.values if other.type == value.type and other is not value]
        if found and self.choices.randrange(3):
            return self.choices.choice(found)
        return self.fresh(value.dtype) if value.shape == self.shape else value

    def add(self, name: str, operands: Sequence[Value], **attrs: object) -> Value | None:
        """Append an op, unless its answer is not determined."""
        try:
            result = self.builder.build(OPS[name], operands, attrs)[0]
        except CompilerError:
            return None
        op = result.op
        assert op is not None
        tells = name not in KEEPS | ROUNDS | MOVES
        if (tells and not all(AnyReader(()).is_exact(v) for v in operands)) or not all(self.run(values, op) for values in self.runs):
            self.graph.remove(op)
            return None
        self.values.append(result)
        return result

    def run(self, values: dict[Value, Array], op: Op) -> bool:
        """Run an op at one input; False where its result depends on more than the rule."""
        operands = [values[value] for value in op.operands if value is not None]
        if op.name in ("sum", "cumsum") and not sums_exactly(operands[0]):
            return False
        if op.name in ("cast", "quantize") and op.result.dtype.is_integer and not in_range(operands[0], op.result.dtype):
            return False
        (values[op.result],) = table.run(op.definition, tuple(operands), op.attrs, (op.result.type,), False)
        return True

    # --- steps ---

    def cast(self) -> None:
        """A chain of casts, often there and back."""
        value: Value | None = self.pick("float", "float", "int", "uint", "bool")
        for _ in range(self.choices.choice((1, 2, 2, 3))):
            target = self.choices.choice(TARGETS)
            if value is None or value.dtype == target:
                return
            value = self.add("cast", [value], dtype=target)

    def arithmetic(self) -> None:
        """Two operands, now and then the same."""
        first = self.pick()
        name = self.choices.choice(("add", "sub", "mul", "mul", "maximum", "minimum"))
        self.add(name, [first, first if self.choices.randrange(4) == 0 else self.beside(first)])

    def unary(self) -> None:
        """What keeps numbers, and what jumps."""
        self.add(self.choices.choice(("neg", "abs", "relu", "floor", "ceil", "trunc", "round", "sign")), [self.pick()])

    def tell(self) -> None:
        """Comparisons and tests, and a choice by them."""
        value = self.pick()
        name = self.choices.choice(("is_inf", "is_inf", "is_nan", "lt", "eq", "le"))
        test = self.add(name, [value] if name.startswith("is") else [value, self.beside(value)])
        other = self.beside(value) if test is not None and self.choices.randrange(2) else value
        # A choice between a value and itself is none: its test goes, and nothing tells whether the value was rounded.
        if test is not None and other is not value:
            self.add("where", [test, value, other])

    def quantized(self) -> None:
        """To a quantized type and back."""
        value = self.pick()
        scale = self.module.add_constant("s", np.asarray(self.choices.choice((0.25, 0.5, 2.0, 0.3)), np.float32).astype(value.dtype.numpy))
        for run in self.runs:
            run[scale] = scale.constant.array if scale.constant is not None else np.zeros(())
        small = self.add("quantize", [value, scale], dtype=self.choices.choice((f8e4m3, f8e5m2, i8, u8)))
        if small is not None and value.dtype.bits >= 16:
            self.add("dequantize", [small, scale], dtype=value.dtype)

    def fold(self) -> None:
        """Folds along an axis, and running ones."""
        axis, name = self.choices.randrange(2), self.choices.choice(("reduce_max", "sum", "argmax", "argmin", "cumsum"))
        value = self.pick()
        if name in ("sum", "cumsum"):
            part = self.fresh(self.choices.choice((f16, f16, bf16, f32)), kind=1)
            value = (self.add(self.choices.choice(("mul", "add")), [part, part]) if self.choices.randrange(2) else None) or part
        if value.type.rank != 2:
            return
        keep = {} if name == "cumsum" else {"keepdims": bool(self.choices.randrange(2))}
        self.add(name, [value], **({"axes": (axis,)} if name in ("sum", "reduce_max") else {"axis": axis}), **keep)

    def move(self) -> None:
        """Movement: a view, or one that puts something beside the value."""
        value = self.pick("float", "bool", "int")
        name = self.choices.choice(("transpose", "reshape", "slice", "concat", "pad"))
        rank, shape = value.type.rank, value.shape
        if rank != 2 or not all(isinstance(size, int) for size in shape):
            return
        attrs = {
            "transpose": {"permutation": (1, 0)},
            "reshape": {"shape": (shape[0] * shape[1],)},
            "slice": {"starts": (0, 1), "sizes": (shape[0], shape[1] - 1), "steps": (1, 1)},
            "concat": {"axis": 0},
            "pad": {"before": (1, 0), "after": (0, 2)},
        }[name]
        self.add(name, [value, self.beside(value)] if name == "concat" else [value], **attrs)


def sums_exactly(array: Array) -> bool:
    """Whether sums in f32 are exact in any order: every number lies on one grid, and they are few and small."""
    if not np.isfinite(array).all():
        return False
    grid = array.astype(np.float64) * 1024
    return bool((grid == np.round(grid)).all() and np.abs(grid).sum() < 2**24)


def in_range(array: Array, dtype: DType) -> bool:
    """Whether the conversion to an integer is defined for every number."""
    if array.dtype.kind in "biu" or not array.size:
        return True
    limits, wide = np.iinfo(dtype.numpy), array.astype(np.float64)
    return bool(np.isfinite(wide).all() and wide.min() > limits.min - 1.0 and wide.max() < limits.max)
