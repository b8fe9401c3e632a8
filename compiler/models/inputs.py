"""Inputs to verify and measure with: seeded ones that a model accepts, or the user's from a file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import dims
from ...ir.dims import Facts
from ...ir.errors import InputError
from ...ir.graph import Module, Op, Value
from ...ir.types import TensorType, string

Array = np.ndarray[Any, Any]
MOVES = frozenset({"check_index", "check_place", "cast", "reshape", "broadcast_to", "transpose", "slice", "concat"})
DIVISIONS = frozenset({"div", "floor_div", "mod", "fmod"})
WORDS = ("", "a", "naïve", "B b")


def seeded_inputs(module: Module, seed: int, sizes: Mapping[str, int] | None = None, function: str | None = None) -> list[Array]:
    """One input for each of a function's (the entry's): normal floats, integers below what they index, none of 0 that divide,
    else zeros and ones, and short words."""
    random = np.random.default_rng(seed)
    bindings = dict(sizes) if sizes is not None else seeded_sizes(module.facts, random)
    graph = module.main if function is None else module.functions[function]
    return [_draw(value, _bound(value), bindings, random) for value in graph.arguments]


def seeded_sizes(facts: Facts, random: np.random.Generator, span: int = 32) -> dict[str, int]:
    """Small sizes within the symbols' ranges: their lowest, and up to `span` more."""
    sizes = {}
    for name, known in facts.ranges.items():
        low = known.low if known.low is not None else 1
        high = low + span if known.high is None else min(known.high, low + span)
        # A size of 0 computes nothing that could be wrong, unless it is the only one.
        low = low if known.high == 0 else max(low, 1)
        divisor = facts.divisors.get(name, 1)
        sizes[name] = -(-int(random.integers(low, max(low, high) + 1)) // divisor) * divisor
    return sizes


def _readers(value: Value) -> Iterator[tuple[Op, Value]]:
    """The ops that read a value, each with the operand that it reads it by, through what only moves or checks it too."""
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        for op in current.uses:
            yield op, current
            if op.name in MOVES and op not in seen:
                seen.add(op)
                pending += op.results


def _bound(value: Value) -> int:
    """How large an integer input may be: the size of what it indexes, 2 where it indexes nothing."""
    return next((limit for op, read in _readers(value) if (limit := _indexed(op, read)) is not None), 2)


def _indexed(op: Op, value: Value) -> int | None:
    if op.name in ("check_index", "worst_index"):
        size = op.attrs["size"]
        return size if isinstance(size, int) else None
    if op.name == "take" and op.operands[1] is value and op.operands[0] is not None:
        size = op.operands[0].shape[op.attrs["axis"]]
        return size if isinstance(size, int) else None
    return None


def _divides(value: Value) -> bool:
    """Whether integers of a value are divided by: 0 has no answer to compare."""
    return any(op.name == "check_divisor" or (op.name in DIVISIONS and op.operands[1] is read) for op, read in _readers(value))


def _draw(value: Value, bound: int, sizes: Mapping[str, int], random: np.random.Generator) -> Array:
    shape = tuple(dims.evaluate(size, sizes) for size in value.shape)
    dtype = value.dtype
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    if dtype.kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype == string:
        return np.asarray([WORDS[number] for number in random.integers(0, len(WORDS), shape).reshape(-1)], dtype=object).reshape(shape)
    size = next((str(op.attrs["symbol"]) for op in value.uses if op.name == "item"), None)
    if size is not None and size in sizes:
        return np.asarray(sizes[size], dtype.numpy).reshape(shape)
    if _divides(value):
        return random.integers(1, 8, shape).astype(dtype.numpy)
    drawn = random.integers(0, bound, shape)
    if bound == 2 and drawn.ndim > 1:
        # A mask that keeps nothing of a row has no answer to compare.
        drawn[..., 0] = 1
    return drawn.astype(dtype.numpy)


def read_inputs(path: Path, names: Sequence[str]) -> Iterator[list[Array]]:
    """The inputs of an .npz file, or of every one in a folder, in the order of `names`."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{str(path)!r} holds no .npz file")
    for file in files:
        try:
            data = np.load(file, allow_pickle=False)
            if isinstance(data, np.ndarray):
                raise InputError(f"{str(file)!r} is an .npy file, expected an .npz file of named arrays", hint="save it with numpy.savez")
            with data:
                missing = [name for name in names if name not in data]
                if missing:
                    raise InputError(f"{str(file)!r} lacks {', '.join(missing)}: got {', '.join(data) or 'nothing'}")
                yield [data[name] for name in names]
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"cannot read {str(file)!r}: {error}") from error


def fits(type: TensorType, array: Array) -> bool:
    """Whether an array has a type's dtype and rank."""
    return array.dtype == type.dtype.numpy and array.ndim == type.rank
