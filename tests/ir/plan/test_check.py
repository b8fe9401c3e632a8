"""The checker passes right plans, and catches each of many classes of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ourcc.ir import dims
from ourcc.ir.errors import VerifyError
from ourcc.ir.plan import (
    Buffer,
    Check,
    Copy,
    Host,
    Launch,
    Plan,
    StateDeclaration,
    Step,
    Zero,
    from_json,
    reads,
    storage,
    to_json,
    touched,
    writes,
)
from ourcc.ir.plan.check import check
from ourcc.ir.plan.places import MOST_ABOVE, at_most
from ourcc.ir.types import TensorType, f16, f32

from .made import (
    CACHE,
    MODULES,
    ROWS,
    K,
    S,
    inserted,
    launch,
    lowered,
    made,
    moved,
    over,
    swapped,
    with_buffer,
    with_slot,
    with_step,
    without,
)

BYTES = dims.ceil_div(ROWS.nbytes, 64) * 64
PART = TensorType(f32, (8, 64))


def test_the_made_plan_is_right() -> None:
    check(made())
    assert from_json(to_json(made())) == made()


@pytest.mark.parametrize("target", ["native", "sm_90a"])
@pytest.mark.parametrize("name", MODULES)
def test_real_plans_are_right(name: str, target: str) -> None:
    check(lowered(name, target)[1].plan)


def in_place_too_early(plan: Plan) -> Plan:
    return with_step(plan, 8, launch("k4", ("kv", "c"), ("y",)))


def tied_to(name: str) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, ties=(("kv", name),))


def aliased(name: str, type: TensorType, held: storage.Alias) -> Callable[[Plan], Plan]:
    return lambda plan: with_buffer(plan, Buffer(name, type, held))


ADD = launch("add", ("x", "b"), ("b",))
"""Goes on with what `k1` wrote."""


def more(plan: Plan, *steps: Step) -> Plan:
    """With steps after `k1`, which writes b, and before `k2`, which reads it."""
    return replace(plan, steps=(*plan.steps[:4], *steps, *plan.steps[4:]))


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "slot freed a step early": (
        lambda plan: moved(plan, "b", storage.Arena("s0")),
        r"step 3 \(launch k1\): buffer b is written where the operand a of the same step lies, at bytes 0..256\*S of slot s0",
    ),
    "two live buffers in one slot": (
        lambda plan: moved(inserted(plan, 4, launch("early", ("x",), ("c",))), "c", storage.Arena("s1")),
        r"step 6 \(launch k2\): buffer b is read, and has been overwritten by step 4 \(launch early\), which uses c at",
    ),
    "slot too small by one byte": (
        lambda plan: with_slot(plan, "s2", 255),
        r"buffer work takes 256 bytes, which is not known to fit slot s2 of 255",
    ),
    "slot too small for large sizes only": (
        lambda plan: with_slot(plan, "s1", 256 * 511),
        r"buffer b takes 256\*S bytes, which is not known to fit slot s1 of 130816",
    ),
    "slot that shares bytes with one of a live buffer": (
        lambda plan: over(plan, "s3", ()),
        r"step 3 \(launch k1\): buffer a is read, and has been overwritten by step 2 \(zero count\), which uses count at bytes 0..16 of",
    ),
    "slot that shares bytes with one of another operand": (
        lambda plan: over(over(plan, "s2", ("s0", "s1")), "s1", ()),
        r"step 3 \(launch k1\): buffer b is written where the operand a of the same step lies, at bytes 0..256\*S of slot s0",
    ),
    "slot above itself": (lambda plan: over(plan, "s1", ("s1",)), "slot s1 of the arena lies above 's1', which is not declared before it"),
    "slots above more others than one plan may say": (
        lambda plan: over(plan, "s1", ("s0",) * (MOST_ABOVE + 1)),
        rf"slots of the arena lie above {MOST_ABOVE + 4} others, expected at most {MOST_ABOVE} in all",
    ),
    "slot that the arena lacks": (lambda plan: moved(plan, "b", storage.Arena("s9")), "buffer b lies in slot 's9', which the arena lacks"),
    "slot whose size no caller tells": (
        lambda plan: with_slot(plan, "s4", 64, 8 * K),
        "slot s4: its size depends on K, which has no value when the call begins",
    ),
    "missing copy": (
        lambda plan: without(plan, 10),
        "at the end of the plan: buffer z is read, and has not been written",
    ),
    "missing copy before a write in place": (
        lambda plan: without(plan, 6),
        r"step 6 \(launch append\): buffer new is read, and has not been written",
    ),
    "copy before its source is written": (
        lambda plan: swapped(plan, 9, 10),
        r"step 9 \(copy d to z\): the sizes of d depend on K, which has no value yet",
    ),
    "steps swapped": (
        lambda plan: swapped(plan, 1, 3),
        r"step 1 \(launch k1\): buffer count is a counter that is not zeroed: has not been",
    ),
    "read before write": (lambda plan: without(plan, 1), r"step 2 \(launch k1\): buffer a is read, and has not been written"),
    "output never written": (lambda plan: without(plan, 8), "at the end of the plan: buffer y is read, and has not been written"),
    "write into a constant": (
        lambda plan: with_step(plan, 1, launch("k0", ("x",), ("w", "a"))),
        r"step 1 \(launch k0\): buffer w is written, and lies in constant w, which is only read",
    ),
    "write into an input": (
        lambda plan: with_step(plan, 5, launch("k2", ("b",), ("x", "c"), ("count",))),
        r"step 5 \(launch k2\): buffer x is written, and lies in input x, which is only read",
    ),
    "workspace over a live value": (
        lambda plan: with_slot(moved(plan, "work", storage.Arena("s4")), "s4", 256),
        r"step 11 \(check worst\): buffer worst is read, and has been overwritten by step 3 \(launch k1\), which uses work",
    ),
    "workspace over an operand": (
        lambda plan: moved(with_slot(plan, "s1", BYTES, 256), "work", storage.Arena("s1")),
        r"step 3 \(launch k1\): buffer b is written where the operand work of the same step lies",
    ),
    "counter not zeroed again before a second launch": (
        lambda plan: without(plan, 4),
        r"step 4 \(launch k2\): buffer count is a counter that is not zeroed: has been overwritten by step 3 \(launch k1\)",
    ),
    "counter never zeroed": (
        lambda plan: without(without(plan, 4), 2),
        r"step 2 \(launch k1\): buffer count is a counter that is not zeroed: has not been written",
    ),
    "alias too long": (
        aliased("part", PART, storage.Alias("kv", 2049, (64, 1))),
        "alias part of kv: its offset 2049 is not known to be a multiple of the 4 bytes of an element",
    ),
    "alias that ends past its root": (
        aliased("part", PART, storage.Alias("kv", 2052, (64, 1))),
        "alias part of kv: it ends at byte 4100, which is not known to lie in the 4096 of its root",
    ),
    "alias with its offset past its root": (
        aliased("part", TensorType(f32, (1,)), storage.Alias("kv", 4096, (1,))),
        "alias part of kv: it ends at byte 4100, which is not known to lie in the 4096 of its root",
    ),
    "alias before its root": (
        aliased("part", TensorType(f32, (1,)), storage.Alias("kv", -4, (1,))),
        "alias part of kv: its offset or a stride is not known to be at least 0",
    ),
    "alias too long for large sizes only": (
        aliased("part", ROWS, storage.Alias("kv", 0, (64, 1))),
        r"alias part of kv: it ends at byte 256\*S, which is not known to lie in the 4096 of its root",
    ),
    "alias that strides too far": (
        aliased("part", PART, storage.Alias("kv", 0, (192, 1))),
        "alias part of kv: it ends at byte 5632, which is not known to lie in the 4096 of its root",
    ),
    "alias with two elements in one place": (
        lambda plan: inserted(
            with_buffer(plan, Buffer("part", PART, storage.Alias("kv", 0, (32, 1)))), 8, launch("part", ("c",), ("part",))
        ),
        r"step 8 \(launch part\): buffer part is written, and two of its elements may lie in one place",
    ),
    "alias of an alias": (
        aliased("part", PART, storage.Alias("new", 0, (64, 1))),
        "alias part of new: that is an alias itself, expected its root kv",
    ),
    "alias of nothing": (aliased("part", PART, storage.Alias("gone", 0, (64, 1))), "alias part of gone: the plan has no such buffer"),
    "alias of another rank": (
        aliased("part", PART, storage.Alias("kv", 0, (1,))),
        "alias part of kv: got 1 strides, expected 2",
    ),
    "in-place write while the old version is still read": (
        in_place_too_early,
        r"step 8 \(launch k4\): buffer kv is read, and has been overwritten by step 7 \(launch append\), which uses new",
    ),
    "in-place write beside the old version": (
        lambda plan: with_step(plan, 7, launch("append", ("kv", "c"), ("new",))),
        r"step 7 \(launch append\): buffer new is written where the operand kv of the same step lies",
    ),
    "part of a state written while the whole is read": (
        lambda plan: inserted(
            with_buffer(plan, Buffer("part", PART, storage.Alias("kv", 2048, (64, 1)))), 8, launch("part", ("c",), ("part",))
        ),
        r"step 9 \(launch k4\): buffer new is read, and has been overwritten by step 8 \(launch part\), which uses part at",
    ),
    "value begun anew that a step went on with": (
        lambda plan: more(plan, ADD, launch("again", ("a",), ("b",))),
        r"step 5 \(launch again\): buffer b is begun anew, and nobody has read what step 4 \(launch add\) went on with",
    ),
    "value zeroed that a step went on with": (
        lambda plan: more(plan, ADD, Zero("b"), ADD),
        r"step 5 \(zero b\): buffer b is begun anew, and nobody has read what step 4 \(launch add\) went on with",
    ),
    "value read before it is whole": (
        lambda plan: more(plan, launch("early", ("b",), ("y",)), ADD),
        r"step 5 \(launch add\): buffer b is gone on with, and step 4 \(launch early\) has read it before",
    ),
    "part of a value read before it is whole": (
        lambda plan: more(plan, ADD, Copy("b", "y"), ADD),
        r"step 6 \(launch add\): buffer b is gone on with, and step 5 \(copy b to y\) has read it before",
    ),
    "tie dropped": (
        lambda plan: replace(plan, ties=()),
        r"buffer kv the state 'kv' has been overwritten by step 7 \(launch append\), which uses new at .*, and no tie says what it holds",
    ),
    "tie dropped of a state that is written under its own name": (
        lambda plan: replace(plan, steps=(launch("append", ("x", "kv"), ("kv",)),), outputs=(), ties=()),
        "buffer kv the state 'kv' has been written, and no tie says what it holds",
    ),
    "tie of another buffer": (tied_to("y"), "buffer y is tied to the state 'kv' and is .* at bytes .* of output y, expected"),
    "tie of an older version": (tied_to("kv"), "at the end of the plan: buffer kv is read, and has been overwritten by step 7"),
    "tie of a part": (
        lambda plan: tied_to("part")(with_buffer(plan, Buffer("part", PART, storage.Alias("kv", 0, (64, 1))))),
        "buffer part is tied to the state 'kv' and is .* at bytes 0..2048 of state kv, expected",
    ),
    "tie of a state that is not there": (
        lambda plan: replace(plan, ties=(*plan.ties, ("gone", "new"))),
        "buffer new is tied to the state 'gone', which the plan does not declare",
    ),
    "two ties of one state": (lambda plan: replace(plan, ties=plan.ties * 2), "buffer new is tied to the state 'kv', and so is new"),
    "state of another type": (
        lambda plan: replace(plan, states=(StateDeclaration("kv", CACHE.with_dtype(f16)),)),
        "buffer kv is f32.2, 8, 64., expected f16.2, 8, 64., as the state 'kv' is",
    ),
    "state that is not declared": (
        lambda plan: replace(plan, states=()),
        "buffer kv holds the state 'kv', which the plan does not declare",
    ),
    "launch whose operand and result overlap": (
        lambda plan: moved(plan, "c", storage.Arena("s1")),
        r"step 5 \(launch k2\): buffer c is written where the operand b of the same step lies",
    ),
    "size used before its symbol is bound": (
        lambda plan: inserted(plan, 0, launch("late", ("x",), ("d",))),
        r"step 0 \(launch late\): the sizes of d depend on K, which has no value yet",
    ),
    "grid of a size that is not bound": (
        lambda plan: with_step(
            plan,
            1,
            replace(launch("k0", ("x", "w"), ("a",)), variants=(replace(launch("k0", ("x", "w"), ("a",)).variants[0], grid=(K,)),)),
        ),
        r"step 1 \(launch k0\): the sizes of kernel k0 depend on K, which has no value yet",
    ),
    "attribute of a size that is not bound": (
        lambda plan: with_step(plan, 9, Host("nonzero", {"count": K}, ("x",), (), ())),
        r"step 9 \(host nonzero\): its attributes depend on K, which has no value yet",
    ),
    "symbol bound twice": (
        lambda plan: inserted(plan, 10, plan.steps[9]),
        r"step 10 \(host nonzero\): it gives K a value, which has one already",
    ),
    "check of a size that is not bound": (
        lambda plan: inserted(plan, 1, Check("worst", K, False, "rows")),
        r"step 1 \(check worst\): the size that indices are checked against depends on K",
    ),
    "check of what has been overwritten": (
        lambda plan: moved(plan, "worst", storage.Arena("s0")),
        r"step 11 \(check worst\): buffer worst is read, and has been overwritten by step 1 \(launch k0\), which uses a",
    ),
    "copy of another type": (
        lambda plan: with_step(plan, 10, Copy("x", "z")),
        "buffer z is i64.2, K. and a copy of x, which is f32.S, 64.",
    ),
    "result that a variant does not take": (
        lambda plan: with_step(plan, 8, replace(launch("k4", ("new",), ()), writes=("y",))),
        r"step 8 \(launch k4\): buffer y kernel k4 writes it and does not take it",
    ),
    "result twice": (
        lambda plan: with_step(plan, 9, Host("nonzero", {}, ("x",), ("y", "y"))),
        r"step 9 \(host nonzero\): buffer y the step writes y, y, expected each of them once",
    ),
    "buffer that is not there": (
        lambda plan: with_step(plan, 8, launch("k4", ("gone",), ("y",))),
        r"step 8 \(launch k4\): buffer gone is no buffer of the plan",
    ),
    "input in the arena": (
        lambda plan: replace(plan, inputs=(("x", "a"),)),
        "input a of the plan: got arena, expected the caller's memory",
    ),
    "input that no caller gives": (
        lambda plan: with_step(with_buffer(plan, Buffer("x2", CACHE, storage.Input())), 8, launch("k4", ("x2", "c"), ("y",))),
        r"step 8 \(launch k4\): buffer x2 is read, and has not been written",
    ),
    "two buffers of one name": (lambda plan: with_buffer(plan, plan.buffers[0]), "two buffers of the plan have one name"),
    "two slots of one name": (lambda plan: replace(plan, slots=plan.slots * 2), "two slots of the plan have one name"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str) -> None:
    spoil, message = FAULTS[name]
    with pytest.raises(VerifyError, match=message):
        check(spoil(made()))


def test_a_value_may_be_gone_on_with_and_begun_anew_once_it_has_been_read() -> None:
    again, read = launch("again", ("a",), ("b",)), launch("early", ("b",), ("y",))
    check(more(made(), ADD, ADD))
    check(more(made(), ADD, read, again))
    check(more(made(), again, again, ADD))
    check(more(made(), read, again, ADD))


def test_launches_that_each_write_a_part_of_a_result_stay_in_order() -> None:
    """Each but the first goes on with what the earlier ones wrote, and the plan says so."""
    for target in ("native", "sm_90a"):
        plan = lowered("joined", target)[1].plan
        parts = [number for number, step in enumerate(plan.steps) if isinstance(step, Launch) and "b2" in step.writes]
        assert len(parts) == 2 and dict(plan.outputs)["y"] == "b2"
        check(plan)
        assert caught(swapped(plan, *parts)) and caught(without(plan, parts[0]))
        assert caught(inserted(plan, parts[1] + 1, plan.steps[parts[0]]))


# --- real plans -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["native", "sm_90a"])
def network(request: pytest.FixtureRequest) -> Plan:
    return lowered("network", request.param)[1].plan


def caught(plan: Plan) -> bool:
    try:
        check(plan)
    except VerifyError:
        return True
    return False


def lives(plan: Plan) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for name in touched(step):
            found[name] = (found.get(name, (number, 0))[0], number)
    return found


def test_every_step_of_a_real_plan_is_needed(network: Plan) -> None:
    assert len(network.steps) > 4 and any(isinstance(step, Copy) for step in network.steps)
    assert all(caught(without(network, number)) for number in range(len(network.steps)))


def test_steps_of_a_real_plan_swap_only_where_neither_needs_the_other(network: Plan) -> None:
    pairs = [(n, m) for n in range(len(network.steps)) for m in range(n + 1, len(network.steps))]
    dependent = [(n, m) for n, m in pairs if set(writes(network.steps[n])) & set(reads(network.steps[m]))]
    assert dependent and all(caught(swapped(network, n, m)) for n, m in dependent)


def test_buffers_of_a_real_plan_that_live_at_once_share_no_slot(network: Plan) -> None:
    alive = lives(network)
    held = {b.name: b.storage for b in network.buffers if isinstance(b.storage, storage.Arena)}
    assert len(set(held.values())) < len(held), "no slot is shared"
    assert not caught(network)
    together = [(a, b) for a in held for b in held if a != b and alive[a][0] <= alive[b][1] and alive[b][0] <= alive[a][1]]
    assert together and all(caught(moved(network, a, held[b])) for a, b in together)


def test_slots_of_a_real_plan_are_no_byte_smaller_than_what_lies_there(network: Plan) -> None:
    for buffer in network.buffers:
        if isinstance(buffer.storage, storage.Arena):
            assert caught(with_slot(network, buffer.storage.slot, buffer.type.nbytes - 1))
            assert caught(with_slot(network, buffer.storage.slot, 4 * 8 * 39)), "too small at 40 rows only"


def test_nothing_of_a_real_plan_may_be_written_into_what_is_only_read(network: Plan) -> None:
    fixed = [b.name for b in network.buffers if isinstance(b.storage, storage.Input | storage.Constant)]
    launches = [(n, step) for n, step in enumerate(network.steps) if isinstance(step, Launch)]
    for number, step in launches:
        for name in fixed:
            variants = tuple(replace(v, arguments=(*v.arguments, name)) for v in step.variants)
            assert caught(with_step(network, number, replace(step, variants=variants, writes=(*step.writes, name))))
            assert caught(with_step(network, number, replace(step, variants=variants))) == (name not in step.reads)


# --- proofs -----------------------------------------------------------------------------------------------------------


def cache_of(*parts: tuple[str, TensorType, storage.Alias]) -> Plan:
    """A plan that writes some parts of a state's memory, then reads the first of them."""
    first = parts[0][0]
    plan = with_buffer(made(), *(Buffer(*part) for part in parts))
    for name, _, _ in parts:
        plan = inserted(plan, 0, launch(f"write_{name}", ("x",), (name,))) if name == first else plan
    for name, _, _ in parts[1:]:
        plan = inserted(plan, 1, launch(f"write_{name}", ("x",), (name,)))
    plan = inserted(plan, len(parts), launch("read", (first,), ("y",)))
    return replace(plan, steps=plan.steps[: len(parts) + 1], outputs=(("y", "y"),), ties=())


