"""The command line: help, usage errors, exit statuses, JSON and reproducers; the commands are stand-ins."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ourcc.compiler
from ourcc.compiler.cli.main import COMMANDS, run
from ourcc.compiler.report.table import Report, Table
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.errors import CompilerError, ContractError, InternalError, Source, UnsupportedError


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    return str(path)


def fails_with(commands: Any, error: BaseException) -> None:
    def inspect(options: object, progress: object) -> Report:
        raise error

    commands.inspect = inspect


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_the_table_repeats(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"ourcc {name}" in printed
    assert COMMANDS[name].rstrip(".") in printed
    command = importlib.import_module(f"ourcc.compiler.cli.{name}").command
    assert command.get_short_help_str(200).rstrip(".") == COMMANDS[name].rstrip(".")


def test_the_table_names_every_module_of_commands() -> None:
    folder = Path(ourcc.compiler.__file__).parent / "cli"
    shared = {"__init__", "main", "frame", "output", "reproducer", "streams", "trust", "generation"}
    assert {path.stem for path in folder.glob("*.py")} - shared == set(COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "cache"] + ["cache ls", "cache why"])
def test_every_command_takes_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["biuld"], "error: unknown command: got 'biuld'; did you mean 'build'?"),
        (["zzzz"], "expected one of build, run, generate, chat, eval, plan, bench"),
        (["cache", "lss"], "error: unknown cache action: got 'lss'; did you mean 'ls'?"),
        (["cache", "zzzz"], "unknown cache action: got 'zzzz'; expected one of ls, du"),
        (["build"], "error: missing argument 'MODEL'"),
        (["doctor", "--mesure"], "error: no such option: got '--mesure'; did you mean '--measure'?"),
        (["doctor", "--zzzzz"], "error: no such option: got '--zzzzz'\n"),
        (["build", "absent.onnx", "-o", "x"], "'absent.onnx' does not exist"),
        (["build", "MODEL", "-o", "x.ourcc", "--target", "sm_90"], "did you mean 'sm_90a'?"),
        *(
            (["build", "MODEL", "-o", "x.ourcc", "--target", name], f"did you mean '{target}'?")
            for name, target in (
                *(("H100", "h100"), ("GH200", "h200"), ("nvidia", "h100"), ("NVIDIA H100", "h100"), ("GB200", "b200")),
                *(("b100", "b200"), ("B300", "b300"), ("Blackwell", "b200")),
                *(("RTX 5090", "sm_120a"), ("GeForce RTX 5070 Ti", "sm_120a"), ("CPU", "cpu"), ("SM_90A", "sm_90a")),
            )
        ),
        (["build", "MODEL", "-o", "x.ourcc", "--precision", "BF16"], "did you mean 'bf16'?"),
        (["build", "MODEL", "-o", "x.ourcc", "--context", "999999999"], "expected a whole number of tokens from 1 to 16777216"),
        (["build", "MODEL", "-o", "x.ourcc", "--quantize", "int8-wieght"], "did you mean 'int8-weight'?"),
        (["build", "MODEL", "-o", "x.ourcc", "--shape", "x"], "expected NAME=AXIS,AXIS..."),
        (["build", "MODEL"], "error: got no output, expected -o OUT.ourcc"),
        (
            ["build", "--rebuild", "MODEL", "--quantize", "int8", "--shape", "B=1..4"],
            "got --quantize, --shape with --rebuild, expected none",
        ),
        (["bench", "MODEL", "--against", "onxruntime"], "did you mean 'onnxruntime'?"),
        (["verify", "MODEL", "MODEL", "--tolerance", "-1"], "tolerance: got -1, expected a number of at least 0"),
        (["tune", "MODEL", "--budget", "banana"], "budget: got 'banana', expected a number of schedules, or a duration like 5m\n"),
        (["tune", "MODEL", "--budget", "off"], "budget: got 'off', expected a number of schedules, or a duration like 5m"),
        *(
            ([*words, value], f"error: got an empty word for {words[-1] if name is None else name}; a variable that is not set leaves one")
            for words, name in (
                (["bench", "MODEL", "--against"], None),
                (["cache", "push"], "STORE"),
                (["cache", "merge", "a"], "SOURCE... DESTINATION"),
            )
            for value in ("", "  ")
        ),
        *(
            ([command, "MODEL", option, "a", option, "a"], f"error: {option} is given 2 times, expected once")
            for command, option in (("build", "--precision"), ("bench", "--target"), ("opt", "--pipeline"), ("plan", "--format"))
        ),
        (["bench", "MODEL", "--against", "a", "--against", "b"], "--against is given 2 times, expected once: --against A,B"),
        (["cache", "ls", "a", "b"], "cache ls: got 2 stores, expected at most one"),
        (["cache", "merge", "a"], "cache merge: got 1 stores, expected at least one source and the destination"),
    ],
)
def test_wrong_usage_exits_with_2_and_helps(arguments: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([model if word == "MODEL" else word for word in arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [(CompilerError("bad thing"), 1), (UnsupportedError("no op"), 1), (ContractError("broken"), 3), (KeyboardInterrupt(), 130)],
)
def test_errors_have_their_own_exit_status(commands: Any, model: str, error: BaseException, status: int) -> None:
    fails_with(commands, error)
    assert run(["inspect", model]) == status


def test_an_error_shows_source_note_and_help(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(commands, UnsupportedError("no op X", source=Source("fc1", "m.py", 3), note="one\ntwo", hint="use Y"))
    assert run(["inspect", model]) == 1
    assert capsys.readouterr().err == "error: no op X\n  at fc1 (m.py:3)\n  note: one\n        two\n  help: use Y\n"


def test_json_errors_are_one_object(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(commands, UnsupportedError("no op X", source=Source("fc1"), hint="use Y"))
    assert run(["inspect", model, "--json"]) == 1
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["kind"], error["status"], error["source"], error["hint"]) == ("UnsupportedError", 1, "fc1", "use Y")
    assert printed.err == ""


def test_usage_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", "--mesure"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "UsageError"


def test_a_bug_exits_with_70_and_leaves_a_reproducer(
    commands: Any, model: str, cache_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(commands, ZeroDivisionError("division by zero"))
    assert run(["inspect", model]) == 70
    printed = capsys.readouterr().err
    assert printed.startswith("error: internal error: ZeroDivisionError: division by zero\n  reproducer: ")
    assert "Traceback" not in printed
    (path,) = (cache_folder / "reproducers").iterdir()
    content = json.loads(path.read_text())
    assert content["command"] == ["ourcc", "inspect", model]
    assert any("ZeroDivisionError" in line for line in content["traceback"])


def test_a_bug_with_its_own_reproducer_shows_that(
    commands: Any, model: str, cache_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(commands, InternalError("pass dce broke the program", reproducer="/r/x.ir"))
    assert run(["inspect", model]) == 70
    printed = capsys.readouterr().err
    assert "error: internal error: pass dce broke the program\n  reproducer: /r/x.ir\n" in printed
    assert not cache_folder.exists()


def test_a_reproducer_goes_to_the_current_folder_when_the_cache_cannot_be_written(
    commands: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(commands, ZeroDivisionError())
    monkeypatch.setenv("OURCC_CACHE_DIR", f"{model}/no/folder")
    monkeypatch.chdir(tmp_path)
    assert run(["inspect", model]) == 70
    assert len(list(tmp_path.glob("ourcc-reproducer-*.json"))) == 1


def test_debug_shows_the_traceback(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(commands, CompilerError("bad thing"))
    assert run(["inspect", model, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_one_clear_error(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(commands, OSError(28, "No space left on device", "out.ourcc"))
    assert run(["inspect", model]) == 1
    assert capsys.readouterr().err == "error: no space left on the disk; nothing was written: 'out.ourcc'\n"


def test_a_missing_file_is_one_clear_error(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(commands, FileNotFoundError(2, "No such file or directory", "w.bin"))
    assert run(["inspect", model]) == 1
    assert capsys.readouterr().err == "error: no such file or directory: 'w.bin'\n"


REPORT = Report({"kernels": 3, "time": float("nan"), "fast": True}, (Table("rows", ("name", "size"), (("a", 1), ("b", 2.5))),), "text\n")


def test_a_report_prints_for_people_and_machines(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect = lambda options, progress: REPORT
    assert run(["inspect", model]) == 0
    printed = capsys.readouterr().out
    assert "kernels  3" in printed and "fast     yes" in printed and "2.5" in printed and printed.endswith("text\n")
    assert run(["inspect", model, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == {
        "kernels": 3,
        "time": None,
        "fast": True,
        "rows": [{"name": "a", "size": 1}, {"name": "b", "size": 2.5}],
        "text": "text\n",
    }


def test_violations_are_shown_and_exit_with_3(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect = lambda options, progress: Report({"rows": 1}, violations=("fc1: got fp32, expected int8",))
    assert run(["inspect", model]) == 3
    assert capsys.readouterr().err == "error: 1 promise does not hold\n  note: fc1: got fp32, expected int8\n"


def test_violations_are_one_json_object(commands: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands.inspect = lambda options, progress: Report({"rows": 1}, violations=("a", "b"))
    assert run(["inspect", model, "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert (data["rows"], data["violations"]) == (1, ["a", "b"])


def test_build_hands_over_options_and_saves(commands: Any, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def build(path: Path, options: Any, progress: Any) -> Any:
        progress.stage("fusing", 2)
        progress.advance()
        progress.note("took 3 records")
        seen.append((path, options))
        row = {"source": "fc1", "op": "matmul", "requested": "int8", "realised": "fp32", "why": "does not pay"}
        ports = (SimpleNamespace(name="x", type="f32[B, 8]"),)
        save = lambda output, signing_key: Path(output).write_bytes(b"engine")  # noqa: E731
        made = {
            "functions": {"main": SimpleNamespace(inputs=ports, outputs=(), states=())},
            "targets": ("sm_90a",),
            "parts": {"sm_90a": SimpleNamespace(family="cuda", is_level=False, plans={}, files={})},
            "best": SimpleNamespace(states={}),
        }
        contents = SimpleNamespace(**made, report={"contract": [row]}, symbols=NO_FACTS, provenance={}, assets={}, weights={})
        return SimpleNamespace(save=save, contents=contents)

    commands.build = build
    output = tmp_path / "m.ourcc"
    arguments = ["--target", "cpu", "--target", "sm_90a", "--quantize", "int8-weight", "--tune", "8", "--require", "no-fallback"]
    assert run(["build", model, "-o", str(output), *arguments, "--shape", "x=B:1..32"]) == 0
    ((path, options),) = seen
    assert path == Path(model)
    assert [target.name for target in options.targets] == ["cpu", "sm_90a"]
    assert (options.quantize, options.tune.count, str(options.require[0])) == ("int8-weight", 8, "no-fallback")
    assert output.read_bytes() == b"engine"
    printed = capsys.readouterr()
    assert "fusing ...\n  took 3 records\n" in printed.err
    assert "does not pay" in printed.out and "f32[B, 8]" in printed.out


@pytest.mark.parametrize(
    ("arguments", "action", "given"),
    [
        (["ls"], "ls", ()),
        (["why", "k0"], "why", ("k0",)),
        (["merge", "a", "b", "c"], "merge", ("a", "b", "c")),
        (["import", "f"], "import", ("f",)),
    ],
)
def test_cache_actions_reach_the_driver(commands: Any, arguments: list[str], action: str, given: tuple[str, ...]) -> None:
    seen: list[Any] = []
    commands.cache = lambda options, progress: seen.append(options) or Report()
    assert run(["cache", *arguments]) == 0
    assert (seen[0].action, seen[0].arguments) == (action, given)


@pytest.mark.parametrize(
    ("command", "function", "arguments", "field", "value"),
    [
        ("bench", "bench", ["--against", "eager,onnxruntime"], "against", ("eager", "onnxruntime")),
        ("bench", "bench", ["--against", "eager,eager"], "against", ("eager",)),
        ("tune", "tune", ["--budget", "90s"], "output", None),
        ("verify", "verify", ["MODEL", "--tolerance", "0.5"], "tolerance", 0.5),
        ("opt", "optimize", ["--pipeline", "dce"], "pipeline", "dce"),
        ("inspect", "inspect", ["--source", "k1"], "source", "k1"),
        ("inspect", "inspect", ["--fusion"], "fusion", True),
    ],
)
def test_commands_reach_the_driver(
    commands: Any, model: str, command: str, function: str, arguments: list[str], field: str, value: object
) -> None:
    seen: list[Any] = []
    setattr(commands, function, lambda options, *progress: seen.append(options) or Report())
    assert run([command, model, *(model if word == "MODEL" else word for word in arguments)]) == 0
    assert getattr(seen[0], field) == value
