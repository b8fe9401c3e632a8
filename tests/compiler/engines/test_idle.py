"""Options that change nothing for what a command is given: each is refused, with a reason, and what has an effect is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ourcc.compiler.engines.idle import IDLE, refuse_idle
from ourcc.ir.errors import UsageError

SUBJECTS = {"an engine": "m.ourcc", "a model": "m.onnx", "a program in text": "m.ir"}


@pytest.mark.parametrize("what", SUBJECTS)
@pytest.mark.parametrize("flag", ["--shape", "--trust-pickle", "--trusted-key"])
def test_an_option_is_refused_where_it_is_idle_alone(what: str, flag: str, tmp_path: Path) -> None:
    subject = tmp_path / SUBJECTS[what]
    subject.write_bytes(b"PK\x03\x04" if what == "an engine" else b"module @m {")
    refuse_idle(subject, {flag: None}, "a program in text")
    if flag not in IDLE[what]:
        refuse_idle(subject, {flag: ("x",)}, "a program in text")
        return
    with pytest.raises(UsageError, match=f"got {flag} for {what}, expected none: {IDLE[what][flag]}") as caught:
        refuse_idle(subject, {flag: ("x",)}, "a program in text")
    assert caught.value.hint
