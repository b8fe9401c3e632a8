"""Memory orders of images: channels innermost between kernels, row-major where anybody else reads them."""

from __future__ import annotations

from ourcc.ir.parse import parse_module
from ourcc.passes.layout import channels_last

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
