"""Who takes part in `make bench-lm`: engines of ours and peers, each of one GGUF file, as the same two things to time.

`first(tokens)` is the token behind a prompt that is read into an empty cache. `hold(tokens, most)` are up to `most` texts that begin
with these tokens, which are read already: `run(ends, count)` makes `count` tokens behind as many texts as there are `ends`, the last
token of each, and says what a step took. Each sequence has keys and values of its own: those of ours and of llama.cpp are copied, and
as OpenVINO GenAI shares what begins alike, each of its texts begins with another token.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gguf
from lm_engines import engine_file
from peer_llama import LIBRARIES, LlamaCpp, libraries
from peer_openvino import OpenVino

import ourcc
from ourcc.runtime.language.sampling import Sampling

Maker = Callable[[], Any]
Run = Callable[[Sequence[int], int], float]
GREEDY = Sampling()

BF16: dict[str, Any] = {"precision": "bf16", "cache": "bf16"}
OURS: dict[str, dict[str, Any]] = {
    "exact": {},
    "a8": {"quantize": "a8"},
    "a8 bf16": {"quantize": "a8", **BF16},
    "bf16": {"precision": "bf16"},
}
"""How engines are built: weights decoded and sums in f32; activations as int8 for each 32 of a token; the same with keys and values
kept and attention multiplied in bf16 (llama.cpp keeps them in f16); products of bf16."""
KINDS: dict[str, tuple[str, ...]] = {"bf16": ("bf16",)}
"""Which of them there are for a format of weights; for those that are not named all but the last."""
OPENVINO = "OpenVINO GenAI"
PEERS = (*LIBRARIES, OPENVINO)
REPEATS = 3
BEGIN = 10
"""Tokens from it on begin texts that share nothing."""
ROOM = 256
"""Tokens that are made behind a text at most."""


class Ours:
    """An engine for one sequence, and one for several; loaded from their files as a user does."""

    side = "ours"

    def __init__(self, model: Path, kind: str, context: int, batch: int, threads: int, folder: Path) -> None:
        self.kind, self._folder, self._threads = kind, folder, threads
        self.files = {count: engine_file(model, folder, context=context, batch=count, **OURS[kind]) for count in sorted({1, batch})}
        self._models = {count: ourcc.load(file, threads=threads) for count, file in self.files.items()}
        self._reader = self._models[1].sequences()
        self.token_bytes = int(self._models[1].facts.token_bytes)

    def first(self, tokens: Sequence[int]) -> int:
        sequence = self._reader.begin()
        (made,) = self._reader.sample([(sequence, list(tokens), 1, GREEDY, False)])
        self._reader.end(sequence)
        return int(made[0][-1])

    @contextlib.contextmanager
    def hold(self, tokens: Sequence[int], most: int) -> Iterator[Run]:
        # An engine for one sequence reads those behind one, and the other all that are more.
        held: dict[int, tuple[Any, list[Any]]] = {}

        def run(ends: Sequence[int], count: int) -> float:
            which = min(each for each in self._models if each >= len(ends))
            if which not in held:
                held[which] = self._filled(self._models[which].sequences(), tokens, min(which, most))
            sequences, texts = held[which][0], [[*tokens, end] for end in ends]

            def step() -> None:
                asked = [(each, text, 1, GREEDY, False) for each, text in zip(held[which][1], texts, strict=False)]
                for text, (made, _) in zip(texts, sequences.sample(asked), strict=True):
                    text.append(int(made[-1]))

            return _seconds(step, count)

        yield run

    def _filled(self, sequences: Any, tokens: Sequence[int], count: int) -> tuple[Any, list[Any]]:
        """So many sequences that have read the tokens; forks would share their pages, what is loaded from a file does not."""
        first = sequences.begin()
        sequences.logits([(first, list(tokens), 1)])
        if count == 1:
            return sequences, [first]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            first.save(Path(folder, "sequence"))
            return sequences, [first, *(sequences.load(Path(folder, "sequence"))[0] for _ in range(count - 1))]

    def tokens(self, text: str) -> list[int]:
        """A text as the file's own tokenizer cuts it."""
        return list(self._models[1].tokenizer.encode(text))

    def loads(self) -> dict[str, float]:
        """Seconds to load the file for one sequence: when every byte is hashed, and when it was verified before."""
        file = self.files[1]

        def timed(verify: bool) -> float:
            start = time.perf_counter()
            ourcc.load(file, threads=self._threads, verify=verify)
            return time.perf_counter() - start

        hashed, again = (min(timed(verify) for _ in range(REPEATS)) for verify in (True, False))
        return {"gbytes": file.stat().st_size / 1e9, "hashed_s": round(hashed, 4), "again_s": round(again, 4)}


