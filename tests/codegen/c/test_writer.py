"""The text of a kernel: what does not change over a tile is computed before the loop over it, and nothing else is."""

from __future__ import annotations

from ourcc.codegen.c.library import Library
from ourcc.codegen.c.writer import Writer
from ourcc.ir.target import AVX512


def lines(writer: Writer) -> list[str]:
    return [line.strip() for line in writer.blocks[0].lines]


def test_what_stays_as_it_is_over_a_tile_is_computed_before_it() -> None:
    writer = Writer(Library(AVX512, {}))
    writer.open("for (int64_t s1 = 0; s1 < 8; s1 += 1)")
    writer.bind("i.first", "s1")
    row, _ = writer.position(0, 3)
    writer.open(f"for (int64_t {row} = 0; {row} < 4; ++{row})", is_tile=True)
    writer.bind(f"@{row}", row)
    column, _ = writer.position(0, 7)
    writer.open(f"for (int64_t {column} = 0; {column} < 8; ++{column})", is_tile=True)
    writer.bind(f"@{column}", column)
    bias = writer.define("float", "x_b[s1]")
    doubled = writer.define("float", f"{bias} * 2")
    scale = writer.define("float", f"x_s[{row}]")
    each = writer.define("float", f"x_a[{column}] * {scale} + {doubled}")
    kept = writer.define("float", "v9 + 1")
    for _ in range(3):
        writer.close()
    text = lines(writer)
    outer, inner = (
        text.index(f"for (int64_t {row} = 0; {row} < 4; ++{row}) {{"),
        text.index(f"for (int64_t {column} = 0; {column} < 8; ++{column}) {{"),
    )
    places = {name: next(n for n, line in enumerate(text) if line.startswith(f"const float {name} ")) for name in (bias, doubled, scale)}
    assert 0 < places[bias] < places[doubled] < outer < places[scale] < inner
    assert text.index(f"const float {each} = x_a[{column}] * {scale} + {doubled};") > inner
    assert text.index(f"const float {kept} = v9 + 1;") > inner, "a value that may change is read where it stands"


def test_what_a_condition_guards_stays_behind_it() -> None:
    writer = Writer(Library(AVX512, {}))
    writer.bind("i.first", "s1")
    writer.open("for (int64_t p0 = 0; p0 < 4; ++p0)", is_tile=True)
    writer.open("if (s1 < 3)")
    name = writer.define("float", "x_a[s1]")
    writer.close()
    writer.close()
    assert lines(writer) == ["for (int64_t p0 = 0; p0 < 4; ++p0) {", "if (s1 < 3) {", f"const float {name} = x_a[s1];", "}", "}"]
