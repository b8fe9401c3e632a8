"""Number formats, each declared once: its arrays, the arithmetic that gives a number back, and how numbers become codes."""

from __future__ import annotations

import functools

from ..errors import VerifyError
from . import affine, floating, ggml
from .format import Field, Format, Reader

FORMATS: dict[str, Format] = {format.name: format for format in (*affine.FORMATS, *floating.FORMATS, *ggml.FORMATS)}


_grouped = functools.cache(affine.parse_grouped)


def format_of(name: str) -> Format:
    """The format of that name, one of the table or integers in groups of another size; VerifyError lists those that there are."""
    if name not in FORMATS and (found := _grouped(name)) is not None:
        return found
    if name not in FORMATS:
        raise VerifyError(f"number format {name!r} is not known, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


__all__ = ["FORMATS", "Field", "Format", "Reader", "format_of"]
