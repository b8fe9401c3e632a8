"""Drawn plans, spoiled or not: what the checker passes computes what it should, byte by byte."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from generator import Case
from harness import compared, drawn, optimized

from ourcc.compiler.backends.built import pack
from ourcc.compiler.pipeline import GRAPH_PIPELINE, lower
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.errors import CompilerError, VerifyError
from ourcc.ir.plan import Buffer, Copy, Host, Launch, Plan, Slot, StateDeclaration, Step, Zero, from_json, reads, storage, to_json, writes
from ourcc.ir.plan.check import check
from ourcc.ir.plan.interpret import bind, run_plan
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.build_plan import Lowered

POINTS = 30
"""A plan is interpreted if its launches have no more grid points than this at either binding."""

SPOILED = 8
"""So many spoiled plans of each real one."""

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Planned:
    """A drawn module lowered for a target, and what its plan answers at each binding."""

    case: Case
    lowered: Lowered
    constants: dict[str, Any]

    def answers(self, plan: Plan) -> list[list[bytes]]:
        """The outputs at each binding, as bytes."""
        runs = (run_plan(plan, self.lowered.kernels, self.constants, inputs) for inputs in self.case.inputs)
        return [[array.tobytes() for array in outputs] for outputs in runs]

    @property
    def is_small(self) -> bool:
        """Whether it is interpreted quickly."""
        return all(self._points(bind(self.lowered.plan, inputs)) <= POINTS for inputs in self.case.inputs)

    def _points(self, values: dict[str, int]) -> int:
        launches = [step for step in self.lowered.plan.steps if isinstance(step, Launch)]
        return sum(dims.evaluate(dims.product(step.variants[0].grid), values) for step in launches)


@pytest.fixture(scope="module")
def planned(request: pytest.FixtureRequest) -> list[Planned]:
    """A tenth of the cases; every other one for a GPU."""
    count = max(request.config.getoption("--cases") // 10, 10)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for number, case in enumerate(drawn(count, request.config.getoption("--seed", 0) + 1000)):
            before = [value.type for value in case.module.main.inputs]
            module = optimized(case.module, f"{GRAPH_PIPELINE}, place_index_checks")
            assert before == [value.type for value in module.main.inputs]
            lowered = lower(module, TARGETS[("native", "sm_90a")[number % 2]])
            found.append(Planned(case, lowered, {key: pack(held, module) for key, held in lowered.plan.constants.items()}))
    return found


def test_plans_are_right_and_are_read_back(planned: list[Planned]) -> None:
    for item in planned:
        check(item.lowered.plan)
        assert from_json(to_json(item.lowered.plan)) == item.lowered.plan


def test_plans_compute_what_the_reference_computes(planned: list[Planned]) -> None:
    small = [item for item in planned if item.is_small]
    assert len(small) > len(planned) / 3
    for item in small:
        for run, inputs in enumerate(item.case.inputs):
            assert compared(item.case, run, run_plan(item.lowered.plan, item.lowered.kernels, item.constants, inputs)) is None


# --- spoiled plans ----------------------------------------------------------------------------------------------------


def whole(plan: Plan) -> list[int]:
    """Steps that do not go on with what earlier ones wrote: only such a step itself says in a plan that it is needed."""
    return [number for number, step in enumerate(plan.steps) if not set(reads(step)) & set(writes(step))]


def swap(plan: Plan, choices: random.Random) -> Plan:
    steps = list(plan.steps)
    one, other = choices.choice(whole(plan)), choices.choice(whole(plan))
    steps[one], steps[other] = steps[other], steps[one]
    return replace(plan, steps=tuple(steps))


def drop(plan: Plan, choices: random.Random) -> Plan:
    gone = choices.choice(whole(plan))
    return replace(plan, steps=plan.steps[:gone] + plan.steps[gone + 1 :])


def repeat(plan: Plan, choices: random.Random) -> Plan:
    one, place = choices.choice(whole(plan)), choices.randrange(len(plan.steps) + 1)
    return replace(plan, steps=(*plan.steps[:place], plan.steps[one], *plan.steps[place:]))


def move(plan: Plan, choices: random.Random) -> Plan:
    held = [buffer for buffer in plan.buffers if isinstance(buffer.storage, storage.Arena)]
    if not held:
        return plan
    moved, slot = choices.choice(held), choices.choice(plan.slots)
    sizes = tuple(dict.fromkeys((*slot.sizes, moved.type.nbytes))) if choices.random() < 0.7 else slot.sizes
    buffers = tuple(replace(b, storage=storage.Arena(slot.name)) if b is moved else b for b in plan.buffers)
    return replace(plan, buffers=buffers, slots=tuple(replace(s, sizes=sizes) if s is slot else s for s in plan.slots))


def shrink(plan: Plan, choices: random.Random) -> Plan:
    if not plan.slots:
        return plan
    slot = choices.choice(plan.slots)
    lows = {name: bounds.low or 0 for name, bounds in plan.symbols.ranges.items()}
    members = [b.type.nbytes for b in plan.buffers if b.storage == storage.Arena(slot.name)]
    size = choices.choice([*slot.sizes, *members])
    less = choices.choice([size - 1, size - 64, size // 2, dims.evaluate(size, lows), size])
    return replace(plan, slots=tuple(replace(s, sizes=(less,)) if s is slot else s for s in plan.slots))


def lowered_slot(plan: Plan, choices: random.Random) -> Plan:
    """A slot lies above one less."""
    held = [slot for slot in plan.slots if slot.above]
    if not held:
        return plan
    slot = choices.choice(held)
    gone = choices.choice(slot.above)
    rest = tuple(name for name in slot.above if name != gone)
    return replace(plan, slots=tuple(replace(s, above=rest) if s is slot else s for s in plan.slots))


SPOILS: tuple[Callable[[Plan, random.Random], Plan], ...] = (swap, swap, drop, repeat, move, move, shrink, lowered_slot)


def spoiled(item: Planned, choices: random.Random) -> Iterator[tuple[str, Plan]]:
    """Plans that are a little different, and what was done to them."""
    plan = item.lowered.plan
    for _ in range(SPOILED if whole(plan) else 0):
        spoil = choices.choice(SPOILS)
        changed = spoil(plan, choices)
        if choices.random() < 0.3:
            changed = choices.choice(SPOILS)(changed, choices) if whole(changed) else changed
        if changed != plan:
            yield spoil.__name__, changed


def test_spoiled_plans_are_caught_or_change_nothing(planned: list[Planned], request: pytest.FixtureRequest) -> None:
    choices = random.Random(request.config.getoption("--seed", 0))
    fates: Counter[str] = Counter()
    for item in planned:
        if not item.is_small:
            continue
        right = item.answers(item.lowered.plan)
        for what, plan in spoiled(item, choices):
            fault = _fault(plan)
            if fault is not None and choices.random() < 0.8:
                fates["caught"] += 1
                continue
            answers: Any
            try:
                answers = item.answers(plan)
            except (CompilerError, KeyError) as error:
                answers = str(error)
            fates["caught" if fault else "passed", answers == right] += 1  # type: ignore[index]
            assert fault is not None or answers == right, (
                f"{what} passes the checker and changes the answers: {plan.steps} {answers!r:.200}"
            )
    print(dict(fates))
    assert fates["caught"] > 10 and fates["passed", True] > 3, fates  # type: ignore[index]
    assert fates["caught", False] > 0, "nothing that was caught was wrong"  # type: ignore[index]


def _fault(plan: Plan) -> str | None:
    try:
        check(plan)
    except VerifyError as error:
        return error.message
    return None


# --- plans of copies between states and aliases -----------------------------------------------------------------------

S = dims.symbol("S")
FACTS = dims.Facts({"S": dims.Range(1, 3)})
TYPES = tuple(TensorType(f32, shape) for shape in ((4, 3), (2, 3), (S, 3), (3, 2), (2 * S, 3), (1, 3)))
OFFSETS: tuple[dims.Dim, ...] = (0, 4, 12, 24, 36, 12 * S, 24 * S, 12 * S - 12)
STRIDES: tuple[tuple[dims.Dim, dims.Dim], ...] = ((3, 1), (3, 1), (3, 1), (6, 1), (1, 2), (1, 3), (3 * S, 1), (2, 1), (0, 1), (4, 1))


def copies(choices: random.Random) -> Plan:
    """A plan of copies, zeros and host steps on a few buffers, most of them views of few roots."""
    buffers = [Buffer("x", TYPES[2], storage.Input()), Buffer("rows", TYPES[4], storage.Input())]
    states = []
    for n in range(choices.randint(0, 2)):
        type = choices.choice((TYPES[0], TYPES[0], TYPES[1]))
        states.append(StateDeclaration(f"state{n}", type))
        buffers.append(Buffer(f"state{n}", type, storage.State(f"state{n}")))
    slots = [
        Slot(f"s{n}", (choices.choice((48, 24 * S, 12 * S, 64 * S)),), tuple(f"s{m}" for m in range(n) if choices.random() < 0.6))
        for n in range(3)
    ]
    for n in range(choices.randint(2, 5)):
        held = choices.choice((storage.Output(), storage.Arena("s0"), storage.Arena("s1"), storage.Arena("s2"), storage.Dynamic()))
        buffers.append(Buffer(f"b{n}", choices.choice(TYPES), held))
    roots = list(buffers)
    plan = Plan("cpu", FACTS, (("x", "x"), ("rows", "rows")), (), tuple(buffers), tuple(slots), (), (), tuple(states))
    for n in range(choices.randint(1, 6)):
        root = choices.choice(roots)
        whole = choices.random() < 0.4
        type = root.type if whole else choices.choice(TYPES)
        held = storage.Alias(root.name, 0, (type.shape[1], 1)) if whole else _alias(root.name, choices)
        more = replace(plan, buffers=(*plan.buffers, Buffer(f"a{n}", type, held)))
        plan = more if _fault(more) is None else plan
    buffers, steps = list(plan.buffers), []
    given = {b.name for b in buffers if isinstance(b.storage, storage.Input | storage.State)}
    for _ in range(choices.randint(2, 8)):
        step = _step(buffers, given, choices)
        given |= set(writes(step))
        steps.append(step)
    outputs = tuple((b.name, b.name) for b in choices.sample([b for b in buffers if b.name in given], 2))
    wholes = [(s.name, b.name) for s in states for b in buffers if getattr(b.storage, "root", b.name) == s.name and b.type == s.type]
    ties = tuple({state: (state, name) for state, name in choices.sample(wholes, len(wholes)) if choices.random() < 0.7}.values())
    return replace(plan, outputs=outputs, steps=tuple(steps), ties=ties)


def _alias(root: str, choices: random.Random) -> storage.Alias:
    return storage.Alias(root, choices.choice(OFFSETS), choices.choice(STRIDES))


def _step(buffers: list[Buffer], given: set[str], choices: random.Random) -> Step:
    target = choices.choice(buffers[2:])
    sources = [b.name for b in buffers if b.type == target.type and b.name in given]
    if not sources or choices.random() < 0.1:
        return Zero(target.name)
    if choices.random() < 0.7:
        return Copy(choices.choice(sources), target.name)
    return Host("add", {}, (choices.choice(sources), choices.choice(sources)), (target.name,))


def meaning(plan: Plan, inputs: list[Any], states: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What a plan means where every buffer is memory of its own."""
    values = dict(zip((name for _, name in plan.inputs), inputs, strict=True)) | states
    for step in plan.steps:
        if isinstance(step, Copy):
            values[step.target] = values[step.source]
        elif isinstance(step, Host):
            values[step.writes[0]] = values[step.reads[0]] + values[step.reads[1]]
        elif isinstance(step, Zero):
            bound = bind(plan, inputs)
            values[step.target] = np.zeros([dims.evaluate(size, bound) for size in plan.named[step.target].type.shape], np.float32)
    after = {state: values[name] for state, name in plan.ties}
    return [values[name] for _, name in plan.outputs], states | after


