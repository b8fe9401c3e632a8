"""Schedules as the toolchain answers for them: what crashes, hangs or is refused is passed over, what spills is weighed."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ourcc
from ourcc.codegen.triton import Argument, TritonKernel, children, compile
from ourcc.codegen.triton.children import Child, Pool
from ourcc.codegen.triton.compile import CompiledKernel, compile_kernel
from ourcc.compiler.backends import gpu_kernels
from ourcc.compiler.backends.gpu_kernels import FAILED, GpuKernels, of_other_instructions
from ourcc.compiler.progress import SILENT
from ourcc.ir.errors import InternalError, ToolchainError
from ourcc.ir.target import gpu_target

H200 = gpu_target("sm_90a")
WORKER = Path(children.__file__).with_name("worker.py")


class Soft(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


def build() -> Any:
    exported = torch.export.export(Soft(), (torch.zeros(256, 2048),))
    rows: Any = ourcc.build(exported, targets=["sm_90a"], tune="off").contents.report["kernels"]["sm_90a"]
    return rows


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let workers run lines of Python before a kernel is compiled whose source holds some words."""
    pools: list[Pool] = []

    def install(words: str, lines: str, deadline: float = 60.0) -> None:
        script = tmp_path / "worker.py"
        text = WORKER.read_text()
        head = '    """Triton source to PTX and cubin, with what the assembler says of them."""\n'
        assert head in text
        held = "".join(f"        {line}\n" for line in lines.splitlines())
        script.write_text(text.replace(head, f"{head}    if {words!r} in request['source']:\n{held}"))
        monkeypatch.setattr(children, "_SCRIPT", script)
        pools.append(Pool(interpret=False, size=2))
        monkeypatch.setattr(compile, "COMPILERS", pools[-1])
        monkeypatch.setattr(gpu_kernels, "DEADLINE", deadline)

    yield install
    for pool in pools:
        pool.stop()


