"""Tables in a width: no line is longer, numbers are never cut, and what is left out is said."""

from __future__ import annotations

import random
from dataclasses import replace

from ourcc.compiler.report.fit import columns_of, fit, wrap
from ourcc.compiler.report.table import Table

WIDE = Table(
    "t",
    ("name", "size", "notes", "place", "nothing"),
    (("a" * 50, 1234567, "b" * 60, "c" * 60, None), ("层" * 20, 2, "x", "y", None)),
    brief=("name", "size"),
)


def test_all_is_shown_where_there_is_room() -> None:
    lines = fit(WIDE, None)
    assert "place" in lines[0] and "nothing" not in lines[0] and "c" * 60 in lines[2]
    assert len(lines) == 4


def test_brief_columns_are_kept_and_the_rest_is_named() -> None:
    lines = fit(WIDE, 80)
    assert lines[0].split() == ["name", "size"] and "1234567" in lines[2]
    last = "(left out for want of room: notes, place; --wide shows everything, --json too)"
    assert lines[-1] == last
    # It is the last word, behind what the columns mean.
    noted = fit(replace(WIDE, notes=("place: where it is",)), 80)
    assert noted[-2:] == ["place: where it is", last] and fit(replace(WIDE, notes=("n",)), None)[-1] == "n"


def test_names_are_cut_before_numbers() -> None:
    lines = fit(WIDE, 40, cut="...", rule="-")
    assert "..." in lines[2] and "1234567" in lines[2] and max(map(columns_of, lines)) <= 40


def test_no_drawn_table_wraps() -> None:
    chance = random.Random(0)
    for _ in range(300):
        columns = tuple(f"column{n}" for n in range(chance.randint(1, 14)))
        kinds = [chance.choice(("text", "number", "flag")) for _ in columns]
        draw = {
            "text": lambda: "wö" * chance.randint(0, 60),
            "number": lambda: chance.randint(0, 10**8),
            "flag": lambda: chance.random() < 0.5,
        }
        rows = tuple(tuple(draw[kind]() for kind in kinds) for _ in range(chance.randint(0, 4)))
        brief = tuple(chance.sample(columns, chance.randint(0, len(columns))))
        below = tuple(name for name, kind in zip(columns, kinds, strict=True) if kind == "text" and chance.random() < 0.3)
        width = chance.randint(40, 120)
        lines = fit(Table("t", columns, rows, brief=brief, below=below), width)
        assert all(columns_of(line) <= width for line in lines), (columns, rows, width)


def test_wrapped_lines_keep_their_place() -> None:
    assert wrap("  help: one two three four five", 20) == ["  help: one two", "        three four", "        five"]
    assert wrap("error: " + "word " * 6, 24) == ["error: word word word", "  word word word"]
    assert wrap("short", 80) == ["short"]


def test_sentences_go_on_in_further_lines() -> None:
    why = "fastest of 12 tried; 3 are within noise, of which it has the least predicted cost"
    table = Table("t", ("kernel", "why"), (("kernel_0", why), ("kernel_1", "short")))
    for width in (30, 40, 60, 80):
        lines = fit(table, width)
        assert max(map(columns_of, lines)) <= width and not any("…" in line or "--wide" in line for line in lines)
        assert " ".join(" ".join(line[12:] for line in lines[2:-1]).split()) == why
        assert lines[-1].split() == ["kernel_1", "short"]
    assert len(fit(table, 200)) == 4


def test_words_and_keys_are_never_cut() -> None:
    rows = (("kernel_with_a_long_name_17", "fp32, int4-weight-g128, int8-activation", "mul, add, cast, take, " * 2, 3.25),)
    table = Table("t", ("kernel", "realised", "source_ops", "predicted_microseconds"), rows, keys=("kernel",))
    for width in (74, 80):
        lines = fit(table, width)
        assert max(map(columns_of, lines)) <= width and not any("…" in line for line in lines)
        text = "\n".join(lines)
        assert all(word in text for word in ("kernel_with_a_long_name_17", "fp32,", "int4-", "g128,", "activation", "microseconds", "3.25"))
    assert "int4-weight-g128," in "\n".join(fit(table, 90))


def test_a_table_without_rows_says_so() -> None:
    assert fit(Table("t", ("a", "b"), ()), 80) == [" none"]


def test_what_has_no_room_beside_stands_below() -> None:
    rows = (("kernel_0", "matmul, add, gelu", "packed{m=128, n=256}", 1.5), ("kernel_1", None, "nest", 25000.25))
    table = Table("t", ("kernel", "source_ops", "strategy", "us"), rows, below=("source_ops", "strategy"))
    assert [line.rstrip() for line in fit(table, 40)] == [
        *(" kernel        us", "     source ops", "     strategy", " ────────────────"),
        *(" kernel_0     1.5", "     matmul, add, gelu", "     packed{m=128, n=256}"),
        *(" kernel_1   25000", "     nest"),
    ]
    assert fit(table, 200) == fit(replace(table, below=()), 200)
