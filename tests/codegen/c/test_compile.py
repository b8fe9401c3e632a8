"""The C compiler's driver: finding one, reproducible bytes, errors; and the thread pool that it builds in."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import stat
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ourcc.codegen.c import toolchain as c
from ourcc.codegen.c.abi import ABI_VERSION
from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.toolchain import Compiler, find_compiler, flags_for
from ourcc.ir.errors import ToolchainError, UsageError
from ourcc.ir.target import AVX2, AVX512, BASELINE, CPU_LEVELS, CpuLevel, cpu_level, level_for

SOURCE = """
#include "ourcc.h"
#include <math.h>
OURCC_EXPORT double twice(double x) { return 2 * fabs(x); }
typedef struct { int64_t *seen; int64_t delay; } work;
static void body(void *context, int64_t first, int64_t last) {
    work *w = context;
    for (int64_t p = first; p < last; ++p) {
        volatile double x = 1;
        for (int64_t n = 0; n < w->delay; ++n) x = x * 1.000001;
        __atomic_fetch_add(&w->seen[p], 1, __ATOMIC_RELAXED);
    }
}
OURCC_EXPORT void cover(int threads, int64_t points, int64_t *seen, int64_t delay) {
    work w = {seen, delay};
    ourcc_parallel(threads, points, body, &w);
}
static void nested(void *context, int64_t first, int64_t last) {
    int64_t *seen = context;
    for (int64_t p = first; p < last; ++p) { work w = {seen + 10 * p, 0}; ourcc_parallel(2, 10, body, &w); }
}
OURCC_EXPORT void cover_nested(int threads, int64_t points, int64_t *seen) { ourcc_parallel(threads, points, nested, seen); }
static int64_t calls;
static void counting(int threads, int64_t points, ourcc_body work_body, void *context) { ++calls; work_body(context, 0, points); }
static int32_t body_of_points(void *const *operands, const int64_t *symbols, int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) ++((int64_t *)operands[0])[p];
    return 0;
}
static const ourcc_kernel kernel = {body_of_points, 0, 0};
OURCC_EXPORT int64_t launch_elsewhere(int64_t *seen) {
    void *operands[] = {seen};
    ourcc_use_parallel(counting);
    ourcc_launch(2, 8, &kernel, operands, 0);
    ourcc_use_parallel(ourcc_parallel);
    ourcc_launch(1, 8, &kernel, operands, 0);
    return calls;
}
"""


@pytest.fixture(scope="module")
def library(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("pool") / "pool.so"
    path.write_bytes(compile_shared({"work.c": SOURCE}, AVX2, compiler).data)
    loaded = ctypes.CDLL(str(path))
    loaded.twice.restype = ctypes.c_double
    return loaded


def covered(library: ctypes.CDLL, threads: int, points: int, delay: int = 0) -> list[int]:
    seen = (ctypes.c_int64 * max(1, points))()
    library.cover(threads, ctypes.c_int64(points), seen, ctypes.c_int64(delay))
    return list(seen)[:points]


def test_library_answers(library: ctypes.CDLL) -> None:
    assert library.twice(ctypes.c_double(-2.5)) == 5.0
    assert library.ourcc_abi() == ABI_VERSION


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("points", [0, 1, 2, 7, 64, 1000])
def test_every_point_is_run_once(library: ctypes.CDLL, threads: int, points: int) -> None:
    for _ in range(20):
        assert covered(library, threads, points) == [1] * points


def test_pool_wakes_parked_threads(library: ctypes.CDLL) -> None:
    for _ in range(3):
        time.sleep(0.05)
        assert covered(library, 3, 50, delay=2000) == [1] * 50


def test_a_body_may_call_the_pool_again(library: ctypes.CDLL) -> None:
    seen = (ctypes.c_int64 * 200)()
    library.cover_nested(2, ctypes.c_int64(20), seen)
    assert list(seen) == [1] * 200


def test_callers_on_many_threads_share_the_pool(library: ctypes.CDLL) -> None:
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.extend(covered(library, 2, 40, 500) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(result == [1] * 40 for result in results)


def test_pool_is_made_anew_after_a_fork(library: ctypes.CDLL) -> None:
    assert covered(library, 3, 30) == [1] * 30
    child = os.fork()
    if child == 0:
        os._exit(0 if all(covered(library, 3, 100, 1000) == [1] * 100 for _ in range(5)) else 1)
    for _ in range(1500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            break
        time.sleep(0.02)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child's pool did not answer")
    assert covered(library, 3, 30) == [1] * 30


def test_launches_go_to_the_pool_of_the_process(library: ctypes.CDLL) -> None:
    seen = (ctypes.c_int64 * 8)()
    assert library.launch_elsewhere(seen) == 1
    assert list(seen) == [2] * 8


# --- the compiler -----------------------------------------------------------------------------------------------------


def test_same_sources_give_the_same_bytes(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = compile_shared({"work.c": SOURCE}, AVX2, compiler)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    second = compile_shared({"work.c": SOURCE}, AVX2, compiler, jobs=1)
    assert first.data == second.data
    assert first.data != compile_shared({"work.c": SOURCE}, BASELINE, compiler).data
    assert not list(tmp_path.iterdir())


def test_no_path_of_the_machine_is_in_the_bytes(compiler: Compiler) -> None:
    data = compile_shared({"work.c": SOURCE}, AVX2, compiler).data
    assert b"/tmp" not in data and os.getcwd().encode() not in data


def test_identity_names_version_and_digest(compiler: Compiler) -> None:
    assert compiler.version in compiler.identity
    assert len(compiler.digest) == 64
    assert compiler.family in ("gcc", "clang", "zig")


def test_flags_are_written_out(compiler: Compiler) -> None:
    flags = flags_for(AVX512, compiler)
    assert {"-O2", "-ffp-contract=off", "-fwrapv", "-fno-fast-math", "-march=x86-64-v4"} <= set(flags)
    more = CpuLevel("native", "x86-64-v4", 512, 32, (*AVX512.features, "avx512_bf16"))
    assert set(flags_for(more, compiler)) - set(flags) == {"-mavx512bf16"}


def test_zig_is_told_the_processor_its_own_way() -> None:
    flags = flags_for(AVX2, Compiler(("python", "-m", "ziglang", "cc"), "zig", "0.13", ""))
    assert "-mcpu=x86_64_v3" in flags and not any(flag.startswith("-march") for flag in flags)


def test_no_compiler_is_an_error_that_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c.shutil, "which", lambda name: None)
    monkeypatch.setattr(c.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="no c compiler found") as error:
        find_compiler()
    assert "pip install 'ourcc[clang]'" in str(error.value)


def test_requested_compiler_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="does not run"):
        find_compiler(str(tmp_path / "absent"))


def test_requested_compiler_may_have_arguments() -> None:
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no gcc here")
    assert find_compiler(f"{gcc} -pipe").command == (gcc, "-pipe")


def test_compiler_errors_name_the_file(compiler: Compiler) -> None:
    with pytest.raises(ToolchainError, match=r"the c compiler refused broken\.c") as error:
        compile_shared({"broken.c": "int f(void) { return missing; }"}, AVX2, compiler)
    assert "missing" in str(error.value)


def test_link_errors_are_told(compiler: Compiler) -> None:
    with pytest.raises(ToolchainError, match="the c compiler refused the shared object"):
        compile_shared({"odd.c": "int twice;", "even.c": "int twice = 1; int once = 2;", "two.c": "int once = 3;"}, AVX2, compiler)


def script(path: Path, text: str) -> Compiler:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Compiler((str(path),), "gcc", "pretended 1.0", "")


def test_slow_compiler_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"compiling \w+\.c took more than 0\.3 s"):
        compile_shared({"work.c": ""}, AVX2, script(tmp_path / "slow", "exec sleep 20"), timeout=0.3, jobs=1)


def test_what_a_slow_compiler_started_is_stopped_with_it(tmp_path: Path) -> None:
    driver = script(tmp_path / "driver", f"sleep 60 &\necho $! > {tmp_path / 'child'}\nwait")
    with pytest.raises(ToolchainError, match="took more than 2 s"):
        compile_shared({"work.c": ""}, AVX2, driver, timeout=2, jobs=1)
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")

    def has_ended() -> bool:
        # Nobody waits for an orphan here but the first process of the system: it is gone, or dead and not yet collected.
        try:
            return state.read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    # The signal was sent; a busy machine takes its time to deliver it.
    assert any(has_ended() or time.sleep(0.05) for _ in range(600))


def test_vanished_compiler_is_told(tmp_path: Path) -> None:
    gone = Compiler((str(tmp_path / "gone"),), "gcc", "pretended 1.0", "")
    with pytest.raises(ToolchainError, match=r"compiling .* failed"):
        compile_shared({"work.c": "// gone"}, AVX2, gone)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 0", r"c compiler \S+ told no error and did not write object\.o for \w+\.c"),
        (': > "$(eval echo \\${$#})"', r"c compiler \S+ wrote 0 bytes as object\.o for \w+\.c, expected an ELF file"),
        ('echo garbage > "$(eval echo \\${$#})"', r"c compiler \S+ wrote 8 bytes as object\.o for \w+\.c, expected an ELF file"),
        ("kill -9 $$", r"c compiler \S+ was ended by signal 9 at \w+\.c"),
    ],
    ids=["nothing", "empty", "garbage", "killed"],
)
def test_compilers_that_do_not_compile_are_named(text: str, message: str, tmp_path: Path) -> None:
    # A text of its own: no object of it lies in the cache, whichever tests ran before.
    with pytest.raises(ToolchainError, match=message):
        compile_shared({"work.c": f"// {text}"}, AVX2, script(tmp_path / "odd", text), jobs=1)


def test_a_linker_that_writes_nothing_is_named(compiler: Compiler, tmp_path: Path) -> None:
    gcc = shlex.join(compiler.command)
    made = script(tmp_path / "half", f'for word; do [ "$word" = -shared ] && exit 0; done; exec {gcc} "$@"')
    with pytest.raises(ToolchainError, match=r"did not write engine\.so for the shared object"):
        compile_shared({"work.c": ""}, AVX2, replace(made, family=compiler.family), jobs=1)


def test_levels_by_name_and_by_features() -> None:
    assert cpu_level("x86-64-v3") is AVX2
    assert level_for(frozenset(AVX512.features)) is AVX512
    assert level_for(frozenset(AVX2.features)) is AVX2
    assert level_for(frozenset()) is CPU_LEVELS[0]
    with pytest.raises(UsageError, match="unknown cpu level 'x86-64-v9', expected one of"):
        cpu_level("x86-64-v9")
