"""The C code generator: tile programs to C, and C to shared objects."""

from .compile import Compiler, SharedObject, compile_shared, find_compiler
from .printer import Kernel, SourceFile, grid_points, print_launch

__all__ = ["Compiler", "Kernel", "SharedObject", "SourceFile", "compile_shared", "find_compiler", "grid_points", "print_launch"]
