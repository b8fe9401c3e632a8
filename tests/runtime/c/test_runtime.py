"""The C runtime beside Python's: the same bits, the same refusals, sessions, threads, and what it is linked against."""

from __future__ import annotations

import ctypes
import errno
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library import CEngine, CError, Library, Tensor, compile_c, read, same_bits, tensors

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.errors import CompilerError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.pairing import Pairing
from ourcc.ir.plan import Buffer, Check, CheckPlace, Guard, Launch, Plan, StateDeclaration, Variant, Zero, storage
from ourcc.ir.plan.steps import IN_C
from ourcc.ir.types import DTYPES, DType, TensorType, bf16, boolean, f32, f64, i64, string, u4, u8
from ourcc.runtime import Engine, EngineContents, PartContents, read_engine, write_engine
from ourcc.runtime.contents import LIBRARY
from ourcc.runtime.file import SCHEMA
from ourcc.runtime.native import ABI
from ourcc.runtime.sources import HEADER, sources

NEWEST = (2, 34)
"""The newest version of glibc whose symbols are asked for, here where both are compiled."""


def compiled_module(module: Module, *targets: str) -> EngineContents:
    return compile_module(module, build_options({"targets": list(targets) or ["native"], "tune": "off"}))


class Both:
    """An engine file as Python runs it and as C does."""

    def __init__(self, library: Library, path: Path, contents: EngineContents | None = None, threads: int = 2, **options: Any) -> None:
        if contents is not None:
            write_engine(path, contents)
        self.path = path
        self.python = Engine.load(path, threads=threads)
        self.c: CEngine = library.open(path, threads=threads, **options)

    def agree(self, *inputs: Any) -> list[Any]:
        """The outputs of the entry, which must be the same in every bit."""
        expected = self.python(*inputs)
        expected = list(expected) if isinstance(expected, tuple) else [expected]
        found = self.c(*inputs)
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert same_bits(left, right)
        return found

    def refuse(self, *inputs: Any) -> CError:
        """The error of C, which begins as Python's."""
        with pytest.raises(CompilerError) as expected:
            self.python(*inputs)
        with pytest.raises(CError) as found:
            self.c(*inputs)
        assert found.value.message.startswith(expected.value.message), (found.value.message, expected.value.message)
        return found.value


@pytest.fixture
def both(library: Library, tmp_path: Path) -> Callable[..., Both]:
    return lambda contents, **options: Both(library, tmp_path / "engine.ourcc", contents, **options)


# --- what is compiled, and against what -------------------------------------------------------------------------------


def test_every_source_says_what_it_owns() -> None:
    for name, data in sources().items():
        assert re.match(rb"/\* [A-Z][^*]{20,}", data), name
        assert data.count(b"\n") < 400, name


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_header_is_also_cpp(tmp_path: Path) -> None:
    (tmp_path / HEADER).write_bytes(sources()[HEADER])
    (tmp_path / "user.cpp").write_text('#include "ourcc.h"\nint main() { return ourcc_status_name(OURCC_OK) == nullptr; }\n')
    command = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", str(tmp_path / "user.cpp")]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("flags", [("-std=c17",), ("-O0",), ("-O3", "-Wshadow", "-Wconversion", "-Wno-sign-conversion")])
def test_it_compiles_without_a_warning(runtime_files: list[str], tmp_path: Path, flags: tuple[str, ...]) -> None:
    compile_c(tmp_path / "libourcc.so", runtime_files, "-shared", "-fPIC", *flags)


def needed(path: Path) -> set[str]:
    """The libraries that a shared object names in its dynamic section."""
    text = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def newest_glibc(path: Path) -> tuple[int, ...]:
    """The newest version of glibc that a symbol is asked of."""
    text = subprocess.run(["readelf", "-V", str(path)], capture_output=True, text=True, check=True).stdout
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", text))


OWN = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}


def test_the_runtime_needs_libc_alone(shared_object: Path) -> None:
    assert needed(shared_object) <= OWN
    assert newest_glibc(shared_object) <= NEWEST


def test_it_gives_the_names_of_its_header_alone(shared_object: Path) -> None:
    text = subprocess.run(["nm", "-D", "--defined-only", str(shared_object)], capture_output=True, text=True, check=True).stdout
    declared = set(re.findall(r"OURCC_API [a-z_ ]+[ *](ourcc_[a-z_]+)\(", sources()[HEADER].decode()))
    assert {line.split()[-1] for line in text.splitlines()} == declared and len(declared) > 15


