"""What is known of symbols: ranges sharpened by divisors, and names that are used again."""

from __future__ import annotations

from ourcc.ir import dims
from ourcc.ir.dims import NO_FACTS, Range


def test_a_multiple_ends_at_the_last_multiple() -> None:
    facts = NO_FACTS.with_range("s", 1, 63, 32)
    assert dims.range_of(dims.symbol("s"), facts) == Range(32, 32)
    assert dims.at_most(dims.symbol("s") + 32, 64, facts) is True


def test_a_name_that_is_used_again_forgets_its_divisor() -> None:
    facts = NO_FACTS.with_range("s", 0, 31, 4).with_range("s", 32, 33)
    assert dims.divides(4, dims.symbol("s"), facts) is not True
    assert dims.range_of(dims.symbol("s"), facts) == Range(32, 33)
