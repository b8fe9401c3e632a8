"""How axes move accesses through memory, and which points of a scatter meet or may lie outside."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Dim, Facts
from ourcc.ir.region import Region, Store
from ourcc.ir.region.stores import stores_of
from ourcc.ir.region.text import parse_region
from ourcc.passes.tile.accesses import apart, is_within, stride_class, unproved
from ourcc.passes.tile.lower import Block
from ourcc.passes.tile.schedule import Problem

ROW, COLUMN = dims.symbol("i"), dims.symbol("j")
SHAPES = {"full": (6, 5), "line": (6, 1), "one": (1, 5)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=str)
@pytest.mark.parametrize(
    "subscripts",
    [
        (ROW, COLUMN),
        (ROW, 0),
        (0, COLUMN),
        (COLUMN, ROW),
        (0, 0),
        (ROW, 2 * COLUMN),
        (ROW + COLUMN, 0),
        (0, ROW + COLUMN),
        (ROW // 2, COLUMN),
    ],
    ids=str,
)
def test_stride_classes_are_those_of_addresses(shape: tuple[int, int], subscripts: tuple[Dim, Dim]) -> None:
    region = parse_region(f"region @r(%x: f32[{shape[0]}, {shape[1]}]) -> %y: f32[1] {{\n  axes i: 2, j: 2\n  %y[0] = %x[0, 0]\n}}\n")
    strides = np.array([shape[1], 1])

    def address(i: int, j: int) -> int:
        return int(np.dot([dims.evaluate(s, {"i": i, "j": j}) for s in subscripts], strides))

    for axis in ("i", "j"):
        moved = {address(i + (axis == "i"), j + (axis == "j")) - address(i, j) for i in range(4) for j in range(4)}
        assert stride_class(region, "x", subscripts, axis) == (0 if moved == {0} else 1 if moved == {1} else 2)


def scatter(subscripts: tuple[Dim, ...]) -> tuple[Region, Store]:
    region = parse_region("region @s(%x: f32[9, 4]) -> %y: f32[9, 6] {\n  axes i: 9, j: 4\n  %y[i, j] = %x[i, j]\n}\n")
    (store,) = stores_of(region)
    return region, Store("y", store.axes, subscripts, store.value)


@pytest.mark.parametrize(
    ("subscripts", "keep", "unknown"),
    [
        ((ROW, COLUMN), {"i", "j"}, []),
        ((ROW, COLUMN + 1), {"i"}, []),
        ((ROW + COLUMN, COLUMN), {"j"}, [0]),
        ((dims.symbol("$g"), COLUMN), {"j"}, [0]),
        ((ROW, COLUMN + 3), {"i"}, [1]),
        ((ROW - 1, COLUMN), {"j"}, [0]),
    ],
)
def test_points_of_a_scatter(subscripts: tuple[Dim, ...], keep: set[str], unknown: list[int]) -> None:
    region, store = scatter(subscripts)
    assert apart(store) == keep
    assert unproved(Block(Problem(region, Facts(), {})), store) == unknown


def test_what_is_not_known_is_not_within() -> None:
    facts = Facts().with_range("N", 1, 8)
    size = dims.symbol("N")
    assert is_within(0, size, facts)
    assert not is_within(1, size, facts)
    assert not is_within(-1, size, facts)
    assert is_within(size - 1, size, facts)
