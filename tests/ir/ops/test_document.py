"""docs/ops.md says what the op table says."""

from pathlib import Path

from ourcc.ir.ops import FAMILIES
from ourcc.ir.ops.document import ops_page, signature
from ourcc.ir.ops.table import OPS

PAGE = Path(__file__).parents[3] / "docs" / "ops.md"


def test_page_is_not_stale():
    assert PAGE.read_text(encoding="utf-8") == ops_page(), "run: python -m ourcc.ir.ops.document > docs/ops.md"


def test_page_holds_every_op_once():
    page = ops_page()
    for definition in OPS.values():
        assert page.count(f"### `{definition.name}(") == 1
    assert page.count("\n## ") == 1 + len(FAMILIES)  # the rule of rounding, and the families


def test_signatures_show_operands_and_attributes():
    assert signature(OPS["layer_norm"]) == "layer_norm(x, scale?, bias?, /, axes, epsilon)"
    assert signature(OPS["concat"]) == "concat(*xs, /, axis)"
    assert signature(OPS["gelu"]) == "gelu(x, /, approximate='none')"
    assert signature(OPS["iota"]) == "iota(shape, axis, dtype)"