def test_engines_need_libc_and_libm_alone(tmp_path: Path) -> None:
    module = Module("wide")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("N", 0, 4096), 64)))
    b = Builder(module, graph)
    graph.set_outputs([b.exp(x), b.tanh(x), b.erf(x), b.sin(x), b.pow(b.abs(x), b.cos(x)), b.log(b.abs(x))], list("abcdef"))
    for name, part in compiled_module(module, "cpu").parts.items():
        path = tmp_path / f"{name}.so"
        path.write_bytes(part.files[LIBRARY])
        assert needed(path) <= OWN, name
        assert newest_glibc(path) <= NEWEST, name


def test_it_reads_the_versions_that_python_writes() -> None:
    texts = {name: data.decode() for name, data in sources().items()}
    assert f"#define SCHEMA {SCHEMA}\n" in texts["file.c"] and f"#define ABI {ABI}\n" in texts["code.c"]
    routines = re.search(r"routines\[\] = \{(.*)\};", texts["code.c"])
    assert routines is not None and set(re.findall(r'"(\w+)"', routines[1])) == IN_C
    names = re.findall(r"\[OURCC_([A-Z0-9]+)\] = \{\"([a-z0-9]+)\", ([0-9]+)\}", texts["type.c"])
    assert [(name, bits) for _, name, bits in names] == [(dtype.name, str(dtype.bits)) for dtype in DTYPES.values() if dtype != string]
    assert all(constant == name.upper() for constant, name, _ in names)
    declared = re.search(r"typedef enum \{([^}]*OURCC_F64[^}]*)\} ourcc_dtype", texts[HEADER])
    assert declared is not None and re.findall(r"OURCC_([A-Z0-9]+)", declared[1]) == [constant for constant, _, _ in names]


# --- an engine in miniature -------------------------------------------------------------------------------------------


def test_a_miniature_engine_answers_as_in_python(both: Callable[..., Both], tiny: EngineContents) -> None:
    each = both(tiny)
    assert each.c.part == each.python.part == "baseline" and each.c.functions == ["main"]
    (x,), outputs, symbols = (each.c.ports(what) for what in ("inputs", "outputs", "symbols"))
    assert (x.name, x.dtype, x.shape[:2], x.sizes[:2]) == (b"x", 1, [-1, -1], [b"B", b"N"])
    assert [(port.name, port.rank, port.sizes[0]) for port in outputs] == [(b"y", 2, b"B"), (b"z", 1, b"N")]
    assert [(s.name, s.low, s.high, s.divisor) for s in symbols] == [(b"B", 1, 32, 1), (b"N", 0, 512, 2)]
    assert each.c.ports("inputs", "other") == [] and each.c.ports("states") == []
    for rows, columns in ((1, 2), (3, 4), (3, 4), (32, 512), (2, 0), (1, 2)):
        each.agree(np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32))


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((1, 2), np.float64),
        np.zeros((1, 2), np.int32),
        np.zeros(4, np.float32),
        np.zeros((), np.float32),
        np.zeros((1, 2, 3), np.float32),
        np.zeros((0, 2), np.float32),
        np.zeros((33, 2), np.float32),
        np.zeros((1, 514), np.float32),
        np.zeros((1, 3), np.float32),
    ],
    ids=str,
)
def test_wrong_inputs_are_told_as_in_python(both: Callable[..., Both], tiny: EngineContents, bad: Any) -> None:
    each = both(tiny)
    assert each.refuse(bad).status == "INPUT"
    each.agree(np.ones((2, 4), np.float32))


