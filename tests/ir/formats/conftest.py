"""The format of the page for contributors stands in the table while formats are tested: it passes what all pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ourcc.ir.formats import FORMATS

from .shown import FIVE


@pytest.fixture(scope="module", autouse=True)
def five_is_known() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FORMATS, FIVE.name, FIVE)
        yield
