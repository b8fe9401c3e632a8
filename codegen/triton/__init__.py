"""Tile programs to Triton source for NVIDIA GPUs."""

from .kernel import SIZE_LIMIT, Argument, TritonKernel
from .printer import print_launch, print_program

__all__ = ["SIZE_LIMIT", "Argument", "TritonKernel", "print_launch", "print_program"]