def test_calls_that_are_wrong_in_themselves(library: Library, both: Callable[..., Both], tiny: EngineContents) -> None:
    each = both(tiny)
    x = np.ones((2, 4), np.float32)
    session = each.c.session()
    for inputs, options, words in (
        ((), {}, "INPUT: got 0 inputs, expected 1"),
        ((x, x), {}, "INPUT: got 2 inputs, expected 1"),
        ((x,), {"into": {0: np.zeros(3, np.float32)}}, "INPUT: memory for output 'y' has 12 bytes, expected 32 for f32[2, 4]"),
        ((x,), {"into": {0: x}}, "INPUT: memory for output 'y' overlaps input 'x'"),
        ((x,), {"into": {1: x[1]}}, "INPUT: memory for output 'z' overlaps input 'x'"),
    ):
        with pytest.raises(CError) as error:
            session(*inputs, **options)
        assert str(error.value) == words
    with pytest.raises(CError, match="USAGE: there is no function 'other'"):
        session(x, function="other")
    y = np.zeros(16, np.float32)
    with pytest.raises(CError, match="INPUT: memory for output 'z' overlaps that of 'y'"):
        session(x, into={0: y[:8], 1: y[4:8]})
    with pytest.raises(CError, match="INPUT: input 'x' lies at an address that is not aligned"):
        session(np.frombuffer(bytes(33), np.uint8)[1:].view(np.float32).reshape(2, 4))
    assert session(x, into={0: y[:8], 1: y[8:]})
    assert same_bits(y[:8].reshape(2, 4), each.python(x)[0]) and same_bits(y[8:12], each.python(x)[1])
    for name, arguments in (("ourcc_open", (None, None, None)), ("ourcc_session_open", (None, None)), ("ourcc_session_reset", (None,))):
        with pytest.raises(CError, match="USAGE: got no"):
            library.call(name, *arguments)
    with pytest.raises(CError, match="USAGE: got -1 threads"):
        library.open(each.path, threads=-1)
    with pytest.raises(CError, match=r"SYSTEM: cannot read engine .*: No such file or directory"):
        library.open("/no/such/engine")
    with pytest.raises(CError, match=r"DAMAGED: .*not a regular file"):
        library.open(each.path.parent)


def test_outputs_may_be_given_again_as_they_are(both: Callable[..., Both]) -> None:
    module = Module("again")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("N", 0, 64), 6)))
    graph.set_outputs([Builder(module, graph).exp(x), x], ["y", "x again"])
    each = both(compiled_module(module))
    session, results = each.c.session(), (Tensor * 2)()
    for count in (3, 1, 60, 0, 7):
        given = np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)
        found = session(given, results=results)
        assert all(same_bits(a, b) for a, b in zip(found, each.python(given), strict=True))


def growing() -> EngineContents:
    """x and its rows upside down, added; x twice, one after the other; and x itself."""
    module = Module("growing")
    graph = module.functions["main"] = Graph("main")
    rows = module.declare("N", 0, 1 << 16)
    x = graph.add_input("x", TensorType(f32, (rows, 6)))
    b = Builder(module, graph)
    mixed = b.add(b.slice(x, starts=(rows - 1, 0), sizes=(rows, 6), steps=(-1, 1)), b.sin(x))
    graph.set_outputs([mixed, b.concat(x, mixed, axis=0), x], ["mixed", "both", "same"])
    return compiled_module(module)


