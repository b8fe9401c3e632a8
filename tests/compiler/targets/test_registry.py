"""Names of targets: architectures, boards that share their code, and what cannot be asked for together."""

from __future__ import annotations

import pytest

from ourcc.compiler.targets.registry import loaded_as, parse_target, parse_targets, target_of_gpu
from ourcc.ir.errors import UsageError
from ourcc.ir.target import GPU_BOARDS, gpu_target


@pytest.mark.parametrize(("board", "architecture"), [("h100", "sm_90a"), ("h200", "sm_90a"), ("b200", "sm_100a"), ("b300", "sm_103a")])
def test_a_board_is_loaded_as_its_architecture(board: str, architecture: str) -> None:
    target, machine = parse_target(board), gpu_target(board)
    assert loaded_as(board) == machine.name == architecture and target.family == "cuda"
    assert target.device().source == f"the maker's figures for {board.upper()}" and machine.source.startswith("NVIDIA")
    same, other = gpu_target(architecture), GPU_BOARDS[board]
    code = ("capability", "shared_memory", "registers", "tensor_memory", "matrix_instruction", "matrix_rows", "ptx_isa")
    assert all(getattr(same, name) == getattr(other, name) for name in code)


def test_boards_of_one_architecture_differ_in_memory() -> None:
    """H100, H200 and B200 are rows of their own: what moves bytes is 1.43 times as fast on H200 as on H100."""
    h100, h200, b200 = (gpu_target(name) for name in ("h100", "h200", "b200"))
    assert (h100.memory_rate, h200.memory_rate, b200.memory_rate) == (3.35e12, 4.8e12, 8e12)
    assert (h100.memory_bytes, h200.memory_bytes, b200.memory_bytes) == (80 * 10**9, 141 * 10**9, 180 * 10**9)
    assert h100.rates == h200.rates and b200.rates["bf16"] == 2250e12


def test_one_engine_holds_one_part_of_an_architecture() -> None:
    assert [target.name for target in parse_targets(["h100", "b200", "cpu", "native"])] == ["h100", "b200", "cpu", "native"]
    with pytest.raises(UsageError, match="target: h100 and h200 are both sm_90a, of which an engine holds one part"):
        parse_targets(["h100", "cpu", "h200"])
    with pytest.raises(UsageError, match="target: sm_90a and h100 are both sm_90a"):
        parse_targets(["sm_90a", "h100"])


def test_a_gpu_whose_board_is_not_known_has_its_architecture() -> None:
    found = [target_of_gpu((9, 0)), target_of_gpu((9, 0), "NVIDIA H200 NVL"), target_of_gpu((12, 0), "x"), target_of_gpu((7, 5), "T4")]
    assert [None if target is None else target.name for target in found] == ["sm_90a", "h200", "sm_120a", None]
