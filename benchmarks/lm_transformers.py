"""A model of transformers with a static cache: eager, Inductor and ourcc under torch.compile, tokens a second of `generate`, one thread.

The model has SmolLM2's sizes and drawn weights; `generate` is called as it stands, on models that share their weights, in turn. A token's
time is that of a long answer less that of one of a single token. To results/lm_transformers.json.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from children import RESULTS, write_json
from machine_facts import machine_facts

SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""SmolLM2-135M's."""
Generate = Callable[[int], list[int]]


def contenders(prompt: int, longest: int) -> dict[str, Generate]:
    """What makes so many tokens behind the prompt, by who compiled the model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, eos_token_id=None, pad_token_id=0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(1, SIZES["vocab_size"], (1, prompt))
    made = {
        "eager": lambda forward: forward,
        "Inductor": lambda forward: torch.compile(forward, dynamic=False, options={"freezing": True}),
        "ourcc": lambda forward: torch.compile(forward, backend="ourcc", dynamic=False, options={"threads": 1}),
    }
    found: dict[str, Generate] = {}
    for name, compiled in made.items():
        own = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
        own.forward = compiled(own.forward)

        def generate(count: int, own: Any = own) -> list[int]:
            # One cache for all counts: its length is a size that compilers fix.
            cache = transformers.StaticCache(config=config, max_cache_len=prompt + longest)
            asked = {"max_new_tokens": count, "do_sample": False, "disable_compile": True, "past_key_values": cache}
            with torch.no_grad():
                tokens: list[int] = own.generate(ids, attention_mask=torch.ones_like(ids), **asked)[0, prompt:].tolist()
            return tokens

        found[name] = generate
    return found


def measure(prompt: int, count: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each: milliseconds of the first token and of each other, least and median of interleaved rounds."""
    calls = contenders(prompt, count)
    texts, compiling = {}, {}
    for name, generate in calls.items():
        begun = time.perf_counter()
        texts[name] = generate(count)
        compiling[name] = time.perf_counter() - begun
    times: dict[str, dict[int, list[float]]] = {name: {1: [], count: []} for name in calls}
    for _ in range(rounds):
        for name, generate in calls.items():
            for number, all_ in times[name].items():
                begun = time.perf_counter()
                generate(number)
                all_.append(1000 * (time.perf_counter() - begun))
    rows = []
    for name, measured in times.items():
        row: dict[str, Any] = {"contender": name, "first call, s": compiling[name]}
        row["as eager"] = sum(a == b for a, b in zip(texts[name], texts["eager"], strict=True)) / count
        for word, taken in (("min", min), ("median", statistics.median)):
            first, whole = taken(measured[1]), taken(measured[count])
            row[word] = {"first token, ms": first, "next token, ms": (whole - first) / (count - 1)}
        rows.append(row)
    return rows


def main() -> None:
    """A table, and the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of it (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="that are made behind it (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm_transformers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.prompt, arguments.tokens, arguments.rounds)
    for row in rows:
        least = "  ".join(f"{what} {least:.2f}" for what, least in row["min"].items())
        print(f"{row['contender']:9} {least}  {100 * row['as eager']:.0f} % of eager's tokens  first call {row['first call, s']:.1f} s")
    write_json(arguments.output, {"machine": machine_facts(), "prompt": arguments.prompt, "tokens": arguments.tokens, "rows": rows})


if __name__ == "__main__":
    main()
