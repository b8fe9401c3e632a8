"""Memory orders of images: channels innermost for kernels, row-major for everybody else."""

from __future__ import annotations

import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.target import AVX512
from ourcc.passes.lower.layout import channels_last
from ourcc.passes.lower.schedule import cheapest

MODULE = """
module @images {
  func @main(%x: f32[1, 2, 5], %w: f32[3, 2, 2]) -> TYPE[1, 3, 4] {
    %y = conv(%x, %w, _) {strides = [1], dilations = [1], before = [0], after = [0]} : f32[1, 3, 4]
    %z = abs(%y) : f32[1, 3, 4]
    %o = cast(%z) {dtype = TYPE} : TYPE[1, 3, 4]
    return %o
  }
}
"""


def orders(dtype: str) -> dict[str, tuple[int, ...]]:
    return {value.name: order for value, order in channels_last(parse_module(MODULE.replace("TYPE", dtype)).main).items()}


def test_images_between_kernels_have_their_channels_innermost() -> None:
    assert orders("f16") == {"y": (0, 2, 1), "z": (0, 2, 1)}


def test_an_op_without_kernels_for_its_dtype_reads_and_writes_row_major() -> None:
    assert orders("c64") == {"y": (0, 2, 1)}


CONV = "conv(%x, %w, _) {strides = [1, 1], dilations = [1, 1], before = [1, 1], after = [1, 1]"
IMAGE = "f32[1, 32, 14, 14]"


def program(body: str, returned: str = f"%y) -> {IMAGE}", filters: str = "f32[32, 32, 3, 3]", image: str = IMAGE) -> str:
    names, results = returned.split(") -> ")
    results = f"({results})" if "," in names else results
    return f"module @m {{\n  func @main(%x: {image}, %w: {filters}) -> {results} {{\n{body}    return {names}\n  }}\n}}\n"


def strategies(text: str) -> list[str]:
    units = lower_cpu(parse_module(text), AVX512, cheapest(AVX512)).scheduled.values()
    return [unit.schedule.strategy for unit in units]


LEAVES = program(f"    %y = {CONV}}} : {IMAGE}\n")
ENDS = program(f"    %c = {CONV}}} : {IMAGE}\n    %y = relu(%c) : {IMAGE}\n")
READ_AGAIN = program(
    f"    %y = {CONV}}} : {IMAGE}\n    %z = {CONV.replace('%x', '%y')}}} : {IMAGE}\n",
    f"%y, %z) -> {IMAGE}, {IMAGE}",
)
POOLED = program(
    f"    %c = {CONV}}} : {IMAGE}\n"
    "    %y = max_pool(%c) {window = [2, 2], strides = [2, 2], dilations = [1, 1], before = [0, 0], after = [0, 0]} : f32[1, 32, 7, 7]\n",
    "%y) -> f32[1, 32, 7, 7]",
)
PLACES = program(f"    %y = {CONV.replace('[1, 1], after = [1, 1]', '[0, 0], after = [0, 0]')}}} : {IMAGE}\n", filters="f32[32, 32, 1, 1]")
GROUPS = program(f"    %y = {CONV}, groups = 4}} : {IMAGE}\n", filters="f32[32, 8, 3, 3]")
ALONE = program(f"    %y = {CONV}, groups = 32}} : {IMAGE}\n", filters="f32[32, 1, 3, 3]")
POOL = program(
    "    %y = max_pool(%x) {window = [3, 3], strides = [1, 1], dilations = [1, 1], before = [1, 1], after = [1, 1]} : f32[1, 32, 14, 14]\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(LEAVES, ["packed", "nest"], id="a result"),
        pytest.param(ENDS, ["packed", "nest"], id="a result of the convolution's kernel"),
        pytest.param(READ_AGAIN, ["packed", "nest", "packed"], id="a result that is read again"),
        pytest.param(POOLED, ["packed", "nest", "nest"], id="a pool of an image that lies channels-last"),
        pytest.param(PLACES, ["packed"], id="places fill the lanes as well"),
        pytest.param(GROUPS, ["packed", "nest"], id="groups, each of them a convolution"),
        pytest.param(ALONE, ["nest"], id="each channel by itself, of the caller's image"),
        pytest.param(POOL, ["nest"], id="a pool of the caller's image"),
    ],
)
def test_what_leaves_the_graph_is_copied_where_that_costs_less_than_it_saves(text: str, expected: list[str]) -> None:
    assert strategies(text) == expected


