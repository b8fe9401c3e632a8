"""Tile programs: words, text, verifier, bounds and interpreter."""

from .address import Rearranged, at_lanes, flatten, rearranged, stride_of
from .bounds import (
    BoundsCheck,
    absolute_axes,
    access_checks,
    bounds_checks,
    checks_of,
    domain_checks,
    names_value,
    open_ends,
    varies_over,
)
from .ladder import expand_ladders, expand_launch
from .proof import at_most, non_negative, simplify
from .scope import Axis, Scope, launch_scope

__all__ = [
    "Axis",
    "BoundsCheck",
    "Rearranged",
    "Scope",
    "absolute_axes",
    "access_checks",
    "at_lanes",
    "at_most",
    "bounds_checks",
    "checks_of",
    "domain_checks",
    "expand_ladders",
    "expand_launch",
    "flatten",
    "launch_scope",
    "names_value",
    "non_negative",
    "open_ends",
    "rearranged",
    "simplify",
    "stride_of",
    "varies_over",
]
