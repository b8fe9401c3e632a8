"""The child process that runs candidates: loads one shared object from memory, makes inputs, calls and times them.

It runs as a script in isolated mode and imports nothing of this package. It speaks in frames over its standard
streams: a length, a JSON header, and the blobs whose sizes the header lists. What crashes here harms nobody.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

Message = tuple[dict[str, Any], list[bytes]]
Array = np.ndarray[Any, Any]
ALIGNMENT = 64
PATIENCE = 2
SLOW, HOPELESS = 50_000_000, 20
"""Nanoseconds from which a run is slow; so many times slower than the fastest one is enough."""


def send(stream: IO[bytes], header: dict[str, Any], blobs: list[bytes]) -> None:
    """Write one message."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(struct.pack("<Q", len(text)) + text)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read one message; None at the end of the stream."""
    size = stream.read(8)
    if len(size) < 8:
        return None
    header = json.loads(stream.read(struct.unpack("<Q", size)[0]))
    return header, [stream.read(length) for length in header["blobs"]]


def load(data: bytes) -> ctypes.CDLL:
    """Open a shared object that lies in memory alone."""
    descriptor = os.memfd_create("candidates", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    finally:
        os.close(descriptor)


def draw(buffer: dict[str, Any], random: np.random.Generator) -> Array:
    """Seeded contents of an input; zeros for what is written."""
    count, size = int(buffer["count"]), int(buffer["bytes"])
    if buffer["role"] != "in":
        return np.zeros(size, np.uint8)
    if buffer["draw"] == "bytes":
        return random.integers(0, 256, size, dtype=np.uint8)
    dtype = _dtype(buffer["dtype"])
    if buffer["draw"] == "index":
        return random.integers(0, int(buffer["bound"]), count).astype(dtype).view(np.uint8)
    values: Array = random.standard_normal(count, np.float32)
    if buffer["draw"] == "complex":
        values = values + 1j * random.standard_normal(count, np.float32)
    return values.astype(dtype).view(np.uint8)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        known: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        known = np.dtype(getattr(ml_dtypes, name))
    return known


class Bench:
    """One problem's candidates with their operands in memory."""

    def __init__(self, job: dict[str, Any], library: bytes, given: Sequence[bytes] = ()) -> None:
        random, left = np.random.default_rng(int(job["seed"])), iter(given)
        self.job = job
        self.memory = [
            _aligned(np.frombuffer(next(left), np.uint8) if buffer["role"] == "given" else draw(buffer, random))
            for buffer in job["buffers"]
        ]
        self.outputs = [n for n, buffer in enumerate(job["buffers"]) if buffer["role"] == "out"]
        self.pointers = (ctypes.c_void_p * max(1, len(self.memory)))(*(array.ctypes.data for array in self.memory))
        self.symbols = (ctypes.c_int64 * max(1, len(job["symbols"])))(*job["symbols"])
        self.library = load(library)
        self.call = self.library.ourcc_measure
        self.call.restype = ctypes.c_int64
        self.call.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

    def nanoseconds(self, candidate: int, repeats: int) -> int:
        """The time of so many runs; a kernel that fails ends this process, as one that crashes."""
        found = int(self.call(candidate, self.pointers, self.symbols, repeats))
        if found < 0:
            raise RuntimeError(f"a kernel of the candidate failed with status {-found}")
        return found

    def answer(self, candidate: int) -> list[bytes]:
        """The outputs of one run."""
        for n in self.outputs:
            self.memory[n][:] = 0
        self.nanoseconds(candidate, 1)
        return [self.memory[n].tobytes() for n in self.outputs]

    def rounds(self, alive: Callable[[], None]) -> dict[int, list[int]]:
        """Picoseconds of each candidate, one a round; the order turns, and those far behind drop out.

        `alive` is called between measurements, never within one.
        """
        candidates = [int(n) for n in self.job["candidates"]]
        single = {n: self._single(n, alive) for n in candidates}
        hopeless = max(SLOW, HOPELESS * min(single.values()))
        times = {n: [single[n] * 1000] if single[n] > hopeless else [] for n in candidates}
        candidates = [n for n in candidates if not times[n]]
        repeats = {n: max(1, int(self.job["batch"]) // single[n]) for n in candidates}
        start = time.monotonic()
        for number in range(int(self.job["rounds"])):
            turn = number % len(candidates)
            for n in (*candidates[turn:], *candidates[:turn]):
                times[n].append(max(1, self.nanoseconds(n, repeats[n]) * 1000 // repeats[n]))
                if times[n][-1] * repeats[n] > SLOW * 1000:
                    alive()
            alive()
            best = min(min(times[n]) for n in candidates)
            # One or two slow rounds may be the machine's doing.
            if number >= PATIENCE:
                candidates = [n for n in candidates if min(times[n]) <= best * int(self.job["drop"])]
                if time.monotonic() - start > int(self.job["seconds"]):
                    break
        return times

    def _single(self, candidate: int, alive: Callable[[], None]) -> int:
        alive()
        return max(1, self.nanoseconds(candidate, 1))


def _aligned(data: Array) -> Array:
    memory = np.zeros(data.size + 2 * ALIGNMENT, np.uint8)
    first = -int(memory.ctypes.data) % ALIGNMENT
    memory[first : first + data.size] = data
    return memory[first : first + data.size]


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer one job: a message before and one after each candidate, and one with all times."""
    message = receive(requests)
    if message is None:
        return
    job, (library, *given) = message
    bench = Bench(job, library, given)
    for candidate in job["candidates"]:
        send(answers, {"event": "begin", "candidate": candidate}, [])
        send(answers, {"event": "answer", "candidate": candidate}, bench.answer(candidate))
    times = bench.rounds(lambda: send(answers, {"event": "alive"}, []))
    send(answers, {"event": "times", "times": {str(n): picoseconds for n, picoseconds in times.items()}}, [])


def main() -> None:
    """Nothing but frames goes to the standard output, and a crash leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
