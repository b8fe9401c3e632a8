"""Pages: drawn programs of sequences that grow, go back, fork and end hold what each wrote, and every page is accounted for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ourcc.ir.errors import EngineError, UsageError
from ourcc.ir.types import TensorType, f32, i8
from ourcc.runtime.language.pages import Held, Pages, Writing

SIZE = 4


class Kept:
    """What pages need of a session: states in memory, and what was written to them."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        types = (f32, i8)
        self.states = {f"state{n}": TensorType(types[n % 2], shape) for n, shape in enumerate(shapes)}
        self.memory = {name: np.zeros(type.shape, type.dtype.numpy) for name, type in self.states.items()}  # type: ignore[arg-type]
        self.written = 0

    def state(self, name: str, where: Any = ()) -> Any:
        return self.memory[name][where].copy()

    def set_state(self, name: str, value: Any, where: Any = ()) -> None:
        self.memory[name][where] = value
        self.written += 1


class Run:
    """Sequences with the numbers that each has written; `memory` is that of the first state."""

    def __init__(self, seed: int, count: int) -> None:
        self.drawn = random.Random(seed)
        self.kept = Kept((count, SIZE, 2), (count, SIZE))
        self.pages = Pages(self.kept)  # type: ignore[arg-type]
        self.memory = self.kept.memory["state0"]
        self.all: list[tuple[Held, list[float]]] = []
        self.next = 1.0

    def step(self) -> None:
        kind = self.drawn.choice(("begin", "fork", "end", "write", "write", "write", "back"))
        if kind == "begin" or not self.all:
            self.all.append((Held(), []))
            return
        if kind in ("write", "back"):
            return self.write(kind == "back")
        held, numbers = self.drawn.choice(self.all)
        if kind == "fork":
            count = self.drawn.randint(0, len(numbers))
            self.all.append((self.pages.share(held, count), numbers[:count]))
        else:
            self.pages.give_back(held)
            self.all = [each for each in self.all if each[0] is not held]

    def write(self, goes_back: bool) -> None:
        chosen = self.drawn.sample(self.all, self.drawn.randint(1, min(3, len(self.all))))
        writings = []
        for held, numbers in chosen:
            first = self.drawn.randint(0, len(numbers)) if goes_back else len(numbers)
            writings.append(Writing(held, first, first + self.drawn.randint(1, 7)))
        before = [list(held.pages) for held, _ in self.all]
        try:
            self.pages.prepare(writings)
        except UsageError:
            assert [held.pages for held, _ in self.all] == before
            # It was right: not even with the pages that each would give back are there enough.
            assert not self.fits(writings)
            return
        for writing, (held, numbers) in zip(writings, chosen, strict=True):
            assert len(held.pages) == self.pages.needed(writing.end)
            del numbers[writing.first :]
            assert np.isfinite(self.memory[held.pages].reshape(-1, 2)[writing.first :]).all()
            has_none = self.drawn.random() < 0.1
            for place in range(writing.first, writing.end):
                page = held.pages[place // SIZE]
                assert self.pages.users(page) == 1
                numbers.append(float("nan") if has_none else self.next)
                self.memory[page, place % SIZE] = numbers[-1]
                self.kept.memory["state1"][page, place % SIZE] = np.nan_to_num(numbers[-1]) % 127
                self.next += 1
            if has_none:
                self.pages.doubt(held, writing.end)

    def fits(self, writings: list[Writing]) -> bool:
        """Whether the pages that all sequences would hold then are no more than there are."""
        users = Counter(page for held, _ in self.all for page in held.pages)
        total = len(users)
        for writing in writings:
            kept = writing.held.pages[: writing.first // SIZE]
            users.subtract(writing.held.pages[len(kept) :])
            total += self.pages.needed(writing.end) - len(kept)
        return total - sum(count <= 0 for count in users.values()) <= self.pages.count

    def check(self) -> None:
        users = Counter(page for held, _ in self.all for page in held.pages)
        assert [self.pages.users(page) for page in range(self.pages.count)] == [users[page] for page in range(self.pages.count)]
        assert self.pages.free == self.pages.count - len(users)
        for held, numbers in self.all:
            assert len(held.pages) == self.pages.needed(len(numbers)) and len(set(held.pages)) == len(held.pages)
            lying = self.memory[held.pages].reshape(-1, 2)[: len(numbers), 0] if held.pages else np.zeros(0)
            np.testing.assert_array_equal(lying, numbers)
            others = self.kept.memory["state1"][held.pages].reshape(-1)[: len(numbers)]
            np.testing.assert_array_equal(others, np.nan_to_num(np.asarray(numbers)) % 127)
            # What others may look at behind its end are numbers, if no one wrote others there that holds the page as well.
            alone = all(users[page] == 1 for page in held.pages[-1:])
            if alone and held.pages and self.pages.is_sound(held):
                assert np.isfinite(self.memory[held.pages]).all()


@pytest.mark.parametrize("seed", range(200))
def test_drawn_programs(seed: int) -> None:
    run = Run(seed, count=random.Random(seed).choice((3, 8, 20)))
    for _ in range(80):
        run.step()
        run.check()
    for held, _ in run.all:
        run.pages.give_back(held)
    assert run.pages.free == run.pages.count


def test_only_the_page_that_is_written_is_copied() -> None:
    kept = Kept((8, SIZE, 2), (8, SIZE))
    pages = Pages(kept)  # type: ignore[arg-type]
    origin = Held()
    pages.prepare([Writing(origin, 0, 10)])
    other = pages.share(origin, 10)
    assert other.pages == origin.pages and kept.written == 0
    pages.prepare([Writing(other, 10, 11)])
    assert other.pages[:2] == origin.pages[:2] and other.pages[2] != origin.pages[2]
    assert kept.written == 2  # one page of each state
    pages.prepare([Writing(origin, 10, 11), Writing(other, 11, 12)])
    assert kept.written == 2  # each has it alone now
    # What is written from its beginning is not copied.
    third = pages.share(origin, 8)
    pages.prepare([Writing(third, 4, 9)])
    assert third.pages[0] == origin.pages[0] and not set(third.pages[1:]) & set(origin.pages) and kept.written == 2


def test_a_call_finds_what_another_sequence_of_it_gives_back() -> None:
    pages = Pages(Kept((2, SIZE)))  # type: ignore[arg-type]
    first, second = Held(), Held()
    pages.prepare([Writing(first, 0, 2 * SIZE)])
    with pytest.raises(UsageError, match="the session holds 8 tokens in 2 pages, and all are taken"):
        pages.prepare([Writing(second, 0, 1)])
    pages.prepare([Writing(second, 0, 1), Writing(first, 1, 2)])
    assert sorted(first.pages + second.pages) == [0, 1]


def test_tables() -> None:
    pages = Pages(Kept((9, SIZE)))  # type: ignore[arg-type]
    short, long = Held([5]), Held([2, 0, 7])
    assert pages.table([short, long], 9).tolist() == [[5, 5, 5], [2, 0, 7]]
    assert pages.table([long], 5).tolist() == [[2, 0]]


def test_states_that_are_no_caches() -> None:
    for shapes in ([(4, 2, 3), (4, 3, 3)], [(4,)], [()]):
        with pytest.raises(EngineError, match="the engine's states are no caches of a language model"):
            Pages(Kept(*shapes))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="are no caches"):
        Pages(Kept())  # type: ignore[arg-type]
