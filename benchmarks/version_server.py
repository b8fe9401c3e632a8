"""The process of one version for before_after.py: two engines of a model, and the seconds of the calls that it is asked for.

It imports nothing beside the package whose version it serves, so that older ones can be served.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import ourcc


def serve(model_file: Path, inputs: Path, shapes: list[str]) -> None:
    """Build two engines; then for each line `ENGINE SIZE COUNT` print the seconds of a call. Sizes are the arrays of `inputs/SIZE.npz`."""
    engines = [ourcc.build(str(model_file), targets=["native"], shapes=shapes, threads=1) for _ in range(2)]
    sizes = []
    while (inputs / f"{len(sizes)}.npz").exists():
        held = np.load(inputs / f"{len(sizes)}.npz", allow_pickle=False)
        sizes.append([held[key] for key in held.files])
    print("ready", flush=True)
    for line in sys.stdin:
        engine, size, count = (int(word) for word in line.split())
        start = time.perf_counter()
        for _ in range(count):
            engines[engine](*sizes[size])
        print((time.perf_counter() - start) / count, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
