"""Every rule of the verifier: a program that breaks it alone, and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ourcc.ir import dims, types
from ourcc.ir.errors import UnsupportedError, VerifyError
from ourcc.ir.expression import Constant
from ourcc.ir.layout import row_major
from ourcc.ir.pairing import Pairing
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import (
    Counter,
    Dot,
    For,
    Full,
    GridAxis,
    Launch,
    Let,
    Load,
    Local,
    Made,
    Param,
    Ref,
    Store,
    TileApply,
    TileProgram,
    TileType,
)
from ourcc.ir.tile.program import Index as IndexValue
from ourcc.ir.tile.verify import verify
from ourcc.ir.winograd import Filtering

PARAMS = "%x: f32[i B, k 16], %n: i32[i B], %y: out f32[i B, k 16], %z: inout f32[i B], %c: inout i32[i B]"
HEAD = f"program @p symbols {{ B }} {{ launch @l({PARAMS}) {{ counter %f: i32[4] = 0 grid (p: 0..4, i: 0..B step 8) {{ "


def program(body: str) -> TileProgram:
    return parse(HEAD + "axis k in 0..16 extent 16 axis h in 0..8 extent 8 axis u in 0..2 extent 2 " + body + " } } }")


def broken(body: str, match: str, error: type[Exception] = VerifyError) -> None:
    with pytest.raises(error, match=match) as caught:
        verify(program(body))
    assert "note: in launch @l" in str(caught.value)


X = "%t = load %x[i, k] : f32[i, k]"
BYTES = "%b = cast(load %x[i, h] : f32[i, h]) : u8[i, h]"

RULES = {
    "not defined here": (
        "%a = full(1) : f32 if (full(true) : bool) { %b = full(1) : f32 } %c = index(%b) : i32",
        "which is not a value defined here",
    ),
    "bound again": ("%a = full(1) : f32 %a = full(2) : f32", "%a is defined already; only values that a block carries"),
    "bound inside": ("%a = full(1) : f32 for s in 0..4 { %a = full(2) : f32 }", "%a is defined already"),
    "carried type": (
        "%a = full(1) : f32 for s in 0..4 carry (%a) { %a = full(2) : f32[i] }",
        r"%a is carried as f32 and bound again as f32\[i\]",
    ),
    "carry unknown": ("for s in 0..4 carry (%a) { }", "%a is carried but no value of that name is defined before"),
    "carry inside": (
        "%a = full(1) : f32 for s in 0..4 { for t in 0..2 carry (%a) { %a = full(2) : f32 } }",
        "%a is carried by a block inside one that does not carry it",
    ),
    "value named as operand": ("%x = full(1) : f32", "%x is defined already"),
    "axis open": ("axis i in 0..4 extent 4", "axis i is open already"),
    "axis as symbol": ("axis B in 0..4 extent 4", "axis B has the name of a symbol"),
    "axis extent": ("axis r in 0..4 extent 0", "axis r has extent 0, expected at least 1"),
    "axis name": ("axis max in 0..4 extent 4", "axis name 'max' is not a plain name"),
    "vector bound": ("for s in 0..i { }", "range of loop s varies over the lanes of i, expected one integer"),
    "axis bound": ("axis r in i..B extent 4", "range of axis r varies over the lanes of i"),
    "unknown name": ("for s in 0..N { }", "range of loop s names N, which is neither a symbol nor an axis open here"),
    "lane of scalar": ("%a = index(p.first) : i32", "index names p.first, but p is one integer"),
    "float subscript": ("%a = full(1) : f32 %b = load %x[%a, 0] : f32", "names %a of f32, expected an integer"),
    "step": ("for s in 0..4 by 0 { }", "loop over s has step 0, expected at least 1"),
    "walk": ("for s in 0..4 { for r in s step 4 { } }", "loop over r walks s, expected a tile axis"),
    "ladder": ("for r in i step 4 tail (4, 1) { }", r"the ladder \(4, 4, 1\) does not fall"),
    "ladder zero": ("for r in i step 4 tail (0) { }", r"the ladder \(4, 0\) does not fall to at least 1"),
    "ladder of scalars": ("for s in 0..4 by 3 tail (1) { }", "loop over s runs a scalar and has a tail"),
    "condition": ("if (full(1) : i32) { }", "condition is i32, expected one bool"),
    "condition per lane": ("if (lt(index(i) : i32[i], full(3) : i32) : bool[i]) { }", r"condition is bool\[i\], expected one bool"),
    "local extent": ("local %r: f32[r B] in cache", "local %r: extent r is B, expected a positive constant"),
    "local layout": (
        "local %r: bf16[r 7] in cache as r/2 r%2",
        "local %r: extent r is 7, expected a multiple of 2, as the layout r/2 r%2 has",
    ),
    "local space": ("local %r: f32[r 8] in attic", "local %r is in 'attic', expected one of: register"),
    "local dtype": ("local %r: c64[r 8] in cache", "local %r is c64, which tile programs do not hold"),
    "copy operand": ("local %r: f32[r 8] in cache copy %r = %x", "copy %r = %x, expected two locals"),
    "copy type": ("local %r: f32[r 8] in cache local %q: f32[r 9] in cache copy %r = %q", "expected the same type"),
    "store outside": (
        "local %r: f32[r 1] in cache store %r[i.lane] = full(1) : f32[i]",
        "store to %r: subscript i.lane is not proved to be below 1",
    ),
    "store below": (
        "local %r: f32[r 64] in cache store %r[i.lane - 1] = full(1) : f32[i]",
        "store to %r: subscript .* is not proved to be 0 or more",
    ),
    "store input": ("store %x[i, 0] = full(1) : f32[i]", "store to %x, which is an input"),
    "store counter": ("store %f[0] = full(1) : i32", "%f is a counter, expected an operand or a local"),
    "store rank": ("store %y[i] = full(1) : f32[i]", "store to %y has 1 subscripts, expected 2"),
    "store dtype": ("store %y[i, 0] = full(1) : f16[i]", "store of f16 to %y of f32"),
    "store lanes": ("store %y[i, 0] = full(1) : f32[i, k]", r"all lanes of \[k\] would write one element"),
    "store axes": ("store %y[i, k] = full(1) : f32[i]", r"subscripts over \[i, k\], the value has \[i\]"),
    "atomic word": ("atomic xor %c[i] = full(1) : i32[i]", "atomic 'xor' is unknown, expected one of: add, max, min"),
    "atomic role": ("local %r: i32[r 8] in cache atomic add %r[i.lane] = full(1) : i32[i]", "atomic add on %r, expected an inout operand"),
    "atomic float": ("atomic add %z[i] = full(1) : f32[i]", "atomic add on f32, expected an integer type"),
    "counter": ("signal %x[0]", "%x is not a counter of launch @l"),
    "counter rank": ("signal %f[0, 1]", "counter %f has 2 subscripts, expected 1"),
    "counter lanes": ("signal %f[i]", "subscript of %f varies over the lanes of i"),
    "wait ahead": ("signal %f[p] wait %f[p] >= 1", r"wait for %f\[p\] is not proved to be below p"),
    "signal order": ("signal %f[3 - p] wait %f[0] >= 1", "signal %f.* is not in the order of grid points"),
    "load output": ("%a = load %y[i, k] : f32[i, k]", "load of %y, which is an output"),
    "load counter": ("%a = load %f[0] : i32", "%f is a counter, expected an operand or a local"),
    "load rank": ("%a = load %x[i] : f32[i]", "load of %x has 1 subscripts, expected 2"),
    "load dtype": ("%a = load %x[i, k] : f16[i, k]", r"load of %x of f32 has type f16\[i, k\]"),
    "load axes": ("%a = load %x[i, 0] : f32[i, k]", r"load of %x varies over \[i\], its type is f32\[i, k\]"),
    "load unknown": ("%a = load %q[i] : f32[i]", "operand %q is not declared here"),
    "index axes": ("%a = index(i) : i32", r"index varies over \[i\], its type is i32"),
    "index dtype": ("%a = index(i) : f32[i]", r"index has type f32\[i\], expected an integer type"),
    "type twice": ("%a = full(1) : f32[i, i]", "names an axis twice"),
    "type scalar": ("%a = full(1) : f32[p]", "names p, which is one integer, expected tile axes"),
    "type closed": ("%a = full(1) : f32[r]", "axis r is not open here"),
    "complex": ("%a = full(1) : c64", "value is c64, which tile programs do not hold"),
    "arity": (X + " %a = add(%t) : f32[i, k]", "add has 1 operands, expected 2"),
    "broadcast": (X + " %a = neg(%t) : f32[i]", r"neg varies over \[i, k\], its type is f32\[i\]"),
    "mixed": (X + " %a = add(%t, full(1) : f16) : f32[i, k]", "add has operands of f16 and f32, expected one element type"),
    "result": (X + " %a = lt(%t, %t) : f32[i, k]", r"lt of f32 has type f32\[i, k\], expected bool"),
    "result same": (X + " %a = add(%t, %t) : f16[i, k]", "add of f32 has type f16"),
    "where": (X + " %a = where(%t, %t, %t) : f32[i, k]", r"where: the condition is f32\[i, k\], expected bool"),
    "bitcast": (X + " %a = bitcast(%t) : i16[i, k]", "bitcast from f32 to i16, expected the same width"),
    "round": (X + " %a = round(%t) : i16[i, k]", "round of f32 to i16, expected f32 to a narrower float"),
    "dot accumulator": (X + " %a = dot(%t, %t, full(0) : f32[i]) : f32", r"accumulator of f32\[i\] and type f32, expected the same"),
    "dot extra": (X + " %a = dot(%t, %t, full(0) : f32[h]) : f32[h]", r"the accumulator f32\[h\] has an axis that neither"),
    "dot nothing": (X + " %a = dot(%t, %t, %t) : f32[i, k]", "contracts no axis"),
    "dot one side": (X + " %a = dot(%t, full(1) : f32[i], full(0) : f32[i]) : f32[i]", "dot contracts k, which only one of"),
    "dot mixed": (X + " %a = dot(%t, full(1) : i32[i, k], full(0) : f32[i]) : f32[i]", "expected all floats or all integers"),
    "dot narrow": (X + " %a = dot(%t, %t, full(0) : f16[i]) : f16[i]", "dot of f32 and f32 into the narrower f16"),
    "dot precision": (X + " %a = dot(%t, %t, full(0) : f32[i], precision = fast) : f32[i]", "dot precision 'fast' is unknown"),
    "dot tf32": (
        "%a = dot(full(1) : f16[i, k], full(1) : f16[i, k], full(0) : f32[i], precision = tf32) : f32[i]",
        "dot precision tf32 on f16 and f16 into f32, expected f32 throughout",
    ),
    "dot scale": (
        X + " %a = dot(%t, %t, full(0) : f32[i], left_scale = full(1) : f32[k, h]) : f32[i]",
        r"dot scale of f32\[k, h\] on f32\[i, k\]",
    ),
    "dot scale of integers": (
        X + " %a = dot(%t, %t, full(0) : f32[i], left_scale = full(1) : i32[i]) : f32[i]",
        r"dot scale of i32\[i\] on f32\[i, k\]",
    ),
    "dot scale of the other operand": (
        X + " %a = dot(%t, full(1) : f32[h, k], full(0) : f32[i, h], left_scale = full(1) : f32[h]) : f32[i, h]",
        r"dot scale of f32\[h\] on f32\[i, k\]",
    ),
    "dot scale of uneven blocks": (
        X + " axis b in 0..3 extent 3 %a = dot(%t, %t, full(0) : f32[i], left_scale = full(1) : f32[b]) : f32[i]",
        r"dot scale of f32\[b\] on f32\[i, k\]",
    ),
    "dot scale of two sums": (
        X + " %a = dot(%t, %t, full(0) : f32, left_scale = full(1) : f32[h]) : f32",
        r"dot scale of f32\[h\] on f32\[i, k\]",
    ),
    "reduce kind": (X + " %a = reduce mean k (%t) : f32[i]", "reduce 'mean' is unknown, expected one of: sum"),
    "reduce axis": (X + " %a = reduce sum h (%t) : f32[i]", "reduce sum over h, which .* lacks"),
    "reduce axes": (X + " %a = reduce sum k (%t) : f32[i, k]", r"reduce sum k varies over \[i\]"),
    "reduce dtype": (X + " %a = reduce sum k (%t) : f64[i]", r"reduce sum of f32\[i, k\] has type f64\[i\], expected f32"),
    "reduce bool": (X + " %a = reduce any k (%t) : f32[i]", r"reduce any of f32\[i, k\], expected bool"),
    "argmax": (X + " %a = reduce argmax k (%t) : f32[i]", r"reduce argmax has type f32\[i\], expected an integer type"),
    "scan kind": (X + " %a = scan all k (%t) : f32[i, k]", "scan 'all' is unknown"),
    "split size": (X + " %a = split k -> (h, i) (%t) : f32[i, h]", r"i would be an axis of f32\[i, k\] twice"),
    "merge axis": (X + " %a = merge (h, u) -> k (%t) : f32[i, k]", "names h, u, which it lacks"),
    "rename size": (X + " %a = rename k -> h (%t) : f32[i, h]", r"reshape to \(h\) has 8 elements, expected 16"),
    "rename dtype": (X + " %a = split k -> (h, u) (%t) : i32[i, h, u]", r"has type i32\[i, h, u\], expected f32"),
    "slice into its own axis": (X + " %a = slice 1 of k -> i (%t) : f32[i]", r"i would be an axis of f32\[i, k\] twice"),
    "rename into its own axis": (X + " %a = rename k -> i (%t) : f32[i]", r"i would be an axis of f32\[i, k\] twice"),
    "slice part": (X + " %a = slice 2 of k -> h (%t) : f32[i, h]", "slice 2 of 16 elements has 8, expected one of equal parts"),
    "slice number": (X + " %a = slice 1 of k -> k (%t) : f32[i, k]", "slice 1 of 16 elements has 16, expected one of equal parts"),
    "slice axis": (X + " %a = slice 0 of h -> k (%t) : f32[i, k]", "names h, which it lacks"),
    "slice axes": (X + " %a = slice 0 of k -> u (%t) : f32[u, k]", r"slice varies over \[i, u\]"),
    "slice dtype": (X + " %a = slice 0 of k -> u (%t) : i32[i, u]", r"has type i32\[i, u\], expected f32"),
    "join type": (X + " %a = join u (%t, full(1) : f32[i]) : f32[i, k, u]", "expected the same type"),
    "join axis": (X + " %a = join u (%t, %t) : f32[u, i, k]", "expected u as its last axis"),
    "unpack": (X + " %a = unpack(%t, k -> h, 4 low first) : u8[i, h]", "expected bytes to 1, 2 or 4 bits"),
    "unpack bits": (BYTES + " %a = unpack(%b, h -> k, 3 low first) : u8[i, k]", "to 3 bits as .*, expected bytes to 1, 2 or 4 bits"),
    "unpack size": (BYTES + " %a = unpack(%b, h -> k, 2 low first) : u8[i, k]", "has 16 elements, expected 32"),
    "expand positions": (
        BYTES + " %a = expand_2to4(%b, full(1) : f32[i, h], h -> k) : u8[i, k]",
        "has positions .*, expected integers over the same axes",
    ),
    "expand size": (
        BYTES + " axis r in 0..6 extent 6 %a = expand_2to4(%b, %b, h -> r) : u8[i, r]",
        "of extent 6, expected a multiple of 4",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_one_sentence(rule: str) -> None:
    body, match = RULES[rule]
    broken(body, match, UnsupportedError if "do not hold" in match else VerifyError)


def test_the_sound_pieces_of_these_programs_pass() -> None:
    verify(program(X + " %a = add(%t, full(1) : f32) : f32[i, k] store %y[i, k] = %a atomic add %c[i] = load %n[i] : i32[i]"))
    verify(program(X + " %a = split k -> (h, u) (%t) : f32[i, h, u] %b = merge (h, u) -> k (%a) : f32[i, k]"))
    verify(program("if (lt(full(0) : i32, index(p) : i32) : bool) { wait %f[p - 1] >= 1 } signal %f[p]"))


SCALAR = TileType(types.f32)


def launched(*body: object, **changes: object) -> TileProgram:
    launch = Launch("l", (Param("y", types.f32, (("i", 4),), "out"),), (GridAxis("i", 0, 4, 4),), body)  # type: ignore[arg-type]
    return TileProgram("p", (replace(launch, **changes),))  # type: ignore[arg-type]


A_PARAM = Param("a", types.f32, (("i", 4),))

BUILT = {
    "reference": (launched(Let("a", Ref("b", SCALAR))), "%b is read but not defined here"),
    "reference type": (
        launched(Let("a", Full(Constant(1, types.f32), SCALAR)), Let("b", Ref("a", TileType(types.f16)))),
        "%a is f32 and read as f16",
    ),
    "full": (launched(Let("a", Full(Constant(1, types.f16), SCALAR))), "full of f16 has type f32"),
    "primitive": (launched(Let("a", TileApply("gelu", (), types.f32, type=SCALAR))), "'gelu' is not a scalar primitive"),
    "apply type": (
        launched(Let("a", TileApply("neg", (Full(Constant(1, types.f32), SCALAR),), types.f16, type=SCALAR))),
        "neg to f16 has type f32",
    ),
    "else": (
        launched(Let("a", Load("a", (0,), SCALAR, Constant(0, types.f16))), params=(A_PARAM,)),
        "load of %a of f32 has an else of f16",
    ),
    "loop kind": (launched(For("s", "parallel", 0, 4, 1, ())), "loop over s is of kind 'parallel', expected tile, scalar or walk"),
    "walk range": (launched(For("s", "walk", 0, 4, 1, (), "i")), "loop over s walks i and has a range of its own"),
    "role": (launched(params=(replace(A_PARAM, role="ref"),)), "operand %a has role 'ref', expected one of: in, out, inout"),
    "twice": (launched(params=(A_PARAM, A_PARAM)), "operand %a is declared twice"),
    "counter twice": (launched(params=(A_PARAM,), counters=(Counter("a", 4),)), "operand %a is declared twice"),
    "operand name": (launched(params=(replace(A_PARAM, name="a b"),)), "operand name 'a b' is not a plain name"),
    "operand dtype": (launched(params=(replace(A_PARAM, dtype=types.string),)), "operand %a is string, which tile programs do not hold"),
    "both": (launched(params=(replace(A_PARAM, layout=row_major(("i",)), strides=(1,)),)), "has both a layout and strides"),
    "layout axes": (launched(params=(replace(A_PARAM, layout=row_major(("j",))),)), "the layout's axes are .* expected its labels"),
    "made of nothing": (
        launched(params=(replace(A_PARAM, made=Made("q", Filtering(2, (0,)))),)),
        "operand %a is made of %q, expected another",
    ),
    "made of another dtype": (
        launched(params=(A_PARAM, replace(A_PARAM, name="b", dtype=types.f16, made=Made("a", Filtering(2, (0,)))))),
        "operand %b: what is filtered 2 along .* of %a is f32",
    ),
    "paired and no codes": (
        launched(params=(A_PARAM, replace(A_PARAM, name="b", dtype=types.u8, made=Made("a", Pairing(4, 4, (0, 1)))))),
        "pairing of f32, expected i8",
    ),
    "made of other sizes": (
        launched(
            params=(replace(A_PARAM, dims=(("i", 3),)), replace(A_PARAM, name="b", dims=(("i", 5),), made=Made("a", Filtering(2, (0,)))))
        ),
        "operand %b: what is filtered 2 along .* of %a has other sizes",
    ),
    "strides": (launched(params=(replace(A_PARAM, strides=(1, 2)),)), "operand %a has 2 strides, expected 1"),
    "shape": (launched(params=(replace(A_PARAM, dims=(("i", dims.symbol("N")),)),)), "shape of operand %a names N, which is neither"),
    "counter extent": (launched(counters=(Counter("f", dims.symbol("N")),)), "extent of counter %f names N"),
    "grid twice": (launched(grid=(GridAxis("i", 0, 4), GridAxis("i", 0, 4))), "grid axis i is declared twice"),
    "grid step": (launched(grid=(GridAxis("i", 0, 4, 0),)), "grid axis i has step 0, expected at least 1"),
    "grid bound": (launched(grid=(GridAxis("i", 0, 4), GridAxis("j", 0, dims.symbol("i")))), "range of grid axis j names i"),
    "launch name": (launched(name="a b"), "launch name 'a b' is not made of"),
    "program name": (replace(launched(), name="a b"), "program name 'a b' is not made of"),
    "symbol name": (replace(launched(), symbols=("a b",)), "symbol name 'a b' is not a plain name"),
    "no launch": (TileProgram("p", ()), "program @p has no launch, expected at least one"),
    "workspace": (replace(launched(), workspaces=(A_PARAM,)), "workspace %a is not an operand of any launch"),
    "workspace read": (
        replace(launched(params=(A_PARAM,)), workspaces=(A_PARAM,)),
        "workspace %a is read by the first launch that names it",
    ),
    "workspace type": (
        replace(launched(params=(replace(A_PARAM, dtype=types.f16, role="out"),)), workspaces=(A_PARAM,)),
        "operand %a of launch @l differs from its first declaration",
    ),
    "local name": (launched(Local("a b", types.f32, (("r", 4),), "cache")), "value name 'a b' is not a plain name"),
    "store name": (launched(Store("q", (0,), Full(Constant(1, types.f32), SCALAR))), "operand %q is not declared here, expected one of: y"),
    "nested": (launched(Let("a", Dot(Ref("l", SCALAR), Ref("r", SCALAR), Ref("c", SCALAR), SCALAR))), "%l is read but not defined here"),
    "index": (launched(Let("a", IndexValue(dims.symbol("%q"), TileType(types.i32)))), "index names %q, which is not a value defined here"),
}


@pytest.mark.parametrize("rule", BUILT)
def test_a_rule_that_text_cannot_break_is_one_sentence(rule: str) -> None:
    built, match = BUILT[rule]
    with pytest.raises((VerifyError, UnsupportedError), match=match):
        verify(built)
