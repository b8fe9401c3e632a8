"""The workload: its text, what it may ask of symbols, and its sizes under other names."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.errors import UsageError
from ourcc.ir.workload import Point, Workload, default_sizes, default_workload, parse_workload

FACTS = Facts().with_range("B", 1, 32).with_range("S", 8, 512, divisor=8)


def test_points_are_read_with_their_weights_and_printed_alike() -> None:
    workload = parse_workload(["B=1, S=128", "B=8,S=512:0.25", "B=1,S=128"])
    assert workload == Workload((Point((("B", 1), ("S", 128)), 2.0), Point((("B", 8), ("S", 512)), 0.25)))
    assert str(workload) == "B=1,S=128:2 B=8,S=512:0.25"
    assert parse_workload(str(workload).split()) == workload


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "got no sizes, expected at least one point"),
        ([""], "got '', expected SYMBOL=SIZE"),
        (["B"], "got 'B', expected SYMBOL=SIZE"),
        (["B=-1"], "got 'B=-1', expected SYMBOL=SIZE"),
        (["B=1,,S=2"], "got '', expected SYMBOL=SIZE"),
        (["B=1,B=2"], "got B twice, expected one size"),
        (["B=1:"], "got the weight '', expected a number above 0"),
        (["B=1:0"], "got the weight '0', expected a number above 0"),
        (["B=1:-1"], "got the weight '-1', expected a number above 0"),
        (["B=1:nan"], "got the weight 'nan', expected a number above 0"),
    ],
)
def test_text_that_is_no_point_is_refused_with_an_example(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_workload(texts)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N=1", "got N, which is no symbol of the model"),
        ("B=64", r"got B = 64, expected B in 1\.\.32"),
        ("B=0", r"got B = 0, expected B in 1\.\.32"),
        ("S=20", r"got S = 20, expected S in 8\.\.512 and a multiple of 8"),
    ],
)
def test_sizes_that_no_call_has_are_refused_with_those_it_may_have(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_workload([text]).of(FACTS)
    assert caught.value.hint == "the symbols are B in 1..32, S in 8..512 and a multiple of 8"


def test_a_model_without_symbols_has_no_sizes_to_choose() -> None:
    assert default_workload(Facts()).sizes == {}
    with pytest.raises(UsageError, match="which is no symbol") as caught:
        parse_workload(["B=1"]).of(Facts())
    assert caught.value.hint == "all sizes of the model are fixed"


def test_sizes_that_do_not_broadcast_are_refused() -> None:
    facts = Facts({**FACTS.ranges, "T": dims.Range(1, 64)}, {}, {}, ((dims.symbol("B"), dims.symbol("T")),))
    assert parse_workload(["B=4,T=1"]).of(facts).sizes["B"] == 4
    with pytest.raises(UsageError, match="got B and T that do not broadcast"):
        parse_workload(["B=4,T=3"]).of(facts)


def test_what_is_not_said_is_as_where_nothing_is_said() -> None:
    assert default_workload(FACTS).sizes == {"B": 1, "S": 128}
    assert parse_workload(["S=64"]).of(FACTS).sizes == {"B": 1, "S": 64}
    assert default_workload(Facts().with_range("S", 1, 100)).sizes == {"S": 100}
    assert default_workload(Facts().with_range("S", 1, 100, divisor=24)).sizes == {"S": 96}
    assert default_workload(Facts().with_range("S", 200, None)).sizes == {"S": 200}


def test_the_heaviest_point_stands_for_all() -> None:
    assert parse_workload(["B=1,S=8", "B=2,S=16:3", "B=4,S=32:3"]).of(FACTS).sizes == {"B": 2, "S": 16}


def test_a_graph_takes_what_its_symbols_can_be() -> None:
    workload = parse_workload(["B=8,S=64", "B=1,S=128:2"])
    assert str(workload.within(Facts().with_range("S", 2, None))) == "S=64 S=128:2"
    assert str(workload.within(Facts().with_range("B", 2, None))) == "B=8"
    assert workload.within(Facts().with_range("N", 1, None)).sizes == {"N": 128}


def test_points_under_other_names_are_merged() -> None:
    b, s = dims.symbol("B"), dims.symbol("S")
    workload = parse_workload(["B=2,S=64", "B=4,S=32:0.5", "B=1,S=64"]).of(FACTS)
    assert workload.bound({"N0": b * s}) == (Point((("N0", 128),), 1.5), Point((("N0", 64),), 1.0))
    assert workload.bound({}) == (Point((), 2.5),)


def test_drawn_facts_have_sizes_that_calls_may_have() -> None:
    draw = random.Random(7)
    for _ in range(500):
        facts = Facts()
        for name in ("A", "B", "C")[: draw.randrange(4)]:
            divisor = draw.choice((1, 2, 7, 64))
            low = divisor * draw.randrange(0, 40)
            facts = facts.with_range(name, low, draw.choice((None, low + divisor * draw.randrange(1, 40))), divisor)
        sizes = default_sizes(facts)
        assert default_workload(facts).of(facts).sizes == sizes
        assert all(size >= 1 for size in sizes.values())


def test_what_is_found_is_no_more_than_what_was_looked_at() -> None:
    facts = Facts().with_range("N", 0, None).with_range("found", 0, None).with_range("kept", 0, None)
    most = {"found": dims.symbol("N") * 8, "kept": dims.symbol("found")}
    assert default_workload(facts).sizes == {"N": 1, "found": 128, "kept": 128}
    for given, expected in (("N=1", (1, 8, 8)), ("N=100", (100, 128, 128)), ("N=2,found=3", (2, 3, 3)), ("N=4,kept=99", (4, 32, 99))):
        assert tuple(parse_workload([given]).of(facts, most).sizes.values()) == expected


def drawn_facts(generator: random.Random) -> Facts:
    """Symbols in drawn ranges, some of which have to broadcast with others or with numbers."""
    names = "ABCD"[: generator.randint(1, 4)]
    facts = Facts()
    for name in names:
        low = generator.choice((0, 0, 1, 1, 2))
        facts = facts.with_range(name, low, generator.choice((None, None, low + generator.randint(1, 200))))
    sides = [*map(dims.symbol, names), 2, 7]
    pairs = tuple((dims.symbol(generator.choice(names)), generator.choice(sides)) for _ in range(generator.randint(0, 3)))
    return replace(facts, broadcasts=pairs)


def test_sizes_that_nobody_said_broadcast() -> None:
    generator = random.Random(3)
    solved = 0
    for _ in range(2000):
        facts = drawn_facts(generator)
        of_each = [[n for n in (1, 2, 3, 7, 128) if (r.low or 0) <= n <= (r.high or n)] for r in facts.ranges.values()]
        calls = (dict(zip(facts.ranges, sizes, strict=True)) for sizes in itertools.product(*of_each))
        if any(facts.clash(sizes) is None for sizes in calls):
            assert facts.clash(default_sizes(facts)) is None, facts
            assert facts.clash(Workload((Point(()),)).of(facts).sizes) is None, facts
            solved += 1
    assert solved > 1000


def test_what_is_said_stays_and_the_others_follow() -> None:
    facts = replace(Facts().with_range("N", 0, None).with_range("M", 0, None), broadcasts=((dims.symbol("N"), dims.symbol("M")),))
    assert parse_workload(["N=5"]).of(facts).sizes == {"N": 5, "M": 5}
    with pytest.raises(UsageError, match="got N and M that do not broadcast"):
        parse_workload(["N=5,M=6"]).of(facts)
