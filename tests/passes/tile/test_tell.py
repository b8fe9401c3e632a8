"""Which launches are known to read all that a question asks of, and so can answer it."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Facts, Range
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.text import text
from ourcc.ir.tile.verify import verify
from ourcc.passes.tile.tell import Question, names_of, telling

QUESTION = Question("ids", "told", dims.symbol("V"), True)
GATHERS = """program @rows symbols { N, V, W } {
  launch @rows(%x: f32[v V, w W], %ids: i64[n N], %y: out f32[n N, w W]) {
    grid (i: 0..N step 4, j: 0..W step 32) warps 4 {
      %g = load %ids[i] : i64[i]
      store %y[i, j] = load %x[%g, j] else 0.0 : f32[i, j]
    }
  }
}
"""


def facts(least: int = 1) -> Facts:
    return Facts({"N": Range(0, 99), "V": Range(0, 99), "W": Range(least, 99)})


def told(source: str, least: int = 1, first: int = 0) -> TileProgram | None:
    program = parse(source)
    verify(program, facts(least))
    made = telling(program, QUESTION, facts(least), first)
    if made is not None:
        verify(made, facts(least))
        assert {"told", "told_index"} <= names_of(made) - names_of(program)
    return made


def test_a_gather_answers_and_reads_each_index_once() -> None:
    made = told(GATHERS)
    assert made is not None
    after = text(made)
    assert after.count("load %ids[i]") == 1 and "atomic max %told[%told_place]" in after and "%g = %told_index" in after
    assert "any" not in after


def test_of_many_elements_one_answers_for_all() -> None:
    made = told(GATHERS.replace("step 4", "step 256"))
    assert made is not None and "seldom" in text(made) and "atomic max %told[0] = reduce max i" in text(made)


@pytest.mark.parametrize(
    ("old", "new", "least"),
    [
        ("step 32", "step 32", 0),
        ("(i: 0..N step 4", "(i: 1..N step 4", 1),
        ("(i: 0..N step 4", "(i: 0..N - 1 step 4", 1),
        ("load %ids[i] : i64[i]", "load %ids[i // 2] : i64[i]", 1),
        ("load %ids[i] : i64[i]", "load %ids[i + 1] else 0 : i64[i]", 1),
    ],
    ids=["another axis may be empty", "not from the first", "not to the last", "by twos", "from the second"],
)
def test_what_may_not_read_everything_does_not_answer(old: str, new: str, least: int) -> None:
    assert old in GATHERS and told(GATHERS.replace(old, new), least) is None


def test_a_loop_over_all_answers_inside_and_a_condition_does_not() -> None:
    head, tail = GATHERS.split("      %g", 1)
    body = "      %g" + tail.split("    }\n", 1)[0]
    loop = head.replace("i: 0..N step 4, ", "") + "      for i in 0..N step 4 {\n" + body + "      }\n    }\n  }\n}\n"
    assert told(loop) is not None and told(loop, 0) is None
    choice = head + "      if (lt(index(1) : i64, index(W) : i64) : bool) {\n" + body + "      }\n    }\n  }\n}\n"
    assert told(choice) is None


def test_a_launch_that_may_be_left_out_does_not_answer() -> None:
    assert told(GATHERS, first=1) is None
