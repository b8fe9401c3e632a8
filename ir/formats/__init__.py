"""Number formats, each declared once: its arrays, the arithmetic that gives a number back, and how numbers become codes."""

from __future__ import annotations

import functools

from ..errors import VerifyError
from ..types import DTYPES
from . import affine, floating, ggml, sparse
from .format import Field, Format, Reader

FORMATS: dict[str, Format] = {format.name: format for format in (*affine.FORMATS, *floating.FORMATS, *ggml.FORMATS)}


_grouped = functools.cache(affine.parse_grouped)


@functools.cache
def _sparse(kept: str) -> Format:
    """2:4 numbers that are kept in a format, or in a dtype."""
    return sparse.two_four(sparse.plain(DTYPES[kept]) if kept in DTYPES else format_of(kept))


def sparse_name(kept: str) -> str:
    """What 2:4 numbers are called that are kept in a format, or in a dtype."""
    return f"{sparse.PREFIX}{kept}"


def format_of(name: str) -> Format:
    """The format of that name, one of the table, integers in groups of another size, or either 2:4 sparse; VerifyError lists the table."""
    if name.startswith(sparse.PREFIX) and not name.startswith(sparse.PREFIX * 2):
        return _sparse(name.removeprefix(sparse.PREFIX))
    if name not in FORMATS and (found := _grouped(name)) is not None:
        return found
    if name not in FORMATS:
        raise VerifyError(f"number format {name!r} is not known, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


__all__ = ["FORMATS", "Field", "Format", "Reader", "format_of", "sparse_name"]
