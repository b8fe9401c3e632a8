"""What this machine is, read from stand-ins: descriptions of CPUs, absent compilers, absent drivers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ourcc.codegen.c.toolchain import Compiler
from ourcc.compiler.cli import doctor
from ourcc.compiler.cli.main import run
from ourcc.compiler.environment import Environment
from ourcc.compiler.targets import machine
from ourcc.compiler.targets.target import Here
from ourcc.ir.errors import ToolchainError

_FLAGS = "fpu sse avx avx2 fma f16c bmi1 bmi2"


def describe(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor : 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n\nprocessor : 1\nmodel name : Other\n")
    return path


@pytest.mark.skipif(machine.platform.machine() != "x86_64", reason="levels are those of x86-64")
def test_a_cpu_is_read_from_its_description(tmp_path: Path) -> None:
    cpu = machine.read_cpu(describe(tmp_path, _FLAGS + " avx512_vnni"))
    assert (cpu.model, cpu.level, cpu.notable) == ("Some CPU", "x86-64-v3", ("avx2", "fma", "f16c", "avx512_vnni"))
    cpu = machine.read_cpu(describe(tmp_path, _FLAGS + " avx512f avx512bw avx512cd avx512dq avx512vl"))
    assert cpu.level == "x86-64-v4"
    assert machine.read_cpu(tmp_path / "absent").features == frozenset()


def test_no_compiler_is_said_with_the_way_to_get_one() -> None:
    settings = Environment(cache_dir="/nowhere", compiler="absent-compiler")
    report = doctor.examine(settings, measure=False)
    assert report.facts["c_compiler"] is None
    targets = {row[0]: row for row in report.tables[0].rows}
    assert targets["cpu"][1] is False
    assert "c compiler 'absent-compiler' does not run" in str(targets["cpu"][3])
    assert "pip install 'ourcc[clang]'" in str(targets["cpu"][3])
    with pytest.raises(ToolchainError, match="does not run"):
        doctor.examine(settings, measure=True)


def test_a_compiler_that_refuses_the_measuring_loop_is_an_error(tmp_path: Path) -> None:
    tool = tmp_path / "badcc"
    tool.write_text("#!/bin/sh\necho cannot do that >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"bad 1 cannot compile the measuring loop\n  note: cannot do that"):
        machine.measure_rates(Compiler((str(tool),), "gcc", "bad 1", ""), machine.read_cpu())


def test_no_cuda_driver_is_no_error() -> None:
    found = machine.probe_cuda("libabsent.so.9")
    assert found.gpus == ()
    assert found.problem == "no CUDA driver (libabsent.so.9 is not on this machine)"


def test_a_gpu_names_its_target() -> None:
    gpu = machine.Gpu("H200", (9, 0), 139 << 30)
    assert gpu.target == "sm_90a"
    driver = machine.CudaDriver("13.0", (gpu,))
    rows = {row[0]: row for row in doctor._targets(Here(machine.read_cpu(), driver), None).rows}
    assert rows["sm_90a"][2] is True
    assert rows["sm_100a"][2] is False
    assert "the GPUs here are sm_90a" in str(rows["sm_100a"][3])


def test_doctor_answers_for_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OURCC_CACHE", f"{tmp_path},redis://team")
    (tmp_path / "record.json").write_text("{}")
    assert run(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["target"] for row in data["targets"]] == [
        "cpu",
        "native",
        "x86-64",
        "x86-64-v3",
        "x86-64-v3-vnni",
        "x86-64-v4",
        "x86-64-v4-vnni",
        "x86-64-v4-bf16",
        "x86-64-v4-amx",
        "x86-64-v4-amx-fp16",
        "sm_90a",
        "sm_100a",
        "sm_103a",
        "sm_120a",
        "h100",
        "h200",
        "b200",
        "b300",
    ]
    assert [(row["place"], row["entries"]) for row in data["caches"][1:]] == [(str(tmp_path), 1), ("redis://team", None)]
    assert next(row["version"] for row in data["libraries"] if row["name"] == "numpy")
