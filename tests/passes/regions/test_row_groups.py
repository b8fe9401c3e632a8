"""Rows in groups: what is read as the group of a row, what becomes of what it gathers, and what is no group."""

from __future__ import annotations

import pytest

from ourcc.ir.region import Load, Reduce, scalars
from ourcc.ir.region.text import parse_region
from ourcc.passes.regions.contraction import Contraction, read_contraction
from ourcc.passes.regions.row_groups import GROUP, RowGroups, read_row_groups

REGION = """region @region(%x0: i32[4], %x1: f32[t S, k 8], %x2: f32[4, k 8, j 6], %x3: f32[4, j 6]) -> %y0: f32[t S, j 6] {
  axes t: S, j: 6, k: 8, e: 3
  %t0 = sum e: cast(COUNTED, i32) : i32[t]
  %t1 = sum k: mul(%x1[t, k], %x2[%g0, k, j] with (%g0 = %t0)) : f32[t, j]
  %t2 = add(%t1, %x3[%g0, j] with (%g0 = cast(%t0, i64))) : f32[t, j]
  %y0[t, j] = STORED
}
"""
COUNTED = "le(%x0[e], index(t, i32))"
STORED = "where(lt(index(t, i32), %x0[3]), %t2, f32(0))"


def read(counted: str = COUNTED, stored: str = STORED) -> RowGroups | str:
    return read_row_groups(parse_region(REGION.replace("COUNTED", counted).replace("STORED", stored)))


def test_what_is_gathered_by_the_group_is_read_at_its_index() -> None:
    found = read()
    assert isinstance(found, RowGroups) and (found.row, found.along, found.count) == ("t", "e", 4)
    loads = [part for part in scalars(found.region.body) if isinstance(part, Load) and part.operand in ("x2", "x3")]
    assert len(loads) == 2 and all(str(load.subscripts[0]) == GROUP and not load.gathers for load in loads)
    assert [s.name for s in found.region.body if isinstance(s, Reduce)] == ["t1"]
    product = read_contraction(found.region)
    assert isinstance(product, Contraction)
    assert (product.rows, product.columns, product.over, product.batch) == (("t",), ("j",), ("k",), ())


@pytest.mark.parametrize(
    ("stored", "is_known"),
    [
        ("where(lt(index(t, i32), %x0[3]), %t1, f32(0))", True),
        ("mul(where(lt(index(t, i32), %x0[3]), add(%t1, f32(1.0)), f32(0)), f32(2.0))", True),
        ("%t1", False),
        ("where(lt(index(j, i32), %x0[3]), %t1, f32(0))", False),
        ("where(lt(index(t, i32), %x0[3]), f32(0), %t1)", False),
        ("where(lt(index(t, i32), %x0[3]), %t1, %x1[t, 0])", False),
        ("add(where(lt(index(t, i32), %x0[3]), %t1, f32(0)), %t1)", False),
    ],
)
def test_rows_from_which_on_no_product_is_looked_at(stored: str, is_known: bool) -> None:
    """Only what is read once, where a row is known to lie before an end, is not looked at behind it."""
    lines = [line for line in REGION.replace("STORED", stored).splitlines() if "%t2 =" not in line]
    found = read_row_groups(parse_region("\n".join(lines).replace("COUNTED", COUNTED)))
    assert isinstance(found, RowGroups)
    assert (found.last is not None) is is_known


@pytest.mark.parametrize(
    "counted",
    [
        "lt(%x0[e], index(t, i32))",
        "le(index(t, i32), %x0[e])",
        "le(%x0[e], index(t + 1, i32))",
        "le(%x0[e], index(e, i32))",
        "le(cast(%x1[t, e], i32), index(t, i32))",
    ],
)
def test_what_is_no_group(counted: str) -> None:
    """Other counts may fall along the rows, or are not of the rows that lie behind an end."""
    assert isinstance(read(counted), str)
