"""Host routines in C: the files beside this module, each the body of one op of `ir/plan/steps.py`'s `IN_C`, and what runs a GPU's plan."""

from __future__ import annotations

from importlib.resources import files

LAUNCHES = "launches"
"""The interpreter of what `runtime/launches.py` writes."""


def routine(name: str) -> str:
    """The C file that defines a routine: as a kernel with the routine's name, a point for each row of its first operand.

    It is given its operands and results in order, and the sizes of all of them, one after the other.
    """
    return files(__package__).joinpath(f"{name}.c").read_text(encoding="ascii")
