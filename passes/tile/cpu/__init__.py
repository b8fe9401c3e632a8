"""Strategies for CPUs, in the order in which they are asked."""

from __future__ import annotations

from typing import Any

from ..schedule import Strategy
from .attention import CpuAttention
from .grouped import CpuGrouped
from .nest import Nest
from .packed import Packed
from .windows import CpuWindows
from .winograd import Winograd

STRATEGIES: tuple[Strategy[Any], ...] = (CpuAttention(), Winograd(), Packed(), CpuWindows(), CpuGrouped(), Nest())