@pytest.mark.parametrize(
    "other",
    [
        storage.Alias("kv", 2048, (64, 1)),  # the other half
        storage.Alias("kv", 32, (128, 1)),  # other columns of the same rows
        storage.Alias("kv", 480, (128, 1)),  # the last columns of the same rows
    ],
)
def test_parts_that_do_not_meet_live_side_by_side(other: storage.Alias) -> None:
    columns = TensorType(f32, (8, 8))
    one = storage.Alias("kv", 0, (64, 1) if other.offset == 2048 else (128, 1))
    plan = cache_of(("one", columns, one), ("other", columns, other))
    with pytest.raises(VerifyError, match="no tie says what it holds"):
        check(plan)


@pytest.mark.parametrize("offset", [0, 4, 28, 484])
def test_columns_that_meet_or_may_meet_overlap(offset: int) -> None:
    one, other = TensorType(f32, (8, 8)), TensorType(f32, (7, 8))
    plan = cache_of(("one", one, storage.Alias("kv", 0, (128, 1))), ("other", other, storage.Alias("kv", offset, (128, 1))))
    with pytest.raises(VerifyError, match="buffer one is read, and has been overwritten by step 1"):
        check(plan)


def test_rounding_up_is_seen_through() -> None:
    facts = dims.Facts({"S": dims.Range(0, None)})
    assert at_most(12 * S, dims.ceil_div(12 * S, 64) * 64, facts) and at_most(12 * S + 4, dims.ceil_div(12 * S, 64) * 64 + 4, facts)
    assert not at_most(12 * S + 1, dims.ceil_div(12 * S, 64) * 64, facts)
    # Multiples of 4 are rounded up by 60 at most.
    assert at_most(dims.ceil_div(12 * S, 64) * 64, 12 * S + 60, facts) and not at_most(dims.ceil_div(12 * S, 64) * 64, 12 * S + 59, facts)
    assert at_most(dims.ceil_div(7 * S, 64) * 64, 7 * S + 63, facts) and not at_most(dims.ceil_div(7 * S, 64) * 64, 7 * S + 62, facts)
