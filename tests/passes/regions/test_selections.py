"""Selections in regions: found for 2:4 numbers of every format, with what they select; what selects otherwise is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ourcc.ir import dims
from ourcc.ir.expression import Apply, Constant, Index
from ourcc.ir.formats import FORMATS, format_of, sparse_name
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Region, Scalar, Store, transform
from ourcc.ir.region.interpret import run_region
from ourcc.ir.types import boolean, f32, i32
from ourcc.passes.regions.selections import Selection, find_selections, with_places
from ourcc.passes.regions.simplify_region import simplify_region, split_axis

KEPT = ("f32", "bf16", "i8", *FORMATS)
GROUPED = [f"{sign}int{bits}.g{group}" for sign in ("", "u") for bits in (2, 3, 4, 5, 6) for group in (8, 16, 24, 40, 48, 80, 96)]
"""Codes whose planes fill bytes in runs of 8, 16 or 32."""


def decoding(name: str, groups: int = 2, rows: int = 3) -> tuple[Region, str, dict[str, np.ndarray]]:
    """decode of a 2:4 format, its axis, and operands that any bytes are codes of."""
    known, random = format_of(sparse_name(name)), np.random.default_rng(0)
    types = known.types((rows, groups * max(known.group, 8)), 1)
    region = region_of(OPS["decode"], types, {"format": known.name, "axis": 1, "dtype": known.plain or f32})
    assert region is not None
    arrays = {}
    for operand, kind in zip(region.inputs, types, strict=True):
        shape = tuple(int(str(size)) for size in kind.shape)
        drawn = random.uniform(0.01, 2.0, shape) if kind.dtype.is_float else random.integers(0, 128, shape)
        arrays[operand.name] = drawn.astype(kind.dtype.numpy)
    return region, region.axes[-1].name, arrays


def value_of(region: Region) -> Scalar:
    store = region.body[-1]
    assert isinstance(store, Store)
    return store.value


def spelled(region: Region, along: str, found: Selection) -> Region:
    """The region with a selection written anew from what was found of it: kept numbers and positions at their places."""
    k = dims.symbol(along)

    def at(value: Scalar, member: int) -> Scalar:
        place = k // found.group * found.chosen + member
        return with_places(value, lambda dim: dims.substitute(dim, {found.kept: place}))

    value: Scalar = Constant(0, found.number.dtype) if found.number.dtype.is_integer else Constant(0.0, found.number.dtype)
    for member in reversed(range(found.chosen)):
        test = Apply("eq", (at(found.position, member), Index(k % found.group, i32)), boolean)
        value = Apply("where", (test, at(found.number, member), value), found.number.dtype)
    store = region.body[-1]
    made = transform(store.value, lambda part: value if part == found.expression else None)
    return replace(region, body=(*region.body[:-1], replace(store, value=made)))


@settings(deadline=None, max_examples=100)
@given(name=st.sampled_from((*KEPT, *GROUPED)), groups=st.integers(1, 3), rows=st.integers(1, 4), simplified=st.booleans())
def test_kept_numbers_are_found_in_every_format(name: str, groups: int, rows: int, simplified: bool) -> None:
    region, along, arrays = decoding(name, groups, rows)
    region = simplify_region(region, dims.NO_FACTS) if simplified and rows > 1 else region
    (found,) = find_selections(region, value_of(region), along)
    assert (found.group, found.chosen) == (4, 2)
    output = region.outputs[0].name
    anew = spelled(region, along, found)
    np.testing.assert_array_equal(run_region(anew, arrays, {})[output], run_region(region, arrays, {})[output])


@pytest.mark.parametrize(("name", "sizes"), [("f32", [8]), ("int4.g32", [64, 32, 16]), ("mxfp6.e2m3", [64, 8]), ("q6_k", [256, 32])])
def test_they_are_found_along_a_part_of_the_axis(name: str, sizes: list[int]) -> None:
    region, along, arrays = decoding(name, groups=2)
    made = split_axis(region, along, [size for size in sizes if size < dims.evaluate(region.axis(along).extent, {})], dims.NO_FACTS)
    inner = made.axes[-1].name
    (found,) = find_selections(made, value_of(made), inner)
    output = region.outputs[0].name
    np.testing.assert_array_equal(run_region(spelled(made, inner, found), arrays, {})[output], run_region(region, arrays, {})[output])
    assert find_selections(made, value_of(made), made.axes[-2].name) == []


def altered(value: Scalar, what: str) -> Scalar:
    """A selection with one thing of it changed."""
    assert isinstance(value, Apply)
    test, first, rest = value.args
    assert isinstance(test, Apply) and isinstance(rest, Apply)
    inner, second, zero = rest.args
    position, place = test.args
    assert isinstance(inner, Apply) and isinstance(place, Index)
    return {
        "rest": replace(value, args=(test, first, replace(rest, args=(inner, second, Constant(1.0, f32))))),
        "swapped": replace(value, args=(test, second, replace(rest, args=(inner, first, zero)))),
        "comparison": replace(value, args=(replace(test, primitive="ne"), first, rest)),
        "places": replace(value, args=(replace(test, args=(position, replace(place, value=place.value + 1))), first, rest)),
        "added": replace(value, args=(test, Apply("add", (first, first), f32), rest)),
    }[what]


ALTERED = ("rest", "swapped", "comparison", "places", "added")


@pytest.mark.parametrize("what", ALTERED)
def test_what_selects_otherwise_is_none(what: str) -> None:
    region, along, _ = decoding("f32")
    value = value_of(region)
    assert len(find_selections(region, value, along)) == 1
    assert all(each.chosen != 2 for each in find_selections(region, altered(value, what), along))
