"""Object files by content: equal kernels are compiled once, warm and cold bytes agree, and no code comes from a folder of others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ourcc.codegen.c import compile, objects, units
from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.objects import ObjectFolder
from ourcc.codegen.c.toolchain import Compiler
from ourcc.codegen.c.units import PRECOMPILED, ObjectFiles, Unit
from ourcc.ir.errors import ToolchainError
from ourcc.ir.target import AVX2

KERNEL = """
#include "ourcc.h"
#include <immintrin.h>
int32_t kernel(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) ((float *)operands[0])[p] *= FACTOR;
    return 0;
}
const ourcc_kernel kernel_descriptor = {kernel, 0, 0};
"""
PLAN = """
#include "ourcc.h"
extern const ourcc_kernel kernel_0_descriptor, kernel_1_descriptor;
OURCC_EXPORT void run(void *const *operands) { kernel_0_descriptor.body(operands, 0, 0, 1); kernel_1_descriptor.body(operands, 0, 1, 2); }
"""


def sources(*factors: int) -> dict[str, str]:
    """A plan with kernels that multiply by these factors."""
    kernels = {f"kernel_{n}.c": KERNEL.replace("FACTOR", f"{f}.0f") for n, f in enumerate(factors)}
    return {**kernels, "plan_0.c": PLAN}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler was asked for, by name; the process remembers nothing."""
    asked: list[str] = []
    call = units.call

    def heard(command: Any, folder: str, timeout: float, what: str, *running: Any) -> None:
        asked.append(what)
        call(command, folder, timeout, what, *running)

    for module in (units, compile):
        monkeypatch.setattr(module, "call", heard)
    units._remembered.cache_clear()
    return asked


def build(compiler: Compiler, cache: Path | None, *factors: int) -> bytes:
    units._remembered.cache_clear()
    names = [f"kernel_{n}" for n in range(len(factors))]
    return compile_shared(sources(*factors), AVX2, compiler, kernels=names, cache=cache).data


def test_a_warm_build_compiles_nothing_and_gives_the_same_bytes(compiler: Compiler, tmp_path: Path, compiled: list[str]) -> None:
    cold = build(compiler, tmp_path / "objects", *range(PRECOMPILED + 1))
    # Some compilers take a prelude that is compiled beforehand; it changes no byte.
    assert ("the prelude" in compiled) == (compiler.family == "gcc")
    compiled.clear()
    assert build(compiler, tmp_path / "objects", *range(PRECOMPILED + 1)) == cold == build(compiler, None, *range(PRECOMPILED + 1))
    assert compiled[0] == "the shared object"


def test_equal_kernels_are_one_object_whatever_their_names(compiler: Compiler, tmp_path: Path, compiled: list[str]) -> None:
    build(compiler, tmp_path / "objects", 2, 2)
    assert sorted(name for name in compiled if name.startswith("kernel")) == ["kernel_0.c"]
    compiled.clear()
    build(compiler, tmp_path / "objects", 5, 2)
    # The plan calls its kernels by what is in them, so it is another one; the pool and the kernel are not.
    assert sorted(compiled) == ["kernel_0.c", "plan_0.c", "the shared object"]


def test_what_the_compiler_made_is_known_of_kernels_that_share(compiler: Compiler, tmp_path: Path) -> None:
    counted = compile_shared(sources(2, 2), AVX2, compiler, kernels=["kernel_0", "kernel_1"], cache=tmp_path / "o").kernels
    assert not counted or counted["kernel_0"] == counted["kernel_1"]


def test_a_damaged_object_is_compiled_again(compiler: Compiler, tmp_path: Path, compiled: list[str]) -> None:
    cold = build(compiler, tmp_path / "objects", 2, 3)
    for file in (tmp_path / "objects").iterdir():
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    compiled.clear()
    assert build(compiler, tmp_path / "objects", 2, 3) == cold and len(compiled) == 5


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_no_code_comes_from_a_folder_that_others_may_write(
    mode: int, compiler: Compiler, tmp_path: Path, compiled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    build(compiler, tmp_path / "objects", 2, 3)
    (tmp_path / "objects").chmod(mode)
    before = sorted((tmp_path / "objects").iterdir())
    compiled.clear()
    build(compiler, tmp_path / "objects", 2, 4)
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'objects'} is not used: others may write it, and object files are code"
    ]
    assert len(compiled) == 5 and sorted((tmp_path / "objects").iterdir()) == before


