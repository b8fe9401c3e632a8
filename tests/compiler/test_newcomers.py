"""What a newcomer meets: files of other kinds, options without effect, names that others use, flags before a command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.options import WITHOUT_EFFECT, Options, Road, build_options, known_options
from ourcc.compiler.requests import parse_requirement
from ourcc.compiler.targets.registry import parse_target
from ourcc.ir.errors import EngineError, UsageError
from ourcc.ir.target import CPU_LEVELS
from ourcc.ir.workload import Point, Workload, default_workload
from ourcc.runtime.kinds import kind_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[[Path], str]) -> Path:
    """A model and its engines: plain and pruned."""
    folder = tmp_path_factory.mktemp("files")
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, size]) for name, size in (("x", 64), ("y", 48)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    other = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"])], "g", [*(_port(n) for n in "xz")], [_port("y")])
    onnx.save(helper.make_model(other, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "other.onnx")
    np.savez(folder / "x.npz", x=np.ones((4, 64), np.float32))
    np.save(folder / "x.npy", np.ones((4, 64), np.float32))
    (folder / "w.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OURCC_CACHE_DIR", cache_at(folder / "cache"))
        ourcc.build(folder / "m.onnx", tune="off").save(folder / "m.ourcc")
        ourcc.build(folder / "m.onnx", tune="off", sparsity="2:4").save(folder / "q.ourcc")
    return folder


def _port(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64])


@pytest.fixture(autouse=True)
def place(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setenv("OURCC_CACHE_DIR", str(files / "cache"))
    monkeypatch.delenv("OURCC_CACHE", raising=False)


# --- files ------------------------------------------------------------------------------------------------------------

KINDS = {
    "m.onnx": "an ONNX model",
    "x.npz": "an .npz file of arrays",
    "x.npy": "an .npy file of one array",
    "w.safetensors": "a safetensors file of weights",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_another_kind_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_of(name) == KINDS[name]
    hint = "build it first: ourcc build m.onnx -o m.ourcc" if name == "m.onnx" else "name an engine, as ourcc build writes it"
    with pytest.raises(EngineError, match=f"'{name}' is {KINDS[name]}, expected an engine") as caught:
        ourcc.load(name)
    assert caught.value.hint == hint
    for line in (["run", name], ["tune", name], ["verify", name, "m.onnx"]):
        assert run(line) == 2
        assert f"is {KINDS[name]}, expected an engine" in capsys.readouterr().err


def test_archives_and_damaged_engines_are_told_apart(files: Path) -> None:
    import zipfile

    with zipfile.ZipFile(files / "m.pt2", "w") as archive:
        archive.writestr("m/version", "3")
    assert kind_of("m.pt2") == "an exported program of torch, or another zip archive"
    assert kind_of("m.ourcc") == "an engine"
    assert kind_of("none") is None and kind_of(files) is None
    (files / "cut").write_bytes((files / "m.ourcc").read_bytes()[:5000])
    with pytest.raises(EngineError, match="cut off"):
        ourcc.load("cut")


def test_a_lock_that_is_an_archive_of_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "m.onnx", "-o", "z.ourcc", "--locked", "x.npz"]) == 2
    assert "'x.npz' is an .npz file of arrays, expected an engine" in capsys.readouterr().err
    with pytest.raises(UsageError, match="locked: there is no file 'nofile'"):
        ourcc.build("m.onnx", locked="nofile")


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", WITHOUT_EFFECT)
def test_each_option_without_effect_is_refused_on_its_road(road: Road) -> None:
    values = {"shapes": {"x": "B"}, "report": "r.html", "trust_pickle": True, "freeze": False, "context": 5, "cache": "int8", "batch": 2}
    values |= {"graphs": False}
    for name, hint in WITHOUT_EFFECT[road].items():
        with pytest.raises(UsageError, match=f"option '{name}' has no effect on {road}") as caught:
            build_options({name: values[name]}, road)
        assert caught.value.hint == hint
    # What is done anyway may be asked for.
    build_options({"freeze": True, "trust_pickle": False, "shapes": None}, road)


@pytest.mark.parametrize("road", WITHOUT_EFFECT)
def test_the_known_options_are_those_that_work(road: Road) -> None:
    known = known_options(road)
    assert set(known) <= set(Options.__annotations__) and {"target", "targets", "quantize", "tune"} <= set(known)
    assert not {"calibrate", "eval", "max_accuracy_drop"} & set(known)
    assert ("shape" in known) == ("shapes" in known) == (road != "torch.compile")
    with pytest.raises(UsageError, match=re.escape(f"got 'quantise', expected one of {', '.join(known)}")):
        build_options({"quantise": 1}, road)


def test_torch_compile_says_what_it_does_not_do(fresh: None) -> None:
    import torch

    for options, message in (
        ({"shapes": {"x": "B:1..4"}}, "option 'shapes' has no effect on torch.compile"),
        ({"shape": {"x": "B:1..4"}}, "option 'shape' has no effect on torch.compile"),
        ({"report": "r.html"}, "option 'report' has no effect on torch.compile"),
    ):
        with pytest.raises(Exception, match=message) as caught:
            torch.compile(torch.tanh, backend="ourcc", options=options)(torch.randn(3))
        assert isinstance(caught.value.inner_exception, UsageError)  # type: ignore[attr-defined]


def test_a_target_that_this_machine_lacks_is_the_users_matter(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ourcc.compiler.targets import machine, target
    from ourcc.compiler.torch import backend

    monkeypatch.setattr(target, "probe_cuda", lambda: machine.CudaDriver(None, (), "no driver"))
    with pytest.raises(Exception, match=r"target: torch.compile runs what it compiles on this machine, got sm_90a: no driver") as caught:
        torch.compile(torch.tanh, backend=backend.ourcc, options={"target": "sm_90a"})(torch.randn(3))
    assert isinstance(caught.value.inner_exception, UsageError)  # type: ignore[attr-defined]
    assert "--" not in str(caught.value.inner_exception.hint)  # type: ignore[attr-defined]


def test_lists_of_formats_name_what_works() -> None:
    with pytest.raises(UsageError) as caught:
        build_options({"quantize": "int4"})
    message = str(caught.value)
    assert message.startswith("unknown quantize format: got 'int4', expected one of int8-weight, int8, int4-weight")
    assert {"fp8", "mxfp4", "nvfp4", "nvfp4-weight"} <= set(re.findall(r"[\w-]+", message))
    with pytest.raises(UsageError) as caught:
        parse_requirement("linear:int9")
    words = set(re.findall(r"[\w-]+", str(caught.value)))
    assert {"int8-weight", "nvfp4-weight", "mxfp4-activation"} <= words and "fp9" not in words


def test_targets_by_the_names_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="did you mean 'h100'"):
        parse_target("cuda")
    for line in (
        ["run", "m.ourcc", "--target", "foo"],
        ["inspect", "m.ourcc", "--target", "foo"],
        ["verify", "m.ourcc", "m.onnx", "--target", "foo"],
    ):
        assert run(line) == 2
        levels = ", ".join(level.name for level in CPU_LEVELS)
        expected = f"cpu, native, {levels}, sm_90a"
        assert f"unknown target: got 'foo', expected one of {expected}" in capsys.readouterr().err
    assert run(["run", "m.ourcc", "--target", "native", "--input", "x.npz"]) == 0


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["simplify", "regions", "tiles", "plan", "c"])
def test_an_engine_shows_its_program_at_every_later_stage(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "m.ourcc", "--ir", stage]) == 0
    ours = capsys.readouterr().out
    assert run(["inspect", "m.onnx", "--ir", stage]) == 0
    theirs = capsys.readouterr().out
    assert len(ours.splitlines()) == len(theirs.splitlines()) > 1


def test_the_import_of_an_engine_needs_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "m.ourcc", "--ir", "import"]) == 2
    assert "stage import needs the model" in capsys.readouterr().err


def test_verifying_a_lossy_engine_says_that_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "q.ourcc", "m.onnx"]) == 0
    assert "from the model with its weights pruned 2:4 as the engine's are" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", "q.ourcc", "m.onnx", "--tolerance", "1e-5"]) == 3
    assert "the engine was made with 2:4, which changes answers: without --tolerance it is judged" in capsys.readouterr().err
    assert run(["verify", "q.ourcc", "m.onnx", "--tolerance", "1e-5", "--json"]) == 3
    assert "--tolerance" in json.loads(capsys.readouterr().out)["hint"]
    assert run(["verify", "q.ourcc", "m.onnx", "--tolerance", "0.9"]) == 0
    assert run(["verify", "m.ourcc", "m.onnx"]) == 0


def test_a_model_that_does_not_belong_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "m.ourcc", "other.onnx"]) == 1
    assert "is this the engine of that model?" in capsys.readouterr().err
    assert run(["bench", "m.ourcc", "--against", "onnxruntime=other.onnx", "--rounds", "1"]) == 2
    assert "does the file belong to the engine" in capsys.readouterr().err


@pytest.mark.parametrize("line", [["pull", "nostore"], ["ls", "nostore"], ["merge", "nostore", "other"], ["verify", "nostore"]])
def test_a_store_that_is_not_there_is_said(line: list[str], files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", *line]) == 2
    assert "there is no store 'nostore'" in capsys.readouterr().err
    assert not (files / "nostore").exists()


def test_flags_may_stand_before_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["cache", "--json", "du"], ["--json", "cache", "du"], ["cache", "du", "--json"]):
        assert run(line) == 0
        assert "stores" in json.loads(capsys.readouterr().out)


def test_an_option_without_its_value_points_to_the_commands_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "m.onnx", "--shape"]) == 2
    assert "'ourcc build --help' shows the usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["build", "none.onnx", "--json"],
        ["run", "m.onnx", "--json"],
        ["build", "m.onnx", "--nothing", "--json"],
        ["cache", "pull", "no", "--json"],
    ],
)
def test_errors_have_one_schema(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) in (1, 2)
    error = json.loads(capsys.readouterr().out)["error"]
    assert set(error) == {"kind", "status", "text", "message", "source", "note", "hint", "reproducer"}
    assert error["message"] and error["text"].startswith(error["message"])


def test_the_package_runs_as_a_module() -> None:
    said = subprocess.run([sys.executable, "-m", "ourcc", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith("ourcc")


def test_the_memory_of_two_targets_is_told_apart() -> None:
    from ourcc.compiler.report.kernels import arena_bytes, kernel_table, memory_tables

    plan = ourcc.load("m.ourcc").contents.best.plan
    sizes = default_workload(plan.symbols).sizes
    said, numbers = arena_bytes(plan, sizes)
    assert (
        said.startswith(f"{numbers['bytes']:,} bytes, of which {numbers['alive']:,} are alive at once")
        and numbers["bytes"] >= numbers["alive"]
    )
    assert [table.name for table in memory_tables(plan)] == ["arena slots", "constants"]
    assert [table.name for table in memory_tables(plan, "sm_90a")] == ["arena slots of sm_90a", "constants of sm_90a"]
    assert "predicted, not measured" in kernel_table("cpu", [], Workload((Point((("B", 1),)),))).notes[1]


def test_an_index_error_is_in_the_words_of_its_road(files: Path, fresh: None, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    def rows(words: torch.Tensor, *, ids: torch.Tensor) -> torch.Tensor:
        return words[ids] * 2

    with pytest.raises(IndexError, match="index 7 of input 'ids' is out of range") as caught:
        torch.compile(rows, backend="ourcc")(torch.randn(5, 3), ids=torch.tensor([1, 7]))
    assert caught.value.hint.startswith('torch.compile(options={"unchecked_indices": True})')  # type: ignore[attr-defined]
    node = helper.make_node("Gather", ["words", "ids"], ["y"])
    words, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("words", "y"))
    graph = helper.make_graph([node], "g", [words, helper.make_tensor_value_info("ids", TensorProto.INT64, [2])], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    ourcc.build(model, tune="off").save(files / "rows.ourcc")
    np.savez(files / "rows.npz", words=np.ones((2, 3), np.float32), ids=np.array([0, 9]))
    assert run(["run", "rows.ourcc", "--input", "rows.npz"]) == 1
    assert "ourcc build --unchecked-indices" in " ".join(capsys.readouterr().err.split())


def test_two_texts_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--precision", "--ir", "plan"], ["--kernels", "--ir", "plan"], ["--precision", "--source", "kernel_0"]):
        assert run(["inspect", "m.ourcc", *words]) == 2
        assert f"expected {words[1]} alone" in capsys.readouterr().err


def test_what_reads_offers_no_signing(capsys: pytest.CaptureFixture[str]) -> None:
    for action, is_offered in (("ls", False), ("du", False), ("why", False), ("push", True)):
        assert run(["cache", action, "--help"]) == 0
        assert ("--signing-key" in capsys.readouterr().out) == is_offered


def test_a_pipeline_of_no_pass_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["opt", "m.onnx", "--pipeline", " "]) == 2
    assert "got an empty word for --pipeline" in capsys.readouterr().err


def test_a_file_that_is_missing_is_wrong_usage_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["run", "no.ourcc"],
        ["run", "m.ourcc", "--input", "x=no.npy"],
        ["run", "m.ourcc", "--input", "no.npz"],
        ["verify", "m.ourcc", "m.onnx", "--inputs", "no.npz"],
        ["bench", "m.ourcc", "--against", "onnxruntime=no.onnx"],
        ["bench", "m.ourcc", "--inputs", "no.npz"],
        ["build", "no.onnx", "-o", "x.ourcc"],
        ["build", "m.onnx", "-o", "x.ourcc", "--locked", "no.lock"],
    ):
        assert run(line) == 2, line
        assert "no." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("road", "said"),
    [
        ("the command line", "--quantize int8"),
        ("ourcc.build", 'quantize="int8"'),
        ("ourcc.explain", 'quantize="int8"'),
        ("torch.compile", 'options={"quantize": "int8"}'),
    ],
)
def test_hints_give_options_as_their_road_does(road: Road, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_options({"precision": "int8"}, road)
    assert caught.value.hint == f"that is a number format: {said}"
    if road == "ourcc.build":
        with pytest.raises(UsageError, match=r'in each: shapes=\["x=2", "y=3"\]'):
            build_options({"shapes": "x=2,y=3"}, road)


def test_only_options_that_are_near_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "m.onnx", "-o", "x.ourcc", "--bogus"]) == 2
    assert "did you mean" not in capsys.readouterr().err
    assert run(["build", "m.onnx", "-o", "x.ourcc", "--quantise", "int8"]) == 2
    assert "did you mean '--quantize'?" in capsys.readouterr().err
