"""Addresses of operands through layouts and strides, and the distance between lanes there."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims, types
from ourcc.ir.dims import NO_FACTS, Dim, symbol
from ourcc.ir.dims_text import parse_dim
from ourcc.ir.layout import parse
from ourcc.ir.tile.address import Rearranged, at_lanes, flatten, rearranged, stride_of
from ourcc.ir.tile.program import For, GridAxis, Launch, Local, Param, TileType
from ourcc.ir.tile.scope import Scope, launch_scope


def weight(layout: str | None = None, strides: tuple[Dim, ...] | None = None) -> Param:
    parsed = None if layout is None else parse(layout, ("j", "k"))
    return Param("w", types.f32, (("j", 75), ("k", 45)), "in", parsed, strides)


def scope(step: int = 32) -> Scope:
    grid = (GridAxis("j", 0, 75, 64), GridAxis("k", 0, 45, 8))
    outer = launch_scope(Launch("test", (), grid, ()), NO_FACTS.with_range("S", 1, None))
    return outer.enter(For("jj", "walk", 0, 0, step, (), "j"))


@pytest.mark.parametrize("layout", ["j k", "k j", "j/16 k j%16", "j/16 k/4 j%16 k%4", "k/2 j k%2"])
def test_the_address_of_every_element_is_where_the_packer_puts_it(layout: str) -> None:
    param = weight(layout)
    packed = param.layout.pack(np.arange(75 * 45).reshape(75, 45))  # type: ignore[union-attr]
    address = flatten(param, (symbol("j"), symbol("k")))
    for j, k in ((0, 0), (1, 7), (17, 3), (74, 44), (33, 20)):
        assert packed.reshape(-1)[dims.evaluate(address, {"j": j, "k": k})] == j * 45 + k


def test_strides_and_locals() -> None:
    assert flatten(weight(strides=(symbol("S"), 2)), (symbol("j"), symbol("k"))) == parse_dim("S*j + 2*k")
    local = Local("t", types.f32, (("r", 8), ("c", 16)), "cache")
    assert flatten(local, (symbol("r"), symbol("c"))) == parse_dim("16*r + c")


def test_lanes_over_several_panels_have_a_stride_panel_by_panel() -> None:
    address = flatten(weight("j/16 k j%16"), (symbol("jj"), symbol("k")))
    assert stride_of(scope(), address, "jj") is None
    assert [stride_of(scope(), address, "jj", start, 16) for start in (0, 16)] == [1, 1]
    assert stride_of(scope(), address, "jj", 8, 16) is None
    assert stride_of(scope(16), address, "jj") == 1
    assert stride_of(scope(), address, "k") == 16


def test_a_panel_that_a_tile_does_not_start_at_has_no_stride() -> None:
    assert stride_of(scope(12), flatten(weight("j/16 k j%16"), (symbol("jj"), symbol("k"))), "jj") is None


def test_symbolic_and_missing_strides() -> None:
    address = flatten(weight(strides=(symbol("S"), 1)), (symbol("jj"), symbol("k")))
    assert stride_of(scope(), address, "jj") == symbol("S")
    assert stride_of(scope(), flatten(weight(), (5, symbol("k"))), "jj") == 0
    assert stride_of(scope(), symbol("jj") * symbol("jj"), "jj") is None


def test_lanes_are_fixed_one_by_one() -> None:
    address = flatten(weight("j/16 k j%16"), (symbol("jj"), symbol("k")))
    first, second = (at_lanes(scope(), address, {"jj": lane}) for lane in (0, 17))
    assert second - first == 45 * 16 + 1
    assert dims.symbols(first) == {"jj.first", "k"}


def test_vectors_are_stored_whole_where_they_begin_with_a_panel() -> None:
    """Values go into panels of pairs: neighbours along the sum side by side, which is known only of tiles that begin where panels do."""
    panels = Local("v", types.bf16, (("t", 64), ("e", 64)), "cache", parse("e/16 t/2 e%16 t%2", ("t", "e")))
    places = (symbol("t"), symbol("e.first") + symbol("e.lane"))
    kind, extents = TileType(types.bf16, ("t", "e")), {"t": 16, "e": 16}
    assert rearranged(panels, places, kind, extents, 16) is None
    known = dims.Facts({}, {"t.first": 16, "e.first": 16})
    assert rearranged(panels, places, kind, extents, 16, known) == Rearranged(None, "t", 2)
    assert rearranged(panels, places, kind, extents, 16, dims.Facts({}, {"t.first": 16, "e.first": 8})) is None
    turned = rearranged(panels, (symbol("e"), symbol("t.first") + symbol("t.lane")), kind, extents, 16, known)
    assert turned == Rearranged("t", "e", 2)
