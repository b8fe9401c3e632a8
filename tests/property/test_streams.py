"""Every command with its standard output and error closed, full, or a pipe nobody reads: its status, one clear line, no traceback.

Real processes: what a closed descriptor does is not seen from within one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

RUN = [sys.executable, "-c", "from ourcc.compiler.cli.main import main; main()"]
COMMANDS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("--help",), 0),
    (("--version",), 0),
    (("build", "--help"), 0),
    (("run", "e.ourcc", "--input", "x=x.npy"), 0),
    (("run", "e.ourcc", "--input", "x=x.npy", "--json"), 0),
    (("inspect", "e.ourcc"), 0),
    (("inspect", "e.ourcc", "--json"), 0),
    (("inspect", "e.ourcc", "-vv"), 0),
    (("build", "m.onnx", "-o", "again.ourcc"), 0),
    (("opt", "m.onnx", "--pipeline", "canonicalize"), 0),
    (("run", "bad.ourcc", "--input", "x=x.npy"), 1),
    (("run", "bad.ourcc", "--input", "x=x.npy", "--json"), 1),
    (("inspect", "bad.ourcc", "--debug"), 1),
    (("run", "absent.ourcc"), 2),
    (("run", "absent.ourcc", "--json"), 2),
    (("frobnicate",), 2),
    ((), 2),
)
STATES = ("open", "closed", "full", "unread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "m.onnx")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "other.onnx")
    np.save(folder / "x.npy", np.ones((2, 4), np.float32))
    (folder / "bad.ourcc").write_bytes(b"x" * 300)
    subprocess.run([*RUN, "build", "m.onnx", "-o", "e.ourcc", "-q"], cwd=folder, env=environment(folder), check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "OURCC_CACHE_DIR": str(folder / "cache")}


def closing(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


def spoken(folder: Path, arguments: tuple[str, ...], out: str, err: str) -> tuple[int, str, str]:
    """Status, standard output and error of a process whose streams are in these states."""
    closed = [number for number, state in ((1, out), (2, err)) if state == "closed"]
    streams: list[int] = []
    for state in (out, err):
        if state == "full":
            streams.append(os.open("/dev/full", os.O_WRONLY))
        elif state == "unread":
            reader, writer = os.pipe()
            os.close(reader)
            streams.append(writer)
        else:
            streams.append(subprocess.PIPE)
    try:
        done = subprocess.run(
            [*RUN, *arguments],
            cwd=folder,
            env=environment(folder),
            stdout=streams[0],
            stderr=streams[1],
            stdin=subprocess.DEVNULL,
            preexec_fn=closing(*closed),
            timeout=300,
        )
    finally:
        for stream in streams:
            if stream >= 0:
                os.close(stream)
    return done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode()


def fault(folder: Path, arguments: tuple[str, ...], status: int, out: str, err: str) -> str | None:
    """What is wrong with how a command ends, or None."""
    got, printed, told = spoken(folder, arguments, out, err)
    silent = arguments[:1] == ("build",) and "--help" not in arguments
    # Only a success that could not be told turns into a failure.
    lost = out in ("full", "closed")
    expected = (1,) if lost and status == 0 and not silent else (0, 1) if lost and silent else (status,)
    # A reader that has gone changes no status.
    if got not in expected:
        return f"status {got}, expected {expected}: {told[-300:]}"
    if "--debug" not in arguments and ("Traceback" in told + printed or "Exception ignored" in told):
        return f"a traceback: {told[-300:]}"
    if lost and err == "open" and got and arguments and not any(line.startswith("error: ") for line in told.splitlines()):
        return f"no error is told: {told[-300:]}"
    return None


def test_streams_that_take_nothing(folder: Path, request: pytest.FixtureRequest) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    draw = random.Random(f"streams {seed}")
    every = [(*command, out, err) for command in COMMANDS for out in STATES for err in STATES if (out, err) != ("open", "open")]
    cases = draw.sample(every, min(len(every), max(12, count // 16)))
    found = {(*case[0], f"out {case[2]}", f"err {case[3]}"): why for case in cases if (why := fault(folder, *case)) is not None}
    assert not found, f"{len(found)} of {len(cases)} fail:\n" + "\n".join(f"{' '.join(case)}: {why}" for case, why in found.items())


@pytest.mark.parametrize(
    ("arguments", "out", "err", "status", "message"),
    [
        (("run", "e.ourcc", "--input", "x=x.npy"), "closed", "open", 1, "error: cannot write to standard output: it is closed"),
        (("run", "absent.ourcc", "--json"), "closed", "open", 2, "error: "),
        (("run", "e.ourcc", "--input", "x=x.npy"), "open", "closed", 0, ""),
        (("run", "bad.ourcc", "--input", "x=x.npy"), "open", "closed", 1, ""),
        (("run", "bad.ourcc", "--input", "x=x.npy"), "open", "full", 1, ""),
        (("run", "absent.ourcc", "--json"), "full", "open", 2, "error: "),
        (("--help",), "full", "open", 1, "error: cannot write to standard output: no space left on device"),
        (("verify", "e.ourcc", "other.onnx"), "unread", "open", 3, "error: "),
        (("verify", "e.ourcc", "other.onnx"), "unread", "unread", 3, ""),
        (("verify", "e.ourcc", "other.onnx", "--json"), "unread", "open", 3, ""),
        (("run", "absent.ourcc", "--json"), "unread", "open", 2, "error: "),
        (("inspect", "e.ourcc"), "unread", "open", 0, ""),
        (("run", "e.ourcc", "--input", "x=x.npy", "-o", "/dev/stdout"), "unread", "open", 1, "error: broken pipe: '/dev/stdout'"),
    ],
)
def test_what_was_found_stays_right(folder: Path, arguments: tuple[str, ...], out: str, err: str, status: int, message: str) -> None:
    got, _, told = spoken(folder, arguments, out, err)
    assert got == status and "Traceback" not in told and message in told
    assert not message or len([line for line in told.splitlines() if line.startswith("error")]) == 1


def test_work_goes_on_behind_a_reader_that_goes_away(folder: Path) -> None:
    (folder / "made.npz").unlink(missing_ok=True)
    assert spoken(folder, ("run", "e.ourcc", "--input", "x=x.npy", "-v", "-o", "made.npz"), "unread", "unread")[0] == 0
    assert np.load(folder / "made.npz")["y"].shape == (2, 4)


def test_a_build_whose_progress_nobody_reads_is_done(folder: Path) -> None:
    for err in ("closed", "full", "unread"):
        (folder / "built.ourcc").unlink(missing_ok=True)
        assert spoken(folder, ("build", "m.onnx", "-o", "built.ourcc"), "open", err)[0] == 0
        assert (folder / "built.ourcc").stat().st_size > 1000
