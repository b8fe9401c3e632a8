"""The host program of a GPU's part: there for this machine, and told where no C compiler is."""

from __future__ import annotations

import ctypes
import dataclasses
import platform

import pytest

from ourcc.compiler.backends import cuda
from ourcc.compiler.options import build_options
from ourcc.runtime import PartContents
from ourcc.runtime.contents import LIBRARY
from ourcc.runtime.launches import LAUNCH, MOST_PARAMETERS, host_program, interpret


class _Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_the_host_program_is_compiled_and_reads_words() -> None:
    found = cuda._host_program(build_options({}), _Notes())
    part = PartContents({}, found, "cuda", platform.machine())
    run = host_program(part)
    assert run is not interpret
    seen = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)

    def launch(function, x, y, z, threads, _y, _z, shared, stream, parameters, extra):
        given = (ctypes.c_void_p * 4).from_address(parameters)
        values = ctypes.c_void_p.from_address(given[0]).value, ctypes.c_int32.from_address(given[1]).value
        seen.append((function, (x, y, z), threads, shared, stream, *values, ctypes.c_void_p.from_address(given[2]).value))
        return 7 if function == 9 else 0

    called = kind(launch)
    table = (ctypes.c_void_p * 3)(*[ctypes.cast(called, ctypes.c_void_p).value] * 3)
    cells = (ctypes.c_void_p * 2)(4096, 4104)

    def choice(function: int, aligned: list[int]) -> list[int]:
        words = [3, 2, 1, 64, 256, 1, function, len(aligned), *aligned, 1, 1, 1, -5]
        return [len(words) + 1, *words]

    for at, chosen, status in ((0, 8, 0), (1, 9, 7)):
        words = [LAUNCH, 40, 2, *choice(8, [at]), *choice(9, [])]
        held = (ctypes.c_int64 * (len(words) + 1))(len(words) + 1, *words)
        for interpreter in (run, interpret):
            seen.clear()
            failed = ctypes.c_int64(-1)
            assert interpreter(ctypes.addressof(held), len(held), cells, 512, 77, table, failed) == status
            assert seen == [(chosen, (3, 2, 1), 64, 256, 77, 4104, -5, 512)] and failed.value == (40 if status else -1)
    assert len(found[LIBRARY]) < 40_000 and MOST_PARAMETERS >= 1024


def test_without_a_compiler_it_is_told() -> None:
    options = build_options({})
    options = dataclasses.replace(options, environment=dataclasses.replace(options.environment, compiler="no-such-compiler"))
    notes = _Notes()
    assert cuda._host_program(options, notes) == {}
    assert len(notes.said) == 1 and notes.said[0].startswith("kernels will be launched by Python, which is slow: ")


@pytest.mark.parametrize(
    ("change", "why"),
    [({"machine": "riscv64"}, "the engine's is for riscv64"), ({"files": {}}, "the engine holds none"), ({"requires": ("x",)}, "needs x")],
)
def test_another_machine_has_what_stands_in(change: dict[str, object], why: str, caplog: pytest.LogCaptureFixture) -> None:
    part = PartContents({}, {LIBRARY: b"never opened"}, "cuda", platform.machine())
    with caplog.at_level("INFO", "ourcc.runtime.launches"):
        assert host_program(dataclasses.replace(part, **change)) is interpret
    assert why in caplog.text
