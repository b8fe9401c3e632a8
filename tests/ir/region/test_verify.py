"""The region verifier: each rule of the form, broken once."""

import pytest

from ourcc.ir import dims
from ourcc.ir.errors import VerifyError
from ourcc.ir.expression import Apply, Constant
from ourcc.ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scan, Store
from ourcc.ir.region.text import parse_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.types import TensorType, f16, f32, i32, i64

HEAD = "region @r(%x: f32[4, 5], %n: i64[4]) -> %y: f32[4] {\n  axes i: 4, k: 5, m: 9\n"
i, k, m = (dims.symbol(name) for name in "ikm")
VECTOR = TensorType(f32, (4,))


def verified(body: str) -> None:
    verify_region(parse_region(HEAD + body + "}\n"))


AXES = (Axis("i", 4), Axis("k", 4))


def region_with(*body, axes=AXES, inputs=("x",)):
    return Region("r", tuple(Operand(name, VECTOR) for name in inputs), (Operand("y", VECTOR),), axes, body)


LOADED = Load("x", (i,), f32)
STORED = Store("y", ("i",), (i,), LOADED)


def test_a_right_region_passes():
    verified("  %t = sum k: %x[i, k] : f32[i]\n  %y[i] = %t\n")
    verify_region(region_with(STORED))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  %t = sum k: %x[i, k] : f32[i]\n", "output %y is never stored"),
        ("  %t = %x[i, k] : f32[i, k]\n  %y[i] = %t\n", "%t varies over k, which is not an axis of its reader"),
        ("  %y[i] = %x[i, k]\n", "k uses the axis k, over which the statement does not vary"),
        ("  %y[i] = %x[i]\n", "got 1 subscripts of %x, expected 2"),
        ("  %y[i] = %x[i + 4, 0]\n", "subscript i + 4 leaves the size 4 of %x, which has no value outside"),
        ("  %y[i] = %x[i - 9, 0]\n", "subscript i - 9 leaves the size 4 of %x"),
        ("  %y[i] = %n[i]\n", "got a value of i64, expected f32"),
        ("  %x[i, 0] = %x[i, 0]\n", "%x is not an output"),
        ("  %y[i] combine or = %x[i, 0]\n", "got combine 'or', expected one of add, mul, max, min"),
        ("  %y[%g0] with (%g0 = %x[i, 0]) over (i) = %x[i, 0]\n", "subscript %g0 of %y is f32, expected an integer"),
        ("  %y[%g0] over (i) = %x[i, 0]\n", "%g0 uses %g0, which no gather defines"),
        ("  %y[i] = %y[i]\n", "%y is not an input"),
        ("  %y[i] over (i, z) = %x[i, 0]\n", "z is not an axis"),
        ("  %y[i] over (i, i) = %x[i, 0]\n", "axis i is defined twice"),
        ("  %y[i] = add(%x[i, 0], %n[i])\n", "add of f32 and i64, expected one dtype"),
        ("  %y[i] = cast(round(%n[i], f16), f32)\n", "round of i64 to f16, expected f32 to a narrower float; a conversion is a cast"),
        ("  %y[i] = round(%x[i, 0], f32)\n", "round of f32 to f32, expected f32 to a narrower float; a conversion is a cast"),
        ("  %y[i] = where(%x[i, 0], %x[i, 0], %x[i, 0])\n", "the condition of where is f32, expected bool"),
        ("  %t = argmax i, k: %x[i, k] : i64[]\n  %y[i] = %x[i, 0]\n", "argmax folds 2 axes, expected 1"),
        ("  %t = argmax k: %x[i, k] : f32[i]\n  %y[i] = %t\n", "argmax has dtype f32, expected i64"),
        ("  %t = sum k: %x[i, k] : f16[i]\n  %y[i] = %x[i, 0]\n", "sum has dtype f16, expected f32"),
        ("  %t = any k: %x[i, k] : f32[i]\n  %y[i] = %t\n", "any of f32, expected bool"),
        ("  %t = cumsum k: %x[i, 0] : f32[i]\n  %y[i] = %t\n", "a scan along k must vary over it"),
        ("  %t = cumsum i: %x[i, 0] : f16[i]\n  %y[i] = %x[i, 0]\n", "cumsum has dtype f16, expected f32"),
    ],
)
def test_broken_rules_in_text(body, message):
    with pytest.raises(VerifyError) as caught:
        verified(body)
    assert message in caught.value.message
    assert caught.value.message.startswith("region r: ")


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (region_with(Let("t", ("i",), LOADED), Let("t", ("i",), LOADED), STORED), "value %t is defined twice"),
        (region_with(STORED, axes=(Axis("i", 4), Axis("i", 4))), "axis i is defined twice"),
        (region_with(STORED, axes=(Axis("i", 4), Axis("k", i))), "axis i has the name of a symbol in the size i"),
        (region_with(Store("y", ("i",), (i,), Ref("t", f32))), "%t is read before it is defined"),
        (region_with(Let("t", ("i",), LOADED), Store("y", ("i",), (i,), Apply("cast", (Ref("t", f16),), f32))), "%t is f32, read as f16"),
        (region_with(Store("y", ("i",), (i,), Apply("gelu", (LOADED,), f32))), "gelu is not a scalar primitive"),
        (region_with(Store("y", ("i",), (i,), Apply("add", (LOADED,), f32))), "add has 1 operands, expected 2"),
        (region_with(Store("y", ("i",), (i,), Apply("lt", (LOADED, LOADED), f32))), "lt has dtype f32, expected bool"),
        (region_with(Store("y", ("i",), (i,), Apply("cast", (Load("x", (i,), i32),), f32))), "%x is f32, loaded as i32"),
        (region_with(Store("y", ("i",), (i,), Load("x", (i,), f32, Constant(0, i64)))), "the value outside %x is i64, expected f32"),
        (region_with(Reduce("t", ("i",), "mean", ("k",), LOADED, f32), STORED), "got reduction 'mean', expected one of sum, prod"),
        (region_with(Reduce("t", ("i",), "sum", (), LOADED, f32), STORED), "a reduction names no axis to fold"),
        (region_with(Scan("t", ("i",), "cumall", "i", LOADED, f32), STORED), "got scan 'cumall', expected one of cumsum"),
    ],
)
def test_broken_rules_in_values(region, message):
    with pytest.raises(VerifyError) as caught:
        verify_region(region)
    assert message in caught.value.message


def test_the_error_shows_the_statement():
    with pytest.raises(VerifyError) as caught:
        verified("  %y[i] = %x[i, k]\n")
    assert caught.value.note == "%y[i] = %x[i, k]"