@pytest.mark.parametrize("fed", [0, 1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_run_gave_may_be_the_next_ones_input(both: Callable[..., Both], fed: int, again: bool) -> None:
    """As solvers and decoders do; where the same tensors are given for outputs too, and where what is given grows."""
    each = both(growing())
    session, results = each.c.session(), (Tensor * 3)()
    x = np.random.default_rng(fed).standard_normal((5, 6)).astype(np.float32)
    given, expected = tensors([x]), x
    for _ in range(6):
        results = results if again else (Tensor * 3)()
        each.c.library.call("ourcc_run", session.pointer, None, given, ctypes.c_size_t(1), results, ctypes.c_size_t(3))
        answers = each.python(expected)
        assert all(same_bits(read(found), answer) for found, answer in zip(results, answers, strict=True))
        expected, given = np.asarray(answers[fed]), (Tensor * 1)(results[fed])


def test_memory_of_the_session_is_not_taken_for_another_output(both: Callable[..., Both]) -> None:
    each = both(growing())
    session, results = each.c.session(), (Tensor * 3)()
    x = np.ones((4, 6), np.float32)
    session(x, results=results)
    mixed = (Tensor * 3)()
    mixed[0] = results[1]
    with pytest.raises(CError, match="INPUT: memory for output 'mixed' is the session's own, for another output or for other sizes"):
        session(x, results=mixed)


def test_the_part_is_chosen_as_in_python(library: Library, tiny: EngineContents, tmp_path: Path) -> None:
    baseline = tiny.parts["baseline"]
    strange = replace(baseline, machine="pdp11")
    cuda = replace(baseline, family="cuda", machine="", files={})
    both = Both(library, tmp_path / "both", EngineContents.of({**tiny.parts, "strange": strange, "sm_90a": cuda}, tiny.weights))
    assert both.c.part == both.python.part == "baseline"
    assert library.open(both.path, part="baseline").part == "baseline"
    for name, why in (
        ("never", "never: it needs no-such-flag, which this cpu lacks"),
        ("strange", "strange: it is for pdp11, this machine is "),
        ("sm_90a", "sm_90a: it is for cuda, and this runtime runs parts for CPUs"),
        ("other", "engine holds no part other"),
    ):
        with pytest.raises(CError, match=f"^UNSUPPORTED: .*{why}"):
            library.open(both.path, part=name)
    write_engine(tmp_path / "none", EngineContents.of({"never": tiny.parts["never"], "strange": strange}, tiny.weights))
    with pytest.raises(CError, match=r"^UNSUPPORTED: .*holds no target for this machine: never: .*; strange: "):
        library.open(tmp_path / "none")


def test_all_levels_give_pythons_bits(library: Library, tmp_path: Path) -> None:
    module = Module("product")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("N", 1, 256), 96)))
    weights = np.random.default_rng(0).standard_normal((96, 130)).astype(np.float32)
    b = Builder(module, graph)
    graph.set_outputs([b.tanh(b.matmul(x, module.add_constant("w", weights)))], ["y"])
    path = tmp_path / "levels"
    write_engine(path, compiled_module(module, "cpu"))
    given = np.random.default_rng(1).standard_normal((37, 96)).astype(np.float32)
    ran = 0
    for name in read_engine(path).parts:
        try:
            expected = Engine.load(path, target=name, threads=2)(given)
        except CompilerError:
            with pytest.raises(CError, match="UNSUPPORTED"):
                library.open(path, part=name)
            continue
        ran += 1
        for copied in (False, True):
            (found,) = library.open(path, part=name, copy_weights=copied)(given)
            assert same_bits(found, expected), name
    assert ran


# --- dtypes, scalars, empty tensors -----------------------------------------------------------------------------------


def drawn_array(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    dtype = DTYPES[name]
    if dtype == boolean:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.bits < 8:
        low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
        return random.integers(low, low + 2**dtype.bits, shape).astype(np.int8).astype(dtype.numpy)
    return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.bits // 8), dtype.numpy).reshape(shape)


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("string", "f4e2m1")])
def test_every_dtype_passes_as_in_python(both: Callable[..., Both], name: str) -> None:
    module = Module("passing")
    graph = module.functions["main"] = Graph("main")
    n = module.declare("N", 0, 64)
    x = graph.add_input("x", TensorType(DTYPES[name], (n, 6)))
    s = graph.add_input("s", TensorType(DTYPES[name], ()))
    b = Builder(module, graph)
    moved = b.slice(x, starts=(0, 1), sizes=(n, 4), steps=(1, 1)) if DTYPES[name].has_kernels and name != "f8e8m0" else x
    constant = module.add_constant("c", drawn_array(np.random.default_rng(9), name, (5,)))
    graph.set_outputs([moved, x, s, constant, moved], list("abcde"))
    each = both(compiled_module(module))
    for rows in (0, 1, 7, 3):
        random = np.random.default_rng(rows)
        each.agree(drawn_array(random, name, (rows, 6)), drawn_array(random, name, ()))


