"""Drawn plans: text and JSON are read back to an equal plan, and damage to a plan is one clear error or does no harm."""

from __future__ import annotations

import copy
import json
import random
import string
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import drawn

from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import lower, simplify
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.dims import Dim, Facts, Range
from ourcc.ir.errors import CompilerError
from ourcc.ir.layout import Factor, Layout
from ourcc.ir.plan import (
    Buffer,
    Call,
    Check,
    Copy,
    Guard,
    Host,
    Launch,
    Plan,
    Slot,
    StateDeclaration,
    Step,
    Variant,
    Zero,
    from_json,
    storage,
    to_json,
)
from ourcc.ir.plan.parse import parse_plan
from ourcc.ir.plan.text import print_plan
from ourcc.ir.types import DTYPES, TensorType
from ourcc.runtime.program import Program

NAMES = (
    "b0",
    "b_1",
    "x",
    "input",
    "over",
    "of",
    "size",
    "7",
    "a.b/c",
    "the mask",
    "_",
    "%x",
    "@w",
    "loc",
    'a "quote"',
    "line\n",
    "#",
    "\u00e4",
    "{",
)
SYMBOLS = ("B", "S", "u0", "s.1", "of", "symbols", "_")


class Draw:
    """Plans that need not mean anything: every field of every class, with odd names and sizes."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def many(self, make: Callable[[], Any], least: int = 0, most: int = 3) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self.random.randint(least, most)))

    def name(self) -> str:
        odd = "".join(self.random.choices(string.printable, k=self.random.randint(1, 5)))
        return self.random.choice((*NAMES, odd)) if self.random.random() < 0.6 else f"b{self.random.randrange(20)}"

    def operand(self) -> str:
        return self.name() if self.random.random() < 0.9 else ""

    def symbol(self) -> str:
        return self.random.choice(SYMBOLS)

    def number(self) -> int:
        return self.random.choice((0, 1, -1, 2, 7, 64, 2**31, -(2**40), 10**18 - 1))

    def dim(self, depth: int = 0) -> Dim:
        kind = self.random.randrange(9)
        if kind < 3 or depth > 3:
            return self.number()
        if kind < 5:
            return dims.symbol(self.symbol())
        left, right = self.dim(depth + 1), self.dim(depth + 1)
        makers = (lambda: left + right, lambda: left - 3 * right, lambda: left % 5 + right // 3, lambda: dims.maximum(left, right) * 2)
        made = makers[kind - 5]()
        return made if dims.magnitude(made) < 10**18 else left

    def type(self) -> TensorType:
        return TensorType(self.random.choice(list(DTYPES.values())), self.many(self.dim))

    def layout(self) -> Layout:
        plain = tuple(f"d{n}" for n in range(self.random.randint(0, 3)))
        axes = plain if self.random.random() < 0.5 else tuple(self.random.sample(("of", "over", "n", "k", "d0", "x1"), len(plain)))
        factors = [Factor(axis) for axis in axes]
        if axes and self.random.random() < 0.6:
            factors = [Factor(axes[0], 16), *factors[1:], Factor(axes[0], 1, 16)]
        self.random.shuffle(factors)
        return Layout(axes, tuple(factors))

    def storage(self) -> storage.Storage:
        kind = self.random.randrange(8)
        if kind < 2:
            layout = self.layout() if kind else None
            return storage.Constant(self.name(), layout, tuple(abs(self.number()) for _ in layout.axes) if layout else ())
        own = storage.State(self.name()), storage.Alias(self.name(), self.dim(), self.many(self.dim))
        return (storage.Input(), storage.Output(), storage.Arena(self.name()), storage.Dynamic(), *own)[kind - 2]

    def facts(self) -> Facts:
        names = self.random.sample(SYMBOLS, self.random.randint(0, 5))
        ranges = {name: Range(self.random.choice((None, 0, -4)), self.random.choice((None, 9, 2**63 - 1))) for name in names}
        divisors = {name: 16 for name in names if self.random.random() < 0.3}
        return Facts(ranges, divisors, broadcasts=tuple((self.dim(), self.dim()) for _ in range(self.random.randrange(3))) if names else ())

    def variant(self, name: str, operands: tuple[str, ...]) -> Variant:
        guard = Guard(self.many(self.dim), self.many(self.dim), self.many(self.name), self.many(self.name))
        rare = tuple(self.random.choice((0, 4, 2**30)) for _ in range(3))
        return Variant(
            self.random.choice((name, self.name())),
            guard if self.random.random() < 0.5 else Guard(),
            self.many(self.dim),
            operands if self.random.random() < 0.5 else self.many(self.operand),
            self.many(self.dim),
            *rare,
        )

    def attribute(self, depth: int = 0) -> Any:
        values = (None, True, -3, 2**64 - 1, 0.5, -0.0, float("inf"), 1e300, complex(1, -2), self.name(), DTYPES["f32"], self.dim())
        if depth < 3 and self.random.random() < 0.3:
            return tuple(self.attribute(depth + 1) for _ in range(self.random.randrange(4)))
        return self.random.choice(values)

    def binds(self) -> tuple[tuple[str, int, int], ...]:
        return self.many(lambda: (self.symbol(), self.random.randrange(3), self.random.randint(-1, 2)), 0, 2)

    def step(self) -> Step:
        name, reads, writes, sources = self.name(), self.many(self.operand), self.many(self.operand), self.many(self.name)
        symbols = self.many(lambda: (self.symbol(), self.dim()))
        attrs: Mapping[str, Any] = {self.name(): self.attribute() for _ in range(self.random.randrange(4))}
        return self.random.choice(
            (
                lambda: Launch(name, self.many(lambda: self.variant(name, (*reads, *writes))), reads, writes, sources, symbols),
                lambda: Host(name, attrs, reads, writes, self.binds(), sources),
                lambda: Call(name, self.number(), reads, writes, self.binds(), sources),
                lambda: Copy(self.operand() or "x", self.name()),
                lambda: Zero(self.name()),
                lambda: Check(name, self.random.choice((None, self.dim())), self.random.random() < 0.5, self.name(), sources),
            )
        )()

    def plan(self) -> Plan:
        ports = self.many(lambda: (self.name(), self.name())), self.many(lambda: (self.name(), self.name()))
        buffers = self.many(lambda: Buffer(self.name(), self.type(), self.storage()), 0, 6)
        slots = self.many(lambda: Slot(self.name(), self.many(self.dim, 1), self.many(self.name, 0, 2)))
        numbers = self.many(lambda: (self.symbol(), self.name()), 0, 2)
        states = self.many(lambda: StateDeclaration(self.name(), self.type()), 0, 2)
        ties = self.many(lambda: (self.name(), self.name()), 0, 2)
        return Plan(self.name(), self.facts(), *ports, buffers, slots, self.many(self.step, 0, 6), numbers, states, ties)


def order(plan: Plan) -> tuple[Any, ...]:
    """What equality of mappings leaves out."""
    return list(plan.symbols.ranges), [list(step.attrs) for step in plan.steps if isinstance(step, Host)]


def same(one: Plan, other: Plan) -> bool:
    return one == other and order(one) == order(other) and repr(one) == repr(other)


def test_drawn_plans_are_read_back(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed", 0)
    for number in range(request.config.getoption("--cases")):
        plan = Draw(f"{seed} {number}").plan()
        text = print_plan(plan)
        assert same(parse_plan(text), plan), text
        assert same(from_json(json.loads(json.dumps(to_json(plan)))), plan), text


def test_plans_of_drawn_modules_keep_the_rules(request: pytest.FixtureRequest) -> None:
    """Building one verifies it; it comes back from text and JSON, and loads."""
    steps = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for case in drawn(request.config.getoption("--cases") // 20, request.config.getoption("--seed", 0)):
            simplify(case.module, BuildOptions(targets=(TARGETS["cpu"],), tune=parse_measuring("off")))
            for target in ("cpu", "sm_90a"):
                plan = lower(case.module, TARGETS[target]).plan
                assert same(parse_plan(print_plan(plan)), plan) and same(from_json(json.loads(json.dumps(to_json(plan)))), plan)
                Program(plan)
                steps += len(plan.steps)
    assert steps > request.config.getoption("--cases") // 20


# --- damage -----------------------------------------------------------------------------------------------------------

PLANS = sorted((Path(__file__).parents[1] / "ir" / "plan" / "plans").glob("*.plan"))
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
# Each is a value of no field, of the wrong field, or one that costs more than it looks like.
VALUES = (
    *(None, True, 0, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**5000, 0.5, float("nan")),
    *("", "x", "b0", "kernel_0", "B", "Q", "%b", "f32", "string", "B - 40", "10 // B", "8 // (B - 1)", "max(B, 3)", '\ud800\n"'),
    *("B//S" + "//S" * 1200, "(" * 1000, "9" * 4000, "*".join(["999999999999999999"] * 200), "*".join(["(B + 1)"] * 40)),
    *([], {}, [[]], [1, 2], ["x", "y"], ["B", "B"], {"kind": "zero"}, {"kind": "none"}, {"kind": []}, {"kind": "zero", "target": "b0"}),
    *("input", "dynamic", {"kind": "arena", "slot": "s0"}, {"kind": "constant", "value": "w"}, {"low": 3, "high": 3}, {"float": "inf"}),
    DEEP,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    if path:
        yield path
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(part, (*path, key))


def holder(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def damages(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """What may happen to one value; each damage is undone before the next one."""
    held, key = holder(data, path), path[-1]
    before = copy.copy(held)

    def restore() -> None:
        held.clear()
        held.update(before) if isinstance(held, dict) else held.extend(before)

    for value in VALUES:
        if value is not before[key]:
            held[key] = value
            yield "other", data
            restore()
    del held[key]
    yield "dropped", data
    restore()
    if isinstance(held, list):
        held.insert(key, held[key])
        yield "twice", data
        restore()
        held.insert(0, held.pop(key))
        yield "first", data
        restore()
    else:
        held["unknown"] = held[key]
        yield "unknown", data
        restore()


def load(data: Any) -> Plan | None:
    """The plan as an engine would load it; None where it is refused, and any other exception is a failure."""
    try:
        plan = from_json(data)
        Program(plan)
    except CompilerError as error:
        assert error.message and len(error.message) < 1000, error.message[:2000]
        return None
    return plan


def judge(data: Any) -> bool:
    """Whether a damaged plan is accepted; one that is stands for what it says, in JSON and in text."""
    plan = load(data)
    if plan is None:
        return False
    assert from_json(to_json(plan)) == plan and parse_plan(print_plan(plan)) == plan
    return True


@pytest.mark.parametrize("path", PLANS, ids=[path.stem for path in PLANS])
def test_every_field_damaged_in_turn(path: Path, request: pytest.FixtureRequest) -> None:
    plan = parse_plan(path.read_text())
    data = json.loads(json.dumps(to_json(plan)))
    assert judge(data) and from_json(data) == plan
    draw = random.Random(f"{path.stem} {request.config.getoption('--seed', 0)}")
    found = list(places(data))
    # By default a tenth of the fields of each plan, every one of them with --cases 4000.
    chosen = draw.sample(found, max(1, min(len(found), len(found) * request.config.getoption("--cases") // 4000)))
    refused = 0
    for place in chosen:
        for what, damaged in damages(data, place):
            try:
                refused += not judge(damaged)
            except Exception as error:  # noqa: BLE001 -- whatever is raised, the place must be named
                pytest.fail(f"{path.stem}: {what} at {place}: {type(error).__name__}: {str(error)[:300]}")
    assert from_json(data) == plan
    assert refused > len(chosen) * len(VALUES) // 2
