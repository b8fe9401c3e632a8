"""What an engine takes from the process goes back when it is dropped: libraries, mappings, descriptors; counted, not timed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ourcc.codegen.c.compile import LINK
from ourcc.runtime import Engine, EngineContents, write_engine


def mappings() -> int:
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        return sum(1 for _ in maps)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def path(tmp_path, tiny):
    big = {"shared": {**tiny.weights["shared"], "more": np.arange(1 << 19, dtype=np.int64)}}
    target = tmp_path / "m.ourcc"
    write_engine(target, EngineContents.of(tiny.parts, big))
    return target


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_loads_leave_nothing_behind_and_need_no_collector(path, without_collector, expected):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    Engine.load(path, threads=2)(x)
    before = mappings(), descriptors()
    for _ in range(300):
        assert np.array_equal(Engine.load(path, threads=2)(x)[0], expected(x)[0])
    # A heap may have grown by a mapping or two; the base leaked five a load.
    assert mappings() <= before[0] + 3
    assert descriptors() == before[1]


def test_engines_are_linked_so_that_they_can_be_unloaded():
    assert not any("nodelete" in flag for flag in LINK)


def test_weights_stay_mapped_for_as_long_as_an_array_views_them(path, without_collector):
    def mapped() -> int:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
            return sum(str(path) in line for line in maps)

    engine = Engine.load(path)
    array = engine.contents.weights["shared"]["more"].array()
    assert mapped() == 1
    del engine
    assert mapped() == 1
    assert np.array_equal(array, np.arange(1 << 19))
    del array
    assert mapped() == 0


def test_engines_are_dropped_and_loaded_while_others_run(path):
    # A crash would be a signal, so it runs in a process of its own.
    code = """
import sys, threading
import numpy as np
from ourcc.runtime import Engine
x = np.arange(64, dtype=np.float32).reshape(8, 8)
current = [Engine.load(sys.argv[1], threads=2)]
want = current[0](x)[0]
stop, wrong = threading.Event(), []
def call():
    while not stop.is_set():
        if not np.array_equal(current[0](x)[0], want):
            wrong.append(1)
threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(60):
    current[0] = Engine.load(sys.argv[1], threads=2)
stop.set()
for thread in threads:
    thread.join()
sys.exit(len(wrong))
"""
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_a_library_is_not_closed_under_a_thread_that_runs_it_at_exit(compiled, tmp_path):
    code = """
import sys, threading, time
from ourcc.runtime.native import NativeLibrary
data = open(sys.argv[1], "rb").read()
keep = NativeLibrary("pool.so", data)
library = NativeLibrary("other.so", data)
thread = threading.Thread(target=library.segment(0, 0), args=(None, None, None, 1), daemon=True)
thread.start()
time.sleep(0.2)
"""
    source = """
#include <unistd.h>
int64_t ourcc_arena_0(const int64_t *s) { return 0; }
int32_t ourcc_segment_0_0(void *const *b, const int64_t *s, char *a, int32_t t) { for (volatile int go = 1; go;) usleep(10); return 0; }
"""
    path = tmp_path / "endless.so"
    path.write_bytes(compiled(source))
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_threads_load_at_once(path):
    wrong = []

    def work() -> None:
        for _ in range(20):
            if Engine.load(path, threads=1)(np.ones((2, 2), np.float32))[1].tolist() != [2, 2]:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
