"""The rules of form of plans, each broken once in the text of a plan that keeps all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError, InternalError, VerifyError
from ourcc.ir.layout import Factor, Layout
from ourcc.ir.plan import Buffer, Copy, Plan, StateDeclaration, storage
from ourcc.ir.plan.parse import parse_plan
from ourcc.ir.plan.verify import verify
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.build_plan import verified
from ourcc.runtime.program import Program

PLAN = (Path(__file__).parent / "plans" / "every_step.plan").read_text()
STATEFUL = PLAN.replace(
    "  slot     s0",
    """  state    %kv: f32[8] of kv
  alias    %new: f32[8] of %kv at (0) strides (1)
  alias    %part: f32[8] of %x at (64) strides (1)
  dynamic  %unused: f32[8]
  session  kv: f32[8]
  slot     s0""",
).replace("\n}\n", "\n  copy %new = %kv\n  tie kv = %new\n}\n")


def test_a_plan_that_keeps_all_rules() -> None:
    plan = parse_plan(PLAN)
    verify(plan)
    assert verified(plan) is plan
    Program(plan)
    verify(parse_plan(STATEFUL))


def test_only_gpus_tell_of_what_a_check_asks() -> None:
    told = PLAN.replace("arena    %v: i64[] in s2", "verdict  %v: i64[]")
    verify(parse_plan(told))
    with pytest.raises(VerifyError, match="buffer %v of the plan is a verdict, which avx2 has none of: only GPUs have"):
        verify(parse_plan(told.replace("sm_90a", "avx2")))


CASES = [
    # symbols
    ("B in 1..32", "B in 33..32", "symbol B of the plan has the empty range 33..32"),
    ("B in 1..32", "nan in 0..1, B in 1..32", "symbol 'nan' of the plan is not a name that a size can have"),
    ("B in 1..32", "B in 1..32 divisor 0", "symbol 'B' of the plan has divisor 0, expected a declared symbol and 2 or more"),
    ("V in 0.. }", "V in 0.. } broadcasts { [B, Q] }", "a broadcast of the plan names the symbol Q, which the plan does not declare"),
    # names
    ("arena    %c", "arena    %t", "plan for sm_90a has two buffers of one name, t"),
    ("%text: s", '%"": s', "plan for sm_90a has a buffer without a name"),
    ("slot     s1 above s0", "slot     s0", "plan for sm_90a has two slots of one name, s0"),
    ("(x: %x, n: %n", "(x: %x, x: %n", "plan for sm_90a has two inputs of one name, x"),
    ("(x: %x, n: %n", "(x: %n, n: %n", "plan for sm_90a has two input buffers of one name, n"),
    ("d: %d, z", "y: %d, z", "plan for sm_90a has two outputs of one name, y"),
    # storage
    ("in s2", "in s3", "buffer %v of the plan lies in slot 's3', which the arena lacks"),
    ("s0 >= 64*((4*B*N + 63) // 64), 128", "s0 >= 4*B, 128", "buffer %t: f32[B, N] needs 4*B*N bytes, and its slot s0 has 4*B, 128"),
    ("s1 above s0", "s1 above s2", "slot s1 of the arena lies above 's2', which is not declared before it"),
    ("s1 above s0", "s1 above s1", "slot s1 of the arena lies above 's1', which is not declared before it"),
    ("s2 above s1 >= 8", "s2 above s1 >= 4", "buffer %v: i64[] needs 8 bytes, and its slot s2 has 4"),
    ("s2 above s1 >= 8", "s2 above s1 >= 8, -1", "slot s2 of the arena has -1 bytes"),
    ("s2 above s1 >= 8", "s2 above s1 >= 8, 8*K", "slot s2 of the arena depends on K, which is known only during a call"),
    ("s2 above s1 >= 8", "s2 above s1 >= 8, 8*Q", "slot s2 of the arena names the symbol Q, which the plan does not declare"),
    ("%c: i32[1]", "%c: i32[-1]", "buffer %c is i32[-1], expected no size below 0"),
    ("%c: i32[1]", "%c: i32[Q]", "buffer %c names the symbol Q, which the plan does not declare"),
    ("%c: i32[1]", "%c: i32[1000000, 1000000000]", "buffer %c has 4000000000000000 bytes, more than any memory"),
    ("%b: f32[64]", "%b: f32[B]", "buffer %b is a constant of the type f32[B], expected known sizes"),
    ("@bias", '@""', "buffer %b is a constant without a name"),
    ("@bias", "@bias of [64]", "buffer %b is a constant of [64] without a layout, expected no such sizes"),
    ("of [16, 64]", "of [16, 80]", "buffer %w is f32[4, 16, 16], expected [5, 16, 16], what d1/16 d0 d1%16 of [16, 80] takes"),
    ("d1%16 of [16, 64]", "d1%16 over (d1, d0) of [16]", "buffer %w is a constant of the sizes [16] in the layout d1/16 d0 d1%16"),
    ("of [16, 64]", "of [16, 64] filtered 2 along (1)", "filtering 2 along (1) of sizes [16, 64], expected 3 in each"),
    # inputs, outputs, numbers
    ("(x: %x", "(x: %q", "input 'x' of the plan names the buffer 'q', and the plan does not hold it"),
    ("y: %y", "y: %q", "output 'y' of the plan names the buffer 'q', and the plan does not hold it"),
    ("input    %n", "dynamic  %n", "input 'n' of the plan is %n, which lies in a dynamic"),
    ("n: %n, ", "", "buffer %n is an input, and the plan does not list it"),
    (", z: %z", "", "buffer %z is an output, and the plan does not list it"),
    ("number N = %n", "number Q = %n", "number Q names the symbol Q, which the plan does not declare"),
    ("number N = %n", "number N = %x", "takes N from the buffer 'x', expected an input that is i64[]"),
    ("number N = %n", "number N = %n\n  number N = %n", "plan for sm_90a has two numbers of one name, N"),
    # states and aliases
    ("session  kv", 'session  ""', "plan for sm_90a has a state without a name"),
    ("session  kv: f32[8]", "session  kv: f32[8]\n  session  kv: f32[8]", "plan for sm_90a has two states of one name, kv"),
    ("of kv", "of vk", "buffer %kv: f32[8] is the state 'vk', and the plan declares no such state"),
    ("session  kv: f32[8]", "session  kv: f32[9]", "buffer %kv: f32[8] is the state 'kv', and the plan declares f32[9]"),
    ("session  kv: f32[8]", "session  kv: f32[K]", "buffer %kv: f32[8] is the state 'kv', and the plan declares f32[K]"),
    ("session  kv: f32[8]", "session  kv: f32[8]\n  session  u: f32[K]", "state 'u' of the plan is K, where K has no value yet"),
    ("session  kv: f32[8]", "session  kv: f32[8]\n  session  u: f32[-1]", "state 'u' is f32[-1], expected no size below 0"),
    ("tie kv", "tie vk", "state 'vk' of the plan is tied to %new, expected a declared state and a buffer of the plan"),
    ("tie kv = %new", "tie kv = %z\n  tie kv = %z", "plan for sm_90a has two tied states of one name, kv"),
    ("tie kv = %new", "tie kv = %unused", "state 'kv' of the plan is tied to %unused, which no step writes"),
    ("of %kv at", "of %q at", "buffer %new is a part of %q, which the plan does not hold"),
    ("of %kv at", "of %new at", "buffer %new is a part of %new, which is an alias itself"),
    ("at (0) strides (1)", "at (0) strides (1, 1)", "buffer %new: f32[8] has 2 strides, expected one for each dimension"),
    ("at (0) strides", "at (Q) strides", "the place of buffer %new names the symbol Q, which the plan does not declare"),
    ("copy %new = %kv", "copy %part = %kv", "step 9 (copy) writes %part, which is an input"),
    ("where (m = B, n = N)", "where (m = B, m = N)", "step 2 (launch k1) gives the symbol m of its kernels two values"),
    (
        "where (m = B, n = N)",
        "where (nan = B)",
        "step 2 (launch k1) gives its kernels the symbol 'nan', which is not a name",
    ),
    ("where (m = B, n = N)", "where (m = K)", "step 2 (launch k1): symbol m of its kernels is K, where K has no value yet"),
    ("arena    %v: i64[] in s2", "verdict  %v: i64[1]", "buffer %v of the plan is a verdict of the type i64[1], expected i64[]"),
    # what every step must keep
    ("zero %c", "zero %q", "step 0 (zero) names the buffer 'q', and the plan does not hold it"),
    ("k1 (%t) -> (%y, %worst)", "k1 (%z) -> (%y, %worst)", "step 2 (launch k1) reads %z before any step has written it"),
    ("-> (%t) {", "-> (%t, %w) {", "step 1 (launch k0) writes %w, which is a constant"),
    ("copy %z = %d", "copy %x = %y", "step 8 (copy) writes %x, which is an input"),
    ("-> (%y, %worst) where", "-> (%y, %y) where", "step 2 (launch k1) writes one buffer twice"),
    ("-> (%v)", "-> (_)", "step 5 (call aten.item) writes a buffer without a name"),
    ("zero %c", "zero %z", "step 0 (zero) uses %z: i64[1, K], where K has no value yet"),
    ("zero %c", "zero %text", "step 0 (zero) has the strings of %text, which only a host step can have"),
    ("  copy %z = %d\n", "", "output 'z' of the plan is %z, which no step writes"),
    ("%text: string[2]", "%text: string[2]\n  dynamic %u: f32[U]", "buffer %u names the symbol U, which the plan does not declare"),
    # launches
    ("over (B, N)\n", "{\n}\n", "step 2 (launch k1) has no variant"),
    ("sizes (B, N) warps 8", "warps 8 if N >= 0", "step 1 (launch k0) may have no variant for a call: the last one must be unguarded"),
    ("(%b, %x, %w, %t, %c)", "(%b, %x, %w, %t)", "step 1 (launch k0) gives kernel k0 other buffers than kernel fast"),
    ("over (B, N)\n", "over (B) with (%t, %y)\n", "step 2 (launch k1) reads or writes %worst, which is not an argument of its kernels"),
    ("over (B, N)\n", "over (B) with (%t, %y, %worst, %x)\n", "step 2 (launch k1) has the argument %x, which is an input and not read"),
    ("over (B, N)\n", "over (B) with (%t, %y, %worst, _)\n", "step 2 (launch k1) names the buffer '', and the plan does not hold it"),
    ("over (B, N)\n", "over (K)\n", "step 2 (launch k1): kernel k1: its grid is K, where K has no value yet"),
    ("over (B, N)\n", "over (Q)\n", "step 2 (launch k1): kernel k1: its grid names the symbol Q, which the plan does not declare"),
    ("over (B, N)\n", "over (B) sizes (K)\n", "step 2 (launch k1): kernel k1: a size is K, where K has no value yet"),
    ("N % 16 == 0", "K % 16 == 0", "step 1 (launch k0): kernel fast: its guard is (K % 16), where K has no value yet"),
    ("aligned %x", "contiguous %n", "kernel fast: its guard asks about %n, which is not among its arguments"),
    ("warps 8", "warps -1", "step 1 (launch k0): kernel k0 has warps -1, expected 0 to 2147483647"),
    ("kernel fast", 'kernel ""', "step 1 (launch k0) has a kernel without a name"),
    # host steps and calls
    ("(K = size 1 of 0)", "(Q = size 1 of 0)", "step 4 (host nonzero): a bind names the symbol Q, which the plan does not declare"),
    ("(K = size 1 of 0)", "(B = size 1 of 0)", "step 4 (host nonzero) binds B, which has a value already"),
    ("(K = size 1 of 0)", "(K = size 1 of 1)", "step 4 (host nonzero) binds K by result 1, expected one of its 1 results"),
    ("(K = size 1 of 0)", "(K = size 2 of 0)", "binds K by size 2 of %d: i64[1, K], expected a dimension whose size is K"),
    ("(K = size 1 of 0)", "(K = value of 0)", "step 4 (host nonzero) binds K by the value of %d: i64[1, K], expected one integer"),
    (" binds (K = size 1 of 0)", "", "step 4 (host nonzero) uses %d: i64[1, K], where K has no value yet"),
    ("{count = K}", "{count = [V, 2]}", "step 4 (host nonzero): its attribute count is V, where V has no value yet"),
    # copies and checks
    ("%d: i64[1, K]", "%d: i32[1, K]", "step 8 (copy) copies %d: i32[1, K], expected the type of %z: i64[1, K]"),
    ("copy %z = %d", "copy %d = %d", "step 8 (copy) copies %d to itself"),
    ("copy %z = %d", 'copy %z = %""', "step 8 (copy) reads a buffer without a name, and only a host step's operand may be absent"),
    ("check %worst", "check %y", "step 3 (check) looks at %y: f32[B, 16], expected i64[]"),
    ("(V - N)", "(V - K*V*Q)", "step 6 (check_place): its place or size names the symbol Q, which the plan does not declare"),
    ("size (N) n", "size (K) n", "step 3 (check): its size is K, where K has no value yet"),
]


@pytest.mark.parametrize(("found", "instead", "message"), CASES, ids=[message[:60] for *_, message in CASES])
def test_each_rule(found: str, instead: str, message: str) -> None:
    text = PLAN if found in PLAN else STATEFUL
    assert text.count(found) == 1
    plan = parse_plan(text.replace(found, instead))
    with pytest.raises(VerifyError) as error:
        verify(plan)
    assert message in error.value.message
    if text is PLAN:
        with pytest.raises(EngineError) as refused:
            Program(plan)
        assert refused.value.message == error.value.message
    with pytest.raises(InternalError, match="building a plan failed: "):
        verified(plan)


def test_the_note_is_the_step() -> None:
    with pytest.raises(VerifyError) as error:
        verify(parse_plan(PLAN.replace("copy %z = %d", "copy %z = %z")))
    assert error.value.note == "copy %z = %z"


def test_what_only_a_plan_made_by_hand_can_say() -> None:
    plan = parse_plan(PLAN)
    with pytest.raises(VerifyError, match="plan has the axis 'i', and axes belong to kernels"):
        verify(replace(plan, symbols=replace(plan.symbols, extents={"i": 4})))
    with pytest.raises(VerifyError, match="symbol 'Q' of the plan has divisor 4, expected a declared symbol"):
        verify(replace(plan, symbols=replace(plan.symbols, divisors={"Q": 4})))
    large = replace(plan.steps[2], variants=(replace(plan.steps[2].variants[0], grid=(10**18,)),))
    with pytest.raises(VerifyError, match="its grid has a number beyond 999999999999999999"):
        verify(replace(plan, steps=(*plan.steps[:2], large, *plan.steps[3:])))
    with pytest.raises(VerifyError, match="slot s9 of the arena has no size"):
        verify(replace(plan, slots=(*plan.slots, replace(plan.slots[0], name="s9", sizes=()))))
    strange = storage.Constant("w", Layout(("d 0",), (Factor("d 0"),)), (4,))
    with pytest.raises(VerifyError, match=r"a constant in a layout of the axes .*, expected plain names"):
        verify(replace(plan, buffers=(*plan.buffers, Buffer("q", TensorType(f32, (4,)), strange))))
    divided = Buffer("q", TensorType(f32, (10 // (dims.symbol("B") - 1),)), storage.Arena("s1"))
    with pytest.raises(VerifyError, match="buffer %q"):
        verify(replace(plan, buffers=(*plan.buffers, divided)))


def test_the_time_grows_with_the_plan() -> None:
    """Every buffer and every step is looked at a bounded number of times: counted, not timed."""
    asked = 0

    class Counted(str):
        def __hash__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__hash__()

        __eq__ = str.__eq__

    def cost(count: int) -> int:
        nonlocal asked
        names = [Counted(f"b{n}") for n in range(count)]
        buffers = "".join(f"  dynamic %b{n}: f32[2]\n" for n in range(1, count))
        copies = "".join(f"  copy %b{n} = %b{n - 1}\n" for n in range(1, count))
        plan = parse_plan(f"plan cpu (x: %b0) -> () {{\n  input %b0: f32[2]\n{buffers}{copies}}}")
        counted = tuple(replace(buffer, name=name) for buffer, name in zip(plan.buffers, names, strict=True))
        plan = replace(plan, buffers=counted)
        asked = 0
        verify(plan)
        return asked

    assert cost(400) < 4.5 * cost(100)


def test_a_state_begins_as_a_constant_of_its_own_type() -> None:
    wide, narrow = TensorType(f32, (8,)), TensorType(f32, (3,))
    buffers = (
        Buffer("k", wide, storage.State("k")),
        Buffer("w", narrow, storage.Constant("w")),
        Buffer("v", wide, storage.Constant("v")),
        Buffer("y", wide, storage.Output()),
    )
    plan = Plan("cpu", dims.NO_FACTS, (), (("y", "y"),), buffers, (), (Copy("k", "y"),), (), (), (("k", "k"),))
    verify(replace(plan, states=(StateDeclaration("k", wide, "v"),)))
    verify(replace(plan, states=(StateDeclaration("k", wide, "elsewhere"),)))
    with pytest.raises(VerifyError, match=r"state 'k' of the plan begins as the constant 'w', f32\[3\], expected f32\[8\]"):
        verify(replace(plan, states=(StateDeclaration("k", wide, "w"),)))
