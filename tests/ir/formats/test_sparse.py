"""2:4 sparsity of every format: what is read is what the format gives for the kept numbers, at their positions, and 0 elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ourcc.ir.errors import VerifyError
from ourcc.ir.formats import FORMATS, Format, format_of, sparse_name
from ourcc.ir.formats.sparse import plain, pruned
from ourcc.ir.types import DTYPES, TensorType

from .shown import FIVE

DTYPES_KEPT = ("f32", "f16", "bf16", "i8", "f64")
KEPT: dict[str, Format] = {**{name: plain(DTYPES[name]) for name in DTYPES_KEPT}, **FORMATS, FIVE.name: FIVE}
MADE = [name for name, format in KEPT.items() if format.encode is not None and name != "i8"]


def expanded(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Kept numbers along the last axis at their positions, the first number that says a place; the other places are 0."""
    positions = np.stack([places >> 2 * n & 3 for n in range(4)], -1).reshape(*places.shape[:-1], -1)[..., : values.shape[-1]]
    pairs = values.reshape(*values.shape[:-1], -1, 2)
    dense = np.zeros((*pairs.shape[:-1], 4), values.dtype)
    for member in (1, 0):
        where = positions.reshape(pairs.shape)[..., member, None].astype(np.int64)
        np.put_along_axis(dense, where, pairs[..., member, None], -1)
    return dense.reshape(*values.shape[:-1], -1)


def drawn(random: np.random.Generator, kind: TensorType) -> np.ndarray:
    shape = tuple(int(str(size)) for size in kind.shape)
    if kind.dtype.is_float:
        return random.uniform(0.01, 2.0, shape).astype(kind.dtype.numpy)
    return random.integers(-128 if kind.dtype.kind == "int" else 0, 128, shape).astype(kind.dtype.numpy)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(list(KEPT)), groups=st.integers(1, 3), rows=st.integers(1, 5), axis=st.integers(0, 1), seed=st.integers(0, 99))
def test_what_is_read_is_what_was_kept(name: str, groups: int, rows: int, axis: int, seed: int) -> None:
    sparse, kept, random = format_of(sparse_name(name)), KEPT[name], np.random.default_rng(seed)
    count = groups * sparse.group
    shape = (rows, count) if axis == 1 else (count, rows)
    types = sparse.types(shape, axis)
    fields = {field.name: drawn(random, kind) for field, kind in zip(sparse.fields, types, strict=True)}
    fields["places"] = random.integers(0, 256, fields["places"].shape, np.uint8)
    numbers = kept.decoded({name: array for name, array in fields.items() if name != "places"}, axis)
    assert numbers.shape[axis] == count // 2
    dense = expanded(np.moveaxis(numbers, axis, -1), np.moveaxis(fields["places"], axis, -1))
    found = sparse.decoded(fields, axis)
    assert found.dtype == numbers.dtype and sparse.dense(types, axis) == shape
    np.testing.assert_array_equal(np.moveaxis(found, axis, -1), dense)


@pytest.mark.parametrize("name", MADE)
def test_the_two_largest_of_every_four_are_coded(name: str) -> None:
    sparse, kept = format_of(sparse_name(name)), KEPT[name]
    x = np.random.default_rng(0).standard_normal((6, 2 * sparse.group)).astype(np.float32)
    fields = sparse.encoded(x)
    values, places = pruned(x, -1)
    np.testing.assert_array_equal(fields["places"], places)
    np.testing.assert_array_equal(sparse.decoded(fields), expanded(kept.decoded(kept.encoded(values)), places))
    assert sparse.bits == kept.bits / 2 + 1


def test_zero_points_are_subtracted_before() -> None:
    """All numbers lie far above 0: a place that is not kept is 0 all the same."""
    sparse = format_of("2:4.uint4.g32")
    x = np.random.default_rng(0).uniform(-9, -4, (3, 128)).astype(np.float32)
    fields = sparse.encoded(x)
    assert fields["zero"].min() > 0
    found = sparse.decoded(fields)
    assert ((found == 0).reshape(3, -1, 4).sum(-1) == 2).all() and found[found != 0].max() < -3


def test_what_is_no_format() -> None:
    for name, message in (
        ("2:4.int5", "number format 'int5' is not known"),
        ("2:4.2:4.f32", "number format '2:4.2:4.f32' is not known"),
        ("2:4.", "number format '' is not known"),
    ):
        with pytest.raises(VerifyError, match=message):
            format_of(name)
    with pytest.raises(VerifyError, match=r"2:4.int4.g32: size 96 along axis 1 of \[2, 96\] is no multiple of 64"):
        format_of("2:4.int4.g32").types((2, 96), 1)
