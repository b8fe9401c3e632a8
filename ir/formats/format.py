"""What a number format is: the arrays that its numbers are stored in, and the arithmetic that gives a number back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Array
from ..types import DType, TensorType, f32, from_numpy, i32, u8

Tensor = np.ndarray[Any, Any]
Place = Any
"""Where a number stands along the coded axis: an index expression, or an array of integers."""


@dataclass(frozen=True)
class Field:
    """One array of a format: `words` elements of `dtype` for every `per` numbers along the coded axis (None: for all of them).

    `rows` channels share them (None: all). An array has the axes of what it codes, in their order.
    """

    name: str
    dtype: DType
    per: int | None
    words: int = 1
    rows: int | None = 1


class Reader(Protocol):
    """What decoding reads from: arrays, or the operands of a region."""

    def word(self, field: str, place: Place, own: bool = False) -> Array:
        """A field's element, but for `own` narrow floats as f32, all else in its own dtype; `place` counts words along the coded axis."""

    def number(self, place: Place, dtype: DType) -> Array:
        """A place as data."""


def block_of(place: Place, size: int | None) -> Place:
    """Which block of so many numbers a place is in; None: all are one."""
    return place * 0 if size is None else place // size


Part = Callable[[Reader, Place], Array]


@dataclass(frozen=True)
class Format:
    """(code - zero) * scale + offset: `code` is an integer or an f32, `zero` an integer, `scale` and `offset` are f32.

    Sizes along the coded axis are multiples of `group`, the numbers that belong together. `least` and `most` bound the codes; a
    `zero` that is the same for all numbers is said as such. `encode` gives the fields of an f32 array whose last axis is coded
    and whose last but one is that of channels; None where this package does not quantize to the format. Codes that are floats
    have a `mantissa` of so many bits. `doc` says what it is and who defines it. Numbers that are `plain` lie there in that dtype;
    of those that are sparse some are `kept`, in another format.
    """

    name: str
    doc: str
    fields: tuple[Field, ...]
    group: int
    code: Part
    scale: Part | None = None
    zero: Part | int = 0
    offset: Part | None = None
    least: float = -128
    most: float = 127
    encode: Callable[[Tensor], Mapping[str, Tensor]] | None = None
    mantissa: int | None = None
    plain: DType | None = None
    kept: Format | None = None

    @property
    def digits(self) -> int:
        """Significant binary digits of a code: those of a float, or as many as tell its integers apart."""
        return int(self.most - self.least).bit_length() if self.mantissa is None else self.mantissa + 1

    @property
    def bits(self) -> float:
        """Bits that a number takes in a long row, what it shares with others included."""
        return sum(field.dtype.bits * field.words / (field.per * (field.rows or np.inf)) for field in self.fields if field.per)

    @property
    def has_bytes(self) -> bool:
        """Whether codes are integers of 8 bits, which can be multiplied as such."""
        is_decoded = self.kept is not None and self.kept.offset is not None
        return not is_decoded and self.most - self.least <= (1 << u8.bits) - 1

    def number_of(self, field: str) -> int:
        """The place of a field among the fields."""
        return next(number for number, each in enumerate(self.fields) if each.name == field)

    def difference(self, reader: Reader, place: Place) -> Array:
        """The code at a place less the zero point."""
        value = self.code(reader, place)
        if self.zero == 0:
            return value
        return scalar.sub(scalar.cast(value, i32), self.zero if isinstance(self.zero, int) else self.zero(reader, place))

    def decode(self, reader: Reader, place: Place) -> Array:
        """The number at a place, f32 or as plain ones are."""
        value = scalar.cast(self.difference(reader, place), self.plain or f32)
        if self.scale is not None:
            value = scalar.mul(value, self.scale(reader, place))
        return value if self.offset is None else scalar.add(value, self.offset(reader, place))

    def types(self, dense: tuple[Dim, ...], axis: int) -> tuple[TensorType, ...]:
        """The types of the fields of a tensor with these sizes, coded along `axis`; VerifyError where no whole groups fit."""
        if len(dense) < 1 or dims.divides(self.group, dense[axis]) is not True:
            text = ", ".join(map(str, dense))
            raise VerifyError(f"{self.name}: size {dense[axis]} along axis {axis} of [{text}] is no multiple of {self.group}")
        return tuple(TensorType(field.dtype, self._shape(field, dense, axis)) for field in self.fields)

    def _shape(self, field: Field, dense: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
        sizes = list(dense)
        channel = channel_of(len(dense), axis)
        if channel is not None and field.rows != 1:
            sizes[channel] = 1 if field.rows is None else dims.ceil_div(dense[channel], field.rows)
        sizes[axis] = field.words if field.per is None else dims.ceil_div(dense[axis], field.per) * field.words
        return tuple(sizes)

    def dense(self, fields: tuple[TensorType, ...], axis: int) -> tuple[Dim, ...]:
        """The sizes of the tensor that fields of these types code; VerifyError where they do not fit together."""
        if len(fields) != len(self.fields):
            raise VerifyError(
                f"{self.name}: got {len(fields)} fields, expected {len(self.fields)}: {', '.join(f.name for f in self.fields)}"
            )
        full = next(n for n, field in enumerate(self.fields) if field.per is not None and field.rows == 1)
        sizes = list(fields[full].shape)
        if not -len(sizes) <= axis < len(sizes):
            raise VerifyError(f"{self.name}: got axis {axis} for {fields[full]}")
        words, per = self.fields[full].words, self.fields[full].per or 1
        if dims.divides(words, sizes[axis]) is not True:
            raise VerifyError(f"{self.name}: size {sizes[axis]} of {self.fields[full].name} is no multiple of {words}")
        sizes[axis] = sizes[axis] // words * per
        for field, got, expected in zip(self.fields, fields, self.types(tuple(sizes), axis), strict=True):
            same = got.rank == expected.rank and all(dims.equal(a, b) is True for a, b in zip(got.shape, expected.shape, strict=True))
            if got.dtype != field.dtype or not same:
                raise VerifyError(f"{self.name}: got {field.name} {got}, expected {expected}")
        return tuple(sizes)

    def decoded(self, fields: Mapping[str, Tensor], axis: int = -1) -> Tensor:
        """The array that the fields code along `axis`, f32 or of plain numbers; fields that were widened are narrowed again."""
        fields = {field.name: scalar.convert(fields[field.name], field.dtype) for field in self.fields}
        types = tuple(TensorType(from_numpy(fields[f.name].dtype), tuple(fields[f.name].shape)) for f in self.fields)
        shape = [dims.evaluate(size, {}) for size in self.dense(types, axis)]
        length = shape.pop(axis)
        reader = _Arrays(self, {name: np.moveaxis(array, axis, -1) for name, array in fields.items()}, (*shape, length))
        value = self.decode(reader, np.arange(length))
        return np.ascontiguousarray(np.moveaxis(np.broadcast_to(value, reader.shape), -1, axis))

    def encoded(self, x: Tensor, axis: int = -1) -> dict[str, Tensor]:
        """The fields of an array, coded along `axis`; VerifyError where its size does not fit, no
        scale holds its numbers, or the format is only read."""
        if self.encode is None:
            raise VerifyError(f"{self.name}: numbers of this format are read, not made")
        types = self.types(x.shape, axis % x.ndim)
        wide = np.moveaxis(x.astype(np.float32), axis, -1)
        if not np.isfinite(wide).all():
            raise VerifyError(f"{self.name}: got numbers that are not finite")
        if not x.size:
            return {field.name: np.zeros(kind.shape, kind.dtype.numpy) for field, kind in zip(self.fields, types, strict=True)}
        rows = wide.reshape(1, -1) if wide.ndim == 1 else wide
        # What is beyond a field's dtype is refused below.
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.encode(np.ascontiguousarray(rows))
            arrays = {field.name: found[field.name].astype(field.dtype.numpy, copy=False) for field in self.fields}
        result = {}
        for field, type in zip(self.fields, types, strict=True):
            array = arrays[field.name]
            if field.dtype.is_float and not np.isfinite(array).all():
                raise VerifyError(f"{self.name}: {field.name} is beyond {field.dtype}")
            array = array.reshape(array.shape[-1]) if wide.ndim == 1 else array
            result[field.name] = np.ascontiguousarray(np.moveaxis(array, -1, axis))
            if result[field.name].shape != type.shape:
                raise VerifyError(f"{self.name}: encoding gives {field.name} of {result[field.name].shape}, expected {type}")
        return result


def channel_of(rank: int, axis: int) -> int | None:
    """The axis of channels beside a coded one: the last of the others, the other one of a matrix."""
    others = [n for n in range(rank) if n != axis % rank]
    return others[-1] if others else None


@dataclass(frozen=True)
class _Arrays:
    """Fields as arrays with the coded axis last; the channels before it."""

    format: Format
    fields: Mapping[str, Tensor]
    shape: tuple[int, ...]

    def word(self, field: str, place: Place, own: bool = False) -> Tensor:
        array = self.fields[field]
        spec = self.format.fields[self.format.number_of(field)]
        if spec.rows not in (1, None) and array.ndim > 1:
            array = np.repeat(array, spec.rows, axis=-2)[..., : self.shape[-2], :]
        taken = array[..., np.broadcast_to(place, (self.shape[-1],))]
        return scalar.convert(taken, f32) if spec.dtype.is_float and not own else taken

    def number(self, place: Place, dtype: DType) -> Tensor:
        return np.asarray(place).astype(dtype.numpy)


# --- codes narrower than a byte ---------------------------------------------------------------------------------------


def plane(reader: Reader, field: str, place: Place, bits: int, run: int) -> Array:
    """The code of so many bits at a place, u8, where every `run` codes take `run * bits / 8` bytes.

    The first codes of a run are the lowest bits of its bytes, one after the other, the next ones the bits above them: so
    the codes of neighbouring places are neighbouring bytes, shifted alike.
    """
    if bits == u8.bits:
        return reader.word(field, place)
    count = run * bits // u8.bits
    byte = reader.word(field, place // run * count + place % count)
    shifted = scalar.shift_right(byte, reader.number(place % run // count * bits, u8))
    return scalar.bit_and(shifted, (1 << bits) - 1)


def packed(codes: Tensor, bits: int, run: int) -> Tensor:
    """Unsigned codes along the last axis as bytes that `plane` reads."""
    if bits == u8.bits:
        return codes.astype(np.uint8)
    count = run * bits // u8.bits
    parts = (
        codes.astype(np.uint8).reshape(*codes.shape[:-1], -1, run // count, count)
        << (np.arange(run // count, dtype=np.uint8) * bits)[:, None]
    )
    joined: Tensor = np.bitwise_or.reduce(parts, axis=-2)
    return joined.reshape(*codes.shape[:-1], -1)


def looked_up(code: Array, values: tuple[int, ...]) -> Array:
    """The i32 number that a code of at most 4 bits stands for; each is one byte of a table of words."""
    number = scalar.cast(code, i32)
    table = np.array(values, np.int8).view(np.int32)
    word: Array = scalar.add(scalar.mul(number, 0), int(table[-1]))
    for index in reversed(range(len(table) - 1)):
        word = scalar.where(scalar.lt(number, 4 * index + 4), int(table[index]), word)
    # The byte comes to the top and down again, which brings its sign along.
    up = scalar.shift_left(word, scalar.sub(24, scalar.mul(scalar.bit_and(number, 3), 8)))
    return scalar.shift_right(up, 24)
