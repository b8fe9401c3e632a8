"""Progress bars on a terminal, lines elsewhere, and a reader that goes away."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from ourcc.compiler.cli.output import Bars, format_cell, print_report
from ourcc.compiler.environment import said_columns
from ourcc.compiler.report.table import Report, Table

LONG_ERROR = """
from ourcc.compiler.cli.output import print_error
print_error("error: " + "word " * 20 + "end")
"""

_STAGES = """
import sys
from ourcc.compiler.cli.output import show_progress
with show_progress(as_json=False) as progress:
    progress.stage("import")
    progress.stage("tune", 3)
    progress.advance(2)
    progress.note("took 5 records")
"""


def test_a_terminal_shows_bars() -> None:
    reader, writer = pty.openpty()
    done = subprocess.run([sys.executable, "-c", _STAGES], stderr=writer, stdout=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    shown = b""
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(reader)
    assert done.returncode == 0
    assert done.stdout == b""
    for text in (b"import", b"tune", b"3/3", b"took 5 records"):
        assert text in shown


def test_elsewhere_there_is_a_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as progress:
        progress.stage("import")
        progress.advance()
        progress.note("took 5 records")
    assert capsys.readouterr().err == "import ...\n  took 5 records\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from ourcc.compiler.cli.main import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code, "doctor"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_cells_print_as_people_read_them() -> None:
    assert [format_cell(cell) for cell in (None, True, False, 3, 0.123456, "x")] == ["-", "yes", "no", "3", "0.1235", "x"]


def test_a_column_that_says_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("kernels of sm_90a", ("kernel", "shared_bytes", "notes"), (("k", 4096, None), ("l", None, None)))
    print_report(Report({}, (table,)), as_json=False)
    shown = capsys.readouterr().out
    assert "kernels of sm_90a" in shown and "shared bytes" in shown and "notes" not in shown
    print_report(Report({}, (table,)), as_json=True)
    assert '"notes": null' in capsys.readouterr().out


def test_a_file_has_no_width_though_a_terminal_looks_on(tmp_path: Path) -> None:
    """`ourcc ... 2> log` on a terminal: the log's lines are whole; a line for the terminal is not longer than it is wide."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    command, environment = [sys.executable, "-c", LONG_ERROR], dict(os.environ)  # readline exports COLUMNS where Python does not see it
    with (tmp_path / "log").open("wb") as log:
        for stderr in (log, follower):
            subprocess.run(command, stdin=follower, stdout=follower, stderr=stderr, env=environment, check=True, timeout=60)
    assert (tmp_path / "log").read_text() == "error: " + "word " * 20 + "end\n"
    shown = os.read(leader, 4096).decode()
    os.close(leader), os.close(follower)
    assert len(shown.splitlines()) > 1 and max(map(len, shown.splitlines())) <= 40


@pytest.mark.parametrize(("said", "width"), [("", None), ("0", None), ("72", 72), ("wide", None), ("²", None), ("9" * 9, None)])
def test_columns_may_say_anything(said: str, width: int | None) -> None:
    assert said_columns({"COLUMNS": said}) == width
