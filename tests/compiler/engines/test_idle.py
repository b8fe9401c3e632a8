"""Options that change nothing: which are refused of what, and those that mean something pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from ourcc.compiler.engines.idle import IDLE, refuse_idle
from ourcc.ir.errors import UsageError

NAMES = {"an engine": "e.ourcc", "a model": "m.onnx", "a program in text": "m.ir"}


@pytest.mark.parametrize("what", NAMES)
def test_what_has_no_effect_is_refused(what: str) -> None:
    for flag in ("--shape", "--trust-pickle", "--trusted-key"):
        if flag not in IDLE[what]:
            refuse_idle(Path(NAMES[what]), {flag: True}, "a program in text")
            continue
        with pytest.raises(UsageError, match=f"got {flag} for {what}, expected none: {IDLE[what][flag]}\n  help: leave {flag} out"):
            refuse_idle(Path(NAMES[what]), {flag: True}, "a program in text")
        refuse_idle(Path(NAMES[what]), {flag: ()}, "a program in text")