def test_what_passes_the_checker_means_what_separate_memory_means(request: pytest.FixtureRequest) -> None:
    choices = random.Random(request.config.getoption("--seed", 0))
    passed: Counter[str] = Counter()
    for _ in range(request.config.getoption("--cases") * 4):
        plan = copies(choices)
        if _fault(plan) is not None:
            continue
        passed["plans"] += 1
        passed["aliases"] += any(
            isinstance(plan.named[step.target].storage, storage.Alias) for step in plan.steps if isinstance(step, Copy)
        )
        passed["states"] += bool(plan.ties)
        for size in (1, 2, 3):
            numbers = iter(range(1, 1000))
            inputs = [np.array([next(numbers) for _ in range(rows * 3)], np.float32).reshape(rows, 3) for rows in (size, 2 * size)]
            states = {
                s.name: np.array([next(numbers) for _ in range(12)], np.float32)[: int(s.type.elements)].reshape(s.type.shape)
                for s in plan.states
            }
            expected, after = meaning(plan, inputs, states)
            held = dict(states)
            got = run_plan(plan, {}, {}, inputs, held)
            assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True)), f"S = {size}: {plan}"
            assert all(np.array_equal(held[name], after[name]) for name in after), f"S = {size}: {plan}"
    print(dict(passed))
    assert min(passed["plans"], passed["aliases"], passed["states"]) > 20, passed
