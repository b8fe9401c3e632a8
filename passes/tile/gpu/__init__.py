"""Strategies for GPUs, in the order in which they are asked."""

from __future__ import annotations

from typing import Any

from ..schedule import Strategy
from .attention import GpuAttention
from .blocked import Blocked
from .elementwise import Elementwise
from .grouped import Grouped
from .reasons import why_no_matrix_instruction
from .rows import Rows
from .scaled import BlockScaled
from .split_attention import SplitAttention
from .split_k import SplitK
from .split_rows import SplitRows
from .steps import Steps
from .stream_k import StreamK
from .taps import Taps
from .tensor import Tensor
from .vector import Vector

STRATEGIES: tuple[Strategy[Any], ...] = (
    *(SplitAttention(), GpuAttention(), BlockScaled(), Blocked(), Vector(), StreamK(), SplitK(), Tensor(), Grouped()),
    *(Taps(), SplitRows(), Rows(), Elementwise(), Steps()),
)

__all__ = ["STRATEGIES", "why_no_matrix_instruction"]
