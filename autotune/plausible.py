"""What no machine can do: times of records that lie below the floor of the cost model are not believed.

The rates are far above what one thread of any processor reaches (records are of one thread), so that an honest time is
never refused. A dishonest one above the floor can make a slower schedule of ours be chosen, and no more.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.errors import CompilerError
from ..ir.region.cost import cost_of
from ..ir.region.text import parse_region
from .record import Data, Record, Trial

OPERATIONS_PER_SECOND = 32e12
"""Matrix instructions on bytes do about 15e12 in one core."""
BYTES_PER_SECOND = 2e12
"""The nearest cache gives about 1e12 to one core."""


def floor(problem: Data) -> int | None:
    """The picoseconds that the problem takes at least at the sizes it is measured at; None if its region cannot be read."""
    try:
        cost = cost_of(parse_region(problem["region"]), problem["bucket"])
    except (CompilerError, ArithmeticError, KeyError, ValueError, RecursionError):
        return None
    return int(cost.seconds(OPERATIONS_PER_SECOND, BYTES_PER_SECOND) * 1e12)


def believable(record: Record) -> tuple[Record, list[str]]:
    """The record without the samples that cannot be true, and why each of them was left out."""
    least = floor(record.problem)
    if least is None:
        return record, []
    reasons: list[str] = []
    trials = tuple(_believable(trial, least, reasons) for trial in record.trials)
    return (replace(record, trials=trials) if reasons else record), reasons


def _believable(trial: Trial, least: int, reasons: list[str]) -> Trial:
    kept = tuple(sample for sample in trial.samples if min(sample.picoseconds) >= least)
    for sample in trial.samples:
        if min(sample.picoseconds) < least:
            reasons.append(f"{trial.schedule} in {min(sample.picoseconds)} ps, expected at least {least} ps: no machine is so fast")
    return replace(trial, samples=kept)
