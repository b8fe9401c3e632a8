"""Kept texts of kernels: as if they were printed, and none of another launch, level, size or printer, nor one that is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ourcc
from ourcc.codegen.c import texts
from ourcc.codegen.c.objects import ObjectFolder
from ourcc.codegen.c.printer import SourceFile, print_launch
from ourcc.codegen.c.texts import PRINTERS, KeptTexts, KernelText
from ourcc.codegen.c.weight import weigh
from ourcc.ir.dims import Facts, Range
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.sources import ROOT
from ourcc.ir.target import AVX2, AVX512, CpuLevel, emulated
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Launch

FACTS = Facts({"N": Range(1, 1000), "M": Range(1, 1000)})


def launch(computed: str = "exp(load %x[i, j] : f32[j])", name: str = "p") -> Launch:
    head = f"program @p symbols {{ N, M }} {{ launch @{name}(%x: f32[i N, j M], %y: out f32[i N, j M]) {{"
    return parse(f"{head}\n grid (i: 0..N, j: 0..M step 32) {{\n store %y[i, j] = {computed} : f32[j]\n }} }} }}").launches[0]


@pytest.fixture(autouse=True)
def known_sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digest of the printer's sources, which may have changed just before the tests began."""
    said = ["0" * 64]
    monkeypatch.setattr(texts, "digest_of_sources", lambda *folders: said[0])
    return said


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The launches that were printed, by name."""
    asked: list[str] = []
    add = SourceFile.add
    monkeypatch.setattr(SourceFile, "add", lambda file, launch, *rest: asked.append(launch.name) or add(file, launch, *rest))
    yield asked


def of(folder: Path, given: Launch, level: CpuLevel = AVX512, symbols: tuple[str, ...] = ("N", "M"), facts: Facts = FACTS) -> KernelText:
    return KeptTexts(level, folder).of(given, symbols, facts)


def test_a_text_is_printed_once_and_is_what_the_printer_gives(tmp_path: Path, printed: list[str]) -> None:
    kernel, whole = print_launch(launch(), AVX512, ("N", "M"), FACTS)
    file = SourceFile(AVX512)
    file.add(launch(), "kernel", ("N", "M"), FACTS)
    printed.clear()
    for _ in range(3):
        assert of(tmp_path, launch()) == KernelText(whole, weigh([kernel.source], file.library))
    assert printed == ["p"]
    # Whatever a launch is called, its kernel is `kernel`.
    assert of(tmp_path, launch(name="q")).text == whole and printed == ["p"]
    assert KeptTexts(AVX512).of(launch(), ("N", "M"), FACTS).text == whole and printed == ["p", "p"]


def test_each_thing_that_a_text_is_printed_from_tells_it_from_others(tmp_path: Path, printed: list[str], known_sources: list[str]) -> None:
    of(tmp_path, launch())
    of(tmp_path, launch("exp2(load %x[i, j] : f32[j])"))
    of(tmp_path, replace(launch(), hints=(("handout", "queue"),)))
    of(tmp_path, launch(), AVX2)
    of(tmp_path, launch(), emulated(AVX512, frozenset(AVX2.features)))
    of(tmp_path, launch(), replace(AVX512, registers=16))
    of(tmp_path, launch(), symbols=("M", "N"))
    of(tmp_path, launch(), facts=FACTS.with_range("N", 1, 999))
    of(tmp_path, launch(), facts=FACTS.with_range("N", 1, 1000, divisor=8))
    of(tmp_path, launch(), facts=replace(FACTS, extents={"i": 7}))
    of(tmp_path, launch(), facts=replace(FACTS, broadcasts=((3, 1),)))
    known_sources[0] = "1" * 64
    of(tmp_path, launch())
    assert len(printed) == 12
    before = list(printed)
    of(tmp_path, launch())
    assert printed == before


def test_texts_of_unknown_printers_are_not_kept(tmp_path: Path, printed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    of(tmp_path, launch())
    monkeypatch.setattr(texts, "digest_of_sources", lambda *folders: None)
    of(tmp_path, launch())
    of(tmp_path / "other", launch())
    assert len(printed) == 3 and not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "spoil", ["flip", "cut", "empty", "others may write", "folder of others", "other kernel", "pipe", "nothing", "none"]
)
def test_a_text_that_is_not_as_it_was_kept_is_printed_again(tmp_path: Path, printed: list[str], spoil: str) -> None:
    whole = of(tmp_path, launch())
    (kept,) = tmp_path.iterdir()
    data = bytearray(kept.read_bytes())
    if spoil == "flip":
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
    elif spoil in ("cut", "empty"):
        kept.write_bytes(data[: len(data) // 2] if spoil == "cut" else b"")
    elif spoil == "others may write":
        kept.chmod(0o666)
    elif spoil == "other kernel":
        of(tmp_path, launch("exp2(load %x[i, j] : f32[j])"))
        printed.clear()
        (other,) = (path for path in tmp_path.iterdir() if path != kept)
        kept.write_bytes(other.read_bytes())
        printed.append("the first one")
    elif spoil == "pipe":
        kept.unlink()
        os.mkfifo(kept)
    elif spoil == "nothing":
        ObjectFolder(tmp_path).put(kept.name, b"")
    elif spoil == "folder of others":
        tmp_path.chmod(0o777)
    assert of(tmp_path, launch()) == whole
    assert len(printed) == (1 if spoil == "none" else 2)


def test_what_cannot_be_printed_is_tried_again(tmp_path: Path, printed: list[str]) -> None:
    text = "program @p { launch @p(%y: out f32[i 16]) {\n grid (i: 0..16 step 16) {\n local %t: u4[i 16] in registers\n } } }"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="narrower than a byte"):
            of(tmp_path, parse(text).launches[0], symbols=())
    assert printed == ["p", "p"] and list(tmp_path.iterdir()) == []


def test_a_warm_build_prints_no_kernel_and_gives_the_same_engine(tmp_path: Path) -> None:
    """In processes of their own, where the digest is that of the sources on disk; one that may have changed is waited for."""
    code = """