FAULTS = {
    "a refusal": ("raise RuntimeError('ptxas does not like it')", "ptxas does not like it"),
    "an abort": ("os.abort()", "triton's process ended with status -6"),
    "an exit": ("sys.exit(3)", "triton's process ended with status 3"),
    "a hang": ("import time; time.sleep(600)", "triton did not answer within 12 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_schedule_on_which_the_toolchain_fails_is_passed_over(fault: str, toolchain: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The schedule that is usually taken does not build: another one is taken, and the report says why."""
    (usual,) = build()
    lines, why = FAULTS[fault]
    toolchain("lane_2048 = tl.arange(0, 2048)", lines, deadline=12.0 if fault == "a hang" else 60.0)
    with caplog.at_level("INFO", "ourcc.build"):
        rows = build()
    assert all(row["strategy"] != usual["strategy"] for row in rows)
    assert any(f"{usual['strategy']} is refused, the toolchain fails on it: " in str(row["notes"]) and why in row["notes"] for row in rows)
    assert f"{usual['strategy']} is refused, the next best schedule is tried: {FAILED}" in caplog.text


def test_a_toolchain_that_builds_nothing_is_one_error_at_once(toolchain: Any) -> None:
    """No schedule is tried after that: it is not their fault."""
    toolchain("", "raise RuntimeError('the assembler is not there')")
    with pytest.raises(ToolchainError, match="triton refused kernel smallest for sm_90a: the assembler is not there") as caught:
        build()
    assert "while compiling for sm_90a" in str(caught.value)


def test_where_no_schedule_is_left_the_toolchain_is_told(toolchain: Any) -> None:
    toolchain("kernel_", "raise RuntimeError('not this shape')")
    with pytest.raises(ToolchainError, match="no schedule is left that can be built for sm_90a: triton refused kernel kernel_0") as caught:
        build()
    assert "not this shape" in caught.value.message and "no strategy takes region" in str(caught.value.note)


def test_what_a_child_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An assembler that hangs is a process of its own, and would outlive the one that waits for it."""
    place = tmp_path / "pid"
    script = tmp_path / "worker.py"
    script.write_text(
        f"import subprocess\nhung = subprocess.Popen(['sleep', '600'])\nopen({str(place)!r}, 'w').write(str(hung.pid))\nhung.wait()\n"
    )
    monkeypatch.setattr(children, "_SCRIPT", script)
    child = Child(interpret=False)
    with pytest.raises(ToolchainError, match="triton did not answer within 3 s for kernel x"):
        child.ask({"kind": "compile", "name": "x"}, [], 3)
    for _ in range(100):
        if not _is_running(int(place.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- spills -----------------------------------------------------------------------------------------------------------

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef wide(x_ptr, y_ptr, size_N):\n    i = tl.arange(0, 8192)\n"
ONCE = """    a = tl.load(x_ptr + i)
    b = tl.load(x_ptr + 8192 + i)
    tl.store(y_ptr + i, a * tl.sum(b) + b * tl.sum(a))
"""
LOOPED = """    for n in range(size_N):
        a = tl.load(x_ptr + n * 16384 + i)
        b = tl.load(x_ptr + n * 16384 + 8192 + i)
        tl.store(y_ptr + n * 8192 + i, a * tl.sum(b) + b * tl.sum(a))
"""


def compiled(body: str) -> CompiledKernel:
    arguments = [Argument(name, "operand", "*fp32", True) for name in ("x", "y")]
    kernel = TritonKernel("wide", HEAD + body, (*arguments, Argument("N", "size", "i32", False)), 132, 1, 1)
    return compile_kernel(kernel, H200)


@dataclasses.dataclass
class Unit:
    """What is asked of a scheduled unit here."""

    cost: float
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def problem(self) -> Any:
        return self

    def typical(self, dim: Any) -> int:
        return int(dim)


def test_spills_outside_of_loops_are_taken_at_their_price() -> None:
    """132 programs of a warp: one a processor, and each thread's bytes at 64 a cycle."""
    kernels, kernel = GpuKernels(H200, SILENT), compiled(ONCE)
    spilled = kernel.resources.spilled
    assert spilled > 0 and kernels.spilled_in_loops(kernel) == 0
    price = 32 * spilled / gpu_kernels.LOCAL_RATE
    assert kernels.spill_seconds(kernel, Unit(1.0)) == pytest.approx(price)  # type: ignore[arg-type]
    slow, fast = Unit(1.01 * price / gpu_kernels.WORTH), Unit(0.99 * price / gpu_kernels.WORTH)
    assert kernels.verdict(slow, [kernel]) is None  # type: ignore[arg-type]
    why, harm = kernels.verdict(fast, [kernel]) or ("", None)  # type: ignore[arg-type]
    assert why.startswith(f"registers spill {spilled} bytes, which takes ") and harm == spilled
    assert kernels.notes(kernel, slow) == [f"registers spill {spilled} bytes outside of loops: about {price * 1e6:.2f} us"]  # type: ignore[arg-type]


def test_spills_in_loops_are_refused_whatever_they_cost() -> None:
    kernels, kernel = GpuKernels(H200, SILENT), compiled(LOOPED)
    inside = kernels.spilled_in_loops(kernel)
    assert inside > 0
    why, harm = kernels.verdict(Unit(1e9), [kernel]) or ("", None)  # type: ignore[arg-type]
    assert why == f"registers spill {kernel.resources.spilled} bytes, in loops {inside} times" and harm == kernel.resources.spilled
    assert kernels.notes(kernel, Unit(1e9))[0].endswith(": no schedule is better")  # type: ignore[arg-type]


def test_code_that_cannot_be_read_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise ToolchainError("the disassembler refused it")

    kernel = compiled(ONCE)
    monkeypatch.setattr(gpu_kernels, "disassemble", fail)
    assert GpuKernels(H200, SILENT).spilled_in_loops(kernel) == 1


def test_one_source_is_compiled_for_each_number_of_warps() -> None:
    """A schedule that differs in warps alone is another kernel: before, the first one's code was taken for both."""
    kernels, kernel = GpuKernels(H200, SILENT), compiled(ONCE).kernel
    for warps in (4, 8):
        (built,) = kernels.build([dataclasses.replace(kernel, warps=warps)]).values()
        assert isinstance(built, CompiledKernel) and built.resources.warps == warps
    assert len(kernels.known) == 2


def test_many_refusals_are_counted() -> None:
    kernel = compiled(ONCE)
    quiet = dataclasses.replace(kernel, resources=dataclasses.replace(kernel.resources, spill_stores=0, spill_loads=0))
    unit = Unit(1.0, tuple((f"rows{{elements={n}}}", FAILED + "it crashed") for n in range(5)))
    said = GpuKernels(H200, SILENT).notes(quiet, unit)  # type: ignore[arg-type]
    assert said[-1] == "and 3 more schedules" and said[0] == "rows{elements=0} is refused, the toolchain fails on it: it crashed"


def test_classes_multiply_by_the_instruction_of_all_sizes() -> None:
    plain = compiled(ONCE)
    matrix = dataclasses.replace(plain, resources=dataclasses.replace(plain.resources, instructions={"wgmma": 4}))
    assert list(of_other_instructions([["a", "b", "c"]], {"a": [matrix], "b": [plain], "c": [plain]}, H200)) == ["a"]


def test_our_own_faults_stay_ours() -> None:
    error = InternalError("no strategy takes region x")
    assert GpuKernels(H200, SILENT).none_left(error) is error


def test_a_product_that_triton_gives_to_another_instruction_says_so() -> None:
    """Blackwell Ultra multiplies bytes by mma.sync: before, nothing was said of it."""
    exported = torch.export.export(nn.Sequential(nn.Linear(256, 512)), (torch.zeros(256, 256),))
    found = {}
    for target in ("sm_100a", "sm_103a"):
        rows = ourcc.build(exported, targets=[target], quantize="int8", tune="off").contents.report["kernels"][target]
        (found[target],) = (row["notes"] for row in rows if row["strategy"].startswith("tensor"))
    assert found == {"sm_100a": None, "sm_103a": "no tcgen05: triton takes mma.sync for it"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_functions_are_narrow_where_their_results_are(dtype: torch.dtype) -> None:
    exported = torch.export.export(nn.SiLU(), (torch.zeros(256, 512, dtype=dtype),))
    files = ourcc.build(exported, targets=["sm_90a"], tune="off").contents.parts["sm_90a"].files
    texts = [bytes(text).decode() for name, text in files.items() if name.endswith(".py")]
    assert texts and all(("sigmoid_narrow_f32(" in text) == (dtype == torch.bfloat16) for text in texts)
