"""Drawn command lines: commands, options and files, right, wrong, damaged and missing; none ends in a bug of ours."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run
from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.graph.text import module_text

WIDTH = 80
SHARE = 4
"""One command line for so many modules that the other drawn tests compile: some of them build an engine."""
SHARED = ("--json", "--wide", "-q", "-v", "-vv", "--debug")
SHAPES = ("B=1..8", "B=4", "x=2,16", "x=C:1..4,16", "Z=1", "x=2", "B", "B=8..1", "x=0,16", "B=1|2", "B=2*C")
OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "build": (
        *(("--target", name) for name in ("cpu", "native", "x86-64-v3", "natvie")),
        *(("--quantize", name) for name in ("int8-weight", "fp8", "int7")),
        *(("--sparsity", name) for name in ("2:4", "1:2")),
        *(("--shape", text) for text in SHAPES),
        *(("--require", text) for text in ("no-fallback", "target:cpu", "linear:int8", "linear", "relu:fp32")),
        *(("--tune", text) for text in ("off", "cached", "0", "-1", "5x")),
        *(("--threads", text) for text in ("1", "0", "-1", "many")),
        *(("--report", text) for text in ("OUTPUT.html", "NOWHERE/r.html")),
        *((("--rebuild",), ("--trust-pickle",), ("--locked", "FILE"), ("--precision", "fp16"), ("--emulate", "x"))),
    ),
    "run": (
        ("--input", "x=FILE"),
        ("--input", "FILE"),
        ("--input", "y=FILE"),
        ("-o", "OUT"),
        ("--target", "cpu"),
        ("--target", "x86-64-v3"),
        ("--target", "sm_90a"),
    ),
    "bench": (
        *(("--shape", text) for text in SHAPES),
        *(("--rounds", text) for text in ("1", "0", "x")),
        *(("--target", name) for name in ("cpu", "x86-64-v3", "sm_90a")),
        *((("--threads", "1"), ("--threads", "0"), ("--inputs", "FILE"), ("--against", "openvinno"), ("--against", "onnxruntime"))),
    ),
    "verify": (
        ("--inputs", "FILE"),
        ("--tolerance", "0.1"),
        ("--tolerance", "-1"),
        ("--target", "cpu"),
        ("--target", "x86-64-v4"),
        ("--target", "what"),
    ),
    "inspect": (
        *(("--ir", name) for name in ("import", "simplify", "regions", "tiles", "plan", "c", "d")),
        *(("--source", name) for name in ("kernel_0", "kernel_99", "top_k")),
        *(
            (
                ("--kernels",),
                ("--memory",),
                ("--precision",),
                ("--target", "cpu"),
                ("--target", "native"),
                ("--target", "x86-64-v3"),
                ("--target", "nativ"),
            )
        ),
        *(("--shape", text) for text in SHAPES),
    ),
    "generate": (("sky",), ("--raw",), ("--system", "be brief"), ("--temperature", "1"), ("--seed", "1"), ("--max-tokens", "0")),
    "chat": (("--session", "FILE"), ("--session", "OUT"), ("--system", "be brief"), ("--top-p", "2")),
    "eval": (("FILE",), ("--against", "FILE"), ("--window", "8"), ("--stride", "0")),
    "plan": (("--context", "8"), ("--format", "int4-weight"), ("--cache", "f32"), ("--target", "sm_90a")),
    "tune": (("--budget", "1"), ("--budget", "off"), ("--budget", "1ms"), ("-o", "OUT")),
    "opt": (
        *(("--pipeline", text) for text in ("canonicalize", "fold_constants{limit=4}, decompose", "nothing", "{", "canonicalise")),
        *((("--print-changes",), ("--limit", "1"), ("--limit", "-1"))),
    ),
    "runtime": (("-o", "OUT"), ("-o", "FILE"), ("extra",)),
    "doctor": (("--mesure",), ("extra",)),
    "cache": (
        ("ls",),
        ("du",),
        ("why", "kernel_0"),
        ("why", "FILE:kernel_0"),
        ("verify",),
        ("import", "FILE"),
        ("export", "OUT"),
        ("lss",),
    ),
}
ONCE = {
    "build": ("--report", "OUTPUT.html"),
    "run": ("-o", "OUT"),
    "bench": ("--rounds", "1"),
    "verify": ("--tolerance", "0.1"),
    "inspect": ("--ir", "simplify"),
    "tune": ("--budget", "1"),
    "opt": ("--limit", "1"),
    "generate": ("--max-tokens", "1"),
    "chat": ("--top-k", "1"),
    "eval": ("--window", "8"),
    "plan": ("--format", "bf16"),
    "runtime": ("-o", "OUT"),
}
"""An option of one value, which is given twice at times."""
WORDS = {
    **{"build": "--quantize", "run": "--target", "bench": "--against", "verify": "--function", "inspect": "--source", "opt": "--pipeline"},
    **{"generate": "--target", "chat": "--session", "plan": "--cache", "eval": "--against", "cache": "push", "tune": "-o", "runtime": "-o"},
}
"""What a name, a path or a list follows, in whose place nothing stands at times."""
ALWAYS = {"build": ("-o", "OUT"), "opt": ("--pipeline", "canonicalize")}
FILES = {"build": 1, "run": 1, "bench": 1, "verify": 2, "inspect": 1, "tune": 1, "opt": 1, "generate": 1, "chat": 1, "eval": 1, "plan": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[[Path], str]) -> Path:
    """Files of every kind, whole and not; the caches are here too."""
    place = tmp_path_factory.mktemp("line")
    _write_model(place / "good.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OURCC_CACHE_DIR", cache_at(place / "cache"))
        with contextlib.redirect_stdout(io.StringIO()):
            assert run(["build", str(place / "good.onnx"), "-o", str(place / "good.ourcc"), "--json"]) == 0
    (place / "good.ir").write_text(module_text(import_onnx(place / "good.onnx")))
    np.savez(place / "good.npz", x=np.ones((2, 16), np.float32))
    np.save(place / "good.npy", np.ones((2, 16), np.float32))
    for path in sorted(place.glob("good.*")):
        data = path.read_bytes()
        (place / f"short{path.suffix}").write_bytes(data[: len(data) // 2])
        (place / f"flipped{path.suffix}").write_bytes(bytes(b ^ 255 if n % 97 == 50 else b for n, b in enumerate(data)))
        (place / f"empty{path.suffix}").write_bytes(b"")
        (place / f"named like {path.suffix[1:]}").write_bytes(data)
    (place / "folder.onnx").mkdir()
    (place / "loop.onnx").symlink_to("loop.onnx")
    (place / "not torch.pt2").write_bytes(b"PK\x05\x06" + bytes(18))
    (place / os.fsdecode(b"\xff\xfe.onnx")).write_bytes((place / "good.onnx").read_bytes())
    return place


def _write_model(path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = [numpy_helper.from_array(rng.standard_normal((16, 8), dtype=np.float32), "w"), numpy_helper.from_array(np.array([3]), "k")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"), helper.make_node("TopK", ["a", "k"], ["v", "i"], name="top")]
    outputs = [
        helper.make_tensor_value_info("v", TensorProto.FLOAT, ["B", 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["B", 3]),
    ]
    graph = helper.make_graph(nodes, "m", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 16])], outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def drawn(count: int, seed: int, folder: Path) -> Iterator[list[str]]:
    """Command lines: a command, its files, some of its options, at times one of another's, in any order."""
    chance = random.Random(seed)
    files = [str(path) for path in sorted(folder.iterdir()) if path.name != "cache"]
    right = {"run": ".ourcc", "tune": ".ourcc", "opt": ".ir", "build": ".onnx", "verify": ".ourcc"}
    right |= dict.fromkeys(("generate", "chat", "eval"), ".ourcc")
    for _ in range(count):
        command = chance.choice(list(OPTIONS))
        words = chance.sample(OPTIONS[command], chance.randint(0, min(3, len(OPTIONS[command]))))
        if command == "cache":
            words = words[:1]
        if command in ALWAYS and chance.random() < 0.9:
            words.append(ALWAYS[command])
        if chance.random() < 0.1:
            words.append(chance.choice(OPTIONS[chance.choice(list(OPTIONS))]))
        named = []
        for number in range(FILES.get(command, 0)):
            suffix = ".onnx" if command == "verify" and number else right.get(command, chance.choice((".onnx", ".ourcc")))
            named.append(
                (str(folder / f"good{suffix}") if chance.random() < 0.6 else chance.choice([*files, str(folder / "absent.onnx")]),)
            )
        if chance.random() < 0.05:
            named = named[1:]
        if command in ONCE and chance.random() < 0.2:
            words += [ONCE[command], ONCE[command]]
        elif command in WORDS and chance.random() < 0.2:
            words.append((WORDS[command], ""))
        words += [(word,) for word in chance.sample(SHARED, chance.randint(0, 2))]
        rest = [*named, *words]
        if command != "cache":
            chance.shuffle(rest)
        # Wherever a word holds FILE, a file of any kind stands.
        line = [word.replace("FILE", chance.choice(files)) for part in rest for word in part]
        places = {"OUTPUT": str(folder / "cache" / "out"), "NOWHERE": str(folder / "no" / "folder")}
        out = chance.choice((str(folder / "cache" / "out.ourcc"), str(folder / "no" / "folder" / "o"), str(folder)))
        for name, place in places.items():
            line = [word.replace(name, place) for word in line]
        yield [command, *(out if word == "OUT" else word for word in line)]