import sys, numpy, onnx.helper as h
import ourcc
from ourcc.codegen.c.printer import SourceFile
from ourcc.ir import sources
sources.STARTED += 10 * sources.SETTLED
asked, add = [], SourceFile.add
SourceFile.add = lambda file, *rest: asked.append(1) or add(file, *rest)
ports = [h.make_tensor_value_info(name, 1, ["B", 8]) for name in "xy"]
nodes = [h.make_node("MatMul", ["x", "w"], ["t"]), h.make_node("Softmax", ["t"], ["y"])]
weights = [h.make_tensor("w", 1, [8, 8], numpy.arange(64, dtype=numpy.float32))]
model = h.make_model(h.make_graph(nodes, "g", ports[:1], ports[1:], weights))
ourcc.build(model, targets=["x86-64-v3"]).save(sys.argv[1])
print(len(asked))
"""
    counts, engines = [], []
    for run in ("cold", "warm"):
        path = tmp_path / f"{run}.ourcc"
        environment = {**os.environ, "OURCC_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=True)
        counts.append(int(done.stdout))
        engines.append(path.read_bytes())
    assert counts[0] > 0 and counts[1] == 0 and engines[0] == engines[1]


def test_the_folders_hold_all_that_prints() -> None:
    """Whatever the printer imports of ours lies in them, so that no text outlives a change of what printed it."""
    code = "import sys, ourcc.codegen.c.texts; print(*(name for name in sys.modules if name.startswith('ourcc.')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folders = tuple(f"{Path(ourcc.__name__, folder).as_posix()}/" for folder in PRINTERS)
    others = {name for name in done.stdout.split() if not f"{name.replace('.', '/')}/".startswith(folders)}
    # The package itself, and the room that holds the printers, which holds no code.
    assert others <= {"ourcc", "ourcc.codegen"}
    assert (ROOT / "codegen/__init__.py").read_text().count("import") == 0
