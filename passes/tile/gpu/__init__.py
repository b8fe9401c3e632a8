"""Strategies for GPUs, in the order in which they are asked."""

from __future__ import annotations

from ..schedule import Strategy
from .elementwise import Elementwise
from .rows import Rows
from .steps import Steps

STRATEGIES: tuple[Strategy, ...] = (Rows(), Elementwise(), Steps())
