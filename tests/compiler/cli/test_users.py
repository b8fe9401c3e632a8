"""What the help offers works: models looked at in memory, programs from anywhere, missing libraries, quiet and loud."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import COMMANDS, run
from ourcc.compiler.pipeline import SPARSITY_PASSES
from ourcc.compiler.requests import CACHES, PRECISIONS, QUANTIZE_FORMATS, SPARSITIES
from ourcc.compiler.targets.registry import TARGETS
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize import QUANTIZATIONS, STORED


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[[Path], str]) -> Path:
    """A model with a routine of native code, and its engine; and a model with a step in Python."""
    folder = tmp_path_factory.mktemp("users")
    weights = [
        numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 8), dtype=np.float32), "w"),
        numpy_helper.from_array(np.array([3]), "k"),
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"), helper.make_node("TopK", ["a", "k"], ["v", "i"], name="top")]
    types = (("v", TensorProto.FLOAT), ("i", TensorProto.INT64))
    outputs = [helper.make_tensor_value_info(name, dtype, ["B", 3]) for name, dtype in types]
    graph = helper.make_graph(nodes, "m", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 16])], outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "m.onnx")
    where = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "found", graph.input, [], [])
    where.output.append(helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"]))
    onnx.save(helper.make_model(where, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "found.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OURCC_CACHE_DIR", cache_at(folder / "cache"))
        assert run(["build", str(folder / "m.onnx"), "-o", str(folder / "m.ourcc"), "--shape", "B=1..64", "-q"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", str(files / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(files)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("subject", ["m.onnx", "own.ourcc"])
def test_kernels_and_host_steps_are_rows(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--workload", "B=64"]
    said(capsys, "build", "m.onnx", "-o", "own.ourcc", "-q", *large)
    sizes = large if subject == "m.onnx" else []  # the engine's own
    tables = json.loads(said(capsys, "inspect", subject, "--kernels", "--json", *sizes))
    (rows,) = (rows for name, rows in tables.items() if name.startswith("kernels of x86-64"))
    assert [(row["kernel"], row["kind"]) for row in rows] == [("kernel_0", "kernel"), ("top_k", "host")]
    assert [(row["share"], row["predicted_us"] is None) for row in rows] == [(1, False), (None, True)]  # of the host nothing is predicted
    shown = said(capsys, "inspect", subject, "--kernels", "-q", *sizes)
    assert f"one call: {rows[0]['predicted_us']:.5g} us predicted; sizes are those of the workload: B=64" in shown
    assert all(f" {name} " in shown.splitlines()[4] for name in ("kernel", "calls", "predicted us", "share", "bound"))
    assert max(map(len, shown.splitlines())) <= 80 and "top_k" in shown and "--wide shows everything" in " ".join(shown.split())
    wide = said(capsys, "inspect", subject, "--kernels", "-q", "--wide")
    assert "instructions" in wide and "…" not in wide


@pytest.mark.parametrize("subject", ["m.onnx", "m.ourcc"])
def test_values_say_where_they_are_and_why(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables = json.loads(said(capsys, "inspect", subject, "--fusion", "--json"))
    (rows,) = (rows for name, rows in tables.items() if name.startswith("fusion of x86-64"))
    product, values, places = sorted(rows, key=lambda row: (row["op"], row["value"]))
    assert (product["op"], product["verdict"], product["where"]) == ("matmul", "kept", "kernel_0")
    assert product["why"] == "top_k, a step of the host, reads it" and product["bytes"] > 0 and product["operations"] == 0
    for row in (values, places):
        assert (row["op"], row["where"]) == ("top_k", "host") and row["why"] == "only the caller reads it"
    shown = said(capsys, "inspect", subject, "--fusion", "-q")
    assert max(map(len, shown.splitlines())) <= 80 and "kept" in shown and "one write and all reads" in " ".join(shown.split())
    assert "kernel_0" in said(capsys, "inspect", subject, "--fusion", "-q", "--wide")


def test_a_routine_of_native_code_is_timed_beside_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(said(capsys, "bench", "m.ourcc", "--kernels", "--json", "--shape", "B=8"))["launches"]
    found = {row["kernel"]: row for row in rows}
    assert found.keys() == {"kernel_0", "top_k"} and all(row["min_us"] > 0 for row in rows)
    assert found["top_k"]["gflops"] is None and found["top_k"]["source_ops"] == "top_k"


def test_no_step_of_native_code_is_computed_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "build", "m.onnx", "-o", "promised.ourcc", "-q", "--require", "no-host")
    assert "in Python" not in said(capsys, "inspect", "promised.ourcc", "--precision", "-q", "--wide")


def test_a_model_is_explained_before_it_is_built(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("a kernel is compiled")

    monkeypatch.setattr("ourcc.compiler.backends.cpu.CpuBackend.compile", refused)
    found = json.loads(said(capsys, "inspect", "m.onnx", "--explain", "--shape", "B=1..64", "--json"))
    assert (found["model"], found["compiled ops"], found["kernels"]) == ("m.onnx", 2, 1)
    assert found["fusion"] == [{"graph": 0, "kept": 3, "beside": 0, "view": 0, "inlined": 0}]
    assert {row["op"] for row in found["largest in memory"]} == {"matmul", "top_k"}
    assert "largest in memory" in said(capsys, "inspect", "m.onnx", "--explain", "-q")


def test_a_model_is_looked_at_as_its_engine_is(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--memory"], ["--precision"], ["--fusion"], ["--source", "kernel_0"]):
        ours, theirs = (
            said(capsys, "inspect", name, "-q", "--shape" if name == "m.onnx" else "-q", *shape, *option)
            for name, shape in (("m.onnx", ["B=1..64"]), ("m.ourcc", []))
        )
        assert ours.replace("m.onnx", "").replace("model", "engine").split() == theirs.replace("m.ourcc", "").split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "m.onnx", "--source", "kernel_7"], "there is no kernel 'kernel_7' in the engine\n  help: did you mean 'kernel_0'?"),
        (["inspect", "m.onnx", "--source", "zzz"], "in the engine\n  help: ourcc inspect m.onnx --kernels lists them"),
        (["inspect", "found.onnx", "--source", "nonzero"], "nonzero has no source: it runs outside of kernels"),
        (["inspect", "m.onnx", "--ir", "tile"], "unknown stage: got 'tile', expected one of import, simplify"),
        (["inspect", "m.onnx", "--ir", "c", "--target", "sm_90a"], "stage c: the kernels of sm_90a are triton\n  help: --ir triton"),
        (["inspect", "m.ourcc", "--ir", "import"], "stage import needs the model: an engine keeps its simplified program"),
        (["inspect", "m.ourcc", "--explain"], "got --explain for an engine, expected a model: it is built already"),
        (["inspect", "m.onnx", "--explain", "--kernels"], "got --explain and --kernels, expected --explain alone"),
        (["inspect", "m.ourcc", "--shape", "B=1"], "got --shape for an engine, expected none: its sizes are settled"),
        (["inspect", "m.ourcc", "--fusion", "--workload", "B=1"], "got --workload for an engine, expected none: it has its own"),
        (["inspect", "m.onnx", "--fusion", "--target", "sm_1"], "unknown target"),
        *(
            (
                [*words, "--trust-pickle"],
                "got --trust-pickle for an engine, expected none: nothing in it is pickled\n  help: leave --trust-pickle out",
            )
            for words in (["inspect", "m.ourcc"], ["bench", "m.ourcc"], ["opt", "m.ourcc", "--pipeline", "canonicalize"])
        ),
        *(
            ([*words, "--trusted-key", "k.pub"], "for a model, expected none: only engines and records of tuning carry signatures")
            for words in (["inspect", "m.onnx"], ["bench", "m.onnx"], ["opt", "m.onnx", "--pipeline", "canonicalize"])
        ),
        (["opt", "m.ourcc", "--pipeline", "canonicalize", "--shape", "B=4"], "got --shape for an engine, expected none: its sizes are"),
        (["opt", "junk.ir", "--pipeline", "canonicalize", "--shape", "B=4"], "got --shape for a program in text, expected none: its sizes"),
        (["build", "m.ourcc", "--rebuild", "--trust-pickle"], "got --trust-pickle with --rebuild, expected none: the engine's program is"),
        (["build", "m.onnx", "-o", "a.ourcc", "--tune", "5m", "--locked", "m.ourcc"], "got tune with locked, expected one of them\n help:"),
        (["cache", "du", "--trusted-key", "m.onnx"], "no such option: got '--trusted-key'"),
        (["cache", "prune", "--signing-key", "m.onnx"], "no such option: got '--signing-key'"),
        (["bench", "m.ourcc", "--shape", "B=65"], "shape: got B = 65, expected B in 1..64"),
        (["bench", "m.ourcc", "--shape", "B=C"], "shape: got another name for B, expected sizes of B: an engine is built"),
        (["bench", "m.ourcc", "--shape", "B=1", "--inputs", "m.onnx"], "got --shape and --inputs for an engine, expected one of them"),
        (["build", "m.onx", "-o", "a.ourcc"], "did you mean\n  'm.onnx'?"),
        (["build", "m.ourcc", "-o", "a.ourcc"], "an engine is built already: ourcc build --rebuild makes its kernels anew"),
        (["build", "m.onnx", "-o", "no/a.ourcc"], "-o: output 'no/a.ourcc': there is no folder 'no'"),
        (["build", "m.onnx", "-o", "cache"], "-o: output 'cache' is a folder, expected a file"),
        (["build", "m.onnx", "-o", "a.ourcc", "--report", "no/r.html"], "--report: output 'no/r.html': there is no folder 'no'"),
        (["run", "m.ourcc", "-o", "no/o.npz"], "there is no folder 'no'"),
        (["tune", "m.ourcc", "-o", "no/o.ourcc"], "there is no folder 'no'"),
        (["build", "m.onnx", "-o", "a.ourcc", "--threads", "0"], "threads: got 0, expected a whole number from 1 to 4096"),
        (["opt", "m.onnx", "--pipeline", "canonicalise"], "there is no pass 'canonicalise'\n  help: did you mean 'canonicalize'?"),
        (["opt", "junk.ir", "--pipeline", "canonicalize"], "'junk.ir' is not a program in text: byte 0 is not UTF-8"),
    ],
)
def test_wrong_use_is_said_before_any_work(arguments: list[str], message: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "junk.ir").write_bytes(b"\xff\xfe")
    (files / "k.pub").write_text("00" * 32)
    assert run([*arguments, "-q"]) == 2
    printed = capsys.readouterr().err
    assert " ".join(message.split()) in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def test_an_engine_is_measured_at_the_sizes_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for shape, sizes in (("B=7", "7x16"), ("x=9,16", "9x16"), ("B=3..5", "3x16"), ("B=1..64", "1x16")):
        found = json.loads(said(capsys, "bench", "m.ourcc", "--rounds", "1", "--shape", shape, "--json"))
        assert found["sizes"] == sizes


def test_passes_run_on_text_engines_and_models(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "opt", "m.onnx", "--pipeline", "canonicalize", "-q")
    assert "top_k" in text
    (files / "m.ir").write_text(text)
    assert said(capsys, "opt", "m.ir", "--pipeline", "canonicalize", "-q") == text
    assert "matmul" in said(capsys, "opt", "m.ourcc", "--pipeline", "canonicalize", "-q")
    # Of two passes the first alone runs.
    assert said(capsys, "opt", "m.onnx", "--pipeline", "canonicalize, eliminate_dead_code", "--limit", "1", "-q") == text


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("torch", ["build", "x.pt2", "-o", "a.ourcc"], "torch"),
        ("torch", ["inspect", "x.pt2"], "torch"),
        ("torch", ["bench", "m.ourcc", "--against", "eager=x.pt2", "--rounds", "1"], "torch"),
        ("triton", ["build", "m.onnx", "-o", "a.ourcc", "--target", "sm_90a"], "gpu"),
        ("triton", ["inspect", "m.onnx", "--kernels", "--target", "sm_90a"], "gpu"),
        ("onnxruntime", ["verify", "m.ourcc", "m.onnx"], "compare"),
        ("redis", ["cache", "ls", "redis://nowhere"], "redis"),
        ("onnx", ["build", "m.onnx", "-o", "a.ourcc"], None),
        ("onnx", ["inspect", "m.onnx"], None),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, arguments: list[str], extra: str | None, files: Path, tmp_path: Path
) -> None:
    """Missing, and broken: of that the reason is told too."""
    (files / "x.pt2").write_bytes(b"")
    # As if it were not installed: Python finds nothing under a name that stands for None.
    code = f"import sys; sys.modules[{library!r}] = None; from ourcc.compiler.cli.main import run; sys.exit(run({[*arguments, '-q']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert f"{library}, which is not installed" in " ".join(done.stderr.split())
    hint = f"help: pip install 'ourcc[{extra}]'" if extra else f"help: pip install {library}"
    assert hint in done.stderr
    (tmp_path / f"{library}.py").write_text("raise OSError('libnothing.so: no such file')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ourcc.compiler.cli.main import run; sys.exit(run({[*arguments, '-q']!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    fault = f"{library}, which is installed and cannot be imported: OSError: libnothing.so: no such file"
    assert fault in " ".join(done.stderr.split()) and hint in done.stderr


def test_the_doctor_tells_a_broken_library(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise OSError('libnothing.so: no such file')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ourcc.compiler.cli.main import run; sys.exit(run(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    told = json.loads(done.stdout)
    (fault,) = (row["fault"] for row in told["libraries"] if row["fault"] is not None)
    assert "OSError: libnothing.so: no such file: pip install 'ourcc[gpu]'" in fault
    assert all(not row["build"] and fault in row["why_not"] for row in told["targets"] if row["target"].startswith("sm_"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "input 'x' is missing, expected x note: x is f32[B, 16], where B is in 1..64 help: give --input x=FILE.npy, or one .npz"),
        (["X=16"], "unexpected input 'X', expected x help: did you mean 'x'?"),
        (["zzz=16"], "unexpected input 'zzz', expected x help: give --input x=FILE.npy"),
        (["x=16", "zzz=16"], "unexpected input 'zzz', expected x"),
        (["x=65,16"], "expected B in 1..64"),
        (["x=2,3,16"], "expected 2: f32[B, 16] note: B is in 1..64"),
    ],
)
def test_run_says_what_to_type(given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for number, text in enumerate(given):
        name, _, shape = text.partition("=")
        np.save(tmp_path / f"{number}.npy", np.ones([int(size) for size in shape.split(",")], np.float32))
        words += ["--input", f"{name}={tmp_path / f'{number}.npy'}"]
    assert run(["run", "m.ourcc", *words, "-q"]) == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_symbol_that_gets_another_name_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, count in (("B=l", 1), ("B=1..64", 0), ("x=N:1..8,16", 0)):
        assert run(["build", "m.onnx", "-o", str(tmp_path / "r.ourcc"), "--shape", text]) == 0
        assert capsys.readouterr().err.count("shape 'B=l': B gets the name l; a size is a number, like B=8 or 1..64") == count


def test_a_lock_is_an_engine_or_the_file_in_it(tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["build", "m.onnx", "-o", str(tmp_path / "again.ourcc"), "-q", "--locked"]
    with zipfile.ZipFile("m.ourcc") as engine:
        (tmp_path / "ourcc.lock").write_bytes(engine.read("ourcc.lock"))
    for lock in ("m.ourcc", str(tmp_path / "ourcc.lock")):
        assert run([*build, lock, "--shape", "B=1..64"]) == 0
        capsys.readouterr()
        assert run([*build, lock, "--shape", "B=3"]) == 1
        told = " ".join(capsys.readouterr().err.split())
        assert "for other sizes or with other options" in told and "give the same --shape" in told and "region" not in told
    assert run(["build", "--help"]) == 0
    assert "its engine, which holds an ourcc.lock" in " ".join(capsys.readouterr().out.split())


def test_quiet_and_loud(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["build", "m.onnx", "-o", str(files / "q.ourcc")]
    assert run([*build, "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert run(build) == 0
    assert "import ...\n" in capsys.readouterr().err
    assert run([*build, "--json", "-v"]) == 0
    printed = capsys.readouterr()
    assert "ourcc.build: import\n" in printed.err and "ourcc.passes" not in printed.err
    assert json.loads(printed.out)["targets"] == "cpu"
    assert run([*build, "-q", "-vv"]) == 0
    assert "ourcc.passes.manager: canonicalize: " in capsys.readouterr().err
    assert run(["doctor", "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("flags", [["-q"], ["--json"], []])
@pytest.mark.parametrize("place", ["own,team", "file", "file/own", "own,file"])
def test_a_store_that_cannot_be_used_is_told_once(
    place: str, flags: list[str], tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    stores = [str(tmp_path / name) for name in place.split(",")]
    monkeypatch.setenv("OURCC_CACHE", ",".join(stores))
    assert run(["build", "m.onnx", "-o", str(tmp_path / "q.ourcc"), *flags]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "is not used" in line]
    assert len(told) == 1 and told[0].startswith(f"ourcc.tuning: store {stores[-1]} is not used: ")
    monkeypatch.setenv("OURCC_CACHE", "nosuch://team")
    assert run(["build", "m.onnx", "-o", str(tmp_path / "r.ourcc"), *flags]) == 2


def test_the_library_logs_and_prints_nothing(files: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    import ourcc

    with caplog.at_level("INFO", logger="ourcc"):
        ourcc.build(files / "m.onnx", threads=1)
    assert [record.message for record in caplog.records if record.name == "ourcc.build"][:2] == ["import", "simplify"]
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = importlib.import_module(f"ourcc.compiler.cli.{name}").command
        found |= {f"{name} {action}": each for action, each in command.commands.items()} if name == "cache" else {name: command}
    return found


@pytest.mark.parametrize("name", commands())
def test_every_command_takes_the_shared_flags(name: str) -> None:
    flags = {flag for parameter in commands()[name].params for flag in parameter.opts}
    assert {"--json", "-v", "-q", "--debug"} <= flags
    assert ("--wide" in flags) == (name not in ("opt", "generate", "chat"))


def test_the_help_offers_only_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    """Values in helps are those that a pass serves; what is refused as not supported yet is not shown."""
    assert set(QUANTIZE_FORMATS) == set(QUANTIZATIONS) and set(SPARSITIES) == set(SPARSITY_PASSES)
    assert all(parse_pipeline(", ".join(QUANTIZATIONS[name].steps(stored))) for name in QUANTIZE_FORMATS for stored in STORED)
    assert run(["build", "--help"]) == 0
    shown = capsys.readouterr().out
    words = set(re.findall(r"[\w-]+", shown.replace("|".join(CACHES), "")))  # a cache has formats of its own
    unserved = {"--calibrate", "--eval", "--max-accuracy-drop"}
    assert not words & unserved and set(QUANTIZE_FORMATS) <= words
    assert run(["build", "m.onnx", "-o", "a.ourcc", "-q", "--quantize", "fp9"]) == 2
    assert "did you mean 'fp8'?" in capsys.readouterr().err
    for flag in ("--calibrate", "--eval", "--max-accuracy-drop"):
        assert run(["build", "m.onnx", "-o", "a.ourcc", "-q", flag, "x"]) == 2
        said = capsys.readouterr().err
        assert f"no such option: got '{flag}'" in said
        assert ("int8 finds its scales while the engine runs" in said and "(QDQ)" in said) == (flag == "--calibrate")


def test_the_help_has_every_target_and_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--help"]) == 0
    shown = capsys.readouterr().out
    assert set(TARGETS) <= set(re.findall(r"[\w-]+", shown)) and "|".join(PRECISIONS) in shown
    assert "calibrated models come from a quantizer, as QDQ files" in " ".join(shown.split())


def test_ascii_output_has_no_other_signs(files: Path) -> None:
    code = "import sys; from ourcc.compiler.cli.main import run; sys.exit(run(['inspect', 'm.ourcc', '--kernels']))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "---" in text and max(map(len, text.splitlines())) <= 60 and "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "begins", "ends"),
    [
        (["build", "m.onnx", "-o", "/dev/stdout", "--tune", "off"], b"PK", None),
        (["build", "m.onnx", "-o", "a.ourcc", "--report", "/dev/stdout", "--tune", "off", "--json"], b"<!", b"</html>"),
        (["run", "m.ourcc", "--input", "x=x.npy", "-o", "/dev/stdout", "--json"], b"PK", None),
        (["inspect", "m.ourcc", "--graph", "link.svg"], b"<?xml", b"</svg>"),
    ],
)
def test_a_file_that_goes_to_standard_output_is_all_that_goes_there(
    files: Path, words: list[str], begins: bytes, ends: bytes | None
) -> None:
    np.save(files / "x.npy", np.zeros((2, 16), np.float32))
    if not (files / "link.svg").is_symlink():
        os.symlink("/dev/stdout", files / "link.svg")
    code = "import sys; from ourcc.compiler.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(begins) and (ends is None or done.stdout.rstrip().endswith(ends))
    if words[0] == "build" and ends is None:
        (files / "piped.ourcc").write_bytes(done.stdout)
        assert run(["inspect", "piped.ourcc", "--json"]) == 0
    elif ends is None:
        assert len(np.load(io.BytesIO(done.stdout))) > 0


def test_a_name_that_is_not_utf8_is_spelled_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"\xff.onnx")
    (files / name).write_bytes((files / "m.onnx").read_bytes())
    assert json.loads(said(capsys, "inspect", name, "--json"))["model"] == name
    assert run(["verify", "m.ourcc", name]) == 2
    assert "the peer onnxruntime takes no such name" in capsys.readouterr().err
    code = "import sys; from ourcc.compiler.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "inspect", os.fsencode(name)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0 and b"model           \\udcff.onnx" in done.stdout, done.stderr
