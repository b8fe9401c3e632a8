"""This tree beside another checkout of it: each builds the models in a process of its own, and their engines take turns, one thread.

Each has two engines, so that the table says how far apart two runs of the same are. Two versions of the package do not
share a process (each has the one pool of threads of its process), so a round goes from process to process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_cpu import SIZES
from children import RESULTS, chosen, write_json
from machine_facts import machine_facts

LEAST = 0.05
"""Seconds that a sample takes: short calls are repeated."""


class Server:
    """A process that serves one version's engines."""

    def __init__(self, checkout: Path, folder: Path, arguments: list[str]) -> None:
        folder.mkdir()
        (folder / "ourcc").symlink_to(checkout.resolve(), target_is_directory=True)
        environment = {**os.environ, "PYTHONPATH": str(folder), "OURCC_CACHE_DIR": str(folder / "cache")}
        command = [sys.executable, str(Path(__file__).with_name("version_server.py")), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("a process of one of the versions ended: see above")
        return line

    def seconds(self, engine: int, size: int, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{engine} {size} {count}\n")
        self.process.stdin.flush()
        return float(self.answer())


def measure(name: str, before: Path, layers: int | None, rounds: int) -> list[dict[str, Any]]:
    """One model at its sizes."""
    import numpy as np
    import zoo

    model = zoo.make(name, layers)
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = zoo.write_onnx(model, folder / f"{name}.onnx")
        for number, size in enumerate(SIZES[name]):
            np.savez(folder / f"{number}.npz", *(x.numpy() for x in model.draw(*size, 0)))
        trees = {"before": before, "after": Path(__file__).resolve().parent.parent}
        servers = {label: Server(tree, folder / label, [str(path), str(folder), *zoo.shapes_of(model)]) for label, tree in trees.items()}
        for server in servers.values():
            server.answer()
        for number, size in enumerate(SIZES[name]):
            found.append(_size(name, zoo.size_text(model, size), servers, number, rounds))
        for server in servers.values():
            server.process.kill()
    return found


def _size(name: str, text: str, servers: dict[str, Server], number: int, rounds: int) -> dict[str, Any]:
    labels = [(label, engine) for label in servers for engine in range(2)]
    counts = {label: max(1, round(LEAST / min(server.seconds(0, number, 1) for _ in range(3)))) for label, server in servers.items()}
    samples: dict[tuple[str, int], list[float]] = {each: [] for each in labels}
    for turn in range(rounds):
        for label, engine in labels[turn % 4 :] + labels[: turn % 4]:
            samples[label, engine].append(servers[label].seconds(engine, number, counts[label]))
    least = {label: min(min(samples[label, engine]) for engine in range(2)) for label in servers}
    spread = max(abs(min(samples[label, 0]) / min(samples[label, 1]) - 1) for label in servers)
    print(
        f"{name:9} {text:12} before {least['before'] * 1e3:8.2f} ms, after {least['after'] * 1e3:8.2f} ms, "
        f"{least['before'] / least['after']:.2f} times as fast; two of the same differ by {spread:.1%}",
        flush=True,
    )
    rows = [
        {"what": label, "engine": engine, "minimum_ms": min(times) * 1e3, "median_ms": statistics.median(times) * 1e3}
        for (label, engine), times in samples.items()
    ]
    return {"size": text, "times": rows}


def main() -> None:
    """One model after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder of the other checkout")
    parser.add_argument("--models", default=",".join(SIZES), help="which ones, separated by commas")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "before_after.json")
    options = parser.parse_args()
    if options.before is None:
        parser.error("--before says which checkout to compare with")
    models = {name: measure(name, options.before, options.layers, options.rounds) for name in chosen(options.models, list(SIZES))}
    write_json(options.output, {"machine": machine_facts(), "models": models})


if __name__ == "__main__":
    main()