def test_a_folder_that_cannot_be_written_is_done_without(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert build(compiler, tmp_path / "file", 2, 3) == build(compiler, tmp_path / "file" / "below", 2, 3)


def test_an_object_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder(tmp_path / "objects")
    folder.put("k", b"code")
    assert folder.get("k") == b"code"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert folder.get("k") is None and folder.get_folder("prelude") is None and folder.put_folder("prelude", lambda made: None) is None


def test_a_file_of_another_key_is_not_taken(tmp_path: Path) -> None:
    folder = ObjectFolder(tmp_path)
    folder.put("k", b"code")
    folder.put("l", b"other code")
    (tmp_path / "k").write_bytes((tmp_path / "l").read_bytes())
    assert folder.get("k") is None and folder.get("l") == b"other code"


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LIMIT", 400)
    monkeypatch.setattr(objects, "_PRUNED_EACH", 1)
    monkeypatch.setattr(objects, "_PRUNE_AT", 0)
    folder = ObjectFolder(tmp_path)
    for n, key in enumerate("abc"):
        folder.put(key, bytes(100))
        os.utime(tmp_path / key, (n, n))
    assert folder.get("a") is not None  # and so it was used just now
    folder.put("d", bytes(100))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "d"}


def test_two_processes_may_fill_one_folder(compiler: Compiler, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from ourcc.codegen.c.objects import ObjectFolder
folder = ObjectFolder(Path({str(tmp_path / "o")!r}))
for n in range(300):
    folder.put(f"k{{n % 10}}", bytes([n % 10]) * 1000)
    assert folder.get(f"k{{n % 10}}") == bytes([n % 10]) * 1000
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [f"k{n}" for n in range(10)]


def test_what_is_begun_is_compiled_once_beside_who_begins_it(compiler: Compiler, tmp_path: Path, compiled: list[str]) -> None:
    texts = sources(*range(PRECOMPILED))
    names = [f"kernel_{n}" for n in range(PRECOMPILED)]
    with ObjectFiles(compiler, AVX2, cache=tmp_path / "objects") as files:
        units = [Unit.of_kernel(f"{name}.c", texts[f"{name}.c"]) for name in (*names, names[0])]
        for unit in units:
            files.begin(unit)
        assert list(files.all(units)) == [f"{name}.o" for name in names]
        data = compile_shared(texts, AVX2, compiler, kernels=names, objects=files).data
    assert sorted(name for name in compiled if name.startswith("kernel")) == sorted(f"{name}.c" for name in names)
    assert data == build(compiler, None, *range(PRECOMPILED))


def test_a_kernel_that_is_begun_and_fails_is_told_when_it_is_asked_for(compiler: Compiler, compiled: list[str]) -> None:
    bad = Unit.of_kernel("bad.c", "int f(void) { return missing; }")
    with ObjectFiles(compiler, AVX2) as files:
        files.begin(bad)
        with pytest.raises(ToolchainError, match=r"refused bad\.c"):
            files.all([bad])


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "alone"])
def test_a_damaged_prelude_is_made_again(compiler: Compiler, tmp_path: Path, compiled: list[str], damage: str) -> None:
    if compiler.family != "gcc":
        pytest.skip(f"{compiler.family} takes no prelude that is compiled beforehand")
    expected = build(compiler, tmp_path, *range(PRECOMPILED))
    (folder,) = tmp_path.glob("prelude-*")
    file = folder / "prelude.h.gch"
    data = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 3] ^= 16
        file.write_bytes(data)
    else:
        (file if damage == "gone" else folder / "digests").unlink()
    for kept in tmp_path.iterdir():
        if kept.is_file():
            kept.unlink()
    compiled.clear()
    assert build(compiler, tmp_path, *range(PRECOMPILED)) == expected
    assert "the prelude" in compiled and file.read_bytes() != data[: len(data) // 2]


def test_threads_that_share_an_empty_folder_make_one_prelude(compiler: Compiler, tmp_path: Path) -> None:
    made: list[bytes | Exception] = []

    def one(first: int) -> None:
        try:
            with ObjectFiles(compiler, AVX2, cache=tmp_path) as files:
                texts = sources(*range(first, first + PRECOMPILED))
                made.append(
                    b"".join(files.all([Unit.of_kernel(name, text) for name, text in texts.items() if name != "plan_0.c"]).values())
                )
        except ToolchainError as failure:
            made.append(failure)

    units._remembered.cache_clear()
    threads = [threading.Thread(target=one, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and not [each for each in made if isinstance(each, Exception)]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [path.name for path in tmp_path.glob("prelude-*")]


def test_a_build_that_is_broken_off_ends_its_compilers(tmp_path: Path, compiler: Compiler) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(KeyboardInterrupt), ObjectFiles(replace(compiler, command=(str(slow),)), AVX2) as files:
        for n in range(PRECOMPILED):
            files.begin(Unit(f"{n}.c", f"int a{n};"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.01)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