def test_a_host_step_reads_the_copy() -> None:
    text = program(f"    %y = {CONV}}} : {IMAGE}\n    %t = cast(%y) {{dtype = c64}} : c64[1, 32, 14, 14]\n", "%t) -> c64[1, 32, 14, 14]")
    lowered = lower_cpu(parse_module(text), AVX512, cheapest(AVX512))
    assert [unit.schedule.strategy for unit in lowered.scheduled.values()] == ["packed", "nest"]
    names = [operand for step in lowered.plan.steps for operand in step.writes]
    assert len(names) == len(set(names)) == 3
    copy, host = lowered.plan.steps[1:]
    assert host.reads == copy.writes


def test_channels_that_were_normalized_innermost_stay_there_for_the_next_convolution() -> None:
    """A norm over channels is written with them innermost; turned back for a convolution, nothing moves."""
    places = "f32[1, 14, 14, 32]"
    body = (
        f"    %t = transpose(%x) {{permutation = [0, 2, 3, 1]}} : {places}\n"
        f"    %n = layer_norm(%t, _, _) {{axes = [3], epsilon = 1e-06}} : {places}\n"
        f"    %b = transpose(%n) {{permutation = [0, 3, 1, 2]}} : {IMAGE}\n"
        f"    %y = {CONV.replace('%x', '%b')}, groups = 32}} : {IMAGE}\n"
    )
    text = program(body, filters="f32[32, 1, 3, 3]")
    found = {value.name: order for value, order in channels_last(parse_module(text).main).items()}
    assert found["b"] == (0, 2, 3, 1)


def test_what_a_transpose_makes_of_an_image_of_one_dimension_is_none() -> None:
    """Places in front and channels innermost are row-major: what follows the image is a sequence."""
    text = """module @m {
  func @main(%x: f32[1, 64, 30], %w: f32[96, 64, 3], %p: f32[15, 96]) -> f32[1, 15, 96] {
    %c = conv(%x, %w, _) {strides = [2], dilations = [1], before = [1], after = [1]} : f32[1, 96, 15]
    %g = gelu(%c) : f32[1, 96, 15]
    %t = transpose(%g) {permutation = [0, 2, 1]} : f32[1, 15, 96]
    %a = add(%t, %p) : f32[1, 15, 96]
    %y = layer_norm(%a, _, _) {axes = [2], epsilon = 1e-06} : f32[1, 15, 96]
    return %y
  }
}"""
    module = parse_module(text)
    assert {value.name: order for value, order in channels_last(module.main).items()} == {"c": (0, 2, 1), "g": (0, 2, 1)}
    lowered = lower_cpu(module, AVX512, cheapest(AVX512))
    assert [unit.schedule.strategy for unit in lowered.scheduled.values()] == ["packed", "nest"]


CODES, SUMS = "u8[1, 64, 14, 14]", "i32[1, 64, 14, 14]"
OF_CODES = f"    %y = {CONV.replace('[1, 1], after = [1, 1]', '[0, 0], after = [0, 0]')}}} : {SUMS}\n"


def integers(body: str, returned: str = f"%y) -> {SUMS}", image: str = CODES) -> str:
    return program(body, returned, "i8[64, 64, 1, 1]", image)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(integers(OF_CODES), ["nest", "packed"], id="the caller's image"),
        pytest.param(
            integers(f"    %r = transpose(%x) {{permutation = [0, 1, 3, 2]}} : {CODES}\n{OF_CODES.replace('%x', '%r')}"),
            ["nest", "packed"],
            id="a view of the caller's image",
        ),
        pytest.param(
            integers(f"    %r = reshape(%x) {{shape = [1, 64, 14, 14]}} : {CODES}\n{OF_CODES.replace('%x', '%r')}", image="u8[1, 64, 196]"),
            ["nest", "packed"],
            id="the caller's numbers in another shape",
        ),
        pytest.param(
            integers(f"    %c = relu(%x) : {CODES}\n{OF_CODES.replace('%x', '%c')}", f"%c, %y) -> {CODES}, {SUMS}"),
            ["nest", "nest", "packed"],
            id="what callers see too",
        ),
    ],
)
def test_convolutions_of_codes_read_channels_that_lie_together(text: str, expected: list[str]) -> None:
    """Instructions take four channels of a place at once: where an image has none together, a copy of it has."""
    assert sorted(strategies(text)) == sorted(expected)


def test_what_a_host_step_makes_is_copied_for_a_convolution_of_codes() -> None:
    text = integers(f"    %c = cast(%x) {{dtype = u8}} : {CODES}\n{OF_CODES.replace('%x', '%c')}", image="c64[1, 64, 14, 14]")
    lowered = lower_cpu(parse_module(text), AVX512, cheapest(AVX512))
    host, copy, conv = lowered.plan.steps
    assert copy.reads == host.writes and set(copy.writes) <= set(conv.reads)
    assert sorted(unit.schedule.strategy for unit in lowered.scheduled.values()) == ["nest", "packed"]