def test_numbers_decide_sizes(both: Callable[..., Both]) -> None:
    module = Module("numbers")
    graph = module.functions["main"] = Graph("main")
    x, given = graph.add_input("x", TensorType(f32, (3, 1))), graph.add_input("given", TensorType(i64, ()))
    n = module.declare("n", -4, 40)
    b = Builder(module, graph)
    b.item(given, symbol=n)
    graph.set_outputs([b.exp(b.broadcast_to(x, shape=(3, dims.maximum(n + 2, 0)))), b.broadcast_to(x, shape=(3, 12 // n))], ["y", "z"])
    each = both(compiled_module(module))
    assert each.python.contents.best.plan.numbers
    x_given = np.arange(3, dtype=np.float32).reshape(3, 1)
    for number in (1, 5, 40, 5, 12, 13):
        each.agree(x_given, np.asarray(number, np.int64))
    for number in (-5, 41, 2**62, -1, -(2**63)):
        assert each.refuse(x_given, np.asarray(number, np.int64)).status == "INPUT"
    with pytest.raises(CError, match="INPUT: a size divides by zero"):
        each.c(x_given, np.asarray(0, np.int64))


def test_sizes_that_follow_from_others_are_checked(both: Callable[..., Both]) -> None:
    module = Module("related")
    graph = module.functions["main"] = Graph("main")
    n = module.declare("N", 0, 64)
    x = graph.add_input("x", TensorType(f32, (2 * n + 1, 3)))
    y = graph.add_input("y", TensorType(f32, (n * n + 2, n // 2)))
    b = Builder(module, graph)
    graph.set_outputs([b.sum(x, axes=(0,)), b.sum(y, axes=(0, 1))], ["a", "b"])
    each = both(compiled_module(module))
    for size in (0, 1, 2, 5):
        each.agree(np.ones((2 * size + 1, 3), np.float32), np.ones((size * size + 2, size // 2), np.float32))
    for left, right in (((4, 3), (2, 0)), ((5, 3), (7, 1)), ((5, 3), (6, 2)), ((131, 3), (2, 0)), ((0, 3), (2, 0))):
        each.refuse(np.ones(left, np.float32), np.ones(right, np.float32))


def test_memory_that_no_machine_has_is_refused(both: Callable[..., Both]) -> None:
    module = Module("large")
    graph = module.functions["main"] = Graph("main")
    n = module.declare("N", 0, None)
    x = graph.add_input("x", TensorType(f64, (n, 1)))
    b = Builder(module, graph)
    graph.set_outputs([b.add(x, b.reshape(x, shape=(1, n)))], ["y"])
    each = both(compiled_module(module))
    each.agree(np.ones((5, 1)))
    with pytest.raises(CError, match=r"MEMORY: out of memory: .* needs [0-9]+ bytes"):
        each.c(np.ones((3_000_000, 1)))


# --- indices ----------------------------------------------------------------------------------------------------------


def lookup() -> Module:
    module = Module("lookup")
    graph = module.functions["main"] = Graph("main")
    words = graph.add_input("words", TensorType(f32, (module.declare("V", 0, 99), 3)))
    ids = graph.add_input("ids", TensorType(i64, (module.declare("N", 0, 99),)))
    b = Builder(module, graph)
    graph.set_outputs([b.take(words, b.check_index(ids, size=words.shape[0], negative=True), axis=0)], ["y"])
    return module


def test_indices_out_of_range_are_told_as_in_python(both: Callable[..., Both]) -> None:
    each = both(compiled_module(lookup()))
    words = np.arange(15, dtype=np.float32).reshape(5, 3)
    each.agree(words, np.array([0, -5, 4, -1]))
    for bad in (5, -6, 2**62, -(2**62)):
        assert each.refuse(words, np.array([0, bad])).status == "INPUT"
    each.refuse(np.zeros((0, 3), np.float32), np.array([0]))


def test_places_are_checked_as_in_python(both: Callable[..., Both]) -> None:
    module = Module("places")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("V", 0, 99), 3)))
    given = graph.add_input("given", TensorType(i64, ()))
    n = module.declare("n", None, None)
    b = Builder(module, graph)
    b.item(given, symbol=n)
    found = b.check_place(x, axis=0, place=n, negative=True)
    place = n - x.shape[0] * dims.maximum(dims.minimum(n, 0), -1)
    graph.set_outputs([b.exp(b.slice(found, starts=(place, 0), sizes=(1, 3), steps=(1, 1)))], ["y"])
    each = both(compiled_module(module))
    assert any(isinstance(step, CheckPlace) for step in each.python.contents.best.plan.steps)
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    for right in (0, 4, -1, -5):
        each.agree(values, np.asarray(right, np.int64))
    for wrong in (5, -6, 2**61, -(2**61)):
        assert each.refuse(values, np.asarray(wrong, np.int64)).status == "INPUT"
    each.refuse(np.zeros((0, 3), np.float32), np.asarray(0, np.int64))


# --- states and sessions ----------------------------------------------------------------------------------------------


def cache() -> Module:
    """`append` writes rows at positions and gives their running sum, `read` gathers rows, `pure` keeps nothing."""
    module = Module("cache")
    kv = module.add_state("kv", TensorType(f32, (8, 4)))
    sums = module.add_state("total", TensorType(f32, (4,)), module.add_constant("ones", np.full(4, 3, np.float32)))
    append = module.functions["append"] = Graph("append")
    x = append.add_input("x", TensorType(f32, (module.declare("N", 1, 8), 4)))
    positions = append.add_input("positions", TensorType(i64, (x.shape[0],)))
    held, before = append.add_state(kv), append.add_state(sums)
    b = Builder(module, append)
    checked = b.check_index(positions, size=8, negative=True)
    after = b.add(before, b.sum(x, axes=(0,)))
    append.set_outputs([after], ["running"], {"kv": b.scatter_nd(held, b.reshape(checked, shape=(x.shape[0], 1)), x), "total": after})
    read = module.functions["read"] = Graph("read")
    where = read.add_input("where", TensorType(i64, (2,)))
    b = Builder(module, read)
    read.set_outputs([b.take(read.add_state(kv), b.check_index(where, size=8, negative=True), axis=0)], ["rows"])
    pure = module.functions["pure"] = Graph("pure")
    y = pure.add_input("y", TensorType(f32, (3,)))
    pure.set_outputs([Builder(module, pure).exp(y)], ["e"])
    return module


def rows(step: int) -> tuple[Any, Any]:
    random = np.random.default_rng(step)
    count = int(random.integers(1, 9))
    return random.random((count, 4), dtype=np.float32), random.permutation(8)[:count]


def test_sessions_keep_what_pythons_keep(both: Callable[..., Both]) -> None:
    each = both(compiled_module(cache()))
    assert each.c.functions == ["append", "read", "pure"]
    assert [(port.name, port.shape[: port.rank]) for port in each.c.ports("states")] == [(b"kv", [8, 4]), (b"total", [4])]
    pairs = [(each.python.session(), each.c.session()) for _ in range(2)]
    for step in range(12):
        expected, found = pairs[step % 2]
        x, positions = rows(step)
        assert same_bits(found(x, positions)[0], expected(x, positions))
        where = np.array([step % 8, -1])
        assert same_bits(found(where, function="read")[0], expected.functions["read"](where))
        for name, size in (("kv", 128), ("total", 16)):
            assert found.read(name, size) == expected.state(name).tobytes()
    expected, found = pairs[0]
    with pytest.raises(CError, match=r"INPUT: index 8 of .* is out of range, expected -8\.\.7"):
        found(np.ones((1, 4), np.float32), np.array([8]))
    # The check comes before the first write: the states are as they were.
    assert found.read("kv", 128) == expected.state("kv").tobytes()
    found.write("total", np.arange(4, dtype=np.float32).tobytes())
    assert found.read("total", 16) == np.arange(4, dtype=np.float32).tobytes()
    for name, size in (("total", 15), ("other", 16)):
        with pytest.raises(CError, match="USAGE"):
            found.read(name, size)
    found.reset()
    fresh = each.python.session()
    assert found.read("kv", 128) == fresh.state("kv").tobytes() and found.read("total", 16) == fresh.state("total").tobytes()


def test_a_session_outlives_the_close_of_its_engine(both: Callable[..., Both]) -> None:
    each = both(compiled_module(cache()))
    session = each.c.session()
    x, positions = rows(3)
    ports = each.c.ports
    each.c.ports = lambda *words: [None]  # the engine is asked nothing after it is closed
    each.c.close()
    assert same_bits(session(x, positions)[0], each.python.session()(x, positions))
    session.close()
    assert ports


FAILING = r"""
#include <time.h>
int64_t ourcc_arena_0(const int64_t *s) { (void)s; return 0; }
int64_t ourcc_arena_1(const int64_t *s) { (void)s; return 0; }
/* Waits for as many milliseconds as x says; or fails with a negative x, after it wrote the state. */
int32_t ourcc_segment_0_0(void *const *b, const int64_t *s, char *arena, int32_t threads) {
    (void)s; (void)arena; (void)threads;
    float x = *(const float *)b[0];
    *(float *)b[1] += 1;
    *(float *)b[2] = *(float *)b[1];
    struct timespec wait = {0, x > 0 ? (long)(x * 1e6f) : 0};
    nanosleep(&wait, 0);
    return x < 0 ? (int32_t)x : 0;
}
int32_t ourcc_segment_1_0(void *const *b, const int64_t *s, char *arena, int32_t threads) {
    (void)s; (void)arena; (void)threads;
    *(float *)b[1] = *(const float *)b[0] + 1;
    return 0;
}
"""


@pytest.fixture(scope="module")
def failing(compiled: Callable[..., bytes]) -> EngineContents:
    """`count` adds 1 to a state and may wait or fail, `pure` keeps nothing."""
    number = TensorType(f32, ())
    state, x, y = Buffer("s", number, storage.State("count")), Buffer("x", number, storage.Input()), Buffer("y", number, storage.Output())
    launch = Launch("k", (Variant("k", Guard(), (1,), ("x", "s", "y")),), ("x", "s"), ("s", "y"), ("op",))
    count = Plan(
        "cpu",
        dims.Facts(),
        (("x", "x"),),
        (("y", "y"),),
        (x, state, y),
        (),
        (launch,),
        (),
        (StateDeclaration("count", number),),
        (("count", "s"),),
    )
    other = Launch("k", (Variant("k", Guard(), (1,), ("x", "y")),), ("x",), ("y",), ("op",))
    plans = {"count": count, "pure": Plan("cpu", dims.Facts(), (("x", "x"),), (("y", "y"),), (x, y), (), (other,))}
    return EngineContents.of({"baseline": PartContents(plans, {LIBRARY: compiled(FAILING, plans)})})


def test_a_call_that_fails_midway_leaves_states_of_no_use(both: Callable[..., Both], failing: EngineContents) -> None:
    session = both(failing).c.session()
    zero, bad = np.zeros((), np.float32), np.asarray(-7, np.float32)
    assert session(zero)[0] == 1
    with pytest.raises(CError, match="FAILED: a kernel of the engine failed with status 7 in function 'count'"):
        session(bad)
    with pytest.raises(CError, match="FAILED: the session's states are of no use since a call failed: function count failed midway"):
        session(zero)
    session.reset()
    with pytest.raises(CError, match="MEMORY: out of memory: a kernel found none for its arrays in function 'count'"):
        session(np.asarray(-errno.ENOMEM, np.float32))
    with pytest.raises(CError, match="FAILED"):
        session.read("count", 4)
    assert session(zero, function="pure")[0] == 1
    session.reset()
    assert session(zero)[0] == 1 and session(zero)[0] == 2


def test_a_session_serves_one_call_at_a_time(both: Callable[..., Both], failing: EngineContents) -> None:
    engine = both(failing).c
    session, other = engine.session(), engine.session()
    slow, zero = np.asarray(400, np.float32), np.zeros((), np.float32)

    def work() -> None:
        while True:
            try:
                session(slow)
                return
            except CError as error:
                # The other thread's turn: it may be first.
                assert error.status == "BUSY"

    worker = threading.Thread(target=work)
    worker.start()
    busy = 0
    while worker.is_alive() and not busy:
        try:
            session(zero, function="pure")
        except CError as error:
            assert error.status == "BUSY"
            # A wrong call of another thread does not end the turn of the first one.
            with pytest.raises(CError, match=r"USAGE|BUSY"):
                session(zero, function="other")
            with pytest.raises(CError, match="BUSY"):
                session.reset()
            busy += 1
            assert other(zero)[0] == 1
    worker.join()
    assert busy
    session(zero)


def test_sessions_run_side_by_side(library: Library, tmp_path: Path) -> None:
    each = Both(library, tmp_path / "cache", compiled_module(cache()))
    wrong: list[int] = []

    def work(number: int) -> None:
        expected, found = each.python.session(), each.c.session()
        for step in range(40):
            x, positions = rows(100 * number + step)
            if not same_bits(found(x, positions)[0], expected(x, positions)):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [f32, bf16, u4], ids=str)
def test_routines_are_run(both: Callable[..., Both], dtype: DType) -> None:
    """Elements in order, some of each line, of sizes that calls tell, with NaN and equals."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(dtype, (module.declare("A", 0), module.declare("B", 3), module.declare("C", 0))))
    b = Builder(module, graph)
    results = [*b.top_k(x, k=3, axis=1), *b.top_k(x, k=2, axis=-2, largest=False), *b.sort(x, axis=1, descending=True)]
    graph.set_outputs(results, [f"y{n}" for n in range(len(results))])
    each = both(compiled_module(module))
    for shape in ((2, 3, 4), (0, 5, 1), (3, 700, 1), (1, 40, 9), (2, 3, 0)):
        given = np.random.default_rng(len(shape)).integers(0, 16, shape).astype(np.float32)
        given[given == 9] = 2 if dtype == u4 else np.nan
        each.agree(given.astype(dtype.numpy))


# --- what it does not run ---------------------------------------------------------------------------------------------


def test_what_needs_python_is_refused_by_name(library: Library, tmp_path: Path) -> None:
    module = Module("found")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (9,)))
    b = Builder(module, graph)
    graph.set_outputs([b.nonzero(x, count=module.declare("found", 0, 9))], ["y"])
    path = tmp_path / "found"
    write_engine(path, compiled_module(module))
    with pytest.raises(CError, match=r"UNSUPPORTED: .*: step [0-9]+ of function 'main' is the host routine nonzero.*, which needs Python"):
        library.open(path)


def test_code_for_other_plans_is_refused(library: Library, tiny: EngineContents, tmp_path: Path) -> None:
    plan = tiny.parts["baseline"].plan
    for name, changed in (
        ("steps", replace(plan, steps=(*plan.steps, Zero("t")))),
        ("symbols", replace(plan, symbols=plan.symbols.with_range("B", 1, 31))),
        (
            "check",
            replace(
                plan,
                buffers=(*plan.buffers, Buffer("w2", TensorType(i64, ()), storage.Arena("s0"))),
                steps=(*plan.steps, Check("w2", 4, True, "x")),
            ),
        ),
    ):
        part = replace(tiny.parts["baseline"], plans={"main": changed})
        write_engine(tmp_path / name, EngineContents.of({"baseline": part}, tiny.weights))
        with pytest.raises(CError, match=r"DAMAGED: native code baseline\.so was made for other plans than the engine holds"):
            library.open(tmp_path / name)


def test_constants_must_fit_the_plan(library: Library, tiny: EngineContents, tmp_path: Path) -> None:
    for name, weights, words in (
        ("none", {}, "engine holds no constant 'fc1.weight' for baseline"),
        ("small", {"shared": {"fc1.weight": np.zeros(0, np.float32)}}, "constant 'fc1.weight' has 0 bytes, expected 4"),
    ):
        path = tmp_path / name
        write_engine(path, EngineContents.of(tiny.parts, weights))
        with pytest.raises(CompilerError):
            Engine.load(path)
        with pytest.raises(CError, match=f"DAMAGED: .*{words}"):
            library.open(path)


def test_packed_constants_are_read(both: Callable[..., Both]) -> None:
    module = Module("packed")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (3,)))
    codes = drawn_array(np.random.default_rng(0), "u4", (7, 3))
    b = Builder(module, graph)
    graph.set_outputs([b.exp(x), module.add_constant("codes", codes)], ["y", "codes"])
    found = both(compiled_module(module)).agree(np.zeros(3, np.float32))
    assert found[1].dtype == u4.numpy


def test_what_is_made_of_constants_is_read(both: Callable[..., Both]) -> None:
    """Filters of a convolution at the points of Winograd's, beside the filters themselves."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (1, 3, 24, 24)))
    ways: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
    first, second = (module.add_constant(n, random.standard_normal((32, c, 3, 3)).astype(np.float32)) for n, c in (("u", 3), ("w", 32)))
    graph.set_outputs([b.conv(b.relu(b.conv(x, first, **ways)), second, **ways)])
    contents = compiled_module(module)
    held = [place.making for part in contents.parts.values() for place in part.constants.values()]
    assert [each is not None for each in held].count(True) == 1
    both(contents).agree(random.standard_normal((1, 3, 24, 24)).astype(np.float32))


def test_limits_of_codes_are_read(both: Callable[..., Both]) -> None:
    """How large bytes may be beside codes that are multiplied in pairs, on a level that has no instruction for four of them."""
    module, random = Module("net"), np.random.default_rng(0)
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(u8, (9, 64)))
    codes = module.add_constant("w", random.integers(-128, 128, (64, 72)).astype(np.int8))
    graph.set_outputs([Builder(module, graph).matmul(x, codes)])
    contents = compiled_module(module, "x86-64-v3")
    assert any(isinstance(place.making, Pairing) for place in contents.best.constants.values())
    both(contents).agree(random.integers(0, 256, (9, 64), np.uint8))


def test_signed_engines_open_as_others(library: Library, tiny: EngineContents, tmp_path: Path) -> None:
    write_engine(tmp_path / "signed", tiny, signing_key=bytes(range(32)))
    assert same_bits(library.open(tmp_path / "signed")(np.ones((1, 2), np.float32))[1], np.ones(2, np.float32))
