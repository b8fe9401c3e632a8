"""`ourcc runtime`: what it writes compiles, and what keeps it from writing is said."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.runtime import compile_line, write_runtime
from ourcc.runtime.sources import FLAGS, sources


def test_a_folder_gets_header_and_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runtime"
    assert run(["runtime", "-o", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict(sources())
    assert told["header"] == str(folder / "ourcc.h") and told["compile"] == compile_line(folder)
    assert {row["name"] for row in told["files"]} == set(sources())
    assert all(row["owns"][0].isupper() and len(row["owns"]) > 20 for row in told["files"])
    # Written again, it is what it was.
    assert run(["runtime", "-o", str(folder), "-q"]) == 0
    assert {path.name for path in folder.iterdir()} == set(sources())


def test_the_line_that_it_prints_compiles_a_program(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    line = str(write_runtime(folder).facts["compile"])
    (tmp_path / "PROGRAM.c").write_text('#include "ourcc.h"\nint main(void) { return ourcc_open(0, 0, 0, 0) == OURCC_USAGE ? 0 : 1; }\n')
    script = tmp_path / "compile.sh"
    script.write_text(line + " -Werror\n./PROGRAM\n")
    subprocess.run(["sh", "-e", str(script)], cwd=tmp_path, check=True)


def test_the_lines_of_the_page_compile(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "c.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```c\n#include \"ourcc.h\"\n(.*?)```", page, re.DOTALL)
    write_runtime(tmp_path)
    start = '#include "ourcc.h"\nstatic int complain(const char *message) { return message == 0; }\n'
    (tmp_path / "page.c").write_text(
        f"{start}int page(int64_t ids[18], int64_t mask[18]);\nint page(int64_t ids[18], int64_t mask[18]) {{\n{snippet}return 0; }}\n"
    )
    subprocess.run(["cc", *FLAGS, "-c", "page.c", "-o", "page.o"], cwd=tmp_path, check=True)


def test_what_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert run(["runtime", "-o", str(path)]) == 2
        assert "error: " in capsys.readouterr().err
