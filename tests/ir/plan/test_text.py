"""The text of plans: what is printed is read back to an equal plan; damaged text names its place."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Facts, Range
from ourcc.ir.errors import ParseError
from ourcc.ir.layout import Factor, Layout
from ourcc.ir.pairing import Pairing
from ourcc.ir.plan import (
    Buffer,
    Call,
    Check,
    CheckPlace,
    Copy,
    Guard,
    Host,
    Launch,
    Plan,
    Slot,
    StateDeclaration,
    Variant,
    Zero,
    from_json,
    storage,
    to_json,
)
from ourcc.ir.plan.parse import parse_plan
from ourcc.ir.plan.text import print_plan
from ourcc.ir.types import TensorType, bf16, f32, i64, string, u8
from ourcc.ir.winograd import Filtering

B, S, K = dims.symbol("B"), dims.symbol("S"), dims.symbol("K")

TEXT = """plan sm_90a (x: %b0, "the mask": %"b 1") -> (y: %b4, again: %b4) SYMBOLS {
  number S = %"b 1"
  input    %b0: f32[B, 2*S]
  input    %"b 1": i64[]
  constant %b2: f32[4, 16, 16] = @fc1.weight as d1/16 d0 d1%16 of [16, 64]
  constant %b5: bf16[64, 16] = @"fc 2" as n k over (k, n) of [16, 64]
  constant %b6: f32[3] = @bias
  constant %b7: f32[] = @scalar as  of []
  constant %b8: f32[4, 2, 20, 16] = @taps as d2 d0/16 d1 d0%16 of [32, 20, 3] filtered 2 along (2)
  constant %b9: u8[2, 3] = @codes as d0 d1 of [32, 40] paired 16 by 16 along (0, 1)
  arena    %b3: f32[B, max(4, S)] in s0
  output   %b4: f32[B, 16]
  dynamic  %d: i64[K]
  state    %kv: f32[8] of "k v"
  alias    %new: f32[4] of %kv at (16) strides (1)
  slot     s0 >= 6144*B, (B % 3) + 128
  slot     "s 1" above s0 >= 4
  slot     s2 above s0, "s 1" >= 8*B
  session  "k v": f32[8]
  zero %b3
  launch kernel_0 (%b0, _) -> (%b3) where (m = 2*S, n = 4) over (((B + 11) // 12), 6)   loc("fc1 (mlp.onnx)", "act")
  launch l0 (%b0, %b2) -> (%b3) {
    kernel even over (B) with (%b0, %b3, %b2, %w) sizes (B, S) warps 4 shared 100000 scratch 32 if CONDITIONS
    kernel any over () if contiguous %b3
    over (1)
  }   loc("two")
  host nonzero (%b0) -> (%d) {ATTRIBUTES} binds (K = size 0 of 0)
  host item (%d) -> (%b3)
  call "aten::add" key -3 (%b0) -> (%b3, %d) binds (K = size 0 of 1, S = value of 0)   loc("add")
  copy %b4 = %b3
  check %b3 of "the \\"indices\\"" size (2*S + 1) negative   loc("gather")
  check %b3 of ""
  check_place (min(4, S) - 1) of "axis 1 of \\"x\\"" size (B) negative   loc("select")
  check_place (2) of "axis 0" size (S)
  tie "k v" = %new
}
"""
TEXT = (
    TEXT.replace("SYMBOLS", "symbols { B in 1..32, S in -1.. divisor 16, K in .. } broadcasts { [B, S] }")
    .replace("CONDITIONS", "(S % 4) == 0 and B - 2 >= 0 and aligned %b0")
    .replace("ATTRIBUTES", 'count = K, axes = [1, -2], to = bf16, scale = -0.5, mode = "line\\n", none = none, ODD, z = complex(1.0, inf)')
    .replace("ODD", '"an odd one" = true')
)


def plan() -> Plan:
    packed = Layout(("d0", "d1"), (Factor("d1", 16), Factor("d0"), Factor("d1", 1, 16)))
    other = Layout(("k", "n"), (Factor("n"), Factor("k")))
    taps = Layout(("d0", "d1", "d2"), (Factor("d2"), Factor("d0", 16), Factor("d1"), Factor("d0", 1, 16)))
    flat = Layout(("d0", "d1"), (Factor("d0"), Factor("d1")))
    variants = (
        Variant("even", Guard((S % 4,), (B - 2,), ("b0",)), (B,), ("b0", "b3", "b2", "w"), (B, S), 4, 100_000, 32),
        Variant("any", Guard(contiguous=("b3",)), (), ("b0", "b2", "b3")),
        Variant("l0", Guard(), (1,), ("b0", "b2", "b3")),
    )
    tiled = Variant("kernel_0", Guard(), (dims.ceil_div(B, 12), 6), ("b0", "", "b3"))
    attrs = {"count": K, "axes": (1, -2), "to": bf16, "scale": -0.5, "mode": "line\n", "none": None, "an odd one": True}
    return Plan(
        "sm_90a",
        Facts({"B": Range(1, 32), "S": Range(-1, None), "K": Range(None, None)}, {"S": 16}, broadcasts=((B, S),)),
        (("x", "b0"), ("the mask", "b 1")),
        (("y", "b4"), ("again", "b4")),
        (
            Buffer("b0", TensorType(f32, (B, 2 * S)), storage.Input()),
            Buffer("b 1", TensorType(i64, ()), storage.Input()),
            Buffer("b2", TensorType(f32, (4, 16, 16)), storage.Constant("fc1.weight", packed, (16, 64))),
            Buffer("b5", TensorType(bf16, (64, 16)), storage.Constant("fc 2", other, (16, 64))),
            Buffer("b6", TensorType(f32, (3,)), storage.Constant("bias")),
            Buffer("b7", TensorType(f32, ()), storage.Constant("scalar", Layout((), ()), ())),
            Buffer("b8", TensorType(f32, (4, 2, 20, 16)), storage.Constant("taps", taps, (32, 20, 3), Filtering(2, (2,)))),
            Buffer("b9", TensorType(u8, (2, 3)), storage.Constant("codes", flat, (32, 40), Pairing(16, 16, (0, 1)))),
            Buffer("b3", TensorType(f32, (B, dims.maximum(S, 4))), storage.Arena("s0")),
            Buffer("b4", TensorType(f32, (B, 16)), storage.Output()),
            Buffer("d", TensorType(i64, (K,)), storage.Dynamic()),
            Buffer("kv", TensorType(f32, (8,)), storage.State("k v")),
            Buffer("new", TensorType(f32, (4,)), storage.Alias("kv", 16, (1,))),
        ),
        (Slot("s0", (6144 * B, 128 + B % 3)), Slot("s 1", (4,), ("s0",)), Slot("s2", (8 * B,), ("s0", "s 1"))),
        (
            Zero("b3"),
            Launch("kernel_0", (tiled,), ("b0", ""), ("b3",), ("fc1 (mlp.onnx)", "act"), (("m", 2 * S), ("n", 4))),
            Launch("l0", variants, ("b0", "b2"), ("b3",), ("two",)),
            Host("nonzero", {**attrs, "z": complex(1.0, float("inf"))}, ("b0",), ("d",), (("K", 0, 0),)),
            Host("item", {}, ("d",), ("b3",)),
            Call("aten::add", -3, ("b0",), ("b3", "d"), (("K", 1, 0), ("S", 0, -1)), ("add",)),
            Copy("b3", "b4"),
            Check("b3", 2 * S + 1, True, 'the "indices"', ("gather",)),
            Check("b3", None, False, ""),
            CheckPlace(dims.minimum(S, 4) - 1, B, True, 'axis 1 of "x"', ("select",)),
            CheckPlace(2, S, False, "axis 0"),
        ),
        (("S", "b 1"),),
        (StateDeclaration("k v", TensorType(f32, (8,))),),
        (("k v", "new"),),
    )


def test_every_statement() -> None:
    assert print_plan(plan()) == TEXT
    assert parse_plan(TEXT) == plan()
    assert from_json(to_json(plan())) == plan()


def test_order_is_kept() -> None:
    """That of symbols, which native code numbers, and of buffers, attributes, inputs, none of which dicts compare."""
    turned = parse_plan(TEXT.replace("B in 1..32, S in -1.. divisor 16", "S in -1.. divisor 16, B in 1..32"))
    assert list(turned.symbols.ranges) == ["S", "B", "K"] and turned == plan()
    assert list(parse_plan(print_plan(turned)).symbols.ranges) == ["S", "B", "K"]
    assert list(parse_plan(TEXT).steps[3].attrs) == ["count", "axes", "to", "scale", "mode", "none", "an odd one", "z"]


def test_comments_and_blanks_mean_nothing() -> None:
    spread = TEXT.replace("  zero %b3", "\n  # a comment\n\n  zero   %b3   # another")
    assert parse_plan(spread) == plan() and parse_plan("plan cpu()->(){}") == Plan("cpu", Facts(), (), (), (), (), ())


EMPTY = "plan cpu () -> () {\n  STATEMENT\n}"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "quux %b",
            "line 2, column 3: got 'quux', expected one of the statements input, output, constant, arena, dynamic, state",
        ),
        ("input b0: f32[2]", "line 2, column 9: got 'b0: f32[2]', expected '%'"),
        ("input %b0: f33[2]", "line 2, column 14: cannot read type 'f33[2]'"),
        ("input %b0: f32[+]", "line 2, column 14: in dimension '+': got '+', expected a number or a name"),
        ("arena %b0: f32[] at s0", "line 2, column 20: got 'at s0', expected 'in'"),
        ("constant %b0: f32[] = w", "line 2, column 25: got 'w', expected '@'"),
        ("constant %b0: f32[] = @w as d0", "line 2, column 31: got 'd0', expected a layout such as"),
        (
            "constant %b0: f32[] = @w as d0 d0 of [3]",
            "line 2, column 31: layout d0 d0: the factors of axis d0 do not",
        ),
        ("constant %b0: f32[] = @w as d0 d1 of [3]", "line 2, column 31: layout d0 d1: its axes are d0, each once"),
        ("constant %b0: f32[] = @w as d0 d1/2 d1%0 of [3, 4]", "line 2, column 31: "),
        ("constant %b0: f32[] = @w as d0 of [B]", "line 2, column 38: got 'B]', expected an integer"),
        ("constant %b0: f32[] = @w as d0 of [3] filtered 5 along (0)", "line 2, column 31: filtering of 5 places, expected one of 2"),
        ("constant %b0: f32[] = @w as d0 of [3] filtered 2 (0)", "line 2, column 52: got '(0)', expected 'along'"),
        ("constant %b0: u8[] = @w as d0 of [4] paired 4 along (0, 1)", "line 2, column 49: got 'along (0, 1)', expected 'by'"),
        (
            "constant %b0: u8[] = @w as d0 of [4] paired 4 by 1 along (0)",
            "line 2, column 30: pairing along the dimensions [0], expected one",
        ),
        ("slot s0 = 4", "line 2, column 11: got '= 4', expected '>='"),
        ("slot s1 above >= 4", "line 2, column 17: got '>= 4', expected a name"),
        ("slot s0 >=", "line 3, column 1: cannot read dimension '}'"),
        ("number 3 = %b", "line 2, column 10: got '3 = %b', expected a symbol"),
        ("launch k (%a) (%b) over (1)", "line 2, column 17: got '(%b) over (1)', expected '->'"),
        ("launch k (%a) -> (%b)", "expected 'over'"),
        ("launch k (%a) -> (%b) over (1", "line 3, column 1: got '}', expected ')'"),
        ("launch k (%a) -> (%b) over (1) warps many", "line 2, column 40: got 'many', expected an integer"),
        ("launch k (%a) -> (%b) over (1) if B > 0", "line 2, column 39: got '> 0', expected '>='"),
        ("launch k (%a) -> (%b) over (1) if B == 1", "line 2, column 42: got '1', expected '0'"),
        ("host h (%a) -> (%b) {a = 1, a = 2}", "line 2, column 32: attribute 'a' is given twice"),
        ("host h (%a) -> (%b) {a = " + "[" * 40 + "}", "attribute is nested more than 32 deep"),
        ("host h (%a) -> (%b) binds (K = axis 0 of 0)", "line 2, column 34: got 'axis 0 of 0)', expected 'size'"),
        ("call c (%a) -> (%b)", "line 2, column 10: got '(%a) -> (%b)', expected 'key'"),
        ("copy %a to %b", "line 2, column 11: got 'to %b', expected '='"),
        ("check %a subject", "line 2, column 12: got 'subject', expected 'of'"),
        ("check_place %a", "line 2, column 15: got '%a', expected '('"),
        ('check_place (3) of "x" (4)', "line 2, column 26: got '(4)', expected 'size'"),
        ("check %a of subject", "line 2, column 15: got 'subject', expected a quoted string"),
    ],
)
def test_damaged_text_names_its_place(statement: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_plan(EMPTY.replace("STATEMENT", statement))
    assert message in error.value.message


def test_a_text_that_ends_early_or_late() -> None:
    with pytest.raises(ParseError, match="line 2, column 1: got the end, expected a statement or '}'"):
        parse_plan("plan cpu () -> () {\n")
    with pytest.raises(ParseError, match="line 1, column 21: got 'plan', expected the end"):
        parse_plan("plan cpu () -> () {}plan")
    with pytest.raises(ParseError, match="line 1, column 1: got 'module', expected 'plan'"):
        parse_plan("module")


def test_strings_are_a_type_like_any() -> None:
    text = "plan cpu (x: %x) -> (x: %x) {\n  input    %x: string[2]\n}\n"
    assert parse_plan(text).buffers[0].type == TensorType(string, (2,)) and print_plan(parse_plan(text)) == text