def in_vain(line: list[str]) -> bool:
    """Whether an option that has one value is given twice, or a word is empty."""
    return "" in line or any(line.count(flag) > 1 for flag, _ in ONCE.values() if line[0] in ONCE)


def why_wrong(line: list[str]) -> str | None:
    """What is wrong about how a command line ends; None if nothing is."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = run(line)
        except BaseException:  # noqa: BLE001
            return f"it raised {traceback.format_exc()}"
    printed, said = out.getvalue(), err.getvalue()
    if status not in (0, 1, 2, 3):
        return f"status {status}: {printed[-300:]}{said[-600:]}"
    if status != 2 and in_vain(line):
        return f"status {status}, and a word is given in vain: {printed[-300:]}"
    if "Traceback" in printed + said and "--debug" not in line:
        return f"a traceback: {said[-600:]}"
    if "--json" in line:
        try:
            data = json.loads(printed)
        except json.JSONDecodeError as error:
            return f"no JSON object ({error}): {printed[:200]!r}"
        return None if isinstance(data, dict) else f"no JSON object: {printed[:200]!r}"
    if status and "error: " not in said and not said.startswith("Usage: "):
        return f"status {status} and no error: {said!r}"
    # Beside words that hold no space, such as paths, nothing is longer than the terminal is wide.
    errors = said.splitlines() if not {"--debug", "-v", "-vv"} & set(line) else []
    tables = [] if "--wide" in line or line[0] == "opt" or {"--ir", "--source"} & set(line) else printed.splitlines()
    long = [text for text in map(str.rstrip, [*errors, *tables]) if len(text) > WIDTH and len(max(text.split(), key=len)) < WIDTH - 20]
    return f"too wide: {long[0]!r}" if long else None


def test_no_command_line_ends_in_a_bug(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    count = max(20, request.config.getoption("--cases") // SHARE)
    wrong = []
    for line in drawn(count, request.config.getoption("--seed", 0), folder):
        reason = why_wrong(line)
        if reason is not None:
            wrong.append(f"ourcc {' '.join(line)}\n  {reason}".encode(errors="backslashreplace").decode())
    assert not wrong, f"{len(wrong)} of {count} command lines:\n" + "\n".join(wrong[:8])
