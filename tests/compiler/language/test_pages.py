"""Sequences that share pages: drawn programs over several sequences of a session give the bits of sequences that are alone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.compiler.language import module
from ourcc.ir.plan import Copy
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.sequence import Sequences, TokenSequence
from ourcc.runtime.saved import Saved, read_saved, write_saved

Both = tuple[LanguageModel, Any, Path]


@pytest.fixture(scope="module", params=[(16, "f32"), (8, "fp8"), (24, "bf16")])
def engine(request: pytest.FixtureRequest, both: Both) -> Any:
    """Engines with pages of several sizes, of which one divides no block of attention."""
    size, cache = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE", size)
        return ourcc.build(both[2].parent, tune="off", batch=3, cache=cache)


class Program:
    """Sequences of one session, and one that is alone."""

    def __init__(self, engine: Any, seed: int, folder: Path) -> None:
        self.drawn, self.folder = random.Random(seed), folder
        self.sequences: Sequences = engine.sequences()
        self.drawn.shuffle(self.sequences.pages._ledger.free)  # pages come in any order
        self.alone: TokenSequence = engine.sequence()
        self.context = engine.facts.context
        self.all: list[TokenSequence] = []

    def step(self) -> None:
        kind = self.drawn.choice(("begin", "fork", "fork", "end", "save", *["read"] * 5))
        if kind == "begin" or not self.all:
            self.all.append(self.sequences.begin())
            return
        chosen = self.drawn.choice(self.all)
        if kind == "fork":
            self.all.append(chosen.fork())
        elif kind == "end":
            chosen.end()
            self.all.remove(chosen)
        elif kind == "save":
            chosen.save(self.folder / "saved")
            free = self.sequences.pages.free
            if free >= self.sequences.pages.needed(len(chosen.tokens)):
                loaded, _ = self.sequences.load(self.folder / "saved")
                assert loaded.tokens == chosen.tokens and not set(loaded.held.pages) & set(chosen.held.pages)
                self.all.append(loaded)
            else:
                with pytest.raises(ourcc.UsageError, match="all are taken"):
                    self.sequences.load(self.folder / "saved")
                assert self.sequences.pages.free == free
        else:
            self.read()

    def read(self) -> None:
        asked: list[tuple[TokenSequence, list[int], int]] = []
        for each in self.drawn.sample(self.all, self.drawn.randint(1, min(4, len(self.all)))):
            # Some go back, and on in another way.
            tokens = each.tokens[: self.drawn.randint(0, len(each.tokens)) if self.drawn.random() < 0.3 else None]
            tokens = [*tokens, *(self.drawn.randrange(297) for _ in range(self.drawn.choice((1, 1, 2, 9, 20))))][-self.context :]
            asked.append((each, tokens, 1))
        try:
            found = self.sequences.logits(asked)
        except ourcc.UsageError as error:
            assert "all are taken" in str(error)
            return
        for (each, tokens, _), rows in zip(asked, found, strict=True):
            np.testing.assert_array_equal(rows[-1], self.alone.logits(tokens))
            assert each.tokens == tokens

    def check(self) -> None:
        pages = self.sequences.pages
        users = Counter(page for each in self.all for page in each.held.pages)
        assert [pages.users(page) for page in range(pages.count)] == [users[page] for page in range(pages.count)]
        assert pages.free == pages.count - len(users)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_programs(engine: Any, seed: int, tmp_path: Path) -> None:
    program = Program(engine, seed, tmp_path)
    for _ in range(40):
        program.step()
        program.check()
    # At the end each is told what it is told alone, which no other has changed. To read its last token again takes a page at most.
    for each in [each for each in program.all if each.tokens]:
        while not program.sequences.pages.free:
            program.all.pop().end()
            program.check()
        if not each.ended:
            np.testing.assert_array_equal(each.logits(each.tokens), program.alone.logits(each.tokens))
    for each in program.all:
        each.end()
    assert program.sequences.pages.free == program.sequences.pages.count


def test_no_token_copies_the_pages(engine: Any) -> None:
    plan = engine.contents.best.plans["step"]
    assert [step for step in plan.steps if isinstance(step, Copy) and plan.moves(step)] == []


def test_a_fork_shares_memory(engine: Any) -> None:
    origin = engine.sequence()
    size = origin.owner.pages.size
    origin.logits(list(range(size + 2)))
    forks = [origin.fork() for _ in range(5)]
    assert origin.owner.pages.free == origin.owner.pages.count - 2
    for number, each in enumerate(forks):
        each.logits([*origin.tokens, number])
    # The first page is that of all of them; of the second each has its own.
    assert {each.held.pages[0] for each in forks} == {origin.held.pages[0]}
    assert origin.owner.pages.free == origin.owner.pages.count - 2 - len(forks)


def test_files_of_pages(engine: Any, tmp_path: Path) -> None:
    origin = engine.sequence()
    size, session = origin.owner.pages.size, origin.session
    text = list(range(40))
    origin.logits([*text, 7, 8, 9])
    origin.logits(text)
    origin.save(tmp_path / "s")
    saved = read_saved(tmp_path / "s", session.program, session.states)
    whole, rest = divmod(len(text), size)
    for array in saved.arrays.values():
        assert array.shape[:2] == (whole + (rest > 0), size)
        # What was read and taken back stays out of the file, as does what others have left in a page.
        assert (array[-1, :rest].any() and not array[-1, rest:].any()) or not rest
    for change, message in (
        (lambda array: np.concatenate([array, array[:1]]), "the file holds sizes .* for 40 tokens"),
        (lambda array: array[:-1], "the file holds sizes .* for 40 tokens"),
        (lambda array: array[:, :-1], "the file holds sizes .* for 40 tokens"),
        (lambda array: np.concatenate([array, array[:, :1]], axis=1), "the session holds .* for state"),
    ):
        arrays = {name: change(array) for name, array in saved.arrays.items()}
        write_saved(tmp_path / "bad", Saved(session.program, saved.about, arrays))
        with pytest.raises(ourcc.EngineError, match=message):
            engine.load_sequence(tmp_path / "bad")
