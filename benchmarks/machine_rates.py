"""Rates that a machine is measured at, by `rates.c` compiled for it: multiply-adds of each kind that it has, and bandwidths."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

from ourcc.codegen.c.toolchain import find_compiler
from ourcc.compiler.environment import environment

SOURCE = Path(__file__).resolve().with_name("rates.c")
KINDS = {
    "fma_gflops": 0,
    "bf16_dot_gflops": 1,
    "int8_dot_gops": 2,
    "bf16_matrix_gflops": 3,
    "int8_matrix_gops": 4,
    "read_gbytes_per_second": 5,
    "copy_gbytes_per_second": 6,
}
"""What is measured, by the number that `rates.c` gives it: billions a second. A multiply-add is two operations, a copied byte two."""
BANDWIDTHS = ("read_gbytes_per_second", "copy_gbytes_per_second")
MEMORY = 256 << 20
"""Bytes that all threads walk together: more than any cache holds."""
REPEATS = 5


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = find_compiler(environment().compiler)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "rates.so")
        flags = ("-O2", "-march=native", "-ffp-contract=fast", "-pthread", "-shared", "-fPIC")
        subprocess.run((*compiler.command, *flags, "-o", str(made), str(SOURCE)), check=True, timeout=60)
        library = ctypes.CDLL(str(made))
    library.rate.restype = ctypes.c_double
    library.rate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    return library


def measured_rates(threads: int = 1) -> dict[str, float]:
    """The best of a few measurements of each rate on so many threads, in seconds for all; what the machine lacks is left out."""
    found = {}
    for name, kind in KINDS.items():
        rounds, memory = (1, MEMORY // threads // 256 * 256) if name in BANDWIDTHS else (5_000_000, 256)
        rates = [_library().rate(kind, threads, rounds, memory) for _ in range(REPEATS)]
        if min(rates) < 0:
            raise SystemExit(f"{name}: no memory or no threads for {threads}")
        if max(rates) > 0:
            found[name] = round(max(rates) * 1e-9, 1)
    return found
