"""Drawn programs with state: functions that share it, slices and rows put in place, values that cross between states.

Each is called again and again, and graph, plan and engine must agree on every answer and on what every state holds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends.built import pack
from ourcc.compiler.options import BuildOptions, build_options
from ourcc.compiler.pipeline import compile_module, lower, simplify
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import initial, interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.plan import Copy, Plan
from ourcc.ir.plan.interpret import run_plan
from ourcc.ir.types import TensorType, f32, i64
from ourcc.runtime import Engine

ROWS, WIDTH, NEW = 6, 5, 2
CALLS = 5
ENGINES = 5
"""Every so many cases is built as an engine too."""
KEPT, FRESH = TensorType(f32, (ROWS, WIDTH)), TensorType(f32, (NEW, WIDTH))


@dataclass(frozen=True)
class Drawn:
    """A module, and the calls of its functions with their inputs."""

    module: Module
    calls: tuple[tuple[str, tuple[np.ndarray, ...]], ...]


class _Writer:
    """Writes one function: values of the states' type, each made of those before."""

    def __init__(self, random: random.Random, module: Module, graph: Graph) -> None:
        self.random = random
        self.b = Builder(module, graph)
        self.fresh = graph.add_input("fresh", FRESH)
        self.places = graph.add_input("places", TensorType(i64, (NEW,)))
        used = random.sample(list(module.states.values()), random.randint(1, len(module.states)))
        self.states = {state.name: graph.add_state(state) for state in used}
        self.values: list[Value] = list(self.states.values())
        for _ in range(random.randint(1, 7)):
            self.values.append(self.step(random.choice(self.values[-3:] if random.random() < 0.7 else self.values)))
        ties = {name: random.choice(self.values[-4:]) for name in self.states if random.random() < 0.8}
        outputs = [
            self.b.sum(value, axes=(0,)) if random.random() < 0.6 else value
            for value in random.sample(self.values, min(2, len(self.values)))
        ]
        graph.set_outputs(outputs, [f"y{n}" for n in range(len(outputs))], ties)

    def step(self, value: Value) -> Value:
        """A next version of a value, by a put in most cases."""
        b, random = self.b, self.random
        kind = random.choice(("slice", "slice", "rows", "rows", "scatter", "own", "add", "scale", "turn", "add"))
        if kind == "slice":
            starts = (random.randint(0, ROWS - NEW), 0)
            return one(b.put_slice(value, self.fresh, starts=starts, steps=(1, 1)))
        if kind == "rows":
            return one(b.put(value, self.places, self.fresh, axis=0, combine=random.choice(("none", "none", "add"))))
        if kind == "scatter":
            return one(b.scatter_nd(value, b.reshape(self.places, shape=(NEW, 1)), self.fresh))
        if kind == "own":
            # Rows of the version itself, moved: what is read lies where it is written.
            rows = b.slice(value, starts=(0, 0), sizes=(NEW, WIDTH), steps=(1, 1))
            return one(b.put_slice(value, rows, starts=(ROWS - NEW, 0), steps=(1, 1)))
        if kind == "add":
            return one(b.add(value, random.choice(self.values)))
        if kind == "scale":
            return one(b.mul(value, np.float32(0.5)))
        return one(b.slice(value, starts=(ROWS - 1, 0), sizes=(ROWS, WIDTH), steps=(-1, 1)))


def one(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


def draw(number: int) -> Drawn:
    source = random.Random(number)
    arrays = np.random.default_rng(number)
    module = Module("drawn")
    for n in range(source.randint(1, 3)):
        begins = module.add_constant(f"c{n}", arrays.standard_normal((ROWS, WIDTH)).astype(np.float32)) if source.random() < 0.5 else None
        module.add_state(f"s{n}", KEPT, begins)
    for n in range(source.randint(1, 3)):
        graph = module.functions[f"f{n}"] = Graph(f"f{n}")
        _Writer(source, module, graph)
    calls = []
    for _ in range(CALLS):
        fresh = arrays.standard_normal((NEW, WIDTH)).astype(np.float32)
        calls.append((source.choice(list(module.functions)), (fresh, arrays.permutation(ROWS)[:NEW].astype(np.int64))))
    return Drawn(module, tuple(calls))


def answers(case: Drawn) -> list[list[np.ndarray]]:
    """What the graph says: of each call the outputs, then what every state holds."""
    states = {name: initial(state).copy() for name, state in case.module.states.items()}
    found = []
    for function, inputs in case.calls:
        outputs = interpret(case.module, inputs, function=function, states=states)
        found.append([*outputs, *(states[name].copy() for name in case.module.states)])
    return found


def differ(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return any(not np.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in zip(found, expected, strict=True))


def in_place(plans: list[Plan]) -> int:
    """How many versions of states begin where the one before lies."""
    return sum(isinstance(step, Copy) and not plan.moves(step) for plan in plans for step in plan.steps)


def test_graph_plan_and_engine_agree_on_states(request: pytest.FixtureRequest) -> None:
    count, first = max(request.config.getoption("--cases") // 4, 20), 100_000 * (request.config.getoption("--seed", 0) + 1)
    wrong: list[str] = []
    kept = 0
    for number in range(first, first + count):
        case = draw(number)
        verify(case.module)
        assert module_text(parse_module(module_text(case.module), {})) == module_text(case.module)
        expected = answers(case)
        simplify(case.module, build_options({}))
        if any(differ(a, b) for a, b in zip(answers(case), expected, strict=True)):
            wrong.append(f"{number}: simplified")
        lowered = lower(case.module, TARGETS[("cpu", "sm_90a")[number % 2]])
        kept += in_place(list(lowered.plans.values()))
        constants = {key: pack(held, case.module) for key, held in lowered.constants.items()}
        states = {name: initial(state).copy() for name, state in case.module.states.items()}
        for (function, inputs), wanted in zip(case.calls, expected, strict=True):
            outputs = run_plan(lowered.plans[function], lowered.kernels, constants, inputs, states)
            if differ([*outputs, *(states[name] for name in case.module.states)], wanted):
                wrong.append(f"{number}: plan of {function}")
        if number % ENGINES == 0:
            session = Engine(compile_module(case.module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off")))).session()
            for (function, inputs), wanted in zip(case.calls, expected, strict=True):
                made = session.functions[function](*inputs)
                outputs = list(made) if isinstance(made, tuple) else [made]
                held = [session.state(name) for name in case.module.states if name in session.states]
                asked = [array for name, array in zip(case.module.states, wanted[len(outputs) :], strict=True) if name in session.states]
                if differ([*outputs, *held], [*wanted[: len(outputs)], *asked]):
                    wrong.append(f"{number}: engine, {function}")
    assert wrong == []
    assert kept > count // 6, "hardly anything was put in place: the draw is too poor"
