"""Words that are nearly right are told which word was meant; others are not guessed at."""

from __future__ import annotations

import pytest

from ourcc.ir.errors import UsageError
from ourcc.ir.spelling import function_of, nearest


def test_the_nearest_word_is_suggested() -> None:
    assert nearest("simplfy", ["import", "simplify"]) == "did you mean 'simplify'?"
    assert nearest("zzz", ["import", "simplify"]) is None
    assert nearest("simplfy", ["import", "simplify"], cutoff=0.99) is None


def test_a_word_that_begins_others_means_the_first_of_them() -> None:
    assert nearest("int4", ["int8", "int4-weight", "int4-a8"]) == "did you mean 'int4-weight'?"
    assert nearest("fp8", ["fp8-weight", "fp9"]) == "did you mean 'fp8-weight'?"
    assert nearest("i", ["int8"]) is None


def test_the_function_of_an_engine() -> None:
    assert function_of(["main", "other"], None) == "main" and function_of(["main", "other"], "other") == "other"
    with pytest.raises(UsageError, match="--function othr: the engine has main, other") as found:
        function_of(["main", "other"], "othr")
    assert found.value.hint == "did you mean 'other'?"
