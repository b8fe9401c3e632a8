"""Loads in front of the last fold: which move, which must not, and that what a program computes stays the same to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Launch, Let, Load, TileProgram, statements, walk
from ourcc.ir.tile.text import text
from ourcc.passes.tile.gpu.ahead import loads_ahead

NORM = """
program @p {{
  launch @l(%x: bf16[a 8, b 4096], %w: {w}[b 4096], %v: {w}[b 4096], %y: {y}) {{
    grid (i: 0..8) warps {warps} {{
      axis j in 0..4096 extent 4096
      %t = cast(load %x[i, j] : bf16[j]) : f32[j]
      %m = reduce sum j (%t) : f32
      %c = sub(%t, %m) : f32[j]
      %s = reduce max j (mul(%c, %c) : f32[j]) : f32
      {middle}store %y[i, j] = {cast}(add(mul(mul(%c, %s) : f32[j], {read_w}) : f32[j], {read_v}) : f32[j]) : {w}[j]
    }}
  }}
}}
"""


def norm(w: str = "bf16", warps: int = 4, y: str | None = None, middle: str = "", at: str = "j") -> TileProgram:
    """A row, a sum, a maximum, and two more rows behind them; `at` is the place where the first of these is read."""
    reads = (f"load %w[{at}] : {w}[j]", f"load %v[j] : {w}[j]")
    read_w, read_v = reads if w == "f32" else tuple(f"cast({each}) : f32[j]" for each in reads)
    cast = "cast" if w != "f32" else "neg"
    role = y or f"out {w}[a 8, b 4096]"
    return parse(NORM.format(w=w, y=role, warps=warps, middle=middle, cast=cast, read_w=read_w, read_v=read_v))


def ahead(program: TileProgram) -> tuple[Launch, list[str]]:
    """The launch with loads moved, and the operands of those that are named in front of the last fold."""
    (launch,) = program.launches
    moved = loads_ahead(launch)
    return moved, [each.value.operand for each in moved.body if isinstance(each, Let) and isinstance(each.value, Load)]


@pytest.mark.parametrize(
    ("w", "warps", "moved"),
    [
        # Words of a thread: 32 of the row that stays, and 16 of each row in 16 bits or 32 of one in 32; 48 are held at most.
        ("bf16", 4, ["w"]),
        ("f32", 4, []),
        ("bf16", 8, ["w", "v"]),
        ("f32", 8, ["w", "v"]),
        ("bf16", 2, []),
        ("bf16", 3, []),
    ],
)
def test_as_many_loads_move_as_registers_hold(w: str, warps: int, moved: list[str]) -> None:
    program = norm(w, warps)
    launch, found = ahead(program)
    assert found == moved
    after = TileProgram(program.name, (launch,))
    assert parse(text(after)) == after
    loads = [part for each in statements(launch.body) if hasattr(each, "value") for part in walk(each.value) if isinstance(part, Load)]
    assert len(loads) == 3
    random = np.random.default_rng(0)
    arrays = {param.name: random.standard_normal(param.shape).astype(param.dtype.numpy) for param in launch.params if param.role == "in"}
    for name, array in run(program, arrays, {}).items():
        np.testing.assert_array_equal(run(after, arrays, {})[name].view(np.uint8), array.view(np.uint8))


def test_what_the_program_writes_or_computes_first_stays() -> None:
    assert ahead(norm(y="inout bf16[a 8, b 4096]", middle="store %w[j] = cast(%c) : bf16[j]\n      ", warps=8))[1] == ["v"]
    place = "%p = reduce argmax j (%c) : i64\n      "
    # The last fold is then the one that finds the place, and what is read there comes behind it.
    launch, found = ahead(norm(middle=place, at="j * 0 + %p", warps=8))
    assert found == ["v"]
    (last,) = [each for each in launch.body if isinstance(each, Let) and each.name == "p"]
    assert isinstance(launch.body[launch.body.index(last) - 1], Let)


def test_a_row_that_several_read_moves_once() -> None:
    twice = parse(text(norm(warps=16)).replace("load %v[j]", "load %w[j]"))
    moved, found = ahead(twice)
    assert found == ["w"] and len([name for name in moved.params if name.name == "w"]) == 1


def test_a_row_that_is_read_again_stays() -> None:
    """What did not stay in registers is read twice on purpose."""
    again = parse(text(norm(warps=16)).replace("load %v[j]", "load %x[i, j]"))
    assert ahead(again)[1] == ["w"]


def test_programs_with_loops_or_without_folds_stay_as_they_are() -> None:
    for body in (
        "axis j in 0..64 extent 64\n      store %y[i, j] = load %x[i, j] : f32[j]",
        "for k in 0..64 step 16 {\n        %t = reduce sum k (load %x[i, k] : f32[k]) : f32\n"
        "        store %y[i, k] = mul(%t, load %w[k] : f32[k]) : f32[k]\n      }",
    ):
        program = parse(
            f"program @p {{\n  launch @l(%x: f32[a 8, b 64], %w: f32[b 64], %y: out f32[a 8, b 64]) {{\n"
            f"    grid (i: 0..8) warps 4 {{\n      {body}\n    }}\n  }}\n}}\n"
        )
        (launch,) = program.launches
        assert loads_ahead(launch) is launch
