"""What a picture folds: stretches that are alike and wired alike, all nodes accounted for, and large programs within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ourcc.compiler.report.graph.diagram import diagram_of
from ourcc.compiler.report.graph.fold import MOST, Part, fold
from ourcc.compiler.report.graph.vertices import Vertex


def chain(kinds: Sequence[str], reads: Sequence[tuple[str, ...]] | None = None) -> list[Vertex]:
    """Nodes that each read the one before, or what is said."""
    before = [(), *((f"v{place}",) for place in range(len(kinds)))]
    return [
        Vertex("op", kind, (), f"text {place}", before[place] if reads is None else reads[place], (f"v{place}",), kind)
        for place, kind in enumerate(kinds)
    ]


def flat(parts: Sequence[Part], shift: int = 0) -> Iterator[int]:
    """Every node that parts stand for, in the order of the program."""
    for part in parts:
        for copy in range(part.copies):
            if part.parts:
                yield from flat(part.parts, shift + copy * part.period)
            else:
                yield from range(shift + part.start, shift + part.stop)


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 6))
def test_parts_stand_for_every_node_once_and_copies_are_alike(kinds: list[str], times: int) -> None:
    nodes = chain(kinds * times)
    parts = fold(nodes)
    assert list(flat(parts)) == list(range(len(nodes)))
    for part in parts:
        stretches = [
            [node.alike for node in nodes[start : start + part.period]] for start in range(part.start, part.stop, max(1, part.period))
        ]
        assert all(stretch == stretches[0] for stretch in stretches)
    account = diagram_of(nodes)[1]
    assert account.nodes == account.drawn + account.copies + account.counted == len(nodes)


def test_layers_are_one_box() -> None:
    layer = ["norm", "matmul", "add", "relu", "matmul", "add"]
    (begin, layers, end) = fold(chain(["embed", *layer * 12, "head"]))
    assert (layers.copies, layers.period, begin.stop, end.start) == (12, 6, 1, 73)


def test_what_differs_in_one_copy_stays_out_of_the_fold() -> None:
    layer = ["norm", "matmul", "add", "relu"]
    parts = fold(chain(["embed", *layer * 4, "norm", "matmul", "mul", "relu", *layer * 4]))
    assert [part.copies for part in parts if part.copies > 1] == [4, 4]


def test_copies_that_are_wired_otherwise_are_not_folded() -> None:
    """The same ops, but every second stretch reads what the first one made, not what the one before it made."""
    kinds = ["embed", *["a", "b", "c"] * 6]
    straight = [() if place == 0 else (f"v{place - 1}",) for place in range(19)]
    crooked = [("v1",) if place in (7, 13) else reads for place, reads in enumerate(straight)]
    assert [part.copies for part in fold(chain(kinds, straight))] == [1, 6]
    assert max(part.copies for part in fold(chain(kinds, crooked))) < 6


def test_a_value_that_all_copies_read_stays_outside() -> None:
    kinds = ["mask", *["norm", "attend", "add"] * 5]
    reads = [(), *((f"v{place}",) if place % 3 else (f"v{place}", "v0") for place in range(15))]
    assert [part.copies for part in fold(chain(kinds, reads))] == [1, 5]


def test_blocks_in_blocks_are_folded_in_their_box() -> None:
    stage = ["in", *["conv", "norm", "relu"] * 4, "pool"]
    _, part = fold(chain(["embed", *stage * 3]))
    assert (part.copies, part.period) == (3, 14)
    assert [inner.copies for inner in part.parts] == [1, 4, 1]


@pytest.mark.parametrize(
    "kinds", [[f"op{n}" for n in range(20_000)], [f"op{n.bit_count() % 2}" for n in range(20_000)]], ids=["all", "bits"]
)
def test_what_cannot_be_folded_is_counted(kinds: list[str]) -> None:
    nodes = chain(kinds)
    diagram, account = diagram_of(nodes)
    assert len(diagram.boxes) <= MOST and account.nodes == account.drawn + account.copies + account.counted
    said = "\n".join(box.text for box in diagram.boxes).split("\n")
    assert sorted(said) == sorted(node.text for node in nodes)
