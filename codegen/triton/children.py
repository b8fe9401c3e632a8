"""Child processes that run Triton: started on first use, kept for the next request, ended after a deadline or a crash."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ir.errors import ToolchainError
from .worker import Message, receive, send

_SCRIPT = Path(__file__).with_name("worker.py")
_LOG = "stderr"


@dataclass
class Child:
    """One process and its private folder for Triton's own cache, which nothing else may poison."""

    interpret: bool
    process: subprocess.Popen[bytes] | None = None
    folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, header: dict[str, Any], blobs: list[bytes], deadline: float) -> Message:
        """The answer to one message; ToolchainError if the child dies or does not answer in `deadline` seconds."""
        process = self._started()
        answers: queue.Queue[Message | None] = queue.Queue()
        thread = threading.Thread(target=self._exchange, args=(process, header, blobs, answers), daemon=True)
        thread.start()
        try:
            answer = answers.get(timeout=deadline)
        except queue.Empty:
            self.stop()
            raise ToolchainError(f"triton did not answer within {deadline:g} s for kernel {header['name']}") from None
        if answer is None:
            status, said = process.wait(), self._said()
            self.stop()
            raise ToolchainError(
                f"triton's process ended with status {status} on kernel {header['name']}",
                note=said,
                hint="is triton installed and complete? `ourcc doctor` tells",
            )
        return answer

    def stop(self) -> None:
        """End the process and remove its folder."""
        if self.process is not None:
            # With all that it started: an assembler that hangs would stay.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
        if self.folder is not None:
            self.folder.cleanup()
        self.process = self.folder = None

    def _said(self) -> str | None:
        """The last lines that the process wrote to its standard error."""
        if self.folder is None:
            return None
        return "\n".join(Path(self.folder.name, _LOG).read_text(errors="replace").splitlines()[-5:]) or None

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.folder = tempfile.TemporaryDirectory(prefix="ourcc-triton-")
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
            environment |= {"TRITON_CACHE_DIR": self.folder.name, "TRITON_ALWAYS_COMPILE": "1", "PYTHONHASHSEED": "0"}
            environment |= {"OMP_NUM_THREADS": "1", **({"TRITON_INTERPRET": "1"} if self.interpret else {})}
            command = [sys.executable, "-P", str(_SCRIPT)]
            with Path(self.folder.name, _LOG).open("wb") as log:
                pipe = subprocess.PIPE
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True)
        return self.process

    @staticmethod
    def _exchange(
        process: subprocess.Popen[bytes], header: dict[str, Any], blobs: list[bytes], answers: queue.Queue[Message | None]
    ) -> None:
        try:
            if process.stdin is None or process.stdout is None:
                raise OSError("the child has no pipes")
            send(process.stdin, header, blobs)
            answers.put(receive(process.stdout))
        except (OSError, ValueError):
            answers.put(None)


@dataclass
class Pool:
    """At most `size` children, handed out to whoever asks; threads may ask at the same time."""

    interpret: bool
    size: int
    children: queue.Queue[Child] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        for _ in range(self.size):
            self.children.put(Child(self.interpret))

    def ask(self, header: dict[str, Any], blobs: list[bytes], deadline: float) -> Message:
        """The answer of the next free child."""
        child = self.children.get()
        try:
            return child.ask(header, blobs, deadline)
        finally:
            self.children.put(child)

    def stop(self) -> None:
        """End all children that are free."""
        idle = [self.children.get() for _ in range(self.children.qsize())]
        for child in idle:
            child.stop()
            self.children.put(child)


COMPILERS = Pool(interpret=False, size=2)
INTERPRETERS = Pool(interpret=True, size=1)
atexit.register(COMPILERS.stop)
atexit.register(INTERPRETERS.stop)
