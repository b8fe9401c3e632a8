"""What is counted in a disassembly, and in that of a kernel that was really compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.disassembly import PROGRAMS, KernelCode, disassemble, read_listing
from ourcc.codegen.c.toolchain import find_compiler
from ourcc.ir.target import cpu_level

LISTING = """
kernels_0.o:     file format elf64-x86-64

0000000000000000 <first>:
   0:\tpush   %rbp
   1:\tvmovups (%rdi,%rax,4),%zmm1
   8:\tvfmadd231ps 0x40(%rsp),%zmm1,%zmm2
  10:\tvmovaps %zmm2,-0x40(%rsp)
  18:\tvmovaps (%rsp,%rcx,4),%zmm3
  20:\tvpdpbusd %zmm1,%zmm2,%zmm30
  28:\tvbroadcastss (%rsi),%zmm1
  30:\tkmovw  %eax,%k1
  38:\tnopw   0x0(%rax,%rax,1)
  40:\tjne    10 <first+0x10>

0000000000000080 <helper>:
  80:\tvaddps %zmm9,%zmm9,%zmm9

00000000000000c0 <first.part.0>:
  c0:\tvmulps %ymm2,%ymm3,%ymm4
  c8:\tret
"""


def test_a_listing_is_counted_by_kernel() -> None:
    found = read_listing(LISTING, ["first", "absent"])
    kinds = {"scalar": 1, "move": 3, "multiply-add": 1, "dot": 1, "broadcast": 1, "vector": 2, "branch": 2}
    assert found == {"first": KernelCode(registers=5, spills=1, inner_spills=1, instructions=kinds)}
    assert found["first"].mix == "3 move, 2 branch, 2 vector, 1 broadcast, 1 dot, 1 multiply-add, 1 scalar"


SOURCE = """
#include <immintrin.h>
__attribute__((noinline)) void kernel(float *x, float f) {
    __m256 v = _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_set1_ps(f), _mm256_set1_ps(f));
    _mm256_storeu_ps(x, v);
}
"""


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="no disassembler is installed")
def test_a_compiled_kernel_is_counted() -> None:
    compiled = compile_shared({"scale.c": SOURCE}, cpu_level("x86-64-v3"), find_compiler(), kernels=["scale"])
    code = compiled.kernels["scale"]
    assert code.instructions["multiply-add"] == 1 and code.instructions["broadcast"] == 1 and code.instructions["branch"] == 1
    assert 1 <= code.registers <= 3 and code.spills == code.inner_spills == 0


def test_without_a_disassembler_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert disassemble(tmp_path, ["a.o"], ["k"]) == {}
