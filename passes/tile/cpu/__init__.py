"""Strategies for CPUs, in the order in which they are asked."""

from __future__ import annotations

from ..schedule import Strategy
from .nest import Nest
from .packed import Packed

STRATEGIES: tuple[Strategy, ...] = (Packed(), Nest())
