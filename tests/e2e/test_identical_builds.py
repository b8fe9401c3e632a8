"""A build is a function of the model and the options: the folder, the hash seed and the time zone leave no trace in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.runtime.engine import Engine

WIDTH, HEADS = 64, 2
PLACES = [("one", "0", "UTC0"), ("another/folder", "12345", "XYZ-7")]


def transformer(path: Path) -> Path:
    """A block with attention, normalization and an MLP over any batch and sequence: a kernel of every kind."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 8 for name in ("q", "k", "v", "up")}
    weights["scale"], weights["shift"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    split, back = np.array([0, 0, HEADS, WIDTH // HEADS]), np.array([0, 0, WIDTH])
    nodes = [helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1)]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["n", name], [f"{name}1"]),
            helper.make_node("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            helper.make_node("Transpose", [f"{name}2"], [f"{name}3"], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["q3", "k3"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v3"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["swapped"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["swapped", "back"], ["joined"]),
        helper.make_node("MatMul", ["joined", "up"], ["h"]),
        helper.make_node("Gelu", ["h"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["y"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in {**weights, "split": split, "back": back}.items()]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "S", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "block", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def ourcc(folder: Path, *arguments: str, seed: str = "0", zone: str = "UTC0") -> None:
    """The command line in a process of its own, with empty caches."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "OURCC_CACHE_DIR": str(folder / "cache"), "OURCC_CACHE": ""}
    command = [sys.executable, "-c", "from ourcc.compiler.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr


def build(folder: Path, targets: Sequence[str], seed: str = "0", zone: str = "UTC0") -> bytes:
    """The engine of the transformer for these targets."""
    folder.mkdir(parents=True, exist_ok=True)
    transformer(folder / "model.onnx")
    asked = [word for target in targets for word in ("--target", target)]
    ourcc(folder, "build", "model.onnx", "-o", "model.ourcc", "--shape", "B=1..32", "--shape", "S=1..512", *asked, seed=seed, zone=zone)
    return (folder / "model.ourcc").read_bytes()


@pytest.mark.parametrize("targets", [["cpu"], ["native"], ["sm_90a", "sm_100a"]], ids="+".join)
def test_two_builds_give_the_same_bytes(tmp_path: Path, targets: list[str]) -> None:
    first, second = (build(tmp_path / folder, targets, seed, zone) for folder, seed, zone in PLACES)
    assert first == second


def test_a_rebuilt_target_is_the_one_that_the_model_gives(tmp_path: Path, cache_at: Callable[[Path], str]) -> None:
    """Without the model, from the engine's own program; what was there for other targets stays to the byte."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder in (whole, part):
        cache_at(folder / "cache")
    build(whole, ["cpu", "sm_90a"])
    build(part, ["cpu"])
    ourcc(part, "build", "--rebuild", "model.ourcc", "--target", "sm_90a")
    with zipfile.ZipFile(whole / "model.ourcc") as expected, zipfile.ZipFile(part / "model.ourcc") as got:
        assert sorted(got.namelist()) == sorted(expected.namelist())
        assert [name for name in got.namelist() if got.read(name) != expected.read(name)] == ["manifest.json"]
        manifests = [json.loads(archive.read("manifest.json")) for archive in (expected, got)]
    # For which targets a program was made is another thing than which parts there are.
    assert [manifest["provenance"].pop("program") for manifest in manifests] == [["cpu", "sm_90a"], ["cpu"]]
    assert manifests[0] == manifests[1]
    x = np.random.default_rng(1).standard_normal((2, 5, WIDTH), dtype=np.float32)
    assert np.array_equal(Engine.load(part / "model.ourcc")(x), Engine.load(whole / "model.ourcc")(x))
