"""The compiler's edge: determinism, resource limits, and failures of the child process."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ourcc.codegen.triton import Argument, TritonKernel
from ourcc.codegen.triton.children import Child, Pool
from ourcc.codegen.triton.compile import compile_kernel, instruction_mix
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir.errors import InputError, ToolchainError, UnsupportedError, UsageError, reason
from ourcc.ir.plan import SCALAR_LIMIT
from ourcc.ir.target import gpu_target

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
COPY = HEAD + "def copy(x_ptr, size_B):\n    tl.store(x_ptr + tl.program_id(0), size_B)\n"
ARGUMENTS = (Argument("x", "operand", "*i32", True), Argument("B", "size", "i32", False))


def kernel(source: str = COPY, name: str = "copy") -> TritonKernel:
    return TritonKernel(name, source, ARGUMENTS, 4, 1, 1)


def test_compiled_bytes_do_not_depend_on_folder_user_or_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(
        "import hashlib, sys\n"
        "from ourcc.codegen.triton import Argument, TritonKernel\n"
        "from ourcc.codegen.triton.compile import compile_kernel\n"
        "from ourcc.ir.target import gpu_target\n"
        f"source = {COPY!r}\n"
        "arguments = (Argument('x', 'operand', '*i32', True), Argument('B', 'size', 'i32', False))\n"
        "result = compile_kernel(TritonKernel('copy', source, arguments, 4, 1, 1), gpu_target('sm_90a'))\n"
        "print(hashlib.sha256(result.cubin + result.ptx.encode()).hexdigest())\n"
        "sys.exit('path in ptx' if '/' in result.ptx.replace('//', '').replace('ourcc/copy.py', '') else 0)\n"
    )
    digests = set()
    for n in range(2):
        folder = tmp_path / f"folder{n}"
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": str(n), "HOME": str(folder), "TZ": f"UTC+{n}", "USER": f"user{n}"}
        environment["TRITON_CACHE_DIR"] = str(folder)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_too_much_shared_memory_is_refused() -> None:
    small = dataclasses.replace(gpu_target("sm_90a"), shared_memory=1024)
    source = HEAD + (
        "def copy(x_ptr, size_B):\n"
        "    i = tl.arange(0, 64)\n"
        "    x = tl.load(x_ptr + i[:, None] * 64 + i[None, :]).to(tl.float16)\n"
        "    y = tl.dot(x, x, input_precision='ieee')\n"
        "    tl.store(x_ptr + i[:, None] * 64 + i[None, :], y.to(tl.int32))\n"
    )
    with pytest.raises(UnsupportedError, match=r"kernel copy needs \d+ bytes of shared memory, sm_90a has 1024"):
        compile_kernel(kernel(source), small)


def test_source_that_triton_refuses_is_one_clear_error() -> None:
    with pytest.raises(ToolchainError, match="triton refused kernel copy for sm_90a"):
        compile_kernel(kernel(COPY.replace("size_B)\n", "size_B + tl.arange(0, 3))\n", 2)), gpu_target("sm_90a"))
    with pytest.raises(ToolchainError, match="triton's interpreter failed on kernel copy"):
        interpret(kernel(COPY.replace("program_id(0), ", "program_id(7), ")), {"x": np.zeros(4, np.int32)}, {"B": 1})


@pytest.mark.parametrize(
    ("line", "inside", "message"),
    [
        ("x = tl.arange(0, 16) + tl.arange(0, 32)", "y", r"incompatible dimensions at index 0: 16 and 32 \(line 2: x = .*\)$"),
        ("x = missing(3)", "y", r"NameError\('missing is not defined'\) \(line 2: x = missing\(3\)\)$"),
        (
            "x = inner(tl.arange(0, 16))",
            "tl.dot(y, y)",
            r"must have equal ranks >= 2 \(line 2: return tl.dot\(y, y\)\) \(line 2: x = inner\(.*\)\)$",
        ),
    ],
)
def test_what_triton_refuses_is_said_in_one_line(line: str, inside: str, message: str) -> None:
    source = f"{HEAD}def inner(y):\n    return {inside}\n\n@triton.jit\ndef copy(x_ptr, size_B):\n    {line}\n    tl.store(x_ptr, 0)\n"
    with pytest.raises(ToolchainError) as refused:
        compile_kernel(kernel(source), gpu_target("sm_90a"))
    assert re.search(message, reason(refused.value)), reason(refused.value)


def test_a_compiler_that_kills_its_process_is_an_error_and_not_the_end() -> None:
    old = dataclasses.replace(gpu_target("sm_120a"), ptx_isa=80)
    with pytest.raises(ToolchainError, match=r"triton's process ended with status -?[0-9]+ on kernel copy") as caught:
        compile_kernel(kernel(), old)
    assert "PTX version 8.0 does not support target 'sm_120a'" in (caught.value.note or "")
    assert compile_kernel(kernel(), gpu_target("sm_120a")).target == "sm_120a"


def test_blackwell_ultra_has_code_of_its_own() -> None:
    """B300 runs no code for sm_100a; that for sm_103a needs the next ISA."""
    compiled = compile_kernel(kernel(), gpu_target("sm_103a"))
    lines = compiled.ptx.splitlines()
    assert compiled.target == "sm_103a" and ".version 8.8" in lines and ".target sm_103a" in lines


def test_a_deadline_ends_the_child() -> None:
    child = Child(interpret=True)
    endless = HEAD + "def copy(x_ptr, size_B):\n    while tl.load(x_ptr) == 0:\n        pass\n"
    header = {"kind": "interpret", "name": "copy", "source": endless, "dtypes": ["*i32"], "sizes": [1], "programs": 1}
    with pytest.raises(ToolchainError, match="triton did not answer within 4 s for kernel copy"):
        child.ask(header, [bytes(16)], 4)
    assert child.process is None


def test_a_pool_stops_its_children() -> None:
    pool = Pool(interpret=False, size=1)
    child = pool.children.queue[0]
    child._started()
    process = child.process
    assert process is not None
    pool.stop()
    assert process.poll() is not None and child.process is None


def test_interpreted_operands_and_sizes_are_checked() -> None:
    with pytest.raises(InputError, match="kernel copy: operand x is missing, expected x"):
        interpret(kernel(), {}, {"B": 1})
    with pytest.raises(InputError, match="kernel copy: size B is missing, expected B"):
        interpret(kernel(), {"x": np.zeros(4, np.int32)}, {})
    with pytest.raises(InputError, match="kernel copy: size B is -2146435072, expected -2146435071 to 2146435071"):
        interpret(kernel(), {"x": np.zeros(4, np.int32)}, {"B": -SCALAR_LIMIT})
    assert interpret(kernel(), {"x": np.zeros(4, np.int32)}, {"B": 7})["x"].tolist() == [7, 7, 7, 7]


def test_instruction_mix_counts_by_family_and_width() -> None:
    ptx = "wgmma.mma_async.sync x; cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;\n"
    sass = {"LDG.E.128": 2, "LDG.E.U16": 3, "STG.E.64": 1, "FFMA": 4, "LDL": 1, "BRA": 9}
    assert instruction_mix(ptx, sass) == {
        **{"cp.async 16": 1, "ffma": 4, "global load 16": 2, "global load 2": 3, "global store 8": 1, "local load": 1, "wgmma": 1}
    }


def test_unknown_gpu_targets_are_named() -> None:
    with pytest.raises(UsageError, match="gpu target 'sm_80' is not known, expected one of: sm_90a, sm_100a, sm_103a, sm_120a, h100, h200"):
        gpu_target("sm_80")
