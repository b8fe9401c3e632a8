"""The interpreter of plans gives what the program means, and shows what a wrong plan does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import IndexRangeError, InputError, UnsupportedError, VerifyError
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.plan import Buffer, Call, Check, Copy, Guard, Host, Launch, Plan, Slot, StateDeclaration, Variant, Zero, storage
from ourcc.ir.plan.check import check
from ourcc.ir.plan.interpret import packed, run_plan, unpacked
from ourcc.ir.types import TensorType, f32, i4, i64, string, u2
from ourcc.passes.lower.build_plan import Lowered

from .made import MODULES, constants, lowered, moved, swapped, with_slot, without

TARGETS = ("native", "sm_90a")


def rows(count: int, width: int) -> Any:
    return np.linspace(-2, 2, count * width, dtype=np.float32).reshape(count, width)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODULES)
def test_real_plans_give_the_answers_of_the_reference(name: str, target: str) -> None:
    module, found = lowered(name, target)
    for count in (1, 5, 40):
        sizes = ((dims.evaluate(size, {"S": count}) for size in value.shape) for value in module.main.inputs)
        inputs = [rows(height, width) for height, width in sizes]
        results = run_plan(found.plan, found.kernels, constants(module, found), inputs)
        for got, step, wide in zip(results, interpret(module, inputs), interpret(module, inputs, wide=True), strict=True):
            assert judge(got, step, wide).passed


# --- wrong plans ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TARGETS)
def network(request: pytest.FixtureRequest) -> tuple[Any, Lowered]:
    return lowered("network", request.param)


def answers(network: tuple[Any, Lowered], plan: Plan, count: int = 40) -> list[bytes]:
    module, found = network
    return [array.tobytes() for array in run_plan(plan, found.kernels, constants(module, found), [rows(count, 8)])]


def test_a_step_left_out_gives_other_answers(network: tuple[Any, Lowered]) -> None:
    plan = network[1].plan
    right = answers(network, plan)
    assert all(answers(network, without(plan, number)) != right for number in range(len(plan.steps)))


def test_steps_in_another_order_give_other_answers(network: tuple[Any, Lowered]) -> None:
    plan = network[1].plan
    assert answers(network, swapped(plan, 0, 1)) != answers(network, plan)


def test_values_that_share_a_slot_too_early_give_other_answers(network: tuple[Any, Lowered]) -> None:
    plan = network[1].plan
    held = {b.name: b.storage for b in plan.buffers if isinstance(b.storage, storage.Arena)}
    one, other = list(held)[:2]
    assert held[one] != held[other]
    assert answers(network, moved(plan, other, held[one])) != answers(network, plan)


def test_a_slot_that_is_too_small_runs_into_the_next_one_at_large_sizes_only(network: tuple[Any, Lowered]) -> None:
    plan = network[1].plan
    small = with_slot(plan, plan.slots[0].name, 4 * 8 * 16)
    assert len(plan.slots) > 1
    assert answers(network, small, 16) == answers(network, plan, 16)
    try:
        assert answers(network, small, 40) != answers(network, plan, 40)
    except VerifyError as error:
        assert "are left of its memory" in error.message


def test_what_nobody_owns_is_poison(network: tuple[Any, Lowered]) -> None:
    """A value that is read after its last planned reader is gone, although nothing was written over it."""
    module, found = network
    plan = found.plan
    first = next(b for b in plan.buffers if isinstance(b.storage, storage.Arena))
    late = replace(plan, outputs=(("late", "late"),), steps=plan.steps[:3], buffers=(*plan.buffers, replace(first, name="late")))
    (got,) = run_plan(late, found.kernels, constants(module, found), [rows(5, 8)])
    assert np.isnan(got).all()


# --- states, aliases, and steps one at a time -------------------------------------------------------------------------

CACHE = TensorType(f32, (2, 3))


def stateful() -> Plan:
    """total' = x; y = what total held before; the second row of total' on its own, through strides as columns."""
    buffers = (
        Buffer("x", CACHE, storage.Input()),
        Buffer("total", CACHE, storage.State("total")),
        Buffer("y", CACHE, storage.Output()),
        Buffer("whole", CACHE, storage.Alias("total", 0, (3, 1))),
        Buffer("turned", TensorType(f32, (3, 2)), storage.Alias("y", 0, (1, 3))),
        Buffer("z", TensorType(f32, (3, 2)), storage.Output()),
    )
    steps = (Copy("total", "y"), Copy("x", "whole"))
    states = (StateDeclaration("total", CACHE),)
    return Plan("cpu", dims.NO_FACTS, (("x", "x"),), (("y", "y"),), buffers, (), steps, (), states, (("total", "whole"),))


def test_a_state_is_read_at_entry_and_holds_what_its_tie_says() -> None:
    plan = stateful()
    check(plan)
    states = {"total": np.zeros((2, 3), np.float32)}
    first, second = (np.full((2, 3), n, np.float32) for n in (1, 2))
    assert run_plan(plan, {}, {}, [first], states)[0].tolist() == np.zeros((2, 3)).tolist()
    assert run_plan(plan, {}, {}, [second], states)[0].tolist() == first.tolist()
    assert states["total"].tolist() == second.tolist()
    wrong = replace(plan, steps=plan.steps[::-1])
    assert run_plan(wrong, {}, {}, [first], states)[0].tolist() == first.tolist(), "the copy came too late"
    with pytest.raises(InputError, match="the plan needs the state 'total', which is not given"):
        run_plan(plan, {}, {}, [first])


def test_an_alias_with_strides_reads_where_they_say() -> None:
    plan = replace(stateful(), steps=(Copy("x", "y"), Copy("turned", "z")), outputs=(("z", "z"),), ties=())
    x = rows(2, 3)
    assert run_plan(plan, {}, {}, [x], {"total": x})[0].tolist() == x.T.tolist()
    far = moved(plan, "turned", storage.Alias("y", 4, (1, 3)))
    with pytest.raises(VerifyError, match="alias turned takes 24 bytes, and 20 are left of its root"):
        run_plan(far, {}, {}, [x], {"total": x})


def single(*steps: Any, type: TensorType = CACHE, more: tuple[Buffer, ...] = (), slots: tuple[Slot, ...] = ()) -> Plan:
    buffers = (Buffer("x", type, storage.Input()), Buffer("y", type, storage.Output()), *more)
    return Plan("cpu", dims.NO_FACTS, (("x", "x"),), (("y", "y"),), buffers, slots, tuple(steps))


def test_zeros_are_written_and_what_is_not_written_is_poison() -> None:
    x = rows(2, 3)
    assert not run_plan(single(Zero("y")), {}, {}, [x])[0].any()
    assert np.isnan(run_plan(single(), {}, {}, [x])[0]).all()


@pytest.mark.parametrize("dtype", [i4, u2], ids=str)
def test_elements_of_less_than_a_byte_are_packed(dtype: Any) -> None:
    type = TensorType(dtype, (3, 3))
    x = (np.arange(9) % 4 - (2 if dtype == i4 else 0)).reshape(3, 3).astype(dtype.numpy)
    assert packed(x).size == type.nbytes and np.array_equal(unpacked(packed(x), type), x)
    (got,) = run_plan(single(Copy("x", "y"), type=type), {}, {}, [x])
    assert np.array_equal(got, x)


def test_text_is_no_bytes() -> None:
    x = np.array(["a", "b"], object)
    plan = single(Copy("x", "y"), type=TensorType(string, (2,)))
    assert run_plan(plan, {}, {}, [x])[0].tolist() == ["a", "b"]
    with pytest.raises(VerifyError, match="buffer y is read before it is written"):
        run_plan(without(plan, 0), {}, {}, [x])


def test_a_check_that_fails_is_an_index_error() -> None:
    plan = single(Check("x", 4, False, "rows"), Copy("x", "y"), type=TensorType(i64, ()))
    assert run_plan(plan, {}, {}, [np.array(-(2**63))])
    with pytest.raises(IndexRangeError, match=r"index 7 of rows is out of range, expected 0..3"):
        run_plan(plan, {}, {}, [np.array(7)])


def test_what_does_not_fit_is_refused() -> None:
    x = rows(2, 3)
    with pytest.raises(InputError, match="got 2 inputs, expected 1"):
        run_plan(single(), {}, {}, [x, x])
    with pytest.raises(InputError, match=r"input x: got f32\[3, 2\], expected f32\[2, 3\]"):
        run_plan(single(), {}, {}, [x.T])
    with pytest.raises(UnsupportedError, match=r"call aten.add of the plan needs its framework"):
        run_plan(single(Call("aten.add", 0, ("x",), ("y",))), {}, {}, [x])
    with pytest.raises(VerifyError, match=r"buffer y is f32\[2, 3\], got f32\[3, 2\]"):
        run_plan(single(Host("transpose", {"permutation": (1, 0)}, ("x",), ("y",))), {}, {}, [x])
    late = Buffer("late", TensorType(f32, (dims.symbol("K"),)), storage.Dynamic())
    with pytest.raises(VerifyError, match="the sizes of late depend on K, which has no value yet"):
        run_plan(single(Zero("late"), more=(late,)), {}, {}, [x])
    beyond = Buffer("beyond", CACHE, storage.Arena("s0"))
    with pytest.raises(VerifyError, match="buffer beyond takes 24 bytes, and 0 are left of its memory"):
        run_plan(single(Zero("beyond"), more=(beyond,), slots=(Slot("s0", ()),)), {}, {}, [x])


def test_a_launch_of_another_grid_is_refused(network: tuple[Any, Lowered]) -> None:
    plan = network[1].plan
    number, step = next((n, s) for n, s in enumerate(plan.steps) if isinstance(s, Launch))
    variant = Variant(step.variants[0].kernel, Guard(), (999,), step.variants[0].arguments)
    wrong = replace(plan, steps=(*plan.steps[:number], replace(step, variants=(variant,)), *plan.steps[number + 1 :]))
    with pytest.raises(VerifyError, match=r"launch kernel_0: its grid \[999\] is not the \d+ points of the kernel"):
        answers(network, wrong)
