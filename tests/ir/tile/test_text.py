"""The text of tile programs: every word reads back to an equal structure, and errors name line and column."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ourcc.ir import types
from ourcc.ir.dims import symbol
from ourcc.ir.errors import ParseError
from ourcc.ir.expression import Constant
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Full, GridAxis, Launch, Let, TileProgram, TileType
from ourcc.ir.tile.text import text

EVERY_WORD = """
program @all.words symbols { B, N } {
  workspace %part: inout f32[s 4, i B]
  launch @first(%x: f32[i B, k N] strides (2*N, 1), %w: i8[j 64, k 32] as j/16 k/4 j%16 k%4, %part: out f32[s 4, i B]) {
    counter %f: i32[B // 4 + 1] = 0
    grid (s: 0..4, i: 0..B step 16) order grouped(4) handout persistent warps 8 cluster 2 {
      local %tile: f32[r 16, c 32] in shared
      local %copy: f32[r 16, c 32] in tensor
      local %laid: bf16[r 16, c 32] in cache as r/2 c r%2
      axis k in 0..min(N, 32) extent 32
      axis h in 0..16 extent 16
      axis u in 0..2 extent 2
      %x1 = load %x[i, k] {evict_last, streaming} else -inf : f32[i, k]
      store %tile[i.lane, k.lane] {streaming} = %x1
      copy %copy = %tile
      %half = split k -> (h, u) (%x1) : f32[i, h, u]
      %whole = merge (h, u) -> k (%half) : f32[i, k]
      %pairs = rename (h, u) -> (u, h) (%half) : f32[i, u, h]
      %low = slice 1 of k -> h (%x1) : f32[i, h]
      %joined = join u (reduce max u (%half) : f32[i, h], full(nan) : f32[i, h]) : f32[i, h, u]
      %sums = scan sum k reverse (%x1) : f32[i, k]
      %run = scan max k (%sums) : f32[i, k]
      %bytes = full(7) : u8[i, h]
      %bits = unpack(%bytes, h -> k, 4 low first) : u8[i, k]
      %dense = expand_2to4(reduce min u (%half) : f32[i, h], %bytes, h -> k) : f32[i, k]
      %acc = full(-0.0) : f32[i]
      %first = %acc : f32[i]
      for t in 0..%n.first // 2 by 3 carry (%acc, %first) unroll 2 stages 3 {
        %first = %acc : f32[i]
        %acc = dot(%dense, %x1, %acc, left_scale = full(2.0) : f32[k], right_scale = %x1, precision = tf32x3) : f32[i]
      }
      for ii in i step 8 tail (4, 1) {
        %chosen = where(lt(index(ii % 3 + ii.lane) : i64[ii], full(4) : i64) : bool[ii], full(1e-30) : f32, full(1.5) : f32) : f32[ii]
      }
      for q in i.first..i.first + 16 step 4 {
        if (full(true) : bool) carry (%acc) {
          %acc = cast(%acc) : f32[i]
        } else {
          signal %f[i.first // 4]
        }
      }
      wait %f[0] >= 3
      atomic add %part[s, i] = %acc
    }
  }
  launch @second() {
    grid () {
    }
  }
}
"""


def test_every_word_reads_back() -> None:
    program = parse(EVERY_WORD.replace("%n.first // 2", "max(B, 4) // 2"))
    assert parse(text(program)) == program
    assert len(program.launches) == 2 and program.launches[0].hint("order", "plain") == "grouped(4)"
    assert program.launches[0].param("w").layout is not None


def test_printing_is_stable_and_comments_are_dropped() -> None:
    program = parse(EVERY_WORD.replace("%n.first // 2", "B") + "# the end")
    once = text(program)
    assert text(parse(once)) == once
    assert "#" not in once
    assert "%w: i8[j 64, k 32] as j/16 k/4 j%16 k%4" in once
    assert "for ii in i step 8 tail (4, 1) {" in once


@pytest.mark.parametrize("dim", ["B // (2*N)", "B % (2*N)", "-1*B", "(B + 3) // 4 % 5", "max(B, N) - min(B, 3)", "B*N // 3", "(B // 4)*N"])
def test_index_expressions_read_back(dim: str) -> None:
    body = f"program @p symbols {{ B, N }} {{ launch @l() {{ grid () {{ for s in 0..{dim} {{ }} }} }} }}"
    program = parse(body)
    assert parse(text(program)) == program


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 1e-45, 1e300, 0.1, 7, True, -3])
def test_literals_read_back_to_the_same_bits(value: float) -> None:
    dtype = types.boolean if value is True else types.f64
    let = Let("a", Full(Constant(value, dtype), TileType(dtype)))
    program = TileProgram("p", (Launch("l", (), (), (let,)),))
    assert parse(text(program)) == program


def test_structure_tells_programs_apart_that_print_alike_in_part() -> None:
    program = parse(EVERY_WORD.replace("%n.first // 2", "B"))
    launch = program.launches[0]
    changed = replace(launch, grid=(GridAxis("s", 0, 4, 1), *launch.grid[1:]))
    assert parse(text(replace(program, launches=(changed,)))).launches[0] == changed != launch
    assert parse(text(program)).launches[0].grid[1].high == symbol("B")


ERRORS = {
    "program @p {": "line 1, column 13: got 'the end', expected",
    "launch @l() { }": "line 1, column 1: got 'launch', expected 'program'",
    "program p { }": "got 'p', expected a program name such as @main",
    "program @p { } x": "got 'x', expected the end",
    "program @p { launch @l(x: f32[i 4]) { grid () { } } }": "got 'x', expected a value such as %x",
    "program @p { launch @l(%x: f33[i 4]) { grid () { } } }": "got 'f33', expected an element type such as f32",
    "program @p { launch @l(%x: f32[i 4] as j) { grid () { } } }": "got 'j', expected a layout over the axes i",
    "program @p { launch @l(%x: f32[i 4 +]) { grid () { } } }": "got ']', expected an index expression",
    "program @p { launch @l(%x: f32[i (4]) { grid () { } } }": r"got ']', expected '\)'",
    "program @p {\n  launch @l() {\n    grid () {\n      jump\n": "line 4, column 7: got 'jump', expected a statement",
    "program @p { launch @l() { grid () { %a = 3 } } }": "got '3', expected a value",
    "program @p { launch @l() { grid () { %a = gelu(%b) } } }": "got 'gelu', expected a value: load, full, index",
    "program @p { launch @l() { grid () { %a = neg(%b) : f32 } } }": "line 1, column 47: %b is read but not defined here",
    "program @p { launch @l() { grid () { if (full(true) : bool) { %a = full(1) : f32 } %b = %a : f32 } } }": "%a is read but not defined",
    "program @p { launch @l() { grid () { %a = full(x) : f32 } } }": "got 'x', expected a literal",
    "program @p { launch @l() { grid () { %a = full(1) : f32 %b = dot(%a, %a, %a, fast = 1) : f32 } } }": "expected left_scale",
    "program @p { launch @l(%x: f32[i 4] as i/4) { grid () { } } }": "line 1: layout i/4: the factors of axis i do not",
    "program @p { launch @l() { grid () { axis i in 0..4 extent 1.5 } } }": "got '1.5', expected an integer",
    "program @p { launch @l() { grid () { axis i.first in 0..4 extent 1 } } }": "got 'i.first', expected an axis",
    "program @p { launch @l() { grid () { ; } } }": "line 1, column 38: cannot read",
    "program @p { launch @l() { grid () { " + "if (full(true) : bool) { " * 200: "nested more than 100 deep",
    "program @p { launch @l() { grid () { %a = " + "neg(" * 3000: "nested more than 100 deep",
}


@pytest.mark.parametrize("source", ERRORS, ids=range(len(ERRORS)))
def test_what_is_not_a_program_is_one_error(source: str) -> None:
    with pytest.raises(ParseError, match=ERRORS[source]):
        parse(source)


def test_no_prefix_of_a_program_is_anything_but_a_program_or_a_parse_error() -> None:
    source = EVERY_WORD.replace("%n.first // 2", "B")
    for end in range(0, len(source) - 5, 7):
        with pytest.raises(ParseError):
            parse(source[:end])
