"""What the C printer promises beside right results: its API, readable and stable text, and what it refuses."""

from __future__ import annotations

import re

import pytest

from ourcc.codegen.c import SourceFile, grid_points, print_launch
from ourcc.codegen.c.printer import kernels_of
from ourcc.ir import dims
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.errors import InternalError, UnsupportedError
from ourcc.ir.target import AVX2, AVX512
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Launch

COPY = """
program @p symbols { N, M } {
  launch @p(%x: f32[i N, j M], %y: out f32[i N, j M]) {
    grid (i: 0..N, j: 0..M step 32) {
      store %y[i, j] = load %x[i, j] : f32[j]
    }
  }
}
"""


def launch(text: str) -> Launch:
    return parse(text).launches[0]


def body(statements: str, params: str = "%x: f32[i N], %y: out f32[i N]") -> Launch:
    return launch(f"program @p symbols {{ N }} {{\n launch @p({params}) {{\n grid (i: 0..N step 16) {{\n{statements}\n}} }} }}")


def test_kernel_says_how_it_is_called() -> None:
    file = SourceFile(AVX2)
    kernel = file.add(launch(COPY), "copy", ("N", "M"))
    assert kernel.operands == ("x", "y")
    assert kernel.symbols == ("N", "M")
    assert dims.evaluate(kernel.points, {"N": 3, "M": 65}) == 9
    assert dims.evaluate(kernel.points, {"N": 3, "M": 0}) == 0
    assert kernel.points == grid_points(launch(COPY))
    assert kernel.declaration == "extern const ourcc_kernel copy_descriptor;"
    assert "\nconst ourcc_kernel copy_descriptor = {copy, 0, 0};\n" in file.text()
    assert kernel.source in file.text()


def test_kernels_are_told_apart_from_the_library() -> None:
    file = SourceFile(AVX2)
    kernels = [file.add(body("store %y[i] = exp(load %x[i] : f32[i]) : f32[i]"), name, ("N",)) for name in ("first", "second")]
    text = file.text()
    assert " exp_f32_8(" in text.partition("int32_t first(")[0]
    assert kernels_of(text) == "\n".join([kernel.source for kernel in kernels]) + "\n"
    assert kernels_of("int32_t of_an_earlier_version(void);\n") == "int32_t of_an_earlier_version(void);\n"


def test_text_is_the_same_every_time() -> None:
    assert print_launch(launch(COPY), AVX512, ("N", "M"))[1] == print_launch(launch(COPY), AVX512, ("N", "M"))[1]


def test_lanes_follow_the_level() -> None:
    texts = {level.name: print_launch(launch(COPY), level, ("N", "M"))[0].source for level in (AVX2, AVX512)}
    assert "f32x8" in texts["x86-64-v3"] and "f32x16" not in texts["x86-64-v3"]
    assert "f32x16" in texts["x86-64-v4"]


def test_masks_stand_only_where_bounds_demand() -> None:
    masked = print_launch(launch(COPY), AVX512, ("N", "M"))[0].source
    assert "load_part" in masked and "store_part" in masked
    facts = dims.Facts({"M": dims.Range(32, None)}, {"M": 32})
    whole = print_launch(launch(COPY), AVX512, ("N", "M"), facts)[0].source
    assert "part" not in whole and "load_f32_16" in whole


def test_functions_are_written_only_when_used() -> None:
    text = print_launch(launch(COPY), AVX512, ("N", "M"))[1]
    assert "exp_f32" not in text and "fma_f32" not in text


def test_product_is_a_block_of_fused_multiply_adds() -> None:
    text = """
    program @p symbols { N } {
      launch @p(%x: f32[i N, k 64], %w: f32[j 64, k 64] as j/16 k j%16, %y: out f32[i N, j 64]) {
        grid (i: 0..N step 12, j: 0..64 step 32) {
          axis k in 0..64 extent 64
          store %y[i, j] = dot(load %x[i, k] : f32[i, k], load %w[j, k] : f32[j, k], full(0) : f32[i, j]) : f32[i, j]
        }
      }
    }
    """
    facts = dims.Facts({"N": dims.Range(12, None)}, {"N": 12})
    source = print_launch(launch(text), AVX512, ("N",), facts)[0].source
    assert len(re.findall(r"= fma_f32_16\(", source)) == 24
    # 12 elements of x and two vectors of w for one step along k, each read once.
    assert len(re.findall(r"= load_f32_16\(x_w", source)) == 2
    assert len(re.findall(r"= x_x\[", source)) == 12


