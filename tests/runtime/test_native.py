"""Native code: opened from memory, told apart, chosen by the CPU, refused when foreign."""

from __future__ import annotations

import gc
import os

import pytest

from ourcc.ir.errors import EngineError
from ourcc.runtime import native
from ourcc.runtime.contents import PartContents
from ourcc.runtime.native import NativeLibrary, cpu_flags, load, why_not

SOURCE = """
int64_t ourcc_arena_0(const int64_t *s) { return %d; }
int32_t ourcc_segment_0_0(void *const *b, const int64_t *s, char *a, int32_t t) { return %d; }
"""


def test_libraries_of_one_name_stay_apart(compiled):
    libraries = [NativeLibrary("same.so", compiled(SOURCE % (n * 64, n))) for n in range(4)]
    assert [library.arena(0)(None) for library in libraries] == [0, 64, 128, 192]
    assert [library.segment(0, 0)(None, None, None, 1) for library in libraries] == [0, 1, 2, 3]


def test_no_descriptor_and_no_file_stays(compiled, tmp_path):
    data = compiled(SOURCE % (0, 9))
    NativeLibrary("warm.so", data)
    before = len(os.listdir("/proc/self/fd"))
    libraries = [NativeLibrary("same.so", data) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert libraries[4].segment(0, 0)(None, None, None, 1) == 9


def test_unused_libraries_are_closed(compiled):
    data = compiled(SOURCE % (0, 4))
    NativeLibrary("first.so", data)

    def mapped() -> int:
        with open("/proc/self/maps", encoding="ascii") as maps:
            return sum("closing-test" in line for line in maps)

    library = NativeLibrary("closing-test.so", data)
    assert mapped() > 0
    del library
    gc.collect()
    assert mapped() == 0


def test_foreign_code_is_refused(compiled):
    with pytest.raises(EngineError, match=r"cannot load native code x.so: .*(ELF|too short)"):
        NativeLibrary("x.so", b"not a library")
    with pytest.raises(EngineError, match="native code of the engine has no function ourcc_abi"):
        NativeLibrary("x.so", compiled("int ourcc_abi_other; /* ourcc_abi is absent */"))
    newer = "#include <stdint.h>\nint32_t ourcc_abi(void) { return 9; }"
    with pytest.raises(EngineError, match=r"native code x.so has interface version 9, expected 2"):
        NativeLibrary("x.so", compiled(newer))
    with pytest.raises(EngineError, match="has no function ourcc_segment_0_7"):
        NativeLibrary("x.so", compiled(SOURCE % (0, 0))).segment(0, 7)


def test_systems_without_anonymous_files(compiled, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(native.os, "memfd_create", refuse)
    with pytest.raises(EngineError, match=r"cannot load native code x.so: this system has no anonymous files"):
        NativeLibrary("x.so", compiled(SOURCE % (0, 0)))


def test_a_part_says_why_it_does_not_run():
    part = PartContents({}, requires=("avx512f", "avx512vl"))
    assert why_not(part, "x86_64", frozenset({"sse2", "avx512f", "avx512vl"})) is None
    assert why_not(part, "x86_64", frozenset({"avx512f"})) == "it needs avx512vl, which this cpu lacks"
    assert why_not(part, "aarch64", frozenset()) == "it is for x86_64, this machine is aarch64"
    with pytest.raises(EngineError, match="engine holds no native code for its part x86-64-v4\n  help: build it again"):
        load("x86-64-v4", part)


def test_flags_of_this_cpu(monkeypatch):
    assert cpu_flags() and all(" " not in flag for flag in cpu_flags())

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(EngineError, match="cannot read the features of this cpu: Permission denied"):
        cpu_flags.__wrapped__()


def test_native_code_is_sealed(compiled, monkeypatch):
    seen = []
    real = native.dlopen

    def spy(path, mode):
        with open(path, "rb") as file:
            seen.append(native.fcntl.fcntl(file.fileno(), 1034))
        return real(path, mode)

    monkeypatch.setattr(native, "dlopen", spy)
    native._open("x.so", compiled(SOURCE % (0, 0)))
    assert seen == [0xF]
