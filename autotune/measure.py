"""Measuring: candidates of one problem checked against each other and timed in a child process that may crash."""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..codegen.c.toolchain import Compiler
from ..ir.graph.reference import judge
from ..ir.target import CpuLevel
from ..passes.tile.schedule import Candidate, Problem
from .candidates import CandidateBuffer, Sources, allowed_ulps, compile_candidates, print_candidates
from .problem import bucket
from .record import Data, Failure, Sample, Trial, digest, scrub
from .worker import Message, receive, send

_SCRIPT = Path(__file__).with_name("worker.py")
SEED = 0


@dataclass(frozen=True)
class Policy:
    """How times are taken; part of a record's environment, since times of other policies do not compare."""

    rounds: int = 9
    batch_microseconds: int = 1000
    drop: int = 3
    seconds: int = 5

    def to_json(self) -> Data:
        """Numbers and words by name."""
        batch = self.batch_microseconds
        limits = {"rounds": self.rounds, "batch_microseconds": batch, "drop": self.drop, "seconds": self.seconds}
        return {"threads": 1, "cache": "warm", "seed": SEED, **limits}


class ChildEnded(Exception):
    """The child crashed or was too slow; `kind` is the failure of whatever ran then."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.failure = Failure(kind, scrub(reason))


class Child:
    """The process that runs a job; started on first use."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[Message | None] = queue.Queue()
        self._log: IO[bytes] | None = None

    def ask(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Send a job."""
        process = self._started()
        try:
            if process.stdin is not None:
                send(process.stdin, header, blobs)
        except BrokenPipeError:
            pass  # the next answer says how the process ended

    def answer(self) -> Message:
        """The next message; ChildEnded if none comes in time or at all."""
        try:
            message = self._answers.get(timeout=self.deadline)
        except queue.Empty:
            self.stop()
            raise ChildEnded("timeout", f"took more than {self.deadline:g} s") from None
        if message is None:
            status, said = self.process.wait() if self.process is not None else 0, self._said()
            self.stop()
            raise ChildEnded("crashed", f"ended by signal {-status}" if status < 0 else f"ended with status {status}: {said}")
        return message

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
        if self._log is not None:
            self._log.close()
        self.process, self._answers, self._log = None, queue.Queue(), None

    def _said(self) -> str:
        if self._log is None:
            return "it said nothing"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self._log = tempfile.TemporaryFile()
            command = [sys.executable, "-I", str(_SCRIPT)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
            threading.Thread(target=self._listen, args=(self.process, self._answers), daemon=True).start()
        return self.process

    @staticmethod
    def _listen(process: subprocess.Popen[bytes], answers: queue.Queue[Message | None]) -> None:
        try:
            while process.stdout is not None and (message := receive(process.stdout)) is not None:
                answers.put(message)
        except (OSError, ValueError):
            pass  # the pipe was closed with the process
        answers.put(None)


@dataclass
class Measurer:
    """Measures problems for one level on this machine; each problem has a child of its own. `cache` is a folder of object files."""

    level: CpuLevel
    compiler: Compiler
    policy: Policy = field(default_factory=Policy)
    deadline: float = 20.0
    cache: Path | None = None
    child: Child = field(init=False)

    def __post_init__(self) -> None:
        self.child = Child(self.deadline)

    def measure(self, problem: Problem, candidates: Sequence[Candidate]) -> tuple[Trial, ...]:
        """One trial for each candidate; the first that runs is what the others' answers are checked against."""
        sizes = bucket(problem)
        sources = print_candidates(problem, candidates, self.level, sizes)
        library = compile_candidates(sources, self.level, self.compiler, cache=self.cache)
        run = _Run(problem, sources, sizes)
        while library is not None and not run.times and (left := [n for n in sources.files if n not in sources.failures]):
            try:
                self._job(run, library, left)
            except ChildEnded as error:
                # Whatever ran is left out of the next attempt; so attempts end.
                for number in [run.current] if run.current is not None else left:
                    sources.failures[number] = error.failure
            finally:
                # A shared object is never unloaded, and the next one must not meet it.
                self.child.stop()
        return run.trials(candidates)

    def _job(self, run: _Run, library: bytes, left: Sequence[int]) -> None:
        run.begin()
        batch = self.policy.batch_microseconds * 1000
        policy = {"rounds": self.policy.rounds, "batch": batch, "drop": self.policy.drop, "seconds": self.policy.seconds}
        symbols = [run.sizes[name] for name in run.problem.symbols.ranges]
        buffers = [buffer.to_json() for buffer in run.sources.buffers]
        self.child.ask(
            {**policy, "seed": SEED, "symbols": symbols, "buffers": buffers, "candidates": list(left)}, [library, *run.sources.given(SEED)]
        )
        while True:
            header, blobs = self.child.answer()
            if header["event"] == "times":
                run.times = {int(n): times for n, times in header["times"].items()}
                return
            if header["event"] != "alive":
                run.hear(header, blobs)


class _Run:
    """What one measuring run has found so far."""

    def __init__(self, problem: Problem, sources: Sources, sizes: Mapping[str, int]) -> None:
        self.problem, self.sources, self.sizes = problem, sources, sizes
        self.times: dict[int, list[int]] = {}
        self.begin()

    def begin(self) -> None:
        self.current: int | None = None
        self.reference: list[bytes] | None = None
        self.deviations: dict[int, float] = {}

    def hear(self, header: Mapping[str, Any], blobs: list[bytes]) -> None:
        """A candidate begins, or has answered."""
        number = int(header["candidate"])
        if header["event"] == "begin":
            self.current = number
            return
        self.current = None
        if self.reference is None:
            self.reference = blobs
        self.deviations[number] = 0.0
        outputs = [buffer for buffer in self.sources.buffers if buffer.role == "out"]
        for buffer, got, expected in zip(outputs, blobs, self.reference, strict=True):
            self._compare(number, buffer, got, expected)

    def _compare(self, number: int, buffer: CandidateBuffer, got: bytes, expected: bytes) -> None:
        if got == expected:
            return
        if buffer.dtype.bits < 8:
            self.sources.failures[number] = Failure("wrong", "packed results differ from the first candidate's")
            return
        ours, theirs = (np.frombuffer(data, buffer.dtype.numpy)[: buffer.count] for data in (got, expected))
        verdict = judge(ours, theirs, theirs, floor=allowed_ulps(self.problem.region, buffer.dtype, self.sizes))
        if not verdict.passed:
            self.sources.failures[number] = Failure("wrong", scrub(verdict.reason))
        elif np.isfinite(verdict.error):
            self.deviations[number] = max(self.deviations[number], float(verdict.error))

    def trials(self, candidates: Sequence[Candidate]) -> tuple[Trial, ...]:
        """What to record of each candidate."""
        run = digest({str(n): times for n, times in self.times.items()})[:16]
        found = []
        for number, (_, schedule) in enumerate(candidates):
            failure, times = self.sources.failures.get(number), self.times.get(number)
            if failure is not None:
                found.append(Trial(schedule, (), (failure,)))
            elif times:
                found.append(Trial(schedule, (Sample(run, tuple(times), self.deviations.get(number, 0.0)),)))
        return tuple(found)