class Llama:
    """llama.cpp by one of its libraries."""

    side = kind = "peer"

    def __init__(self, model: Path, library: Path, context: int, threads: int) -> None:
        self._make = lambda size, count: LlamaCpp(model, size, threads, library, count)
        self._one = self._make(context, 1)

    def first(self, tokens: Sequence[int]) -> int:
        return int(self._one.sequence().logits(tokens).argmax())

    @contextlib.contextmanager
    def hold(self, tokens: Sequence[int], most: int) -> Iterator[Run]:
        held = self._make(len(tokens) + ROOM, most)
        held.logits(tokens)
        held.copy(most)

        def run(ends: Sequence[int], count: int) -> float:
            now, place = list(ends), len(tokens)

            def step() -> None:
                nonlocal now, place
                now, place = held.together(now, place), place + 1

            return _seconds(step, count)

        yield run
        held.close()


class GenAI:
    """OpenVINO GenAI: a step's time is that of making many tokens less that of making one, over how many more they are."""

    side = kind = "peer"

    def __init__(self, model: Path, context: int, batch: int, threads: int) -> None:
        self._held = OpenVino(model, threads, (batch + 2) * context)

    def first(self, tokens: Sequence[int]) -> int:
        return self._held.made([tokens], 1)[0][0]

    @contextlib.contextmanager
    def hold(self, tokens: Sequence[int], most: int) -> Iterator[Run]:
        def timed(ends: Sequence[int], count: int) -> float:
            prompts = [[BEGIN + number, *tokens[1:], end] for number, end in enumerate(ends)]
            start = time.perf_counter()
            self._held.made(prompts, count)
            return time.perf_counter() - start

        yield lambda ends, count: (timed(ends, 1 + count) - timed(ends, 1)) / count


def _seconds(step: Callable[[], None], count: int) -> float:
    """A step's time in the mean of so many, behind one that does not count."""
    step()
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def read_bytes(model: Path) -> int:
    """The bytes of weights that a token takes: all but an embedding beside a head of its own."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(model).tensors}
    return sum(sizes.values()) - (sizes["token_embd.weight"] if "output.weight" in sizes else 0)


def operations(model: Path, tokens: int) -> float:
    """Operations of a prompt's products, a multiply-add as two; the head's for one token."""
    sizes = {tensor.name: int(tensor.n_elements) for tensor in gguf.GGUFReader(model).tensors if len(tensor.shape) == 2}
    embedding = sizes.pop("token_embd.weight")
    head = sizes.pop("output.weight", embedding)
    return 2.0 * (tokens * sum(sizes.values()) + head)


def makers(model: Path, format: str, peers: Sequence[str], sizes: tuple[int, int], threads: int, folder: Path) -> dict[str, Maker]:
    """How each contender is made, by name; a maker raises what its contender cannot do. Sizes are tokens of a text, and texts."""
    context, batch = sizes
    found: dict[str, Maker] = {
        f"ourcc {kind}": partial(Ours, model, kind, context, batch, threads, folder)
        for kind in KINDS.get(format, ("exact", "a8", "a8 bf16"))
    }
    for name in peers:
        if name == OPENVINO:
            found[name] = partial(GenAI, model, context, batch, threads)
        else:
            found[name] = partial(_llama, model, name, context, threads)
    return found


def _llama(model: Path, name: str, context: int, threads: int) -> Llama:
    library = libraries().get(name)
    if library is None:
        raise ImportError(f"the package {LIBRARIES[name][0]} is not installed")
    return Llama(model, library, context, threads)
