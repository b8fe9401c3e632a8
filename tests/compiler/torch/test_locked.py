"""torch.compile with a lock that was made for another model: the user's error, never a fault of ours that torch answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ourcc
from ourcc.autotune.lock import LockError

pytestmark = pytest.mark.usefixtures("fresh")


def test_a_lock_of_another_model_is_the_users_error(tmp_path: Path) -> None:
    ourcc.build(torch.nn.Linear(8, 8), (torch.ones(2, 8),), tune="off").save(tmp_path / "m.ourcc")
    model = torch.compile(torch.nn.Linear(24, 40), backend="ourcc", options={"locked": tmp_path / "m.ourcc"})
    with pytest.raises(Exception, match=r"the lock of '.*m\.ourcc' holds no choice for problem") as caught, torch.no_grad():
        model(torch.ones(2, 24))
    found = caught.value
    assert isinstance(found, LockError) or isinstance(found.__cause__, LockError) or "LockError" in str(found)