@pytest.mark.parametrize(
    ("statements", "params", "message"),
    [
        ("store %y[i] = load %x[i] : i4[i]", "%x: i4[i N], %y: out i4[i N]", "does not store single elements of i4 to %y"),
        ("atomic add %y[i] = load %x[i] : f32[i]", "%x: f32[i N], %y: inout f32[i N]", "atomic add on f32: results would depend on timing"),
        (
            "local %t: f32[a 600, b 600] in cache",
            "%y: out f32[i N]",
            "%t needs 1440064 bytes with what is open here, expected at most",
        ),
        ("local %t: i4[a 8] in cache", "%y: out f32[i N]", "local %t holds i4, narrower than a byte"),
        ("local %t: f32[a N] in cache", "%y: out f32[i N]", "local %t has a symbolic size"),
        (
            "local %t: f32[a 8] in cache\nlocal %u: i32[a 8] in cache\ncopy %t = %u",
            "%y: out f32[i N]",
            "copy %u to %t is not between locals of one type",
        ),
        ("store %y[i] = load %x[i] : f32[i]", "%x: f32[i N], %y: out f64[i N]", "store of f32 to %y of another type"),
        (
            "axis k in 0..16 extent 16\naxis j in 0..16 extent 16\n"
            "store %y[i, j] = dot(load %x[i, k] else 0 : f32[i, k], load %x[j, k] else 0 : f32[j, k],"
            " full(0) : f32[i, j], left_scale = load %x[i, k] else 0 : f32[i, k]) : f32[i, j]",
            "%x: f32[i N, k 16], %y: out f32[i N, j 16]",
            "a dot with block scales is not printed as c",
        ),
        (
            "%a = load %z[i] else 0 : i64[i]\nstore %y[i] = index(%a) : i64[i]",
            "%z: i64[i N], %y: out i64[i N]",
            "an index over a loaded tile is used as data",
        ),
    ],
)
def test_what_is_not_supported_is_refused_with_a_reason(statements: str, params: str, message: str) -> None:
    program = body(statements, params)
    with pytest.raises(UnsupportedError, match=re.escape(message)) as error:
        SourceFile(AVX2).add(program, "kernel", ("N",))
    assert error.value.hint


def test_kernel_names_are_c_identifiers() -> None:
    with pytest.raises(UnsupportedError, match=r"kernel name 'fc1\.gelu' is not a c identifier"):
        SourceFile(AVX2).add(launch(COPY), "fc1.gelu", ("N", "M"))


COUNTED = """
program @p {
  launch @p(%y: out i32[i 4]) {
    counter %f: i32[4] = 0
    grid (i: 0..4) {
      STATEMENT
    }
  }
}
"""


def test_counters_are_released_and_waited_for() -> None:
    kernel = SourceFile(AVX2).add(launch(COUNTED.replace("STATEMENT", "signal %f[i]\n wait %f[i] >= 1")), "kernel", ())
    assert kernel.operands == ("y", "f")
    assert "__ATOMIC_RELEASE" in kernel.source and "__ATOMIC_ACQUIRE" in kernel.source


def test_counter_is_not_a_tensor() -> None:
    with pytest.raises(UnsupportedError, match="%f is a counter and is read like a tensor"):
        SourceFile(AVX2).add(launch(COUNTED.replace("STATEMENT", "store %y[i] = load %f[i] : i32")), "kernel", ())


def test_symbol_without_a_value_is_our_bug() -> None:
    with pytest.raises(InternalError, match="index symbol M has no value here"):
        SourceFile(AVX2).add(launch(COPY), "copy", ("N",), NO_FACTS)


def test_a_block_inside_its_padding_makes_no_tests() -> None:
    """The tests of all rows stand in front of the loop over what is contracted; the loop behind them has none."""
    text = """
program @p {
  launch @p(%x: f32[c 16, i 34], %w: f32[c 16, j 16], %y: out f32[i 32, j 16]) {
    grid (i: 0..32 step 4, j: 0..16 step 16) {
      axis c in 0..16 extent 16
      %z = full(0.0) : f32[i, j]
      %s = dot(load %x[c, i - 3] else 0.0 : f32[i, c], load %w[c, j] : f32[j, c], %z) : f32[i, j]
      store %y[i, j] = %s
    }
  }
}
"""
    source = print_launch(launch(text), AVX512, ())[0].source
    inside = re.search(r"const int (\w+) = 0 <= ", source)
    assert inside is not None
    free, tested = source.split(f"if ({inside[1]}) {{")[1].split(f"if (!{inside[1]}) {{")
    assert "for (" in free and "?" not in free
    assert "for (" in tested and "?" in tested


@pytest.mark.parametrize(("other", "is_masked"), [("0.0", False), ("-0.0", True), ("1.0", True)])
def test_padding_is_read_where_it_holds_what_masked_lanes_are(other: str, is_masked: bool) -> None:
    """The last panel of 16 columns holds 8 and zeros: whole vectors are read, of a panel behind it none."""
    text = f"""
program @p {{
  launch @p(%w: f32[k 4, j 24] as j/16 k j%16, %y: out f32[k 4, j 64]) {{
    grid (k: 0..4, j: 0..64 step 32) {{
      store %y[k, j] = load %w[k, j] else {other} : f32[j]
    }}
  }}
}}
"""
    source = print_launch(launch(text), AVX512, ())[0].source
    assert ("load_part" in source) is is_masked
    assert is_masked or source.count(" < 24 ? load_f32_16(") == 2
