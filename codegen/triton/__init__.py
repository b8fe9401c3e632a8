"""Tile programs to Triton source for NVIDIA GPUs."""

from ...ir.extras import need

# Every road to Triton comes through here, so that a missing Triton is said with the extra's name.
need("triton", "NVIDIA targets (sm_*)")

from .kernel import Argument, TritonKernel  # noqa: E402
from .printer import print_launch, print_program  # noqa: E402

__all__ = ["Argument", "TritonKernel", "print_launch", "print_program"]
