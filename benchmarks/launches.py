"""What a launch of a GPU's plan costs on the host, with a driver that does nothing: by the host program in C, by Python, as a graph.

python -m benchmarks.launches [--launches 200] [--rounds 30]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from ourcc.ir import dims
from ourcc.ir.plan import Buffer, Guard, Launch, Plan, Variant, storage
from ourcc.ir.types import TensorType, f32
from ourcc.runtime.captured import CapturedRuns
from ourcc.runtime.contents import LIBRARY, PartContents
from ourcc.runtime.driver import SIGNATURES, Driver
from ourcc.runtime.launches import Segment, host_program, interpret
from ourcc.runtime.program import Program

RESULTS = Path(__file__).parent / "results" / "launches.json"


def no_op_driver(folder: Path) -> ctypes.CDLL:
    """A driver whose functions count their calls and do nothing else."""
    handles = {"cuStreamCreate", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"}
    lines = ["#include <stdint.h>", "int64_t calls;"]
    for name in SIGNATURES:
        # A handle is written where the last, or the only, pointer to a result lies.
        kind = "void *out, void *other" if name != "cuStreamEndCapture" else "void *other, void *out"
        body = "*(void **)out = (void *)16; " if name in handles else ""
        lines.append(f"int {name}({kind}) {{ calls++; (void)out; (void)other; {body}return 0; }}")
    return _compiled(folder, "driver", "\n".join(lines))


def _compiled(folder: Path, name: str, text: str) -> ctypes.CDLL:
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(text + "\n")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def chain(count: int) -> Plan:
    """As many launches, each of four arguments and two sizes, as rows of a layer have."""
    rows, columns = dims.symbol("B"), dims.symbol("N")
    matrix = TensorType(f32, (rows, columns))
    names = ("x", "y", "x", "y")
    variants = (
        Variant("aligned", Guard(zero=(columns % 16,), aligned=("x",)), (rows,), names, (rows, columns), 4, 1024),
        Variant("any", Guard(), (rows,), names, (rows, columns), 4, 1024),
    )
    steps = tuple(Launch(f"l{n}", variants, ("x",), ("y",)) for n in range(count))
    facts = dims.Facts({"B": dims.Range(1, 64), "N": dims.Range(1, 4096)})
    buffers = (Buffer("x", matrix, storage.Input()), Buffer("y", matrix, storage.Output()))
    return Plan("sm_90a", facts, (("x", "x"),), (("y", "y"),), buffers, (), steps)


class _Gpu:
    """As much of a device as launches need."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.name = "no-op"

    def stream(self) -> int:
        """A stream."""
        return 16

    def capture(self, stream: int, run: Callable[[], object]) -> int:
        """A graph."""
        run()
        return 16


def measure(launches: int, rounds: int) -> dict[str, Any]:
    """Microseconds for each launch, the least and the median of rounds that take the ways in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = no_op_driver(folder)
        calls = ctypes.c_int64.in_dll(library, "calls")
        gpu: Any = _Gpu(Driver(library))
        header = "#include <stdint.h>\n#include <stddef.h>\n#define OURCC_EXPORT"
        text = files("ourcc.codegen.host").joinpath("launches.c").read_text(encoding="ascii").replace('#include "ourcc.h"', header)
        _compiled(folder, "host", text)
        plan = chain(launches)
        part = PartContents({"main": plan}, {LIBRARY: (folder / "host.so").read_bytes()}, "cuda", platform.machine())
        program = Program(plan)
        segment = Segment(program, 0, plan.steps, {"aligned": 1, "any": 2})
        binding = program.bind(((8, 1024),))
        cells = (ctypes.c_void_p * 2)(4096, 8192)
        host, captured = host_program(part), CapturedRuns(gpu, host_program(part))
        ways: dict[str, Callable[[], object]] = {
            "c": lambda: segment.run(host, gpu, binding, cells, 0, 0),
            "python": lambda: segment.run(interpret, gpu, binding, cells, 0, 0),
            "graph": lambda: captured.run(segment, binding, cells, 0, 0, True),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        counted = {}
        for way, run in ways.items():
            run()
            run()
            before = calls.value
            run()
            counted[way] = calls.value - before
        for _ in range(rounds):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                times[way].append((time.perf_counter() - start) * 1e6 / launches)
        shown = {
            way: {"least": round(min(t), 4), "median": round(statistics.median(t), 4), "calls": counted[way]} for way, t in times.items()
        }
        load = round(os.getloadavg()[0], 1)
        return {"launches": launches, "rounds": rounds, "load": load, "microseconds_per_launch": shown}


def main() -> None:
    """Measure, print, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    found = measure(given.launches, given.rounds)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
