"""Folds against a base: which are moved to another base, which are not, and that parts give what the whole row gives."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.region import Let, Load, Reduce, Ref, Region, Scalar, Store
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.types import f32
from ourcc.passes.regions.rebase import rebase

PARTS, CHUNK = 4, 6
COUNT = PARTS * CHUNK


def region(base: str, term: str, fold: str = "sum", mean: str = "%b") -> Region:
    """A fold over 24 numbers of each row that reads another one, which is given with it."""
    return parse_region(
        f"region @r(%x: f32[i 3, j {COUNT}]) -> (%y: f32[i 3], %z: f32[i 3]) {{\n  axes i: 3, j: {COUNT}\n"
        f"  %t = mul(%x[i, j], f32(1.5)) : f32[i, j]\n  %b = {base} j: %t : f32[i]\n  %m = mul({mean}, f32(1.0)) : f32[i]\n"
        f"  %d = sub(%t, {'%b' if mean == '%b' else mean}) : f32[i, j]\n  %s = {fold} j: {term} : f32[i]\n"
        "  %y[i] = %s\n  %z[i] = %b\n}"
    )


POWER = region("max", "exp(mul(%d, f32(0.5)))")
SQUARE = region("sum", "mul(%d, %d)", mean=f"div(%b, f32({COUNT}.0))")


def fold_of(found: Region) -> Reduce:
    return next(s for s in found.body if isinstance(s, Reduce) and s.name == "s")


def in_parts(found: Region, x: np.ndarray) -> np.ndarray:
    """The fold of each row from its parts: each part by itself, then all of them."""
    based = rebase(found, fold_of(found), COUNT)
    assert based is not None
    kept = [s for s in found.body if isinstance(s, Let) or (isinstance(s, Reduce) and s.name == "b")]
    stores = [s for s in found.body if isinstance(s, Store)]
    part = Region("part", found.inputs, found.outputs, found.axes, (*kept, _with(found, based.of_part(CHUNK)), *stores))
    given = [run_region(_sized(part, CHUNK), {"x": x[:, n : n + CHUNK]}) for n in range(0, COUNT, CHUNK)]
    sums, bases = (np.stack([each[name] for each in given], axis=1) for name in "yz")
    loads: list[Scalar] = [Load(name, fold_loads(found), f32) for name in ("p", "q")]
    joined = _with(found, based.joined(loads[0], loads[1], CHUNK))
    total = Reduce("b", ("i",), based.base.kind, ("j",), loads[1], f32)
    kinds = [type(found.inputs[0])(name, found.inputs[0].type.with_shape((3, PARTS))) for name in "pq"]
    whole = Region("whole", tuple(kinds), found.outputs, found.axes, (total, joined, *stores))
    return run_region(_sized(whole, PARTS), {"p": sums, "q": bases})["y"]


def fold_loads(found: Region) -> tuple[object, ...]:
    return next(s for s in found.body if isinstance(s, Let)).value.args[0].subscripts  # type: ignore[union-attr]


def _with(found: Region, value: Scalar) -> Reduce:
    fold = fold_of(found)
    return Reduce(fold.name, fold.axes, fold.kind, fold.over, value, fold.dtype)


def _sized(found: Region, count: int) -> Region:
    axes = tuple(type(axis)(axis.name, count if axis.name == "j" else axis.extent) for axis in found.axes)
    inputs = tuple(type(o)(o.name, o.type.with_shape((3, count))) for o in found.inputs)
    return Region(found.name, inputs, found.outputs, axes, found.body)


GUARDED = region("max", "exp(%d)", mean="where(is_inf(%b), f32(0.0), %b)")


@pytest.mark.parametrize("found", [POWER, SQUARE, GUARDED], ids=["power", "square", "guarded"])
@pytest.mark.parametrize("seed", range(6))
def test_parts_give_what_the_row_gives(found: Region, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((3, COUNT)) * 10.0 ** random.integers(-2, 2) + random.choice([0.0, 30.0, -500.0])).astype(np.float32)
    wanted = run_region(found, {"x": x})["y"]
    np.testing.assert_allclose(in_parts(found, x), wanted, rtol=2e-5, atol=1e-6 * float(np.abs(x).max()) ** 2)


def test_parts_of_nothing_but_infinities() -> None:
    x = np.random.default_rng(0).standard_normal((3, COUNT)).astype(np.float32)
    x[0, :CHUNK], x[1] = -np.inf, -np.inf
    x[2, 3] = np.nan
    with np.errstate(invalid="ignore"):
        wanted, got = run_region(POWER, {"x": x})["y"], in_parts(POWER, x)
    assert np.isfinite(wanted[0]) and np.isnan(wanted[1:]).all()
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    finite = np.isfinite(x.max(1))
    np.testing.assert_allclose(in_parts(GUARDED, x)[finite], run_region(GUARDED, {"x": x})["y"][finite], rtol=1e-5)
    assert in_parts(GUARDED, x - 1000)[1] == 0
    far = np.full((3, COUNT), -np.inf, np.float32)
    far[:, -1] = (-200.0, -1e30, 1e30)
    np.testing.assert_array_equal(in_parts(POWER, far), np.ones(3, np.float32))


@pytest.mark.parametrize(
    "found",
    [
        region("max", "exp(mul(%d, f32(-0.5)))"),  # the highest number gives the least power
        region("min", "exp(%d)"),
        region("max", "exp(sub(%x[i, j], %b))"),  # the highest of other numbers
        region("max", "exp(%d)", "max"),
        region("max", "exp(%d)", mean="where(is_inf(%b), f32(-1000.0), %b)"),  # far below all numbers of a part
        region("max", "mul(%d, %d)"),
        region("max", "exp(add(%d, %b))"),
        region("sum", "mul(%d, %d)"),  # less the sum itself
        region("sum", "mul(%d, %t)", mean=f"div(%b, f32({COUNT}.0))"),
        region("sum", "mul(%d, %d)", mean="div(%b, f32(23.0))"),
        region("sum", "abs(%d)", mean=f"div(%b, f32({COUNT}.0))"),
        region("sum", "mul(%t, %t)"),
    ],
)
def test_what_has_a_launch_of_its_own(found: Region) -> None:
    assert rebase(found, fold_of(found), COUNT) is None


def test_the_base_itself_has_none() -> None:
    base = next(s for s in POWER.body if isinstance(s, Reduce) and s.name == "b")
    assert rebase(POWER, base, COUNT) is None
    assert Ref("b", f32) in [base_of(POWER), base_of(SQUARE)]


def base_of(found: Region) -> Ref:
    based = rebase(found, fold_of(found), COUNT)
    assert based is not None
    return Ref(based.base.name, based.base.dtype)
